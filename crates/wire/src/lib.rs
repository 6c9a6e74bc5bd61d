//! What travels between two ends of a connection: packets and links, the traits by which an engine uses them, and the
//! headers of InfiniBand, RoCEv2 and iWARP as they are on a wire. No input or output, no clock.
//!
//! A [`Packet`] is what an engine sends and receives, before a wire has given it a layout. A [`LinkId`] names the path
//! to one peer, [`LinkCaps`] says what that path can do, and [`Env`] is all that an engine asks of its surroundings,
//! divided into traits. What one wire alone has is in traits and capabilities that are absent by default
//! ([`SameHost`]).
//!
//! # Headers
//!
//! Each header has one file, and all files have one shape:
//!
//! * `field`: where each field is.
//! * `View`: a header in place. [`bth::View::new`] checks the length once; after that no accessor can fail. An accessor
//!   returns what the bytes hold, whether or not it has a meaning.
//! * `Repr`: what a header means, as a plain value. `Repr::parse` takes a `View` and refuses what the specification
//!   says a receiver refuses; `Repr::emit` returns the bytes. `Repr::read` is both steps of receiving at once: it
//!   returns the header and what follows it.
//! * `Display`: one line for a log or a test.
//!
//! Values are big-endian unless a file says otherwise. Reserved bits are sent as zero and ignored on receipt, which is
//! what all the specifications here ask for (IBTA vol. 1, 1.5.3 and RFC 5040 to 5044), unless a file cites a rule that
//! has them checked. A `Repr` field that has fewer bits than its type is cut to them by `emit`.
//!
//! Nothing here panics, whatever the input is.
//!
//! | family | headers |
//! |---|---|
//! | network | [`ethernet`], [`ipv4`], [`ipv6`] ([`version6`]), [`udp`], [`tcp`] |
//! | InfiniBand, every packet | [`grh`], [`bth`] with [`opcode`], [`icrc`] |
//! | requests | [`reth`], [`atomic_eth`], [`imm_dt`], [`ieth`], [`deth`], [`xrceth`], [`feth`] |
//! | responses | [`aeth`], [`atomic_ack_eth`] |
//! | in sequence | [`transport`] (BTH and what its opcode says), [`roce`] (a whole frame) |
//! | management | [`mad`] and [`mad::cm`] |
//! | iWARP | [`mpa`], [`ddp`], [`rdmap`] |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[macro_use]
mod header;
mod bytes;
mod env;
mod error;
mod link;
mod packet;
mod same_host;
mod short_packet;

pub mod aeth;
pub mod atomic_ack_eth;
pub mod atomic_eth;
pub mod bth;
pub mod checksum;
pub mod ddp;
pub mod deth;
pub mod ethernet;
pub mod feth;
pub mod grh;
pub mod icrc;
pub mod ieth;
pub mod imm_dt;
pub mod ipv4;
pub mod ipv6;
pub mod mad;
pub mod mpa;
pub mod opcode;
pub mod rdmap;
pub mod reth;
pub mod roce;
pub mod tcp;
pub mod transport;
pub mod udp;
pub mod version6;
pub mod xrceth;

pub use env::{Entropy, EntryArray, Env, Memory, Observer, PacketWire, SameHost};
pub use error::{Error, Result};
pub use link::{AtomicOp, Fault, LinkCaps, LinkId, Nanos, Part, Path, Payload, SendError, SingleCopyCaps, Span};
pub use packet::{Head, Packet, PacketOp, packet_flags};
pub use same_host::{
    Export, ExportId, Offer, OneSided, OneSidedDone, OneSidedOp, PIECE, SHORTEST, SingleCopyError, TOGETHER, TicketRef,
    check_one_sided,
};
pub use short_packet::ShortPacket;

/// The methods of the traits, without their names: for code that calls them on one type.
pub mod prelude {
    pub use crate::env::{Entropy as _, Memory as _, Observer as _, PacketWire as _, SameHost as _};
}
