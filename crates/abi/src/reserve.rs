//! Lack of memory. Rust ends a program that gets no memory, and a verbs library must not do so. While there is little
//! memory, calls that make objects are refused (ENOMEM). The small allocations that come up while data move have a
//! reserve, whose pages cost nothing until then.
//!
//! Large things (queues, windows) are refused where they are made.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use std::alloc::System;

/// The bytes of the reserve.
const BYTES: usize = 512 << 10;
/// The bytes that any one object needs in small pieces, several times over.
const ENOUGH: usize = 64 << 10;

/// The C library's allocator, and behind it the reserve.
pub struct Backed {
    area: UnsafeCell<[u8; BYTES]>,
    /// The offset of the next free byte, and the number of pieces in use. All bytes are free again when no piece is in
    /// use.
    used: UnsafeCell<(usize, usize)>,
    lock: AtomicBool,
}

#[global_allocator]
static BACKED: Backed =
    Backed { area: UnsafeCell::new([0; BYTES]), used: UnsafeCell::new((0, 0)), lock: AtomicBool::new(false) };

// SAFETY: `used` is only reached under the lock; of `area`, only addresses are made here.
unsafe impl Sync for Backed {}

/// True if there is memory to make an object with.
pub fn enough() -> bool {
    let layout = Layout::new::<[u8; ENOUGH]>();
    // SAFETY: the size is not 0; what was allocated is freed with the same layout, and never used.
    unsafe {
        let found = System.alloc(layout);
        if !found.is_null() {
            System.dealloc(found, layout);
        }
        !found.is_null()
    }
}

impl Backed {
    /// Run `change` on `used` under the lock. This happens only when memory has run out, and takes moments.
    fn locked<T>(&self, change: impl FnOnce(&mut (usize, usize)) -> T) -> T {
        while self.lock.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: only the holder of the lock reaches `used`.
        let result = change(unsafe { &mut *self.used.get() });
        self.lock.store(false, Ordering::Release);
        result
    }

    fn base(&self) -> *mut u8 {
        self.area.get().cast()
    }

    fn holds(&self, piece: *mut u8) -> bool {
        (piece as usize).wrapping_sub(self.base() as usize) < BYTES
    }

    #[cold]
    fn take(&self, layout: Layout) -> *mut u8 {
        self.locked(|(next, pieces)| {
            let start = (self.base() as usize + *next).next_multiple_of(layout.align()) - self.base() as usize;
            match start.checked_add(layout.size()) {
                Some(end) if end <= BYTES => {
                    (*next, *pieces) = (end, *pieces + 1);
                    // SAFETY: `start` is within the area, as `end` is.
                    unsafe { self.base().add(start) }
                }
                _ => core::ptr::null_mut(),
            }
        })
    }

    #[cold]
    fn give_back(&self) {
        self.locked(|(next, pieces)| {
            *pieces -= 1;
            if *pieces == 0 {
                *next = 0;
            }
        });
    }
}

// SAFETY: pieces come from the system's allocator or from the area, where none overlaps another that is in use: `next`
// only falls when none is. They are given back to where they came from. No method unwinds.
unsafe impl GlobalAlloc for Backed {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let found = unsafe { System.alloc(layout) };
        if found.is_null() { self.take(layout) } else { found }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let found = unsafe { System.alloc_zeroed(layout) };
        if !found.is_null() {
            return found;
        }
        let found = self.take(layout);
        if !found.is_null() {
            // SAFETY: a piece of this size; it may have been used before.
            unsafe { found.write_bytes(0, layout.size()) };
        }
        found
    }

    #[inline]
    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if self.holds(piece) {
            self.give_back();
        } else {
            // SAFETY: the caller's promise; it is the system's.
            unsafe { System.dealloc(piece, layout) }
        }
    }

    #[inline]
    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.holds(piece) {
            // SAFETY: the caller's promise; it is the system's.
            let found = unsafe { System.realloc(piece, layout, size) };
            if !found.is_null() {
                return found;
            }
        }
        // SAFETY: `size` is not 0 and no overflow with this alignment (caller).
        let new = Layout::from_size_align(size, layout.align()).map(|new| unsafe { self.alloc(new) });
        let Ok(new) = new else { return core::ptr::null_mut() };
        if !new.is_null() {
            // SAFETY: both are at least that long, and a new piece overlaps no old one.
            unsafe {
                new.copy_from_nonoverlapping(piece, layout.size().min(size));
                self.dealloc(piece, layout);
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_whole_again_when_nothing_of_it_is_used() {
        let layout = Layout::from_size_align(1000, 64).unwrap();
        let mut pieces = Vec::with_capacity(BYTES / 1000);
        for _ in 0..2 {
            loop {
                let piece = BACKED.take(layout);
                if piece.is_null() {
                    break;
                }
                assert!(BACKED.holds(piece) && (piece as usize).is_multiple_of(64));
                pieces.push(piece);
            }
            assert!(pieces.len() >= BYTES / 1024 - 1);
            // SAFETY: from `take`, with this layout.
            pieces.drain(..).for_each(|piece| unsafe { BACKED.dealloc(piece, layout) });
        }
    }

    #[test]
    fn a_piece_of_the_reserve_moves_out_of_it() {
        let layout = Layout::from_size_align(100, 8).unwrap();
        let piece = BACKED.take(layout);
        // SAFETY: 100 bytes; then 5000, given back with that layout.
        unsafe {
            piece.write_bytes(7, 100);
            let moved = BACKED.realloc(piece, layout, 5000);
            assert!(!BACKED.holds(moved));
            assert!(core::slice::from_raw_parts(moved, 100).iter().all(|byte| *byte == 7));
            BACKED.dealloc(moved, Layout::from_size_align(5000, 8).unwrap());
        }
    }
}
