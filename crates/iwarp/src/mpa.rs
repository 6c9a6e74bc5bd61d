//! MPA: DDP segments on a TCP stream (RFC 5044; RFC 6581 for enhanced connection establishment).

mod frame;
pub mod initiator;
pub mod responder;
pub mod start;

#[cfg(test)]
mod start_tests;

pub use initiator::Initiator;
pub use responder::Responder;
pub use start::{Agreed, Failure, Ready, ReadyKinds, Role, Wishes};
