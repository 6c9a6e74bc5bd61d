//! Support for the conformance tests. The tests themselves are in `tests/`; they reach the device only through the C
//! ABI of `libsoftrnic.so`, as any program does.

mod fixture;
mod footprint;
mod library;
mod program;
mod random;
mod remote;
mod setting;
pub mod side;
mod wait;

pub use fixture::{Fixture, Joined, PORT};
pub use footprint::Footprint;
pub use library::library;
pub use program::{program, softrnic};
pub use random::Random;
pub use remote::{Remote, Wire, is_stopped};
pub use setting::{seed, setting};
pub use wait::{PATIENCE, Pace, collect, until};
