//! The system, as loom knows it: fences on both sides, in the place of membarrier(2); a notification instead of
//! futex(2).

use core::cell::UnsafeCell;
use std::time::Instant;

use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Mutex, MutexGuard, Notify};

use super::Until;

pub const ANONYMOUS: usize = usize::MAX;

/// The number of this thread of a model.
pub fn thread() -> usize {
    ANONYMOUS
}

/// What membarrier(2) makes of the compiler's fence.
pub fn light_fence() {
    fence(Ordering::SeqCst);
}

pub fn heavy_fence() -> bool {
    fence(Ordering::SeqCst);
    true
}

pub fn register() -> bool {
    true
}

pub fn is_alone() -> bool {
    true
}

/// An ordinary mutex. Its guard is kept beside it.
#[derive(Default)]
pub struct Inner {
    guard: UnsafeCell<Option<MutexGuard<'static, ()>>>,
    mutex: Mutex<()>,
}

// SAFETY: only the thread that holds the mutex reaches the guard.
unsafe impl Sync for Inner {}
// SAFETY: models move it before it is held.
unsafe impl Send for Inner {}

impl Inner {
    fn keep(&self, guard: MutexGuard<'_, ()>) {
        // SAFETY: only the lifetime differs; it is dropped before the mutex, as the fields are declared.
        let guard = unsafe { core::mem::transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(guard) };
        // SAFETY: held.
        unsafe { *self.guard.get() = Some(guard) };
    }

    pub fn lock(&self) {
        self.keep(self.mutex.lock().expect("no panic"));
    }

    pub fn try_lock(&self) -> bool {
        self.mutex.try_lock().map(|guard| self.keep(guard)).is_ok()
    }

    pub fn try_lock_until(&self, _: Instant) -> bool {
        self.try_lock()
    }

    /// # Safety
    /// The caller holds it.
    pub unsafe fn unlock(&self) {
        // SAFETY: held.
        let guard = unsafe { (*self.guard.get()).take() };
        drop(guard);
    }
}

/// A wake-up that comes before the waiting is kept, as futex(2) does by comparing.
#[derive(Default)]
pub struct Bell(Notify);

impl Bell {
    pub fn wait(&self, _: &AtomicU32, _: u32, until: Until) -> bool {
        if !matches!(until, Until::Forever) {
            return false;
        }
        self.0.wait();
        true
    }

    pub fn ring(&self, _: &AtomicU32) {
        self.0.notify();
    }
}
