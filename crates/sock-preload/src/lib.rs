//! `libsoftrnic-sock.so`: preloaded into TCP programs, it moves their connections onto shared memory, and does
//! nothing else.
//!
//! The descriptor stays the kernel's socket, and everything that is not plainly understood stays TCP, or becomes it
//! again: `docs/sockets.md` has the table. What is done with a connection's bytes is decided in `crates/sock`; here
//! are the calls of the C library that lead there, waiting, epoll sets, processes, and all that is unsafe about it.
//!
//! Nothing here allocates where a signal handler may call, and there is no thread. A lock is held with all signals
//! blocked, never while something waits, and is taken over from a process that died with it.
#![cfg(target_arch = "x86_64")]

mod batch;
mod begin;
mod cancel;
mod data;
mod descriptors;
mod diag;
mod epoll;
mod gone;
mod heap;
mod holders;
mod kernel;
mod link;
mod log;
mod meet;
mod next;
mod orphan;
mod poll;
mod process;
mod rules;
mod sdp;
mod sendfile;
mod sets;
mod spin;
mod splice;
mod status;
mod table;
mod waits;
mod work;
