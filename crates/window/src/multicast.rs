//! Finding the members of a multicast group, with no daemon: a member binds an abstract name, and the kernel lists all
//! of those in `/proc/net/unix`.
//!
//! The list only says where to look. Who is behind a block is checked when it is connected to, and a process that is
//! sent a datagram of a group in which it has no QP drops it.

use std::collections::HashMap;

use engine::platform::{LinkId, Nanos};
use memory::fds::TrackedFd;
use memory::names;
use verbs::{Errno, Gid};

use crate::peers::monotonic;
use crate::{WindowPlatform, rendezvous};

/// How long a reading of the list serves.
const FRESH: Nanos = 1_000_000;
/// One that took so long serves so many times as long: the kernel writes tens of thousands of names in half a second, and
/// anybody may bind them.
const SLOW: Nanos = 20_000_000;
const TIMES: Nanos = 20;

/// How long a reading serves that took so long.
fn serves(took: Nanos) -> Nanos {
    if took < SLOW { FRESH } else { took.saturating_mul(TIMES) }
}

#[derive(Default)]
pub(crate) struct Multicast {
    /// The names that this process has bound, by group.
    announced: HashMap<Gid, TrackedFd>,
    /// The blocks of members as last read, and when.
    seen: HashMap<Gid, (Nanos, Vec<u16>)>,
    /// How long the last reading took.
    took: Nanos,
}

impl WindowPlatform {
    /// Binds (or frees) our name in a group.
    ///
    /// # Errors
    /// `ENODEV` before the first block is claimed; else the kernel's errno.
    pub(crate) fn announce_member(&mut self, group: &Gid, attached: bool) -> Result<(), Errno> {
        if !attached {
            self.multicast.announced.remove(group);
        } else if !self.multicast.announced.contains_key(group) {
            let first = self.own_blocks.first().ok_or(Errno::ENODEV)?.0;
            let bound = names::claim(&rendezvous::member_name(group, first), 1, true)?;
            self.multicast.announced.insert(*group, TrackedFd::new(bound, &self.fds));
        }
        // Our own change is to be seen at once.
        self.multicast.seen.remove(group);
        Ok(())
    }

    /// Appends the links to the members of a group.
    pub(crate) fn find_members(&mut self, group: &Gid, links: &mut Vec<LinkId>) {
        let (now, fresh) = (monotonic(), serves(self.multicast.took));
        let blocks = match self.multicast.seen.remove(group) {
            Some((at, blocks)) if now.saturating_sub(at) < fresh => {
                self.multicast.seen.insert(*group, (at, blocks.clone()));
                blocks
            }
            _ => {
                self.multicast.seen.retain(|_, (at, _)| now.saturating_sub(*at) < fresh);
                // Names are arbitrary bytes; those of others may be no UTF-8.
                let raw = memory::files::contents("/proc/net/unix");
                let blocks = rendezvous::members(&String::from_utf8_lossy(&raw), group);
                let read = monotonic();
                self.multicast.took = read.saturating_sub(now);
                self.multicast.seen.insert(*group, (read, blocks.clone()));
                blocks
            }
        };
        for block in blocks {
            if let Some(link) = self.resolve_block(block)
                && !links.contains(&link)
            {
                links.push(link);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crowd of names takes a small part of the time, whatever it is.
    #[test]
    fn a_slow_reading_serves_longer() {
        assert_eq!([0, 1, SLOW - 1].map(serves), [FRESH; 3]);
        assert_eq!(serves(500_000_000), 10_000_000_000);
    }
}
