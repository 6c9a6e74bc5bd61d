//! The options of a socket.

use std::time::Duration;

use rdma::Errno;

use crate::protocol::{Kind, MAX_RING, MAX_SMALL, Settings};

/// What a socket asks for before it is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The kind; both ends have the same.
    pub kind: Kind,
    /// Advertisements that this end holds at a time, 1 to 1024. It uses no more of the peer's.
    pub credits: u16,
    /// Bytes up to which a send goes within its advertisement, at most 65536; the smaller one of both ends counts.
    pub small: u32,
    /// READs that may be outstanding, at most; the adapters agree.
    pub reads: u8,
    /// Pending sends, and pending receives.
    pub places: usize,
    /// Bytes of the ring of a stream, which takes what no receive waits for; 1 to 2^30.
    pub ring: u32,
    /// The time after which a peer that does not answer is taken for stopped, and a connection that is not made is
    /// given up; zero: there is none. [`super::Socket::set_timeout`] changes it.
    pub timeout: Duration,
}

/// [`Options::timeout`] of a new socket.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Options {
    /// The defaults for a kind.
    pub fn new(kind: Kind) -> Options {
        Options { kind, credits: 16, small: 256, reads: 8, places: 128, ring: 128 << 10, timeout: TIMEOUT }
    }

    pub(super) fn settings(&self) -> Settings {
        let stream = self.kind == Kind::Stream;
        let (small, ring) = if stream { (0, self.ring) } else { (self.small, 0) };
        Settings { kind: self.kind, credits: self.credits, small, ring }
    }

    pub(super) fn check(&self) -> Result<(), Errno> {
        let sound = (1..=1024).contains(&self.credits) && self.small <= MAX_SMALL && self.reads > 0 && self.places > 0;
        if sound && (1..=MAX_RING).contains(&self.ring) { Ok(()) } else { Err(Errno(libc::EINVAL)) }
    }
}
