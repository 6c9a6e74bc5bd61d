//! EXS, the extended sockets API: sockets with registered memory and event queues, on verbs.
//!
//! [`protocol`] is a connection as a state machine: no system call, no thread, no clock. [`socket`] has sockets, event
//! queues and registered memory, which use it over `crates/rdma`. docs/exs.md says what of EXS is done, and what is
//! missing.
#![forbid(unsafe_code)]

pub mod protocol;
pub mod socket;
pub mod stream;
