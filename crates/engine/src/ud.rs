//! Datagrams (IBTA vol. 1, 9.8.3), and the backlog of unreliable services. [`datagram`] sends and receives, [`header`]
//! makes the network's headers for a receiver, [`backlog`] holds messages until a receive is posted.

pub(crate) mod backlog;
pub(crate) mod datagram;
pub(crate) mod header;
pub(crate) mod state;
