//! libexs.so: the functions of `sys/exs.h` over the crate `exs`, and over TCP for descriptors of socket(2).
//!
//! The functions translate, call, and set errno. Arguments are untrusted: numbers are checked, structures are copied
//! once, and the copy is used. A pointer that is null where there must be one is EFAULT; any other bad pointer is the
//! program's fault, as with every function of the C library.
//!
//! An operation of the program is a `queue::Op` in the table of its queue. The crate `exs` and the TCP side know
//! only its key, and the event is made when the program takes it (`queue::exs_qdequeue`).

mod address;
mod close;
mod connect;
mod ctypes;
mod device;
mod entry;
mod file;
mod init;
mod memory;
mod options;
mod pages;
mod poll;
mod queue;
mod service;
mod slab;
mod socket;
mod tcp;
mod tcp_calls;
mod transfer;

/// The text by which `softrnic install` knows this library from one of another project.
#[used]
static MARK: &[u8; 26] = b"softrnic: extended sockets";
