//! Group operations along a chain of replicas (HyperLoop, SIGCOMM 2018), by entries that were posted beforehand.
//!
//! A client writes, copies, compares and swaps in the memory of all replicas of a chain. After set-up, no replica's
//! program takes part: the client's message patches entries of managed queues ([`rdma::dv`]) on every replica, and
//! the queues run in a circle, so nothing is posted again.
//!
//! # What is where
//!
//! | subject | items |
//! |---|---|
//! | a replica | [`Server`], [`ServerOptions`] |
//! | operations, and what is refused | [`Operation`] |
//! | a client | [`Client`], [`ClientOptions`], [`Done`], [`Wait`] |
//! | what the servers say about themselves | [`status()`], [`HopStatus`] |
//! | why a group ended | [`Error`] |
//!
//! # The way of one gWRITE
//!
//! Each replica has three queue pairs for each group: `previous` receives from the client's side, `own` is connected to
//! itself, `next` leads to the following replica; that of the last replica leads to the client. A *round* is what
//! `previous` and `next` have for one message. Full rounds and short ones take turns:
//!
//! | queue | entries of a full round | of a short one |
//! |---|---|---|
//! | `previous`, receives | one receive, whose list leads into the entries of `next` and into the note | the same |
//! | `next`, sends | WAIT for the receive; WRITE; SEND_EN of `own`, WAIT for it; SEND of the note | WAIT; WRITE; SEND |
//! | `next` of the last replica | WAIT for the receive; SEND_EN of `own`, WAIT for it; WRITE; SEND | the same |
//!
//! The message patches what is between the first entry and the last. A gWRITE takes any round, and has NOPs for SEND_EN
//! and second WAIT. `own` has one entry for each full round, and executes it when it is enabled.
//!
//! 1. The client WRITEs the data to the first replica, and SENDs a message: one record for each replica, then, in a
//!    full round, 8 bytes for each replica's result.
//! 2. The receive scatters the first record into the entries, and the rest into the round's note.
//! 3. Its completion meets the WAIT. `next` WRITEs the data to the following replica and SENDs the note.
//! 4. The last replica has nothing to pass on. Its SEND has no bytes, and goes to the client, which counts the
//!    operation as done.
//!
//! A gMEMCPY and a gCAS take a full round. The message also has an entry of `own` for each replica but the first: a
//! WRITE, or a compare and swap whose old value goes into the note. The client WRITEs the entry of the first replica
//! there, and each replica that of the following one, in place of data. So `own` has had as many entries as there were
//! such operations, and a gWRITE does not concern it. The last replica's note holds only the results: of a gCAS its
//! WRITE takes them to the client. If such an operation comes to a short round, the client sends an empty message
//! first: NOPs only. A gFLUSH is an empty message, too: it goes on when all before it is in memory.
//!
//! # What is promised
//!
//! * Operations are done in order on each replica. An operation that conflicts with one under way waits for it at the
//!   client ([`Client::submit`]), so a window does not change the outcome.
//! * When an operation is done, all replicas have executed it.
//! * A gFLUSH promises that earlier operations of the group are visible in each replica's memory. That memory is no
//!   storage: it survives the applications, not the server's end.
//! * A group that fails in the middle has applied the operation to the first replicas only. Writes at offsets may be
//!   repeated.

mod client;
mod error;
mod message;
mod operation;
mod replica;
mod rounds;
mod setup;
mod status;

pub use client::{Client, ClientOptions, Done, Wait};
pub use error::{Error, Result};
pub use operation::{MOST_REPLICAS, Operation};
pub use replica::{Server, ServerOptions};
pub use status::{HopStatus, status};

/// The largest window.
pub const MOST_WINDOW: u32 = 2000;
