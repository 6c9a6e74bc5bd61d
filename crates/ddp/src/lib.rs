//! Direct data placement for programs without verbs: messages on a TCP socket whose bytes go to where a buffer says.
//!
//! A [`Socket`] speaks MPA, DDP and RDMAP (RFC 5044, 5041, 5040; crate `iwarp`), so its peer may be any iWARP. The
//! calls are those of the DDP and RDMA programming interfaces of RFC 4296:
//!
//! | interface | here |
//! |---|---|
//! | `ddp_send`, `rdma_send` | [`Socket::send`] |
//! | `ddp_send_ddp`, `rdma_write` | [`Socket::write`] |
//! | `rdma_read` | [`Socket::read`] |
//! | `ddp_post_recv`, `rdma_post_recv` | [`Socket::post_recv`] |
//! | `ddp_recv`, `rdma_recv` | [`Socket::recv`] |
//! | `ddp_register`, `rdma_register` | [`Socket::register`] |
//! | `ddp_deregister`, `rdma_deregister` | [`Socket::deregister`] |
//! | `ddp_max_msizes`, `rdma_max_msizes` | [`Socket::max_sizes`] |
//!
//! # Rules
//!
//! * A [`Buffer`] has memory of its own or of the program ([`Memory`]), or is a part of another one: parts overlap as
//!   the program likes.
//! * One buffer may be registered many times, on one socket or on many. Each registration has its own [`Tag`].
//! * A [`Receive`] may be posted on several sockets. The first message that takes it, on any of them, takes it from
//!   all. Receives that are posted on one socket only come back in the order in which they were posted.
//! * The peer has no posted receive for a message: the connection ends (RFC 5041, section 7.1), as nothing says "wait".
//! * A tagged message with [`Notify::Id`] is followed by a tagged message of no bytes whose offset is the id: DDP does
//!   not look at the place of such a message (RFC 5041, section 5.2). A peer on verbs sees nothing of it.
//! * READ is that of RFC 5040: this side asks, and the peer's side answers without its program. Where the source of the
//!   data is to send them by itself, the sink registers a buffer and the source writes ([`Socket::write`]).
//! * No thread runs: a socket answers the peer's READs, and takes its messages, in the calls of its program that wait.
//!   A program that only serves calls [`Socket::recv`].
//! * At most 16,384 messages and notices wait for the program: a peer that sends more ends the connection.
//!
//! # Example
//!
//! ```
//! use ddp::{Access, Address, Buffer, Indication, Notify, Options, Socket};
//!
//! let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! let sink = std::thread::spawn(move || -> Result<Vec<u8>, ddp::Error> {
//!     let mut socket = Socket::accept(&listener, &Options::default())?;
//!     let buffer = Buffer::new(5);
//!     let tag = socket.register(&buffer, Access::WRITE);
//!     // A program tells its peer the tag by a message, or by other means.
//!     socket.send(&tag.0.to_be_bytes())?;
//!     assert!(matches!(socket.recv()?, Some(Indication::Tagged { id: 7, .. })));
//!     buffer.get(0..5)
//! });
//! let mut socket = Socket::connect(address, &Options::default())?;
//! socket.post_recv(&ddp::Receive::new(Buffer::new(4)))?;
//! let Some(Indication::Message { receive, .. }) = socket.recv()? else { panic!("no message") };
//! let tag = ddp::Tag(u32::from_be_bytes(receive.buffer().get(0..4)?.try_into().unwrap()));
//! socket.write(b"hello", Address { tag, offset: 0 }, Notify::Id(7))?;
//! assert_eq!(sink.join().unwrap()?, b"hello");
//! # Ok::<(), ddp::Error>(())
//! ```

#![forbid(unsafe_code)]

mod buffer;
mod error;
mod placement;
mod socket;
mod start;
#[cfg(test)]
mod tests;

pub use buffer::{Access, Buffer, Memory, Receive, Tag};
pub use error::Error;
pub use iwarp::rdmap::End;
pub use socket::{Address, Indication, Notify, Sizes, Socket};
pub use start::Options;
