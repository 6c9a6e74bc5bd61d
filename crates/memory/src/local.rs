//! Copies from and to memory of this process that the program has registered.
//!
//! `guarded` memory may go at any time (ON_DEMAND regions, files that can be cut off: [`crate::files`]). It is reached
//! through the kernel, which answers EFAULT where a plain access would be a SIGSEGV or SIGBUS, or by copies whose
//! faults are caught ([`crate::caught`]). See the crate's page for why these functions are not `unsafe`.

use core::hint::cold_path;
use core::ops::ControlFlow;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use verbs::Errno;
use wire::{AtomicOp, Fault, Span};

use crate::{caught, files, maps, single_copy};

/// Copies `dst.len()` bytes from `addr`.
///
/// # Errors
/// [`Fault`] if `guarded` memory is not mapped readable.
#[inline]
pub fn load(addr: u64, guarded: bool, dst: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: `dst` is a live exclusive slice, so its pointer is valid for writes of its length.
    unsafe { load_raw(addr, guarded, dst.as_mut_ptr(), dst.len()) }
}

/// Copies `src` to `addr`.
///
/// # Errors
/// [`Fault`] if `guarded` memory is not mapped writable.
#[inline]
pub fn store(addr: u64, guarded: bool, src: &[u8]) -> Result<(), Fault> {
    // SAFETY: `src` is a live slice, so its pointer is valid for reads of its length.
    unsafe { store_raw(addr, guarded, src.as_ptr(), src.len()) }
}

/// [`load`] into a raw place, which may be a window that a peer writes to as well.
///
/// # Safety
/// `dst` is valid for writes of `len` bytes.
#[inline]
pub(crate) unsafe fn load_raw(addr: u64, guarded: bool, dst: *mut u8, len: usize) -> Result<(), Fault> {
    if guarded {
        cold_path();
        // SAFETY: `dst` by this function's contract, whatever has become of `addr`.
        return unsafe { careful(addr, dst.expose_provenance() as u64, len) };
    }
    // SAFETY: `dst` by this function's contract; `addr` was checked against a region, which the program has promised
    // to keep mapped. `copy` (not `copy_nonoverlapping`): a program may register anything, our rings' heap included.
    unsafe { ptr::copy(ptr::with_exposed_provenance::<u8>(addr as usize), dst, len) };
    Ok(())
}

/// Copies within this process, where the program's place may be gone.
///
/// # Safety
/// As [`caught::copy`].
unsafe fn careful(from: u64, to: u64, len: usize) -> Result<(), Fault> {
    if caught::serves(len) {
        // SAFETY: this function's contract.
        return unsafe { caught::copy(from, to, len) };
    }
    single_copy::own(from, to, len)
}

/// [`load_raw`] by stores that go around the caches, to memory. Only ordered before what follows by [`around_fence`].
///
/// # Safety
/// As [`load_raw`].
pub(crate) unsafe fn load_around(addr: u64, guarded: bool, dst: *mut u8, len: usize) -> Result<(), Fault> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if !guarded {
        let src = ptr::with_exposed_provenance::<u8>(addr as usize);
        // Up to the first address that such a store can have.
        let head = dst.align_offset(LINE).min(len);
        let lines = (len - head) / LINE;
        // SAFETY: `dst` by this function's contract, `addr` as in `load_raw`; head, lines and the rest are within
        // `len`. A program that has registered the place itself, our heap, gets other bytes than it would from
        // `load_raw`, and no other program does.
        unsafe {
            ptr::copy(src, dst, head);
            stream_lines(src.add(head), dst.add(head), lines);
            let done = head + lines * LINE;
            ptr::copy(src.add(done), dst.add(done), len - done);
        }
        return Ok(());
    }
    // SAFETY: the same contract.
    unsafe { load_raw(addr, guarded, dst, len) }
}

/// Orders what [`load_around`] has written before all stores that follow.
#[inline]
pub(crate) fn around_fence() {
    // SAFETY: an instruction that every x86-64 has, and that changes nothing but the order of stores.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

/// The unit in which such stores are made best: a cache line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: usize = 64;

/// Copies whole cache lines.
///
/// # Safety
/// `src` can be read and `dst` written for so many lines; `dst` is a multiple of [`LINE`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn stream_lines(src: *const u8, dst: *mut u8, lines: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    for line in 0..lines {
        // SAFETY: within the lines of both, by this function's contract; 16 divides the addresses written.
        unsafe {
            let (from, to) = (src.add(line * LINE).cast::<__m128i>(), dst.add(line * LINE).cast::<__m128i>());
            let quarters = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            for (i, quarter) in quarters.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), quarter);
            }
        }
    }
}

/// [`store`] from a raw place, which may be a window that a peer writes to as well.
///
/// # Safety
/// `src` is valid for reads of `len` bytes.
#[inline]
pub(crate) unsafe fn store_raw(addr: u64, guarded: bool, src: *const u8, len: usize) -> Result<(), Fault> {
    if guarded {
        cold_path();
        // SAFETY: `src` by this function's contract, whatever has become of `addr`.
        return unsafe { careful(src.expose_provenance() as u64, addr, len) };
    }
    // SAFETY: as in `load_raw`, with the directions exchanged.
    unsafe { ptr::copy(src, ptr::with_exposed_provenance_mut::<u8>(addr as usize), len) };
    Ok(())
}

/// An atomic operation on 8 bytes in host byte order; gives the value before.
///
/// A `guarded` page is made present first; if the program unmaps it between that and the access, it gets the SIGSEGV
/// that an access of its own would have got. In a file that others can cut off meanwhile the word is read and written
/// through the kernel: that is one operation for all that comes through this adapter (`IBV_ATOMIC_HCA`), not for
/// processors.
///
/// # Errors
/// [`Fault`] if `guarded` memory is not mapped writable, or if `addr` is not a multiple of 8.
pub fn atomic(addr: u64, guarded: bool, op: AtomicOp) -> Result<u64, Fault> {
    if !addr.is_multiple_of(8) {
        return Err(Fault);
    }
    if guarded {
        populate(addr, 8, true).map_err(|_| Fault)?;
        if files::may_shrink(addr, 8) {
            return atomic_copies(addr, op);
        }
    }
    // SAFETY: aligned (checked above), mapped (region, or just populated), and only ever used as an atomic here; the
    // program's own accesses are plain machine accesses outside of Rust's view.
    let word = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(addr as usize)) };
    Ok(match op {
        AtomicOp::CompareSwap(compare, swap) => {
            match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                Ok(before) | Err(before) => before,
            }
        }
        AtomicOp::FetchAdd(add) => word.fetch_add(add, Ordering::AcqRel),
        AtomicOp::Write(value) => word.swap(value, Ordering::AcqRel),
    })
}

/// [`atomic`] by copies. The caller holds the adapter's lock, so no other one comes in between.
fn atomic_copies(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
    let mut word = [0u8; 8];
    load(addr, true, &mut word)?;
    let before = u64::from_ne_bytes(word);
    let after = match op {
        AtomicOp::CompareSwap(compare, swap) => (before == compare).then_some(swap),
        AtomicOp::FetchAdd(add) => Some(before.wrapping_add(add)),
        AtomicOp::Write(value) => Some(value),
    };
    if let Some(after) = after {
        store(addr, true, &after.to_ne_bytes())?;
    }
    Ok(before)
}

/// Copies between two span lists of this process, as far as the shorter reaches.
///
/// # Errors
/// `Err(true)` if the source, `Err(false)` if the destination was not there (guarded spans only).
pub fn copy(source: &[Span], target: &[Span]) -> Result<(), bool> {
    let (mut s, mut t) = (Cursor::new(source), Cursor::new(target));
    while let (Some(from), Some(to)) = (s.piece(), t.piece()) {
        let len = from.len.min(to.len);
        if from.guarded || to.guarded {
            // SAFETY: both are the program's.
            let copied = unsafe { careful(from.addr, to.addr, len as usize) };
            copied.map_err(|Fault| populate(from.addr, u64::from(len), false).is_err())?;
        } else {
            // SAFETY: both were checked against regions (see the crate's page); they may overlap, hence `copy`.
            unsafe {
                ptr::copy(
                    ptr::with_exposed_provenance::<u8>(from.addr as usize),
                    ptr::with_exposed_provenance_mut::<u8>(to.addr as usize),
                    len as usize,
                );
            }
        }
        s.advance(len);
        t.advance(len);
    }
    Ok(())
}

/// A place in a span list.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    spans: &'a [Span],
    /// Bytes of the first span already done.
    done: u32,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(spans: &'a [Span]) -> Self {
        Cursor { spans, done: 0 }
    }

    /// What is left of the current span; never empty.
    pub(crate) fn piece(&mut self) -> Option<Span> {
        while let Some(span) = self.spans.first() {
            if self.done < span.len {
                return Some(Span {
                    addr: span.addr.wrapping_add(u64::from(self.done)),
                    len: span.len - self.done,
                    guarded: span.guarded,
                });
            }
            self.spans = &self.spans[1..];
            self.done = 0;
        }
        None
    }

    /// Goes on by `n` bytes, at most the length of the current piece.
    pub(crate) fn advance(&mut self, n: u32) {
        self.done += n;
    }
}

/// Makes the pages of a range present, as registration must: afterwards the range is known to be mapped, readable,
/// and, if `write`, writable. A length of 0 succeeds.
///
/// # Errors
/// `EFAULT` if any of it is not mapped or not accessible so; `ENOMEM` if the kernel has no memory.
pub fn populate(addr: u64, len: u64, write: bool) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    let page = rustix::param::page_size() as u64;
    let last = addr.checked_add(len - 1).ok_or(Errno::EFAULT)?;
    let start = addr & !(page - 1);
    // The kernel's own addresses are no range of ours; this also keeps the sums below from overflowing.
    if last >= u64::MAX - page {
        return Err(Errno::EFAULT);
    }
    let bytes = (last | (page - 1)) - start + 1;
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: populating changes no contents and unmaps nothing, whatever the range.
        let failed =
            unsafe { libc::madvise(ptr::with_exposed_provenance_mut(start as usize), bytes as usize, advice) != 0 };
        if !failed {
            return Ok(());
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // Older than Linux 5.14, or a mapping of device memory.
            Some(libc::EINVAL | libc::ENOSYS) => return probe(addr, len, write),
            // ENOMEM: "addresses in the range are not mapped" (madvise(2)); that the kernel is out of memory says so
            // too, and the program cannot tell the two apart either.
            _ => return Err(Errno::EFAULT),
        }
    }
}

/// [`populate`] for kernels that lack it: the mappings must cover the range with the right permission, and a byte of
/// every page is read.
pub(crate) fn probe(addr: u64, len: u64, write: bool) -> Result<(), Errno> {
    let end = addr.checked_add(len).ok_or(Errno::EFAULT)?;
    if write && !mapped_writable(addr, end) {
        return Err(Errno::EFAULT);
    }
    let page = rustix::param::page_size() as u64;
    let mut at = addr;
    while at < end {
        let mut byte = [0u8];
        load(at, true, &mut byte).map_err(|Fault| Errno::EFAULT)?;
        at = (at & !(page - 1)) + page;
    }
    Ok(())
}

/// True if `/proc/self/maps` shows writable mappings all over the range. A byte cannot be probed for writing without
/// writing it, and that could undo a store of the program.
fn mapped_writable(addr: u64, end: u64) -> bool {
    let (mut at, mut gap) = (addr, false);
    let read = maps::each(maps::Detail::Places, |mapping| {
        if mapping.end <= at {
            return ControlFlow::Continue(());
        }
        gap = mapping.start > at || !mapping.read || !mapping.write;
        at = mapping.end;
        if gap || at >= end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    read.is_err() || (!gap && at >= end)
}

#[cfg(all(test, not(loom), not(miri)))]
#[path = "local_tests.rs"]
mod tests;
