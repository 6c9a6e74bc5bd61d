//! What the conformance tests stand on. The tests themselves are in `tests/`; they reach the device only through the C ABI of
//! `libsoftrnic.so`, as any program does.

mod bed;
mod far;
mod library;
mod wait;

pub use bed::{Bed, Joint, PORT};
pub use far::{Far, Wire};
pub use library::library;
pub use wait::{PATIENCE, collect, until};
