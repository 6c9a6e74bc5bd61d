//! libsoftrnic.so: the C ABI of libibverbs and librdmacm (`cm`), for a NIC in software. It translates, calls, and maps
//! the error.
//!
//! A program uses it when it is preloaded (`LD_PRELOAD=libsoftrnic.so`): its `ibv_*` functions win over libibverbs's by
//! interposition. Its SONAME is its own, so the system's libibverbs stays loaded beside it for the libraries that need
//! its private symbols. Loading registers the handlers of fork(2), no more; the first verb makes the device. The
//! drop-in libraries that `softrnic install` writes (crate `dropin`) forward to it.
//!
//! `exports.txt` lists the symbols with their versions, and `table.rs` the members of `ibv_context` and `verbs_context`
//! that the header's inline functions call. There is one file for each kind of object; `post.rs`, `qp_ex.rs` and
//! `poll.rs` are the data path.
//!
//! Every object that C sees is the front of a structure of this library in a `Box`: the pointer in C's hands is the
//! `Box`'s. A pointer from a program is trusted to be live, as every verbs library trusts it; NULL is EINVAL.
//!
//! Functions that the ABI declares unsafe by nature have no "Safety" section of their own: their man page is it.
#![allow(clippy::missing_safety_doc)]
#![cfg_attr(test, allow(dead_code))]

mod ah;
mod attr;
mod buf;
mod channel;
mod cm;
mod context;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod dv;
mod dv_queues;
mod entry;
mod events;
// A test program is no cdylib: it has no version map, and exports nothing.
#[cfg(not(test))]
mod exports;
mod faults;
mod fork;
mod gid;
mod hardware;
mod kern;
mod legacy;
mod mr;
mod mw;
mod neighbour;
mod pd;
mod per_nic;
mod poll;
mod post;
mod qp;
mod qp_ex;
mod query;
mod rate;
mod reserve;
mod srq;
mod strings;
mod syscalls;
mod sysfs;
mod table;
mod unsupported;
mod wait;
mod wallclock;
mod xrcd;

// The interposers of libc's path functions, which show programs the device's files below /sys and /dev. Naming the
// crate is enough: its `#[no_mangle]` functions are exported without a version (see build.rs and exports.txt, which
// must not name them), where they answer references to any version of their name.
#[cfg(not(test))]
use hooks as _;
