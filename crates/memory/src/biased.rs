//! A mutex that *leans* to the thread that takes it all the time (biased locking), and costs that thread no locked
//! instruction: two of those are a notable part of a small message's time (docs/lab/constants.md).
//!
//! Beside an ordinary mutex, `inner`, there are two words. `owner` is the thread to which the mutex leans; it is
//! written only under `inner`. `seq` is odd while that thread holds the mutex by that right alone; it is written only
//! by that thread. Every other thread takes `inner`, *revokes* the bias, and waits until `seq` is even:
//!
//! ```text
//! the owner                              any other thread, under inner
//! if owner is me, and seq even:
//! seq = odd                              owner = revoked
//! (compiler fence)                       membarrier(2)
//! if owner is still me: holds it         wait until seq is even: holds it
//! else: seq = even, goes to inner
//!
//! seq = even, behind all it did
//! (compiler fence)
//! if owner is revoked: wakes the waiting threads
//! ```
//!
//! **No two threads hold it at once.** Threads that came by way of `inner` exclude each other, and there is only one
//! owner. An owner and another thread each write one word and then look at the other's (Dekker), which is right if a
//! full barrier stands in between on both sides. membarrier(2) is one for its caller, and makes one in every other
//! thread of the process, at some place between two of its instructions; a thread that does not run has had one when it
//! was switched out. If that place is before the owner's second look at `owner`, it sees the revocation and steps back;
//! if it is behind, its odd number was written before, and the other one sees it and waits. What the owner did
//! meanwhile is seen by the thread that reads its even number (release and acquire).
//!
//! **A revocation outlives the thread that made it.** A thread that gives up waiting (`try_lock` and its timed
//! siblings) leaves `owner` at `REVOKED`. The next thread that takes `inner` comes behind that barrier, and looks at
//! `seq`, too. `NOBODY` means that there is nothing to look at: the thread that wrote it held the mutex.
//!
//! **No wake-up is lost.** By the same argument, for the owner's look at `owner` behind its even number: it sees that
//! it was revoked, or the other one sees the even number, at the latest in futex(2), which compares before it sleeps.
//!
//! **Each owner has a `seq` of its own.** A thread may be stopped between its first look at `owner` and its odd number
//! for as long as the scheduler likes, and write the number, and the even one, long after it was revoked. Another
//! owner's number must not suffer from that. So there are several, and one belongs to a thread pointer for good, also
//! when its thread has ended: the next thread with that pointer may use it without having asked. Its index lies in the
//! low bits of `owner`, so that both are read at once. Where there is none left the bias is not given.
//!
//! **Odd does not mean held**, for the same reason. So a holder lets go by what `owner` says: `HELD` for as long as the
//! mutex is held by way of `inner`, and never while it is held by its owner.
//!
//! **The bias is given** by a thread to itself, when it lets go of `inner` after it has called `lock` so many times in
//! a row; `try_lock` and its timed siblings earn nothing, and break the row. What others did is behind `inner`,
//! so the owner needs no barrier to see it. How many times are needed adapts itself: a revocation costs some
//! microseconds, and should be paid for by what was saved before it.
//!
//! Threads are known by their thread pointer. When one has ended, another may get its pointer and be the owner in its
//! place; the thread that made it has made sure that the first is over. A thread that takes what it holds itself, in a
//! signal handler say, is in a deadlock as with any mutex: `seq` is odd, and by way of `inner` the thread waits for it.

use core::sync::atomic::{AtomicU8, AtomicU32 as Plain, AtomicUsize as PlainUsize};
use std::time::Instant;

#[cfg(not(loom))]
use parking_lot::lock_api::{RawMutex as _, RawMutexTimed as _};

use crate::sync::{AtomicU32, AtomicUsize, Ordering};

#[cfg_attr(loom, path = "biased/model.rs")]
mod os;
#[cfg(not(loom))]
mod raw;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use os::{ANONYMOUS, Bell, Inner, light_fence};

/// `owner`: the mutex leans to no thread, and no owner holds it.
const NOBODY: usize = 0;
/// `owner`: a thread holds `inner`, and the mutex with it.
const HELD: usize = 1;
/// `owner`: the mutex leans to no thread any more, but the last owner may still hold it.
const REVOKED: usize = 2;

/// The number of thread pointers that may be owners. Thread pointers are multiples of it.
const SLOTS: usize = 16;
/// The number of times in a row that a thread must call `lock` after the first time: least, and most.
const NEEDED_LEAST: u32 = if cfg!(any(loom, miri)) { 0 } else { 128 };
const NEEDED_MOST: u32 = if cfg!(any(loom, miri)) { 0 } else { 65_536 };
/// A bias that was used so often was worth its revocation several times over (docs/lab/constants.md). The NIC thread
/// revokes it once per millisecond (more often while messages wait for room), and most programs that poll take the lock
/// ten thousand times meanwhile.
const WORTH: u32 = 1024;
/// Looks at `seq` before the system is asked to wait: most holds are shorter than this.
const LOOKS: u32 = if cfg!(any(loom, miri)) { 0 } else { 64 };

/// A mutex that leans to the thread that takes it all the time.
#[cfg(not(loom))]
pub type Mutex<T> = parking_lot::lock_api::Mutex<RawBiased, T>;
/// [`Mutex`], held.
#[cfg(not(loom))]
pub type MutexGuard<'a, T> = parking_lot::lock_api::MutexGuard<'a, RawBiased, T>;

/// The mutex without what it protects.
pub struct RawBiased {
    /// [`NOBODY`], [`HELD`], [`REVOKED`], or a thread and the index of its `seq`.
    owner: AtomicUsize,
    seqs: [AtomicU32; SLOTS],
    /// The index of the last owner's. Written under `inner`; the thread that holds the mutex may read it.
    current: Plain,
    inner: Inner,
    bell: Bell,
    row: Row,
    /// The thread pointer to which each `seq` belongs. Read and written under `inner`.
    threads: [PlainUsize; SLOTS],
}

/// The thread that has earned the bias. Read and written under `inner`.
struct Row {
    /// The thread that has called `lock` last, or none.
    last: PlainUsize,
    /// The number of times that it must do so again.
    lacks: Plain,
    /// The length that a row must have.
    needed: Plain,
    /// `seq` when the bias was given.
    given: Plain,
}

/// The time to wait.
#[derive(Clone, Copy)]
enum Until {
    /// Not at all.
    Now,
    /// So long.
    At(Instant),
    /// For ever.
    Forever,
}

/// Whether mutexes may lean.
static PERMIT: AtomicU8 = AtomicU8::new(if cfg!(loom) { GIVEN } else { UNASKED });
const UNASKED: u8 = 0;
const GIVEN: u8 = 1;
const REFUSED: u8 = 2;

/// Lets the mutexes of this process lean, if the system can do what that needs. Forked children inherit it.
///
/// Where the process has several threads it takes some ten milliseconds, in which the kernel waits until all processors
/// have taken notice; else a microsecond. The caller should be in no hurry, and hold no lock.
pub fn permit() {
    if PERMIT.load(Ordering::Relaxed) == UNASKED {
        let answer = if os::thread() != ANONYMOUS && os::register() { GIVEN } else { REFUSED };
        let _ = PERMIT.compare_exchange(UNASKED, answer, Ordering::Release, Ordering::Relaxed);
    }
}

/// [`permit`], if this process has only one thread yet.
pub fn permit_early() {
    if os::is_alone() {
        permit();
    }
}

impl RawBiased {
    /// A mutex that no thread holds. The model's atomics are not made by constant functions, so they come from outside.
    const fn assemble(owner: AtomicUsize, seqs: [AtomicU32; SLOTS], inner: Inner, bell: Bell) -> Self {
        RawBiased {
            owner,
            seqs,
            current: Plain::new(0),
            inner,
            bell,
            row: Row::new(),
            threads: [const { PlainUsize::new(NOBODY) }; SLOTS],
        }
    }

    /// Takes it, as the thread `me`.
    #[inline]
    fn lock_as(&self, me: usize) {
        if !self.enter(me) {
            self.lock_slow(me);
        }
    }

    /// Takes it, as the thread `me`, if it can be had in time.
    #[inline]
    fn try_lock_as(&self, me: usize, until: Until) -> bool {
        self.enter(me) || self.try_lock_slow(until)
    }

    /// Lets go of it.
    ///
    /// # Safety
    /// The calling thread holds it.
    #[inline]
    unsafe fn release(&self) {
        // An owner sees itself, or REVOKED; others see HELD, which they wrote.
        if self.owner.load(Ordering::Relaxed) == HELD {
            // SAFETY: the caller holds it, by way of `inner`.
            unsafe { self.release_slow() }
        } else {
            self.leave();
        }
    }

    /// Lets go of it; a waiting thread has it next, before this thread can take it again.
    ///
    /// # Safety
    /// The calling thread holds it.
    #[cfg(not(loom))]
    #[inline(never)]
    unsafe fn release_fairly(&self) {
        use parking_lot::lock_api::RawMutexFair as _;
        if self.owner.load(Ordering::Relaxed) == HELD {
            // The bias is not given here: a thread that calls this function takes the mutex again at once.
            self.owner.store(NOBODY, Ordering::Release);
            // SAFETY: the caller's promise.
            unsafe { self.inner.unlock_fair() }
        } else {
            // The thread that has revoked the bias holds `inner` while it waits.
            self.leave();
        }
    }

    /// The owner's way in. False for others, and if it is in already.
    #[inline]
    fn enter(&self, me: usize) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        // The index if the rest is `me`: no thread is as small as what else there may be.
        let Some(word) = self.seqs.get(owner ^ me) else { return false };
        // Acquire: for a thread with the pointer of one that has ended.
        let seq = word.load(Ordering::Acquire);
        if !seq.is_multiple_of(2) {
            return false;
        }
        // Before this store a signal handler may have taken the mutex and let go of it again. Then the number has been
        // there already, but only whether it is odd matters.
        word.store(seq.wrapping_add(1), Ordering::Relaxed);
        light_fence();
        if self.owner.load(Ordering::Acquire) == owner {
            return true;
        }
        self.step_back(word);
        false
    }

    /// The owner's way out.
    #[inline]
    fn leave(&self) {
        // It is still the last owner: another one would have had to hold the mutex.
        let word = &self.seqs[self.current.load(Ordering::Relaxed) as usize % SLOTS];
        let seq = word.load(Ordering::Relaxed);
        if seq.is_multiple_of(2) {
            return; // not held: a program has ended a section that it had not begun, which is no harm
        }
        word.store(seq.wrapping_add(1), Ordering::Release);
        light_fence();
        if self.owner.load(Ordering::Relaxed) == REVOKED {
            self.wake(word);
        }
    }

    /// The bias was revoked between two looks.
    #[cold]
    #[inline(never)]
    fn step_back(&self, word: &AtomicU32) {
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        self.wake(word);
    }

    #[cold]
    #[inline(never)]
    fn wake(&self, word: &AtomicU32) {
        self.bell.ring(word);
    }

    /// This path is inline and short, too: where several threads are at work, all of them come this way.
    #[inline]
    fn lock_slow(&self, me: usize) {
        self.inner.lock();
        self.take_over(Until::Forever);
        self.row.goes_on(me);
    }

    #[inline(never)]
    fn try_lock_slow(&self, until: Until) -> bool {
        let inner = match until {
            Until::Now => self.inner.try_lock(),
            Until::At(until) => self.inner.try_lock_until(until),
            Until::Forever => {
                self.inner.lock();
                true
            }
        };
        if !inner {
            return false;
        }
        let held = self.take_over(until);
        self.row.breaks();
        if !held {
            // SAFETY: taken above.
            unsafe { self.inner.unlock() };
        }
        held
    }

    /// With `inner` held: holds the mutex, too, if its owner lets go of it in time.
    #[inline]
    fn take_over(&self, until: Until) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != NOBODY && !self.revoke(owner, until) {
            return false;
        }
        self.owner.store(HELD, Ordering::Relaxed);
        true
    }

    /// The bias, and the mutex. False: the owner did not let go of it in time.
    #[cold]
    #[inline(never)]
    fn revoke(&self, owner: usize, until: Until) -> bool {
        let word = &self.seqs[self.current.load(Ordering::Relaxed) as usize % SLOTS];
        let mut seq = word.load(Ordering::Acquire);
        if owner != REVOKED {
            if matches!(until, Until::Now) && !seq.is_multiple_of(2) {
                return false;
            }
            self.owner.store(REVOKED, Ordering::Relaxed);
            if !os::heavy_fence() {
                PERMIT.store(REFUSED, Ordering::Relaxed);
            }
            seq = word.load(Ordering::Acquire);
            self.row.revoked(seq);
        }
        let mut looks = 0;
        while !seq.is_multiple_of(2) {
            if looks < LOOKS {
                looks += 1;
                core::hint::spin_loop();
            } else if !self.bell.wait(word, seq, until) {
                return false;
            }
            seq = word.load(Ordering::Acquire);
        }
        true
    }

    /// Apart, so that the owner's way out is short enough to be part of its caller.
    ///
    /// # Safety
    /// The calling thread holds it, by way of `inner`.
    #[inline(never)]
    unsafe fn release_slow(&self) {
        let owner = if self.row.is_complete() { self.give() } else { NOBODY };
        // Release: for a thread with the pointer of one that has ended. From here on a signal handler may enter.
        self.owner.store(owner, Ordering::Release);
        // SAFETY: the caller's promise.
        unsafe { self.inner.unlock() };
    }

    /// The bias, for the thread that has called `lock` last: what `owner` is to be.
    #[cold]
    #[inline(never)]
    fn give(&self) -> usize {
        let me = self.row.last.load(Ordering::Relaxed);
        let able = PERMIT.load(Ordering::Acquire) == GIVEN && me > SLOTS && me.is_multiple_of(SLOTS);
        let Some(slot) = able.then(|| self.slot(me)).flatten() else {
            self.row.was_vain();
            return NOBODY;
        };
        self.current.store(slot as u32, Ordering::Relaxed);
        self.row.given.store(self.seqs[slot].load(Ordering::Relaxed), Ordering::Relaxed);
        me | slot
    }

    /// The index of the thread's own `seq`. Not if that is odd: a thread with this pointer has ended in the middle.
    fn slot(&self, me: usize) -> Option<usize> {
        let of = |thread| self.threads.iter().position(|slot| slot.load(Ordering::Relaxed) == thread);
        let found = of(me).or_else(|| of(NOBODY))?;
        self.threads[found].store(me, Ordering::Relaxed);
        self.seqs[found].load(Ordering::Acquire).is_multiple_of(2).then_some(found)
    }

    /// True if a thread holds it, or is about to.
    #[cfg(not(loom))]
    fn is_held(&self) -> bool {
        let seq = self.seqs[self.current.load(Ordering::Relaxed) as usize % SLOTS].load(Ordering::Relaxed);
        self.owner.load(Ordering::Relaxed) == HELD || !seq.is_multiple_of(2)
    }

    /// The thread to which it leans.
    #[cfg(test)]
    fn leans_to(&self) -> Option<usize> {
        Some(self.owner.load(Ordering::Relaxed) & !(SLOTS - 1)).filter(|owner| *owner > 0)
    }
}

impl Row {
    const fn new() -> Self {
        Row {
            last: PlainUsize::new(NOBODY),
            lacks: Plain::new(NEEDED_LEAST),
            needed: Plain::new(NEEDED_LEAST),
            given: Plain::new(0),
        }
    }

    /// A call of `lock`.
    #[inline]
    fn goes_on(&self, me: usize) {
        if self.last.load(Ordering::Relaxed) == me {
            self.lacks.store(self.lacks.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        } else {
            self.last.store(me, Ordering::Relaxed);
            self.lacks.store(self.needed.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Breaks the row: a thread came that earns nothing.
    fn breaks(&self) {
        self.last.store(NOBODY, Ordering::Relaxed);
        self.lacks.store(u32::MAX, Ordering::Relaxed);
    }

    fn is_complete(&self) -> bool {
        self.lacks.load(Ordering::Relaxed) == 0
    }

    fn now_needs(&self, times: u32) {
        let times = times.clamp(NEEDED_LEAST, NEEDED_MOST);
        self.needed.store(times, Ordering::Relaxed);
        self.lacks.store(times, Ordering::Relaxed);
    }

    /// The bias could not be given.
    fn was_vain(&self) {
        self.now_needs(self.needed.load(Ordering::Relaxed).saturating_mul(2));
    }

    /// Adapts `needed` to whether the bias was worth its revocation.
    fn revoked(&self, seq: u32) {
        let uses = seq.wrapping_sub(self.given.load(Ordering::Relaxed)) / 2;
        let needed = self.needed.load(Ordering::Relaxed);
        self.now_needs(if uses < WORTH { needed.saturating_mul(2) } else { needed / 2 });
    }
}
