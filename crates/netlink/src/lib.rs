//! What NETLINK_RDMA says: the kernel's answers about RDMA devices (iproute2's `rdma`, and whoever else asks this way),
//! for a device that the kernel does not have.
//!
//! * [`message`]: netlink's messages and attributes.
//! * [`nldev`]: which requests there are, and who answers them.
//! * [`resources`]: queue pairs, completion queues, regions, domains and ids of all processes, and their counters.
//! * [`host`]: the kernel's own answers, for hosts whose real adapters are shown, too.
//! * [`serve`](fn@serve): a socket whose requests are answered.
//!
//! Requests are a program's bytes: nothing in them is trusted, and nothing here can fail but by an error message. How a
//! program's socket gets here is the crate `hooks`.
#![forbid(unsafe_code)]

pub mod host;
pub mod message;
pub mod nldev;
pub mod numbers;
pub mod resources;
mod serve;

pub use host::{host_only, is_host_only};
pub use serve::serve;

use report::Report;
use view::tree::ViewInfo;

/// What the answers are made of.
pub trait World {
    /// The device, as this host and the environment have it.
    fn info(&self) -> ViewInfo;
    /// What the processes with the device tell.
    fn reports(&self) -> Vec<Report>;
    /// The kernel's answer to a request, datagram by datagram; `None` where real adapters are not to be seen, or there
    /// are none.
    fn kernel(&self, request: &[u8]) -> Option<Vec<Vec<u8>>>;
}
