//! The wire between processes of one host: packets travel through memory that two processes share. DESIGN.md of this
//! crate draws how two processes meet, the life of a link, and how memory is taken back.
//!
//! * [`rendezvous`]: how processes find each other (abstract unix sockets named after blocks of QP numbers) and what
//!   they say on the socket. `socket` holds the system calls for it.
//! * `codec`: a packet as the words of a ring record.
//! * `link`: one peer: two rings, a doorbell, and a socket that closes when the peer is gone.
//! * `peers`: connecting, accepting. `events`: waiting for events. `meeting`: greetings, proofs, doorbells.
//! * `multicast`: finding the members of a group. `sleep`: doorbells.
//! * `thresholds`: when large messages go by single copy, and when through the window.
//! * `export_table`: requests that the initiator executes, on what the peer shows of itself.
//! * `known`: what of that is kept for the next request.
//! * [`WindowEnv`]: all of it as the engine's [`wire::Env`].
//!
//! * `quiet`: waiting for peers' copies, without the lock.
//!
//! Nothing here blocks (but [`Unquiet::wait`], and for milliseconds a cooperative copy), and nothing that a peer says
//! or does is trusted.
#![forbid(unsafe_code)]

mod codec;
mod config;
mod env;
mod events;
mod export_table;
mod facts;
mod identity;
mod known;
mod link;
mod meeting;
mod multicast;
mod peers;
mod quiet;
mod random;
pub mod rendezvous;
mod shared;
mod sleep;
mod socket;
mod stream_detector;
mod thresholds;

pub use config::{Config, SINGLE_COPY_ABOVE};
pub use env::{Stats, WindowEnv};
pub use events::{Events, hear_once, hear_timer, hear_wakes};
pub use facts::is_owned;
pub use link::Rx;
pub use memory::arena::Mapped;
pub use quiet::{InVain, Unquiet};
pub use shared::Place;
