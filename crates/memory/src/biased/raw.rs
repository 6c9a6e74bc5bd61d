//! [`RawBiased`] as `lock_api` wants it.

use core::sync::atomic::{AtomicU32, AtomicUsize};
use std::time::{Duration, Instant};

use parking_lot::lock_api::{self, GuardNoSend, RawMutex};

use super::os::{Bell, Inner, thread};
use super::{NOBODY, RawBiased, SLOTS, Until};

// SAFETY: the module's argument: no two hold it at once.
unsafe impl RawMutex for RawBiased {
    const INIT: Self = RawBiased::assemble(
        AtomicUsize::new(NOBODY),
        [const { AtomicU32::new(0) }; SLOTS],
        <Inner as RawMutex>::INIT,
        Bell,
    );

    /// The thread that took it lets go of it.
    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        self.lock_as(thread());
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.try_lock_as(thread(), Until::Now)
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.release() }
    }

    fn is_locked(&self) -> bool {
        self.is_held()
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawMutexFair for RawBiased {
    unsafe fn unlock_fair(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.release_fairly() }
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawMutexTimed for RawBiased {
    type Duration = Duration;
    type Instant = Instant;

    fn try_lock_for(&self, timeout: Duration) -> bool {
        self.try_lock_as(thread(), Instant::now().checked_add(timeout).map_or(Until::Forever, Until::At))
    }

    fn try_lock_until(&self, timeout: Instant) -> bool {
        self.try_lock_as(thread(), Until::At(timeout))
    }
}
