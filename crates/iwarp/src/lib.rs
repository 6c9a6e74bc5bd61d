//! iWARP as state machines: MPA (RFC 5044, RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040). Bytes of a TCP stream and
//! the time go in; bytes, placements, deliveries and deadlines come out. No socket, no thread, no clock, no std.
//!
//! The device does not use this crate yet: it is the protocol of a second wire, without a driver.
//!
//! | module | what is there |
//! |---|---|
//! | [`mpa`] | the start of a connection; FPDUs and markers in both directions |
//! | [`ddp`] | messages cut into segments; the queues of untagged ones |
//! | [`rdmap`] | a connection in full operation: SEND, WRITE, READ, Terminate |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod ddp;
pub mod mpa;
pub mod rdmap;

#[cfg(test)]
mod tests;

/// Nanoseconds since any fixed moment.
pub type Nanos = u64;

/// One second.
const SECOND: Nanos = 1_000_000_000;
