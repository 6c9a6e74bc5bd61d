//! Extended sockets (`crates/exs`) between two processes, over the device.

mod acks;
mod common;
mod credits;
mod data;
mod ends;
mod forged;
mod forked;
mod invalidate;
mod keys;
mod many;
mod notices;
mod packets;
mod ring;
mod soak;
mod waits;
