//! The vocabulary of verbs: queue pair numbers, keys, access rights, work requests, completions, events and the
//! queue pair state table.
//!
//! No function here allocates, blocks or touches memory that is not its own. Discriminants and bit values are those of
//! the C ABI (`infiniband/verbs.h`), so the crate `abi` translates by value.
#![no_std]
#![forbid(unsafe_code)]

mod attr;
mod completion;
mod errno;
mod event;
mod flags;
mod gid;
mod ids;
pub mod limits;
mod link;
pub mod state;
mod work;

pub use attr::*;
pub use completion::*;
pub use errno::Errno;
pub use event::*;
pub use flags::*;
pub use gid::Gid;
pub use ids::*;
pub use link::LinkLayer;
pub use work::*;

/// The result of a verb: the error is the errno that the man page names.
pub type Result<T> = core::result::Result<T, Errno>;
