//! iWARP as state machines: MPA (RFC 5044; RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040). Bytes of a TCP stream and
//! the time go in; bytes, placements, deliveries and deadlines come out. No socket, no thread, no clock, no std.
//!
//! | module | what is there |
//! |---|---|
//! | [`mpa`] | the start of a connection; FPDUs and markers in both directions |
//! | [`ddp`] | messages cut into segments; the queues of untagged ones |
//! | [`rdmap`] | a connection in full operation: SEND, WRITE, READ, Terminate |
//!
//! # A connection
//!
//! Both sides exchange frames ([`mpa::Initiator`], [`mpa::Responder`]) until they have [`mpa::Agreed`]; from then on
//! each has an [`rdmap::Stream`]. What the stream asks of memory, it asks its [`rdmap::Target`].
//!
//! ```
//! use std::ops::Range;
//!
//! use iwarp::ddp::TagFault;
//! use iwarp::mpa::initiator::Answer;
//! use iwarp::mpa::send::Sink;
//! use iwarp::mpa::{Initiator, Responder, Role, Wishes};
//! use iwarp::rdmap::{Config, Delivery, Place, Stream, Target, Work};
//! use verbs::RKey;
//!
//! /// One region: tag 7, from offset 0 on, for the peer's WRITEs.
//! struct Memory([u8; 16]);
//!
//! impl Target for Memory {
//!     fn check_write(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
//!         match offset.checked_add(len.into()) {
//!             _ if stag != RKey(7) => Err(TagFault::Invalid),
//!             Some(end) if end <= 16 => Ok(()),
//!             _ => Err(TagFault::Bounds),
//!         }
//!     }
//!     fn place(&mut self, place: Place, bytes: &[u8]) -> Result<(), TagFault> {
//!         let Place::Tagged { offset, .. } = place else { return Err(TagFault::Invalid) };
//!         self.0[offset as usize..][..bytes.len()].copy_from_slice(bytes);
//!         Ok(())
//!     }
//!     fn deliver(&mut self, delivery: Delivery) {
//!         assert_eq!(delivery, Delivery::Write { stag: RKey(7), end: 9 });
//!     }
//!     fn check_sink(&mut self, _: RKey, _: u64, _: u32) -> Result<(), TagFault> { Err(TagFault::Invalid) }
//!     fn check_source(&mut self, _: RKey, _: u64, _: u32) -> Result<(), TagFault> { Err(TagFault::Invalid) }
//!     fn take_receive(&mut self) -> Option<u32> { None }
//!     fn invalidate(&mut self, _: RKey) -> Result<(), TagFault> { Err(TagFault::NotInvalidated) }
//! }
//!
//! /// What TCP is given: our own bytes, and those of the message.
//! struct Tcp<'a>(Vec<u8>, &'a [u8]);
//!
//! impl Sink for Tcp<'_> {
//!     fn own(&mut self, bytes: &[u8]) { self.0.extend_from_slice(bytes) }
//!     fn payload(&mut self, range: Range<usize>) { self.0.extend_from_slice(&self.1[range]) }
//! }
//!
//! let mut initiator = Initiator::new(Wishes::new(Role::Initiator, 4), b"hello", 0).unwrap();
//! let mut responder = Responder::new(Wishes::new(Role::Responder, 4), 0);
//! responder.input(initiator.output()).unwrap().expect("a whole request");
//! initiator.sent(initiator.output().len());
//! let theirs = responder.accept(4, 4, b"welcome").unwrap().unwrap();
//! let Answer::Accepted(ours) = initiator.input(responder.output()).unwrap() else { panic!() };
//!
//! let config = Config::new(1460);
//! let (mut ours, mut theirs) = (Stream::new(&ours, &config, 0), Stream::new(&theirs, &config, 0));
//! let data = *b"data";
//! let mut tcp = Tcp(Vec::new(), &data);
//! ours.start(Work::Write { stag: RKey(7), offset: 5, len: 4 }).unwrap();
//! while ours.send(&data[..], &mut tcp) == Some(false) {}
//! let mut memory = Memory([0; 16]);
//! theirs.input(0, &tcp.0, &mut memory);
//! assert_eq!(memory.0[5..9], data);
//! assert_eq!(theirs.end(), None);
//! ```
//!
//! # Bounds
//!
//! A connection has no more memory than when it was made: two frames of at most 532 bytes until full operation; then
//! some 700 bytes, 24 for each READ that may be outstanding, and 48 for each early FPDU that is remembered
//! ([`rdmap::Config`]). FPDUs that are not whole stay with the caller: at most 65,544 bytes and their markers.
//! Whatever the peer sends, a stream's answer is one Terminate message at most.
//!
//! # Exceptions
//!
//! * RFC 5044, section 6 has an FPDU checked before its segment is placed. [`rdmap::Config`] can have large segments
//!   placed first and delivered after the check ([`mpa::receive`]).
//! * RFC 5041, section 7.2 has no number for a region that may not be written: "invalid STag" stands for that.
//! * RFC 5041, section 6.2.1 lets a side send after the other one's FIN. Here FIN ends the stream, as in Linux's siw.
//! * RFC 5040, section 4.1 has version 0 for adapters of the RDMA Consortium, which have another MPA: it is refused.
//! * A message is sent whole before the next one starts.
//!
//! # Citations
//!
//! A rule stands beside the code that fulfils it, always as `RFC` with its number, a comma, `section` with its number.
//! A test of the development commands holds the form, and that the section is one of the RFC.
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
