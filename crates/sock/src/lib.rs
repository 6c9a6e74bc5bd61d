//! Connections of unmodified TCP programs that move onto shared memory: what is done with one of them, and the rules
//! that say which may. No system call, no thread, no clock; `crates/sock-preload` has those.
//!
//! A connection stays the kernel's TCP socket. Its bytes take another way, a ring in shared memory
//! ([`memory::stream`]), once both ends are known to read it, and each direction by itself: [`end`] has the states of
//! a direction and the reasons of each step. [`hello`] is how the two ends of a connection find each other, [`rules`]
//! is libsdp's file of rules, [`status`] what a process tells of its connections.
#![forbid(unsafe_code)]

pub mod end;
pub mod glob;
pub mod hello;
pub mod rules;
pub mod status;
