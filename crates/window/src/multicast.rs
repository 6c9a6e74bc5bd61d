//! Finding the members of a multicast group, with no daemon: a member binds an abstract name, and the kernel lists all
//! of those in `/proc/net/unix`.
//!
//! The list only says where to look. Which process is behind a block is checked when it is connected to, and a process
//! that is sent a datagram of a group in which it has no QP drops it.
//!
//! The lock of the device is held where datagrams are sent. So where a reading takes long, the next one is made by a
//! thread of its own, and the list before it serves meanwhile.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Mutex, PoisonError};

use memory::fds::TrackedFd;
use memory::{deferred_close, names};
use verbs::{Errno, Gid};
use wire::{LinkId, Nanos};

use crate::peers::monotonic;
use crate::{WindowEnv, rendezvous};

/// The time for which a reading of the list serves.
const FRESH: Nanos = 1_000_000;
/// A reading that took so long serves for so many times as long: any process may bind tens of thousands of names, and
/// the kernel lists them at each reading (docs/lab/constants.md).
const SLOW: Nanos = 20_000_000;
const TIMES: Nanos = 20;

/// The result of a reading: the time of its end, the time that it took, and the blocks of members.
type Reading = (Nanos, Nanos, Vec<u16>);

/// Reads the list.
fn read(group: &Gid, text: impl FnOnce() -> Vec<u8>) -> Reading {
    let began = monotonic();
    // Names are arbitrary bytes; those of others may be no UTF-8.
    let blocks = rendezvous::members(&String::from_utf8_lossy(&text()), group);
    let read = monotonic();
    (read, read.saturating_sub(began), blocks)
}

/// The time for which a reading serves that took this long.
fn serves(took: Nanos) -> Nanos {
    if took < SLOW { FRESH } else { took.saturating_mul(TIMES) }
}

#[derive(Default)]
pub(crate) struct Multicast {
    /// The names that this process has bound, by group.
    announced: HashMap<Gid, TrackedFd>,
    /// The blocks of members as last read, and when.
    seen: HashMap<Gid, (Nanos, Vec<u16>)>,
    /// The time that the last reading took.
    took: Nanos,
    /// The list that a thread reads now, and the group for which it does. The mutex makes this shareable, and no thread
    /// waits for it.
    coming: Option<(Gid, Mutex<Receiver<Reading>>)>,
}

impl Multicast {
    /// The blocks of a group's members, from a text that may take long to get.
    fn blocks(&mut self, group: &Gid, now: Nanos, text: impl FnOnce() -> Vec<u8> + Send + 'static) -> &[u16] {
        self.take_coming();
        let fresh = serves(self.took);
        // A slow one serves once more as long, while the next one is read.
        let most = if fresh == FRESH { fresh } else { fresh.saturating_mul(2) };
        let age = self.seen.get(group).map(|(at, _)| now.saturating_sub(*at)).filter(|age| *age < most);
        match age {
            Some(age) if age < fresh => {}
            Some(_) => self.read_by_a_thread(group, text),
            None => {
                self.seen.retain(|_, (at, _)| now.saturating_sub(*at) < most);
                let reading = read(group, text);
                self.keep(group, reading);
            }
        }
        self.seen.get(group).map_or(&[], |(_, blocks)| blocks)
    }

    fn keep(&mut self, group: &Gid, (at, took, blocks): Reading) {
        self.took = took;
        self.seen.insert(*group, (at, blocks));
    }

    /// Takes what the thread has read, if it is done.
    fn take_coming(&mut self) {
        let Some((group, reading)) = &mut self.coming else { return };
        let (group, reading) = (*group, reading.get_mut().unwrap_or_else(PoisonError::into_inner).try_recv());
        match reading {
            Ok(reading) => {
                self.coming = None;
                self.keep(&group, reading);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => self.coming = None,
        }
    }

    /// Has the list read by a thread, one at a time. Where none can be made, the list is read when it no longer serves.
    fn read_by_a_thread(&mut self, group: &Gid, text: impl FnOnce() -> Vec<u8> + Send + 'static) {
        if self.coming.is_some() {
            return;
        }
        let (sender, reading) = sync_channel(1);
        let of = *group;
        let body = move || {
            deferred_close::deaf();
            // The receiver may be gone: then no caller wants the list any more.
            let _ = sender.send(read(&of, text));
        };
        if std::thread::Builder::new().name("softrnic-names".into()).stack_size(256 << 10).spawn(body).is_ok() {
            self.coming = Some((of, Mutex::new(reading)));
        }
    }
}

impl WindowEnv {
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
        // This process's own change is seen at once, also where the list is being read.
        self.multicast.seen.remove(group);
        self.multicast.coming.take_if(|(of, _)| of == group);
        Ok(())
    }

    /// Appends the links to the members of a group.
    pub(crate) fn find_members(&mut self, group: &Gid, links: &mut Vec<LinkId>) {
        let blocks = self.multicast.blocks(group, monotonic(), || memory::files::contents("/proc/net/unix")).to_vec();
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

    /// A crowd of names takes a small part of the time, however large it is.
    #[test]
    fn a_slow_reading_serves_longer() {
        assert_eq!([0, 1, SLOW - 1].map(serves), [FRESH; 3]);
        assert_eq!(serves(500_000_000), 10_000_000_000);
    }

    /// While a slow reading is made, no caller waits for it.
    #[test]
    #[cfg_attr(miri, ignore = "a thread that outlives a call, and time")]
    fn a_slow_list_is_read_by_a_thread() {
        let (group, now) = (Gid([0xff; 16]), monotonic());
        let line = move |block: &str| {
            format!("0: 2 0 0 5 1 1 @{}\n", rendezvous::member_name(&group, 1).replace("/001", block))
        };
        let mut multicast = Multicast { took: SLOW, ..Multicast::default() };
        multicast.seen.insert(group, (now, vec![1]));
        let not_read = || panic!("it serves");
        assert_eq!(multicast.blocks(&group, now + serves(SLOW) - 1, not_read), [1]);
        let (go_on, wait) = sync_channel::<Vec<u8>>(1);
        // The text comes when this thread says so. If this thread waited for the reading, it would wait for itself.
        let text = move || wait.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
        let later = now + serves(SLOW);
        assert_eq!(multicast.blocks(&group, later, text), [1]);
        assert_eq!(multicast.blocks(&group, later, not_read), [1], "one at a time");
        assert!(multicast.coming.is_some());
        go_on.send(line("/002").into_bytes()).unwrap();
        let (group_read, reading) = multicast.coming.take().unwrap();
        let (_, took, blocks) = reading.into_inner().unwrap().recv_timeout(std::time::Duration::from_secs(20)).unwrap();
        let (sender, reading) = sync_channel(1);
        sender.send((later, took.max(SLOW), blocks)).unwrap();
        multicast.coming = Some((group_read, Mutex::new(reading)));
        assert_eq!(multicast.blocks(&group, later, not_read), [2]);
        // What is too old is read at once.
        let old = later + 1_000_000_000_000_000;
        assert_eq!(multicast.blocks(&group, old, move || line("/003").into_bytes()), [3]);
    }
}
