//! What is known of each descriptor, and of the connections that have shared memory. All of it is static and atomic:
//! a signal handler may look anything up, and nothing is allocated.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use memory::backing::Memfd;
use memory::stream::Pair;
use sock::end::Own;

use crate::link::{self, Link};

/// Descriptors from this number on are never looked at.
pub const LIMIT: usize = 1 << 16;
/// Connections that may have shared memory at the same time.
pub const SLOTS: usize = 4096;

/// What is known of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Nothing: every call goes to the C library.
    Unknown,
    /// A TCP connection, and how many messages it has seen.
    Fresh(u32),
    /// A TCP connection that waits for its other end to come; its slot.
    Waiting(usize),
    /// A connection with shared memory; its slot.
    Shared(usize),
    /// A descriptor of this library.
    Ours,
    /// An epoll set that has connections in it.
    Set,
    /// An epoll set that is in another one, or in a poll: its connections stay with TCP.
    Nested,
    /// A socket that waits for connections, and that clients with the library can find; its number in [`crate::sdp`].
    Listener(usize),
    /// A socket of AF_INET_SDP that neither connects nor listens yet.
    Asked,
    /// A socket that listened when the program began, and of which nothing is known yet.
    Inherited,
}

impl Tag {
    const fn word(self) -> u32 {
        match self {
            Tag::Unknown => 0,
            Tag::Fresh(count) => 1 | count << 8,
            Tag::Waiting(slot) => 2 | (slot as u32) << 8,
            Tag::Shared(slot) => 3 | (slot as u32) << 8,
            Tag::Ours => 4,
            Tag::Set => 5,
            Tag::Nested => 6,
            Tag::Listener(number) => 7 | (number as u32) << 8,
            Tag::Asked => 8,
            Tag::Inherited => 9,
        }
    }

    const fn of(word: u32) -> Tag {
        let value = word >> 8;
        match word & 0xFF {
            1 => Tag::Fresh(value),
            2 => Tag::Waiting(value as usize),
            3 => Tag::Shared(value as usize),
            4 => Tag::Ours,
            5 => Tag::Set,
            6 => Tag::Nested,
            7 => Tag::Listener(value as usize),
            8 => Tag::Asked,
            9 => Tag::Inherited,
            _ => Tag::Unknown,
        }
    }
}

/// The tags, by descriptor.
pub static TAGS: [AtomicU32; LIMIT] = [const { AtomicU32::new(0) }; LIMIT];
/// How many threads are inside the kernel with a connection that has no shared memory yet.
pub static INSIDE: [AtomicU16; LIMIT] = [const { AtomicU16::new(0) }; LIMIT];
/// How many calls that move bytes go to the kernel before one looks again whether the other end has come
/// ([`crate::meet::turned`]). Counts by several threads at one time may make it more, up to 255.
pub static QUIET: [AtomicU8; LIMIT] = [const { AtomicU8::new(0) }; LIMIT];
/// 1: a socket of AF_INET_SDP, whatever became of it.
static ASKED: [AtomicU8; LIMIT] = [const { AtomicU8::new(0) }; LIMIT];
/// The highest descriptor that ever had a tag.
static HIGHEST: AtomicI32 = AtomicI32::new(0);

fn index(fd: i32) -> Option<usize> {
    usize::try_from(fd).ok().filter(|fd| *fd < LIMIT)
}

/// A descriptor's tag.
pub fn tag(fd: i32) -> Tag {
    index(fd).and_then(|fd| TAGS.get(fd)).map_or(Tag::Unknown, |word| Tag::of(word.load(Ordering::Acquire)))
}

/// The kind of a [`Tag::Waiting`], in the lowest byte of its word.
pub const WAITING: u8 = 2;
const _: () = assert!(matches!(Tag::of(WAITING as u32), Tag::Waiting(0)));

/// Leaves so many calls of a waiting connection to the kernel.
pub fn set_quiet(fd: i32, calls: u8) {
    if let Some(quiet) = index(fd).and_then(|fd| QUIET.get(fd)) {
        quiet.store(calls, Ordering::Relaxed);
    }
}

/// Sets a descriptor's tag.
pub fn set_tag(fd: i32, tag: Tag) {
    set_quiet(fd, 0);
    if let Some(word) = index(fd).and_then(|fd| TAGS.get(fd)) {
        let before = word.swap(tag.word(), Ordering::SeqCst);
        let is_own = |word| u64::from(word == Tag::Ours.word());
        OWN.fetch_add(is_own(tag.word()).wrapping_sub(is_own(before)), Ordering::Relaxed);
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
    }
}

/// Whether a descriptor is a socket of AF_INET_SDP.
pub fn is_asked(fd: i32) -> bool {
    index(fd).and_then(|fd| ASKED.get(fd)).is_some_and(|asked| asked.load(Ordering::Relaxed) != 0)
}

/// Says whether a descriptor is a socket of AF_INET_SDP.
pub fn set_asked(fd: i32, is_asked: bool) {
    if let Some(asked) = index(fd).and_then(|fd| ASKED.get(fd)) {
        asked.store(u8::from(is_asked), Ordering::Relaxed);
    }
}

/// Descriptors of this library.
static OWN: AtomicU64 = AtomicU64::new(0);

/// How many descriptors this library has.
pub fn count_of_own() -> u64 {
    OWN.load(Ordering::Relaxed)
}

/// Sets a descriptor's tag if it is still this one.
pub fn change_tag(fd: i32, from: Tag, to: Tag) -> bool {
    index(fd)
        .and_then(|fd| TAGS.get(fd))
        .is_some_and(|word| word.compare_exchange(from.word(), to.word(), Ordering::SeqCst, Ordering::SeqCst).is_ok())
}

/// All descriptors that may have a tag.
pub fn all() -> impl Iterator<Item = i32> {
    0..=HIGHEST.load(Ordering::Relaxed)
}

/// Marks that this thread is about to be inside the kernel with the descriptor (or not any more).
pub fn enter(fd: i32, enter: bool) {
    if let Some(count) = index(fd).and_then(|fd| INSIDE.get(fd)) {
        if enter {
            count.fetch_add(1, Ordering::SeqCst)
        } else {
            count.fetch_sub(1, Ordering::SeqCst)
        };
    }
}

/// Whether no thread is inside the kernel with the descriptor.
pub fn nobody_inside(fd: i32) -> bool {
    index(fd).and_then(|fd| INSIDE.get(fd)).is_some_and(|count| count.load(Ordering::SeqCst) == 0)
}

/// A new descriptor has this number: nobody is inside the kernel with it.
pub fn reset_inside(fd: i32) {
    if let Some(count) = index(fd).and_then(|fd| INSIDE.get(fd)) {
        count.store(0, Ordering::SeqCst);
    }
}

/// What all holders of one end share, in memory that forked children have, too.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Held {
    /// The states of the end.
    pub own: Own,
    /// The lock of senders, and that of receivers until the switch: the thread that has it, or 0.
    pub send: AtomicU32,
    pub receive: AtomicU32,
    /// A process with this end has forked.
    pub forked: AtomicU32,
    /// What [`crate::work::Use::blocks`] and [`crate::work::Use::most_wait`] have found; 0: not known.
    pub blocking: AtomicU32,
    pub receive_timeout: AtomicU64,
    pub send_timeout: AtomicU64,
    /// It was said that the other end broke the rules.
    pub told_broken: AtomicU32,
}

/// What epoll knows of a connection.
#[derive(Default)]
pub struct Watch {
    /// The set's descriptor + 1; 0: none.
    pub set: AtomicI32,
    /// The set's number in [`crate::sets`].
    pub entry: AtomicU32,
    /// The descriptor under which the connection is in the set.
    pub fd: AtomicI32,
    pub events: AtomicU32,
    pub data: AtomicU64,
    /// The descriptor + 1 of the kernel's set that has the connection's socket; 0: none. It stays there when the
    /// program takes the connection out: most programs that do so put it back.
    pub kernel: AtomicI32,
    /// The kernel has told something since the last report.
    pub news: AtomicU32,
    /// The program has put the connection into the set, or armed it again, since the last report.
    pub fresh: AtomicU32,
    /// Bytes that had come by the ring at the last report.
    pub seen: AtomicU64,
    /// The last report said that it can be written to, and nothing has filled it since.
    pub told_writable: AtomicU32,
    /// EPOLLONESHOT has struck.
    pub disarmed: AtomicU32,
}

/// A connection.
pub struct Slot {
    /// 0: free; else 1 + the number of descriptors.
    pub holders: AtomicU32,
    /// Threads that work on it.
    pub users: AtomicU32,
    /// Threads that wait for it.
    pub waiters: AtomicU32,
    pub pair: UnsafeCell<Option<Pair<Memfd>>>,
    /// A page of its own, which forked children share.
    pub held: AtomicPtr<Held>,
    /// 1 + the number of the link to the other end's process, and the connection's number on it.
    pub link: AtomicU32,
    pub number: AtomicU32,
    /// The bells that the other end's process has at the latest when it has the connection.
    pub bells: AtomicU32,
    /// Where the other end is waited for, and how many calls have been made meanwhile.
    pub listener: AtomicI32,
    /// 1: `listener` is the connection of the end that came there.
    pub has_come: AtomicU32,
    pub calls: AtomicU32,
    /// Twice how often the calls have changed from sending to receiving, or back; 1 more: the last one has sent.
    pub turns: AtomicU32,
    /// Since when it is waited for, in nanoseconds.
    pub began: AtomicU64,
    /// 1: this end sends by the first stream.
    pub first: AtomicU32,
    /// SO_COOKIE.
    pub cookie: AtomicU64,
    /// When the kernel's socket was last looked at, in nanoseconds.
    pub looked: AtomicU64,
    /// When the kernel was last asked for the other end's socket, in nanoseconds.
    pub asked: AtomicU64,
    /// Bytes that the other end had taken out of the ring at the last write.
    pub taken: AtomicU64,
    pub watch: Watch,
}

// SAFETY: `pair` is written by whoever has made the slot its own (`holders` from 0 to 1) before any tag names it, and
// by whoever frees it when no tag names it and no user is left; all others read.
unsafe impl Sync for Slot {}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        holders: AtomicU32::new(0),
        users: AtomicU32::new(0),
        waiters: AtomicU32::new(0),
        pair: UnsafeCell::new(None),
        held: AtomicPtr::new(core::ptr::null_mut()),
        link: AtomicU32::new(0),
        number: AtomicU32::new(0),
        bells: AtomicU32::new(0),
        listener: AtomicI32::new(-1),
        has_come: AtomicU32::new(0),
        calls: AtomicU32::new(0),
        turns: AtomicU32::new(0),
        began: AtomicU64::new(0),
        first: AtomicU32::new(0),
        cookie: AtomicU64::new(0),
        looked: AtomicU64::new(0),
        asked: AtomicU64::new(0),
        taken: AtomicU64::new(0),
        watch: Watch {
            set: AtomicI32::new(0),
            entry: AtomicU32::new(0),
            fd: AtomicI32::new(-1),
            events: AtomicU32::new(0),
            data: AtomicU64::new(0),
            kernel: AtomicI32::new(0),
            fresh: AtomicU32::new(0),
            news: AtomicU32::new(0),
            seen: AtomicU64::new(0),
            told_writable: AtomicU32::new(0),
            disarmed: AtomicU32::new(0),
        },
    }
}; SLOTS];

impl Slot {
    /// Its number.
    pub fn index(&self) -> usize {
        (core::ptr::from_ref(self).addr() - (&raw const TABLE).addr()) / size_of::<Slot>()
    }

    /// The link to the other end's process.
    pub fn link(&self) -> Option<&'static Link> {
        (self.link.load(Ordering::Relaxed) as usize).checked_sub(1).map(link::link)
    }
}

/// A slot by its number.
pub fn slot(number: usize) -> &'static Slot {
    &TABLE[number % SLOTS]
}

/// The slots that have ever been used lie below this number.
static USED: AtomicU32 = AtomicU32::new(0);

/// Takes a free slot.
pub fn claim() -> Option<usize> {
    let claimed = (0..SLOTS).find(|number| {
        let slot = slot(*number);
        slot.users.load(Ordering::SeqCst) == 0
            && slot.holders.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    });
    if let Some(number) = claimed {
        USED.fetch_max(number as u32 + 1, Ordering::SeqCst);
    }
    claimed
}

/// The slots that may have been used.
pub fn used() -> core::ops::Range<usize> {
    0..USED.load(Ordering::SeqCst) as usize
}
