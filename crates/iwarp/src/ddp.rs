//! DDP: where the bytes of a message go (RFC 5041). Sending cuts a message into segments; receiving checks each header
//! before anything of the payload is placed.
//!
//! What RFC 5041, section 3 asks of the layer below is done by [`crate::mpa`]: boundaries, lengths and order of
//! segments, a digest, and the end of the stream.

pub mod fault;
pub mod message;
pub mod queue;

#[cfg(test)]
mod tests;

pub use fault::{Fault, TagFault};
pub use message::{Message, Model, Segment};
pub use queue::Queue;
