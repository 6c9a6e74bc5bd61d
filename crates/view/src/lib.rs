//! The files and addresses that a program finds when it looks for RDMA devices without calling a verb: the files below
//! `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and `/dev/infiniband`, and the addresses that the device
//! answers to.
//!
//! * [`hostaddr`]: the host's addresses as GIDs, and the node's GUID.
//! * [`port`]: the port's link layer and GID table.
//! * [`tree`]: the view's content.
//! * [`place`]: the directory of the view.
//! * [`ptrace`]: whether processes may copy out of and into each other's memory.
//!
//! The crate `hooks` redirects a program's calls there.

use std::ffi::CStr;

pub mod hostaddr;
pub mod place;
pub mod port;
pub mod ptrace;
pub mod tree;

/// The option with which AddressSanitizer runs in a program that has this library preloaded.
pub const ASAN_OPTION: &CStr = c"verify_asan_link_order=0";

/// Suppressions for ThreadSanitizer. It does not see how the library's threads wait for each other, nor that an
/// adapter's writes come before the completion that reports them.
pub const TSAN_SUPPRESSIONS: &CStr = c"race:libsoftrnic.so\ncalled_from_lib:libsoftrnic.so\n";

/// The name of the file in the view with the suppressions, for runtimes that are linked in statically.
pub const TSAN_FILE: &str = "tsan.supp";
