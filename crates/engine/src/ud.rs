//! Datagrams (IBTA vol. 1, 9.8.3), and what unreliable services hold back: [`datagram`] sends and receives, [`header`]
//! is what a receiver is told of the network's headers, [`backlog`] holds messages until a receive is posted.

pub(crate) mod backlog;
pub(crate) mod datagram;
pub(crate) mod header;
pub(crate) mod state;
