//! All access to memory that is not plainly our own: the program's registered regions, windows shared with other
//! processes and the rings inside them, and other processes' memory. DESIGN.md of this crate draws the layouts, and
//! says which side writes what with which ordering.
//!
//! The rest of softrnic forbids `unsafe`; it is here. Two kinds of memory, two arguments for soundness:
//!
//! * **Memory of the program** ([`local`], [`single_copy`]). An address comes from a work request or a packet, and the
//!   engine has checked it against a registered region. Registration is the program's promise, through `unsafe` C
//!   (`ibv_reg_mr`), that the range stays mapped. These functions are safe to call for that reason only: they must not
//!   be called with addresses that have not been checked. No reference to such memory is ever made, since the program
//!   writes to it when it likes.
//! * **Windows** ([`backing`], [`ring`]). Another process writes to them. They are reached only through atomics and
//!   raw copies, every value is copied once and then checked, and the mapping cannot shrink under us (sealed memfd).
//!
//! Beside them, the mutex around all that is one adapter ([`biased`]), the descriptors that others send
//! ([`received_fds`]), the names of sockets that others can take ([`names`]), and the closing of what they have left in
//! our sockets ([`deferred_close`]).

#[cfg(not(loom))]
pub mod arena;
pub mod backing;
pub mod biased;
pub mod caught;
pub mod co_copy;
pub mod copying;
pub mod deferred_close;
pub mod export_table;
pub mod fds;
pub mod files;
pub mod huge;
pub mod link;
pub mod local;
mod maps;
pub mod migrate;
pub mod names;
mod protection;
pub mod received_fds;
pub mod ring;
#[cfg(not(loom))]
mod shared;
pub mod single_copy;
pub mod store_policy;
pub mod stream;
pub mod sync;
#[cfg(not(loom))]
mod table_memory;
pub mod tcp;

#[cfg(not(loom))]
pub use shared::Half;
#[cfg(not(loom))]
pub use table_memory::{OwnTable, PeerTable};

#[cfg(all(test, loom))]
mod loom_tests;
