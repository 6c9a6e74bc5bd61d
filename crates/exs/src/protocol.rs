//! The protocol of a connection: its messages, and what each end does with them.
//!
//! SEQPACKET: transfer is controlled by the recipient. A send becomes an advertisement (ADVERT: address, key, length).
//! The recipient READs into the buffer of a receive, then acknowledges (ACK), and the acknowledgement ends the send.
//! Small data come in the advertisement itself (SMALL).
//!
//! STREAM: the receiver offers its receives (OFFER), and the sender WRITEs into them, or into a ring:
//! [`crate::stream`].

mod bytes;
mod connection;
mod notice;
mod packets;
mod pulse;
#[cfg(test)]
mod row_tests;
mod table;
mod wire;

pub use connection::{Connection, Output, Read, Write};
pub use notice::{NOTICE, Notice, NoticePlaces};
pub use table::{Buffer, Done, Op, Outcome, Refused, Remote, Reset, Taken, Transferred};
pub use wire::{HEADER, HELLO, Hello, HelloError, Immediate, Kind, MAX_LEN, MAX_RING, MAX_SMALL, Malformed, Message};
pub use wire::{ROW, Settings, TOGETHER, VERSION};
