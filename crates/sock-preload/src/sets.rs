//! The epoll sets that have moved connections in them: which of these may have something to report.
//!
//! A set has one bit for each slot. A bit is set by news, from the other end or from the kernel, and stays while the
//! connection has something to report. So a wait looks at the links' news and at the connections whose bits are set,
//! not at all of them.

use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use crate::link::{self, LINKS, Link};
use crate::table::{self, LIMIT, SLOTS};

/// Sets that may have moved connections at the same time.
const SETS: usize = 64;
const WORDS: usize = SLOTS / 64;
const _: () = assert!(WORDS <= 64, "the summary is a word");

/// A set.
pub struct Set {
    /// Its descriptor + 1; 0: none.
    fd: AtomicI32,
    links: [AtomicU64; LINKS / 64],
    /// The connections to be looked at, and which of the words may have a bit.
    ready: [AtomicU64; WORDS],
    summary: AtomicU64,
    /// Threads that sleep in it.
    pub waiters: AtomicU32,
    /// Not 0: a forked child may take the news, so that all connections are looked at.
    pub scans: AtomicU32,
    /// Where the next look begins.
    turn: AtomicU32,
    /// When the kernel was last asked, in nanoseconds; and whether it is to be asked first.
    pub asked: AtomicU64,
    /// When its connections were last looked at whose other end may have died alone, in nanoseconds.
    pub orphans: AtomicU64,
    pub kernel_first: AtomicU32,
}

static ALL: [Set; SETS] = [const {
    Set {
        fd: AtomicI32::new(0),
        links: [const { AtomicU64::new(0) }; LINKS / 64],
        ready: [const { AtomicU64::new(0) }; WORDS],
        summary: AtomicU64::new(0),
        waiters: AtomicU32::new(0),
        scans: AtomicU32::new(0),
        turn: AtomicU32::new(0),
        asked: AtomicU64::new(0),
        orphans: AtomicU64::new(0),
        kernel_first: AtomicU32::new(0),
    }
}; SETS];

/// 1: the descriptor is a set that has moved connections. Before its first entry of ours there is one in [`ALL`].
pub static MOVED: [AtomicU8; LIMIT] = [const { AtomicU8::new(0) }; LIMIT];
/// Threads that are in the kernel with a set that had no moved connections when they came. A thread that was unwound
/// from there stays counted.
pub static INSIDE: [AtomicU16; LIMIT] = [const { AtomicU16::new(0) }; LIMIT];

fn at<T>(table: &[T], fd: i32) -> Option<&T> {
    usize::try_from(fd).ok().and_then(|fd| table.get(fd))
}

/// Whether a descriptor is a set that has moved connections.
pub fn has_moved(fd: i32) -> bool {
    at(&MOVED, fd).is_some_and(|moved| moved.load(Ordering::SeqCst) != 0)
}

/// The entries that were ever used lie below this number.
static USED: AtomicU32 = AtomicU32::new(0);

fn used() -> &'static [Set] {
    ALL.get(..USED.load(Ordering::Acquire) as usize).unwrap_or_default()
}

/// A set by its number.
pub fn set(number: usize) -> &'static Set {
    &ALL[number % SETS]
}

/// The set of a descriptor, if it has moved connections.
pub fn find(fd: i32) -> Option<&'static Set> {
    used().iter().find(|set| set.fd.load(Ordering::Acquire) == fd + 1)
}

/// As [`find`]; makes an entry if there is none. `None`: there are too many.
pub fn claim(fd: i32) -> Option<&'static Set> {
    if let Some(set) = find(fd) {
        return Some(set);
    }
    let free = |set: &&Set| set.fd.compare_exchange(0, fd + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let moved = at(&MOVED, fd)?;
    let set = ALL.iter().find(free)?;
    set.scans.store(0, Ordering::Relaxed);
    USED.fetch_max(set.number() as u32 + 1, Ordering::SeqCst);
    moved.store(1, Ordering::SeqCst);
    Some(set)
}

/// The sets that have, or had, connections of a link.
pub fn with_link(link: &Link) -> impl Iterator<Item = &'static Set> {
    let number = link.number();
    let has = move |set: &&Set| {
        set.links.get(number / 64).is_some_and(|word| word.load(Ordering::SeqCst) >> (number % 64) & 1 != 0)
    };
    used().iter().filter(has)
}

fn bits(words: &[AtomicU64]) -> impl Iterator<Item = usize> {
    words.iter().enumerate().flat_map(|(at, word)| {
        let mut left = word.load(Ordering::Relaxed);
        core::iter::from_fn(move || {
            let bit = (left != 0).then(|| at * 64 + left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(bit)
        })
    })
}

/// Sets a bit, if it is not set.
fn put(words: &[AtomicU64], bit: usize) {
    if let Some(word) = words.get(bit / 64)
        && word.load(Ordering::Relaxed) >> (bit % 64) & 1 == 0
    {
        word.fetch_or(1 << (bit % 64), Ordering::SeqCst);
    }
}

impl Set {
    /// Its number.
    pub fn number(&self) -> usize {
        (core::ptr::from_ref(self).addr() - (&raw const ALL).addr()) / size_of::<Set>()
    }

    /// The set is closed, or has no moved connections any more.
    pub fn give_back(&self) {
        self.links().for_each(|link| link.forget_set(self.number()));
        self.links.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.ready.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.summary.store(0, Ordering::Relaxed);
        if let Some(moved) = at(&MOVED, self.fd()) {
            moved.store(0, Ordering::SeqCst);
        }
        self.fd.store(0, Ordering::SeqCst);
    }

    /// Whether threads sleep in it.
    pub fn has_sleepers(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) > 0
            || at(&INSIDE, self.fd()).is_some_and(|inside| inside.load(Ordering::SeqCst) > 0)
    }

    /// Its descriptor; -1: none.
    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::SeqCst) - 1
    }

    /// A connection of this link is in it.
    pub fn add_link(&self, link: &Link) {
        put(&self.links, link.number());
    }

    /// The links of its connections, and some that were.
    pub fn links(&self) -> impl Iterator<Item = &'static Link> {
        bits(&self.links).map(link::link)
    }

    /// A connection is to be looked at.
    pub fn mark(&self, slot: usize) {
        put(&self.ready, slot);
        let word = slot / 64;
        if self.summary.load(Ordering::Relaxed) >> word & 1 == 0 {
            self.summary.fetch_or(1 << word, Ordering::SeqCst);
        }
    }

    /// A connection is about to be looked at, or had nothing to report. False: the bit was not set.
    pub fn unmark(&self, slot: usize) -> bool {
        let bit = 1 << (slot % 64);
        let was = self.ready.get(slot / 64).is_some_and(|word| word.fetch_and(!bit, Ordering::SeqCst) & bit != 0);
        fence(Ordering::SeqCst);
        was
    }

    /// Whether another process with connections of it has forked.
    pub fn has_forked_peers(&self) -> bool {
        self.links().any(|link| link.mine().has_forked())
    }

    /// Whether a connection is to be looked at, or may be.
    pub fn may_have_some(&self) -> bool {
        self.summary.load(Ordering::Relaxed) != 0 || self.links().any(|link| link.mine().has_news())
    }

    /// Takes the news of all its links. News of connections in other sets are passed on to these.
    pub fn take_news(&self) {
        for link in self.links().filter(|link| link.mine().has_news()) {
            let mut others = false;
            link.mine().take(|number| {
                let Some(slot) = link.slot(number) else { return };
                let watch = &table::slot(slot).watch;
                if watch.set.load(Ordering::SeqCst) > 0 {
                    let entry = watch.entry.load(Ordering::Relaxed) as usize;
                    others |= entry != self.number();
                    set(entry).mark(slot);
                }
            });
            if others {
                link.ring_sets();
            }
        }
    }

    /// Announces that a thread will sleep in it.
    pub fn announce(&self) {
        self.links().for_each(|link| link.announce_for_set(self.number()));
    }

    /// Calls `look` for the connections that are to be looked at, until it returns false; each call begins elsewhere.
    pub fn for_each_marked(&self, mut look: impl FnMut(usize) -> bool) {
        let summary = self.summary.load(Ordering::Relaxed);
        if summary == 0 {
            return;
        }
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        for at in (0..64).map(|at| (at + first / 64) as usize % 64).filter(|at| summary >> at & 1 != 0) {
            let Some(word) = self.ready.get(at) else { continue };
            let mut left = word.load(Ordering::Relaxed);
            if left == 0 {
                // The bit goes first, so that a mark that comes meanwhile sets it again.
                self.summary.fetch_and(!(1 << at), Ordering::SeqCst);
                if word.load(Ordering::SeqCst) != 0 {
                    self.summary.fetch_or(1 << at, Ordering::SeqCst);
                }
                continue;
            }
            let skip = first % 64;
            left = left.rotate_right(skip);
            while left != 0 {
                let bit = (left.trailing_zeros() + skip) % 64;
                left &= left - 1;
                if !look(at * 64 + bit as usize) {
                    return;
                }
            }
        }
    }
}

/// Before fork(2): the child has all sets, too, and may take their news.
pub fn before_fork() {
    used().iter().for_each(|set| set.scans.store(1, Ordering::SeqCst));
}

/// In the child of fork(2): no thread sleeps there.
pub fn in_child() {
    used().iter().for_each(|set| set.waiters.store(0, Ordering::SeqCst));
    table::all().filter_map(|fd| at(&INSIDE, fd)).for_each(|inside| inside.store(0, Ordering::Relaxed));
}
