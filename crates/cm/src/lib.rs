//! The connection manager behind librdmacm: what the kernel's `rdma_cm` does for an adapter, done between processes of
//! one host, with no daemon.
//!
//! * [`conn`]: the handshake of one connection; no socket, no clock.
//! * [`message`]: the messages between connection managers; `mad`: how a network would carry them, for captures.
//! * [`names`]: how ports are claimed, and which claims exclude each other.
//! * [`manager`]: the calls of programs on ids. Its parts: `ids` (the state behind the lock), `binding` (addresses),
//!   `requests` (from connect to accept), `ports` (which id holds which port), `prepare` (what is looked up without the
//!   lock), `incident` (incidents of the device), `links` (sockets to other processes' managers), `thread` (which reads
//!   them).
//! * `tcp`, `mpa`: connections of iWARP: their sockets, and their start and end (RFC 5044; RFC 6581).
//! * [`route`]: which wire leads to an address. That is decided when the peer is known, and the handshake does not know
//!   the answer.
//! * [`channel`]: events on their way to the program.
#![forbid(unsafe_code)]

mod binding;
pub mod channel;
pub mod conn;
pub mod event;
mod facts;
pub mod group;
mod ids;
mod incident;
mod links;
mod mad;
pub mod manager;
pub mod message;
mod mpa;
pub mod names;
mod ports;
mod prepare;
mod requests;
pub mod route;
mod socket;
mod tcp;
mod thread;

pub use channel::{Channel, Got};
pub use event::{ConnParams, Ece, Event, EventKind, Params, UdParams};
pub use manager::{Cm, ConnectParams, IdKey, Options};
