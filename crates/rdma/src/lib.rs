//! Verbs in safe Rust, over the C verbs ABI.
//!
//! This crate has no knowledge of softrnic: [`Library::load`] opens a verbs library (softrnic's, or the system's
//! `libibverbs.so.1` for an adapter), [`Library::this_process`] takes the one that the process has already. Everything
//! else goes through the functions and tables that the library hands out. So what is built on this crate runs on both.
//!
//! # Where to begin
//!
//! Three examples in `crates/rdma/examples` are whole programs, each with a server and a client. They run within one
//! process, or between two hosts:
//!
//! * `send_recv`: a SEND over a connection, and its answer ([`EventChannel`], [`CmId`], [`Qp::post_send`],
//!   [`Cq::poll`]).
//! * `one_sided`: WRITE, READ, CMP_SWAP and FETCH_ADD on the peer's memory, by prepared lists ([`SendOp`],
//!   [`SendList`], [`Mr::word`]).
//! * `server`: many connections in one epoll loop ([`EventChannel::try_event`], [`CompChannel::try_event`],
//!   [`Cq::arm`], [`RecvList`]).
//!
//! `cargo build` with `--examples`, then `softrnic run -- target/debug/examples/server`.
//!
//! # What is where
//!
//! | subject | items |
//! |---|---|
//! | library, device, domain | [`Library`], [`Device`], [`Context`], [`Pd`] |
//! | memory: its own, the caller's, the device's | [`Pd::reg_mr`], [`Pd::reg_mr_caller`], [`Context::alloc_dm`] |
//! | memory that peers map | [`Pd::reg_mr_mapped`] |
//! | queue pairs, and rdma_cm(7) for their connections | [`Qp`], [`CmId`] |
//! | requests: one, several, prepared | [`Qp::post_send`], [`Qp::post_sends`], [`SendList`], [`RecvList`] |
//! | requests of `ibv_wr_post(3)` | [`Qp::build`] |
//! | completions, waiting for them | [`Cq`], [`CompChannel`] |
//! | queues that run by themselves (softrnic only) | [`dv`] |
//! | what the device may not have | EOPNOTSUPP ([`Error`]) |
//!
//! # Rules
//!
//! Objects hold what they need alive: a [`Qp`] its [`Cq`]s and [`Pd`], those their [`Context`], that the [`Library`].
//! They are shared by `Arc` and destroyed with the last one, in the order that verbs demand. All may be used from
//! several threads, as `ibv_post_send(3)` and its siblings promise.
//!
//! Registered memory is written by the adapter and by peers at any time, so it is never lent out as a slice: [`Mr`]
//! copies in and out. Memory that the caller owns is registered by an `unsafe` function, whose contract is the caller's
//! to keep.
//!
//! The channels of events can be waited for in a loop of the caller: each has a descriptor,
//! [`CompChannel::set_nonblocking`] and its siblings, and a `try_event` that does not wait.

mod api;
mod build;
mod cm;
mod completion;
mod device;
mod dm;
pub mod dv;
mod error;
mod fork;
mod memory;
#[cfg(doctest)]
mod misuse;
mod pages;
mod post;
mod prepared;
mod qp;
mod srq;

pub use api::Library;
pub use cm::{CmEvent, CmId, CmParam, EventChannel};
pub use completion::{CompChannel, Cq, PendingEvent, Status, Wc};
pub use device::{AsyncEvent, AsyncSource, Context, Device, GidEntry, Pd, Xrcd};
pub use dm::{Dm, DmMr};
pub use error::{Error, Result};
pub use fork::{is_child, watch_forks};
pub use memory::{FaultAnswer, Mr, Mw, MwKind, Sge};
pub use post::{Bind, Data, RecvWr, SendOp, SendWr};
pub use prepared::{RecvList, RecvRequest, SendList, SendRequest};
pub use qp::{Ah, Connect, Qp, QpOptions};
pub use srq::Srq;

/// The C structures, for programs that need attributes without a name here.
pub use sys;
pub use verbs::{Access, AhAttr, Errno, Gid, QpAttr, QpAttrMask, QpCap, QpState, QpType, SendFlags, WcFlags};
