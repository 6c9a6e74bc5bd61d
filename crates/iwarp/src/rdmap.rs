//! RDMAP: SEND, WRITE, READ and Terminate (RFC 5040), above DDP (RFC 5040, section 3.1). What RFC 7306 adds is
//! understood and refused.
//!
//! A [`Stream`] is a connection in full operation. Its [`Target`] is the memory and the receives of this side: it is
//! asked before anything is placed, then told what to place, then what is delivered.

mod early;
mod fault;
mod inbound;
mod outbound;
mod reads;
mod stream;
mod target;
pub mod terminate;

#[cfg(test)]
mod tests;

pub use fault::{Fault, Reason};
pub use outbound::{Refused, Work};
pub use stream::{Config, End, Stream};
pub use target::{Delivery, Place, Target};
