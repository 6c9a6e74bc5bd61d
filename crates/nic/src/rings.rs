//! Wakes that wait for the release of the adapter's lock.
//!
//! A write to an eventfd may wake a thread that takes the processor of the one that writes. If this one held the lock,
//! the other thread, or the next one that it wakes, would find it locked: a spin, a sleep and a wake for nothing.

use std::sync::Arc;

use memory::fds::TrackedFd;
use smallvec::SmallVec;

use crate::channel::CompChannel;

/// So many rings wait at most; the others are made under the lock. A message mostly makes two: one for its completion,
/// and one for its acknowledgement.
const MOST: usize = 4;

enum Ring {
    Channel(Arc<CompChannel>),
    Doorbell(Arc<TrackedFd>),
}

/// Rings that are made when this is dropped.
#[derive(Default)]
pub(crate) struct Rings(SmallVec<[Ring; MOST]>);

impl Rings {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn keep(&mut self, ring: impl FnOnce() -> Ring) -> bool {
        let is_room = self.0.len() < MOST;
        if is_room {
            self.0.push(ring());
        }
        is_room
    }

    /// Keep a peer's doorbell. False: the caller must ring it.
    pub(crate) fn keep_doorbell(&mut self, doorbell: &Arc<TrackedFd>) -> bool {
        self.keep(|| Ring::Doorbell(doorbell.clone()))
    }

    /// Keep a channel with a new event. False: the caller must ring it.
    pub(crate) fn keep_channel(&mut self, channel: &Arc<CompChannel>) -> bool {
        self.keep(|| Ring::Channel(channel.clone()))
    }

    /// Ring now, in the order in which they were kept: a peer's thread that is woken by an acknowledgement is awake
    /// when the program's answer comes. The other way round, a ping-pong of programs that sleep takes 10 us more.
    #[cold]
    pub(crate) fn ring(&mut self) {
        for ring in self.0.drain(..) {
            match ring {
                Ring::Channel(channel) => channel.ring(),
                // If the peer is gone its socket tells so, and a full counter wakes it anyway.
                Ring::Doorbell(doorbell) => drop(rustix::io::write(&*doorbell, &1u64.to_ne_bytes())),
            }
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            self.ring();
        }
    }
}
