//! What this process tells of its connections, for `softrnic top --sockets` and `softrnic doctor`: a memfd that has
//! the layout of [`sock::status`].
//!
//! It is made with the first connection, and again in a forked child. Nothing of this library depends on it: without
//! it, nothing is told.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use memory::backing::{Backing, Memfd};
use sock::status::{ENTRIES, FILES, LEN, LIMIT, MAGIC, NAME, SLOTS, State, WORDS, Way};

use crate::meet;
use crate::table::{self, Tag};

const _: () = assert!(LIMIT == table::LIMIT && SLOTS == table::SLOTS && LEN.is_multiple_of(4096));

/// The memory. Null: none.
static BASE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// The file's descriptor + 1.
static FILE: AtomicI32 = AtomicI32::new(0);

/// Makes the file, if there is none. It stays as long as the process.
pub fn start() {
    static BEGUN: AtomicI32 = AtomicI32::new(0);
    if BEGUN.swap(1, Ordering::SeqCst) == 0 {
        make();
    }
}

fn make() {
    let Ok((memory, file)) = Memfd::create_named(NAME, LEN) else { return };
    if memory.inherit().is_err() {
        return;
    }
    let Some(file) = meet::out_of_the_way(file) else { return };
    let base = memory.base().as_ptr();
    // It is read by others at any time, and given back by the end of the process.
    core::mem::forget(memory);
    BASE.store(base, Ordering::SeqCst);
    FILE.store(file + 1, Ordering::SeqCst);
    // SAFETY: the first bytes of the mapping, which is aligned to pages.
    unsafe { &*base.cast::<AtomicU64>() }.store(MAGIC, Ordering::Release);
}

/// The child of fork(2) tells of itself: it has the parent's descriptors, and must not write to its file.
pub fn in_child() {
    let before = BASE.swap(core::ptr::null_mut(), Ordering::SeqCst);
    if before.is_null() {
        return;
    }
    let file = FILE.swap(0, Ordering::SeqCst) - 1;
    if file >= 0 {
        table::set_tag(file, Tag::Unknown);
        // SAFETY: the descriptor of this library's file, which nobody else knows.
        drop(unsafe { OwnedFd::from_raw_fd(file) });
    }
    // SAFETY: the mapping that `make` has made, which only this module names, and which is not named any more.
    let _ = unsafe { rustix::mm::munmap(before.cast(), LEN) };
    make();
    for fd in table::all() {
        match table::tag(fd) {
            Tag::Fresh(_) => set(fd, Some(State::Young), 0),
            Tag::Waiting(_) => set(fd, Some(State::Waiting), 0),
            Tag::Shared(number) => set(fd, Some(State::Moved), number),
            _ => {}
        }
    }
}

/// A descriptor of the library's has a new number.
pub fn replace(fd: i32, new: impl FnOnce() -> Option<i32>) -> bool {
    if FILE.load(Ordering::SeqCst) != fd + 1 {
        return false;
    }
    FILE.store(new().map_or(0, |new| new + 1), Ordering::SeqCst);
    true
}

fn word(at: usize) -> Option<&'static AtomicU32> {
    let base = BASE.load(Ordering::Relaxed);
    // SAFETY: callers pass a place in the mapping, aligned to 4 bytes; it stays until a fork, in whose child no other
    // thread is.
    (!base.is_null()).then(|| unsafe { &*base.add(at).cast::<AtomicU32>() })
}

/// Says where a descriptor is. `None`: it is closed, or no connection.
pub fn set(fd: i32, state: Option<State>, number: usize) {
    if let Some(fd) = usize::try_from(fd).ok().filter(|fd| *fd < LIMIT)
        && let Some(word) = word(FILES + 4 * fd)
    {
        word.store(state.map_or(0, |state| state as u32 | (number as u32) << 8), Ordering::Relaxed);
    }
}

/// What is counted, by the numbers of the words of an entry.
#[derive(Clone, Copy)]
pub enum Count {
    Sent = 1,
    Received = 2,
    Rings = 3,
    Sleeps = 4,
    Stalls = 5,
}

fn entry(number: usize) -> Option<&'static [AtomicU64; WORDS]> {
    let base = BASE.load(Ordering::Relaxed);
    let at = ENTRIES + 8 * WORDS * (number % SLOTS);
    // SAFETY: as in `word`: an entry lies in the mapping, and is aligned to 64 bytes.
    (!base.is_null()).then(|| unsafe { &*base.add(at).cast::<[AtomicU64; WORDS]>() })
}

/// A connection has got memory.
pub fn begin(number: usize) {
    entry(number).into_iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
}

/// Counts something of a connection. Threads that count at the same time may lose a little.
pub fn add(number: usize, what: Count, some: u64) {
    if let Some(word) = entry(number).and_then(|entry| entry.get(what as usize)) {
        word.store(word.load(Ordering::Relaxed).wrapping_add(some), Ordering::Relaxed);
    }
}

/// The ways of a connection's two directions.
pub fn ways(number: usize, sending: Way, receiving: Way) {
    if let Some(word) = entry(number).and_then(|entry| entry.first()) {
        word.store(u64::from(sending.number()) | u64::from(receiving.number()) << 8, Ordering::Relaxed);
    }
}
