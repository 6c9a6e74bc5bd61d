//! MPA: DDP segments on a TCP stream (RFC 5044; RFC 6581 for enhanced connection establishment).

pub mod early;
mod frame;
pub mod initiator;
pub mod receive;
pub mod responder;
pub mod send;
pub mod start;

#[cfg(test)]
mod framing_tests;
#[cfg(test)]
mod start_tests;

pub use initiator::Initiator;
pub use receive::Receiver;
pub use responder::Responder;
pub use send::Sender;
pub use start::{Agreed, Failure, Ready, ReadyKinds, Role, Wishes};
