//! Sleep that misses no event, and the waking.

use std::sync::Arc;

use memory::fds::TrackedFd;
use memory::ring::wake_fence;

use crate::WindowEnv;
use crate::link::State;

impl WindowEnv {
    /// The one descriptor to wait on for everything that can happen here ([`crate::Events::wait`]): readable when
    /// [`WindowEnv::handle_events`] has something to do.
    pub fn epoll_fd(&self) -> &Arc<TrackedFd> {
        &self.epoll
    }

    /// Tells whether this program may sleep until an event comes, even while it has much under way. Else its sleep is
    /// taken for a pause between two polls.
    pub fn set_awaits_events(&mut self, may: bool) {
        self.awaits_events = may;
    }

    /// The last setting.
    pub fn awaits_events(&self) -> bool {
        self.awaits_events
    }

    /// Announces on all links that this process is about to sleep on [`WindowEnv::epoll_fd`], so that peers ring.
    /// False if something has arrived meanwhile: then nothing is announced, and there is work to do.
    pub fn announce_sleep(&mut self) -> bool {
        for i in 0..self.live.len() {
            let id = self.live[i];
            let Some(link) = self.link_mut(id) else {
                continue;
            };
            link.consumer.announce_sleep();
            link.producer.call_for_room(true);
            if link.consumer.settle() {
                link.ring();
                self.stats.rings += 1;
            }
        }
        self.asleep = true;
        wake_fence();
        let mut busy = self.any_dead || self.any_ready();
        for i in 0..self.live.len() {
            let id = self.live[i];
            // The link is drained to the end by now, unless it is ready: the caller is to hear of the death.
            busy |= self.link(id).is_some_and(|l| matches!(l.state, State::Draining(_)));
        }
        for i in 0..self.full.len() {
            let id = self.full[i];
            busy |= self.link_mut(id).is_none_or(|l| l.state != State::Up || l.producer.has_room() != Ok(false));
        }
        if busy {
            self.suppress_doorbells();
        }
        !busy
    }

    /// Takes the announcement back: this process polls, also for room on links that are full. Costs nothing if nothing
    /// is announced.
    #[inline]
    pub fn suppress_doorbells(&mut self) {
        if !self.asleep {
            return;
        }
        self.asleep = false;
        for i in 0..self.live.len() {
            if let Some(link) = self.link_mut(self.live[i]) {
                link.consumer.retract_sleep();
                link.producer.call_for_room(false);
            }
        }
    }
}
