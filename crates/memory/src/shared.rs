//! One direction of a window: a ring's memory at raw addresses.

use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use verbs::Errno;
use wire::{Fault, Payload, Span};

use crate::backing::Backing;
use crate::co_copy;
use crate::local;
use crate::ring::RingMemory;
use crate::store_policy::Stores;

/// Half of a window: the ring from one side to the other. Both halves have the same layout, one after the other.
#[derive(Clone)]
pub struct Half {
    base: *mut u8,
    /// Keeps the memory.
    _backing: Arc<dyn Backing>,
}

// SAFETY: `base` points into the backing, which may be used from any thread.
unsafe impl Send for Half {}
// SAFETY: `&Half` gives access to atomics and to copies of bytes only; the ring's protocol orders the copies.
unsafe impl Sync for Half {}

// Each word on its own pair of cache lines (adjacent lines are fetched together).
const CONSUMED: usize = 0;
const SLEEPING: usize = 128;
const WAITING: usize = 256;
const COPYING: usize = 384;
const CO_COPY_CLAIMS: usize = 512;
const CO_COPY_HELPED: usize = 640;
const CO_COPY_TERMS: usize = 768;
const SLOTS_AT: usize = 4096;
const BULK_AT: usize = SLOTS_AT + 64 * Half::SLOTS as usize;

/// Where a slot lies, in cache lines from the first one. Slots that follow one another lie in different pages: a
/// processor that reads a line may fetch others as well (its neighbour, the next ones of a stream), and so take from
/// the producer the very lines that it is about to write. And they lie in different places of their pages: lines at the
/// same place of pages compete for the same few places of a first-level cache (8 on many processors).
const fn line(slot: u32) -> u32 {
    const LINES: u32 = 64;
    const PAGES: u32 = Half::SLOTS / LINES;
    // What is claimed is no neighbour of the line that the consumer waits at.
    const { assert!(PAGES > Half::CLAIM + 1) };
    let (page, turn) = (slot % PAGES, slot / PAGES);
    page * LINES + (turn + page * (LINES / PAGES)) % LINES
}

/// The lines of all slots: looking one up takes less than finding it.
static LINES: [u16; Half::SLOTS as usize] = {
    let (mut lines, mut slot) = ([0; Half::SLOTS as usize], 0);
    while slot < Half::SLOTS {
        lines[slot as usize] = line(slot) as u16;
        slot += 1;
    }
    lines
};

impl Half {
    /// Bytes of one half.
    pub const BYTES: usize = BULK_AT + Half::BULK as usize;
    /// Bytes of a window. No multiple of a huge page's size, see [`crate::migrate::migrate`].
    pub const WINDOW: usize = 2 * Half::BYTES;

    /// Half 0 (from the side that made the window) or 1 (towards it).
    ///
    /// # Errors
    /// `EINVAL` if the memory is too small for it.
    pub fn new(backing: &Arc<dyn Backing>, index: usize) -> Result<Self, Errno> {
        let offset = index.checked_mul(Half::BYTES).ok_or(Errno::EINVAL)?;
        if offset.checked_add(Half::BYTES).is_none_or(|end| end > backing.len()) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `offset` lies within the backing, checked above.
        let base = unsafe { backing.base().as_ptr().add(offset) };
        Ok(Half { base, _backing: Arc::clone(backing) })
    }

    /// Where a slot lies in the half, in bytes.
    #[inline(always)]
    pub fn slot_at(slot: u32) -> usize {
        Self::line_at(line(slot))
    }

    /// Where a line of the slots lies in the half.
    #[inline(always)]
    fn line_at(line: u32) -> usize {
        SLOTS_AT + 64 * (line % Self::SLOTS) as usize
    }

    /// Where the producer's side marks its single copies, see [`crate::copying`].
    pub fn copying(&self) -> &AtomicU64 {
        self.word64(COPYING)
    }

    /// What the producer's side lets the other help with, see [`crate::co_copy`].
    pub fn co_copy(&self) -> co_copy::Words<'_> {
        co_copy::Words {
            claims: self.word64(CO_COPY_CLAIMS),
            followed: self.word64(CO_COPY_HELPED),
            terms: core::array::from_fn(|i| self.word64(CO_COPY_TERMS + 8 * i)),
        }
    }

    fn word64(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at + 8 <= Half::BYTES && at.is_multiple_of(8));
        // SAFETY: callers pass constants, or addresses computed from a line's masked index: within the half, which the
        // backing keeps valid; aligned, since base is to 64 and `at` is to 8. All access to these words is atomic.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    fn word32(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at + 4 <= SLOTS_AT && at.is_multiple_of(4));
        // SAFETY: as in `word64`; only called with the constants above.
        unsafe { AtomicU32::from_ptr(self.base.add(at).cast()) }
    }

    /// The part of the bulk area that exists: where it is and how many of `len` bytes from `at` on.
    fn bulk(&self, at: u32, len: u32) -> (*mut u8, usize) {
        let at = at.min(Self::BULK);
        let len = len.min(Self::BULK - at);
        // SAFETY: `at` is at most BULK, so the sum is within the half or one past its end (with `len` 0 then).
        (unsafe { self.base.add(BULK_AT + at as usize) }, len as usize)
    }

    /// Copies from the bulk area. Beyond its end nothing is copied.
    pub fn fetch(&self, at: u32, dst: &mut [u8]) {
        let (from, len) = self.bulk(at, u32::try_from(dst.len()).unwrap_or(u32::MAX));
        // SAFETY: `bulk` stays within the half and within `dst`; `dst` is ours alone and cannot overlap the window.
        // The peer may write at the same time: then the bytes are any bytes, which is what they are to us anyway.
        unsafe { ptr::copy_nonoverlapping(from, dst.as_mut_ptr(), len) };
    }

    /// Copies from the bulk area to local memory, as far as it reaches.
    ///
    /// # Errors
    /// [`Fault`] if guarded memory is not there.
    pub fn scatter(&self, at: u32, spans: &[Span]) -> Result<(), Fault> {
        let mut at = at;
        for span in spans {
            let (from, len) = self.bulk(at, span.len);
            // SAFETY: `from` is valid for reads of `len` bytes, see `bulk`; as to the peer, see `fetch`.
            unsafe { local::store_raw(span.addr, span.guarded, from, len)? };
            at += len as u32;
        }
        Ok(())
    }
}

impl RingMemory for Half {
    const SLOTS: u32 = 1024;
    const BULK: u32 = 256 * 1024;
    const SEGMENT: u32 = 16 * 1024;

    #[inline(always)]
    fn line(slot: u32) -> u32 {
        u32::from(LINES[(slot % Half::SLOTS) as usize])
    }

    #[inline]
    fn stamp(&self, line: u32) -> &AtomicU64 {
        self.word64(Self::line_at(line))
    }

    #[inline]
    fn consumed(&self) -> &AtomicU64 {
        self.word64(CONSUMED)
    }

    #[inline]
    fn sleeping(&self) -> &AtomicU32 {
        self.word32(SLEEPING)
    }

    #[inline]
    fn waiting(&self) -> &AtomicU32 {
        self.word32(WAITING)
    }

    #[inline]
    fn load_body(&self, line: u32) -> [u64; 7] {
        let at = Self::line_at(line) + 8;
        core::array::from_fn(|i| self.word64(at + 8 * i).load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn load_short(&self, line: u32) -> [u64; 5] {
        let at = Self::line_at(line) + 8;
        core::array::from_fn(|i| self.word64(at + 8 * i).load(Ordering::Relaxed))
    }

    #[inline]
    fn store_body(&self, line: u32, first: usize, words: &[u64]) {
        let at = Self::line_at(line) + 8;
        for (i, word) in words.iter().enumerate().take(7usize.saturating_sub(first)) {
            self.word64(at + 8 * (first + i)).store(*word, Ordering::Relaxed);
        }
    }

    #[inline]
    fn claim_bulk(&self, at: u32) {
        self.word64(BULK_AT + (at % Self::BULK) as usize).store(0, Ordering::Relaxed);
    }

    #[inline]
    fn expect_write(&self, line: u32) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let at = std::ptr::from_ref(self.stamp(line));
            // SAFETY: a hint: it changes neither memory nor registers, and may be given any address.
            unsafe { core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = line;
    }

    #[inline]
    fn expect_read(&self, line: u32) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let at = std::ptr::from_ref(self.stamp(line));
            // SAFETY: a hint, as above.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = line;
    }

    fn nanos(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    fn store_bulk(&self, at: u32, payload: &Payload<'_>, stores: Stores) -> Result<(), Fault> {
        let (to, len) = self.bulk(at, u32::try_from(payload.prefix.len()).map_err(|_| Fault)?);
        // SAFETY: `bulk` stays within the half; the prefix is ours and not in the window. The peer may write there too
        // if it breaks the rules, and no reference to these bytes exists.
        unsafe { ptr::copy_nonoverlapping(payload.prefix.as_ptr(), to, len) };
        let mut at = at + len as u32;
        let copied = payload.spans.iter().try_for_each(|span| {
            let (to, len) = self.bulk(at, span.len);
            at += len as u32;
            // SAFETY: `to` is valid for writes of `len` bytes, see `bulk`.
            unsafe {
                match stores {
                    Stores::Through => local::load_raw(span.addr, span.guarded, to, len),
                    Stores::Around => local::load_around(span.addr, span.guarded, to, len),
                }
            }
        });
        if stores == Stores::Around {
            local::around_fence(); // also before others are written there, if a span was not there
        }
        copied
    }
}
