//! Answers of NETLINK_RDMA: those of the kernel about RDMA devices (to iproute2's `rdma`, and other programs that ask
//! this way), for a device that the kernel does not have.
//!
//! * [`message`]: netlink's messages and attributes.
//! * [`nldev`]: the requests, and which part answers each.
//! * [`resources`]: queue pairs, completion queues, regions, domains and ids of all processes, and their counters.
//! * [`host`]: the kernel's own answers, for hosts whose real adapters are shown, too.
//! * [`serve`](fn@serve): a socket whose requests are answered.
//!
//! Requests are a program's bytes: nothing in them is trusted, and a failure is only an error message. The crate
//! `hooks` gives a program such a socket.
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

/// The sources of the answers.
pub trait World {
    /// The devices, as this host and the environment have them.
    fn infos(&self) -> Vec<ViewInfo>;
    /// The reports of the processes that have the device open.
    fn reports(&self) -> Vec<Report>;
    /// The kernel's answer to a request, datagram by datagram; `None` where real adapters are not to be seen, or there
    /// are none.
    fn kernel(&self, request: &[u8]) -> Option<Vec<Vec<u8>>>;
}
