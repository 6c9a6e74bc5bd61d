//! The parts of the system that the biased mutex needs: the number of this thread, barriers in other threads, waiting.

use core::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};
use rustix::thread::{MembarrierCommand, membarrier};

use super::Until;

pub use parking_lot::RawMutex as Inner;

/// The number of a thread where threads are not known. No mutex ever leans to it.
pub const ANONYMOUS: usize = usize::MAX;

/// A time longer than any store waits in a processor's buffer. A store waits there only until its cache line arrives.
const DRAINED: Duration = Duration::from_millis(10);

/// The thread pointer: an address in the thread's own memory. Not by `thread_local!`, which calls a function in a
/// library that is loaded late.
#[inline]
pub fn thread() -> usize {
    #[cfg(all(target_os = "linux", target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
    {
        let pointer;
        // SAFETY: the first word of the thread's control block is its own address (ELF Handling For Thread-Local
        // Storage, variant II), always readable.
        unsafe {
            core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
        }
        pointer
    }
    #[cfg(all(target_os = "linux", target_arch = "aarch64", not(miri)))]
    {
        let pointer;
        // SAFETY: reads a register that every thread may read.
        unsafe {
            core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags));
        }
        pointer
    }
    #[cfg(miri)]
    {
        /// Thread pointers are multiples of this, at least.
        #[repr(align(16))]
        struct Block(#[allow(dead_code)] u8);
        std::thread_local! {
            static ME: Block = const { Block(0) };
        }
        ME.with(|me| core::ptr::from_ref(me).addr())
    }
    #[cfg(not(any(miri, all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))))]
    ANONYMOUS
}

/// The owner's side of the barrier: the compiler's part of it; the processor's is made by [`heavy_fence`].
#[inline]
pub fn light_fence() {
    if cfg!(miri) {
        core::sync::atomic::fence(Ordering::SeqCst);
    } else {
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

/// A full barrier here, and one in every other thread of the process. False: no mutex may lean again.
pub fn heavy_fence() -> bool {
    if cfg!(miri) {
        core::sync::atomic::fence(Ordering::SeqCst);
        return true;
    }
    let barrier = || membarrier(MembarrierCommand::PrivateExpedited).is_ok();
    // Not registered any more, as where a process was restored from an image?
    if barrier() || (register() && barrier()) {
        return true;
    }
    // A filter of system calls was installed since. The other thread's odd number may wait to be written in a buffer of
    // its processor: not for long, and interrupts empty it, too. There is nothing better left, and it happens once.
    core::sync::atomic::fence(Ordering::SeqCst);
    // Not by `sleep`, where pthread_cancel(3) could strike.
    let until = Instant::now() + DRAINED;
    while Instant::now() < until {
        let word = AtomicU32::new(0);
        let _ = futex::wait(&word, Flags::PRIVATE, 0, Timespec::try_from(DRAINED).ok().as_ref());
    }
    core::sync::atomic::fence(Ordering::SeqCst);
    false
}

/// Asks for membarrier(2). False if the kernel has none (4.14 has), or a filter forbids it.
pub fn register() -> bool {
    cfg!(miri) || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

/// True if the process has one thread.
pub fn is_alone() -> bool {
    // A directory for each thread, and the two links that every directory has.
    rustix::fs::stat("/proc/self/task").is_ok_and(|tasks| tasks.st_nlink == 3)
}

/// Where the holder of `inner` waits for the owner.
pub struct Bell;

impl Bell {
    /// Waits while the word is `seen`, or less long. False: the time is over.
    pub fn wait(&self, word: &AtomicU32, seen: u32, until: Until) -> bool {
        let left = match until {
            Until::Now => return false,
            Until::At(until) => match until.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => Timespec::try_from(left).ok(),
                _ => return false,
            },
            Until::Forever => None,
        };
        match if cfg!(miri) { Err(Errno::NOSYS) } else { futex::wait(word, Flags::PRIVATE, seen, left.as_ref()) } {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
            Err(_) => std::thread::yield_now(),
        }
        true
    }

    /// Wakes the threads that wait for it.
    pub fn ring(&self, word: &AtomicU32) {
        if !cfg!(miri) {
            let _ = futex::wake(word, Flags::PRIVATE, 1);
        }
    }
}
