//! The memory of this library's lists.
//!
//! poll(2) may be called by a signal's handler (signal-safety(7)), which malloc(3) may not, and where the program has
//! no memory left, calls go on. So small lists lie in blocks of a static pool, which are taken and given back by one
//! atomic operation. Larger lists, those of the library's start, and those for which no block is left, are malloc(3)'s.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const BLOCK: usize = 4096;
const WORDS: usize = 4;
const LEN: usize = WORDS * 64 * BLOCK;

#[repr(C, align(4096))]
struct Pool(UnsafeCell<[u8; LEN]>);

// SAFETY: each block is used by whoever has set its bit in `TAKEN`.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool(UnsafeCell::new([0; LEN]));
/// One bit for each block.
static TAKEN: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// 0: the library starts, and what it keeps until the end is malloc(3)'s.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// Behind the library's start.
pub fn open() {
    OPEN.store(1, Ordering::Relaxed);
}

fn take() -> Option<usize> {
    TAKEN.iter().enumerate().find_map(|(at, word)| {
        let free = |taken: u64| (taken != u64::MAX).then(|| taken | 1 << taken.trailing_ones());
        let before = word.fetch_update(Ordering::Acquire, Ordering::Relaxed, free).ok()?;
        Some(at * 64 + before.trailing_ones() as usize)
    })
}

/// The number of a block, if an address is one's.
fn block_of(address: *mut u8) -> Option<usize> {
    let from = address.addr().checked_sub(POOL.0.get().addr())?;
    (from < LEN).then_some(from / BLOCK)
}

/// The allocator of the whole library.
struct Heap;

#[cfg_attr(not(test), global_allocator)]
#[cfg_attr(test, allow(dead_code, reason = "tests have the allocator of all programs"))]
static HEAP: Heap = Heap;

// SAFETY: a block is as large as the layout, is aligned to its own size, and belongs to one caller until its bit is
// cleared. All else is the system's allocator.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let fits = layout.size() <= BLOCK && layout.align() <= BLOCK && OPEN.load(Ordering::Relaxed) != 0;
        match fits.then(take).flatten() {
            Some(number) => POOL.0.get().cast::<u8>().wrapping_add(number * BLOCK),
            // SAFETY: the caller's promise.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        match block_of(address) {
            Some(number) => {
                if let Some(word) = TAKEN.get(number / 64) {
                    word.fetch_and(!(1 << (number % 64)), Ordering::Release);
                }
            }
            // SAFETY: the caller's promise; the address came from there.
            None => unsafe { System.dealloc(address, layout) },
        }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if block_of(address).is_none() {
            // SAFETY: the caller's promise; the address came from there.
            return unsafe { System.realloc(address, layout, size) };
        }
        if size <= BLOCK {
            return address;
        }
        // SAFETY: the caller's promise: the size is a layout's, and the address this allocator's; the two places are
        // different ones.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                core::ptr::copy_nonoverlapping(address, new, layout.size());
                self.dealloc(address, layout);
            }
            new
        }
    }
}

/// An empty list with room for so many. `None`: there is no memory for it.
pub fn list<T>(room: usize) -> Option<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(room).ok()?;
    Some(list)
}

/// A list of all that an iterator gives, which may be more each time it is made. `None`: there is no memory for it.
pub fn collect<T, I: Iterator<Item = T>>(all: impl Fn() -> I) -> Option<Vec<T>> {
    loop {
        let count = all().count();
        let mut found = list(count)?;
        let mut all = all();
        found.extend(all.by_ref().take(count));
        if all.next().is_none() {
            return Some(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_taken_once_and_the_rest_is_mallocs() {
        open();
        let layout = Layout::from_size_align(100, 8).unwrap();
        // SAFETY: a layout of some bytes, which all of them are given back with.
        unsafe {
            let all: Vec<*mut u8> = (0..WORDS * 64 + 2).map(|_| HEAP.alloc(layout)).collect();
            let mut numbers: Vec<usize> = all.iter().filter_map(|address| block_of(*address)).collect();
            assert_eq!(numbers.len(), WORDS * 64);
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), WORDS * 64);
            all.iter().for_each(|address| HEAP.dealloc(*address, layout));
            let grows = HEAP.alloc(layout);
            assert!(block_of(grows).is_some());
            grows.write_bytes(7, 100);
            assert_eq!(HEAP.realloc(grows, layout, BLOCK), grows);
            let large = Layout::from_size_align(BLOCK, 8).unwrap();
            let moved = HEAP.realloc(grows, large, 2 * BLOCK);
            assert!(block_of(moved).is_none() && core::slice::from_raw_parts(moved, 100).iter().all(|byte| *byte == 7));
            HEAP.dealloc(moved, Layout::from_size_align(2 * BLOCK, 8).unwrap());
            assert!(TAKEN.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        }
    }
}
