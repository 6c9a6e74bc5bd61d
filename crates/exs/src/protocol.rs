//! The protocol of a connection: its messages, and what each end does with them.
//!
//! Transfer is controlled by the recipient. A send becomes an advertisement (ADVERT: address, key, length). The
//! recipient READs into the buffer of a receive, then acknowledges (ACK), and the acknowledgement ends the send. Small
//! data come in the advertisement itself (SMALL).

mod connection;
mod table;
mod wire;

pub use connection::{Connection, Output, Read};
pub use table::{Buffer, Done, Op, Outcome, Refused, Remote, Reset};
pub use wire::{HEADER, HELLO, Hello, HelloError, Kind, MAX_LEN, MAX_SMALL, Malformed, Message, Settings, VERSION};
