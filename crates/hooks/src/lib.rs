//! Interposers of libc's functions, in a process that has them preloaded.
//!
//! * Path calls: paths below `/sys/class/infiniband`, `/sys/class/infiniband_verbs`, `/sys/class/infiniband_mad` and
//!   `/dev/infiniband` lead into the crate `view`'s tree. Every other path goes on to the next definition of the
//!   function after one comparison of a few bytes. There is no constructor: until the first such path, nothing happens.
//! * `dlopen`, for programs that ask for libibverbs and librdmacm by name (`load.rs`).
//! * The socket calls that NETLINK_RDMA needs, which the crate `netlink` answers (`netlink.rs`).
//! * The weak functions of AddressSanitizer's runtime and its siblings (`sanitizers.rs`).
//!
//! # How the symbols get out
//!
//! The functions are `#[unsafe(no_mangle)] pub extern "C"` in this rlib. A cdylib that names the crate, `use hooks as
//! _;`, exports them all: rustc lists the C-level symbols of every upstream rlib in the cdylib's own export list and
//! refers to each from a generated object, so that the linker neither drops nor hides them. They carry no version
//! (index 1, "global"), and glibc's loader binds a versioned reference such as `open64@GLIBC_2.2.5` or
//! `stat@GLIBC_2.33` to an unversioned definition in a preloaded object. A version script of the cdylib's own must not
//! name them in a node with a version.
//!
//! The hooks are a crate of their own so that no test program and no tool that merely wants the view has them
//! linked in.
//!
//! # What is not here
//!
//! `chdir`, `execve`, `ftw`, `fts` and raw system calls (statically linked programs, Go): they see the host as it is.

mod calls;
mod load;
mod netlink;
mod next;
mod redirect;
mod sanitizers;
mod search;
