//! The exported symbols: one jump each, made by `build.rs` from `exports.txt`.

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
