//! libhyperclient.so: the functions of `libhyperclient/hyperclient_compat.h` over the crate `group`. Those of
//! `libhyperclient/hyperclient.h` are inline in that header.
//!
//! The functions translate, call, and set errno. Arguments are untrusted: structures are copied once, and the copy is
//! used. A client is a number that is never given again, so a client that was destroyed is EINVAL. A pointer that is
//! null where there must be one is EFAULT; any other bad pointer is the program's fault, as with every function of the
//! C library.

mod calls;
mod clients;
mod ctypes;
mod failure;

/// The text by which `softrnic install` knows this library from one of another project.
#[used]
static MARK: &[u8; 26] = b"softrnic: group operations";
