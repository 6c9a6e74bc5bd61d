//! libsoftrnic-ddp.so: the functions of `softrnic/ddp.h` over the crate `ddp`.
//!
//! The functions translate, call, and set errno. Arguments are untrusted: structures are copied once, and the copy is
//! used. A socket is a number that is never given again, so a socket that was closed is EINVAL. A pointer that is null
//! where there must be one is EFAULT; any other bad pointer is the program's fault, as with every function of the C
//! library.

mod calls;
mod ctypes;
mod failure;
mod memory;
mod sockets;

/// The text by which `softrnic install` knows this library from one of another project.
#[used]
static MARK: &[u8; 31] = b"softrnic: direct data placement";
