//! State that this process keeps beside its NIC. A forked child has another NIC, and begins with new state: what it
//! inherited may have been under way in another thread at the fork, its locks held for ever.

use core::sync::atomic::{AtomicPtr, Ordering};

use nic::Nic;

/// A value for each NIC; the one of the present NIC is kept. In a child those of its parent are left behind.
pub struct PerNic<T: 'static>(AtomicPtr<(&'static Nic, T)>);

impl<T: Default + Send + Sync> PerNic<T> {
    /// A value of no NIC yet.
    pub const fn new() -> Self {
        PerNic(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// The value of a live NIC, made at the first call.
    pub fn of(&'static self, nic: &'static Nic) -> &'static T {
        let mut now = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: null or made by Box::into_raw below, and never freed once it is here. The NIC in it may be a
            // parent's: only its address is looked at.
            if let Some((owner, value)) = unsafe { now.as_ref() }
                && core::ptr::eq(*owner, nic)
            {
                return value;
            }
            let made = Box::into_raw(Box::new((nic, T::default())));
            match self.0.compare_exchange(now, made, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => now = made,
                Err(other) => {
                    // SAFETY: made above; no other thread has seen it.
                    drop(unsafe { Box::from_raw(made) });
                    now = other;
                }
            }
        }
    }
}
