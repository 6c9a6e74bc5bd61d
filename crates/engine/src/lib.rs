//! The verbs engine.
#![forbid(unsafe_code)]
pub mod platform;
