//! EXS, the extended sockets API: sockets with registered memory and event queues, on verbs.
//!
//! [`protocol`] is a connection as a state machine: no unsafe code, no system call, no thread, no clock. docs/exs.md
//! says what is done of EXS, and what is not.
#![forbid(unsafe_code)]

pub mod protocol;
