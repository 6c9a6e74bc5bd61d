//! A short look at memory before a thread sleeps, where the last sleeps were so short that a look would have done.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::kernel;

/// Longest look, in nanoseconds, unless the environment says another time.
const LONGEST: u64 = 20_000;
/// A sleep that was shorter, its wake-up included, would have been a successful look.
const SHORT: u64 = 60_000;
/// Successes that are remembered; a failed look costs [`MISS`] of them.
const MOST: u32 = 64;
const MISS: u32 = 8;
/// How long the number of runnable threads is believed, in nanoseconds.
const BELIEVED: u64 = 10_000_000;

thread_local! {
    /// What this thread's sleeps and looks were like. Initialized statically and without a destructor.
    static SUCCESSES: Cell<u32> = const { Cell::new(0) };
}

static MOST_NANOS: AtomicU64 = AtomicU64::new(LONGEST);

/// Reads the setting: microseconds; 0: never.
pub fn start() {
    // SAFETY: before the program runs nobody changes the environment; the string is read at once.
    let setting = unsafe {
        let value = libc::getenv(c"SOFTRNIC_SOCK_SPIN".as_ptr());
        (!value.is_null()).then(|| core::ffi::CStr::from_ptr(value))
    };
    if let Some(micros) = setting.and_then(|text| text.to_str().ok()?.parse::<u64>().ok()) {
        MOST_NANOS.store(micros.min(50) * 1000, Ordering::Relaxed);
    }
}

/// Whether there are processors for all threads that run: those that look would keep others from running.
fn is_room(now: u64) -> bool {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    static ROOM: AtomicBool = AtomicBool::new(false);
    let asked = ASKED.load(Ordering::Relaxed);
    if now.saturating_sub(asked) > BELIEVED
        && ASKED.compare_exchange(asked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    {
        ROOM.store(runnable().is_some_and(|runnable| runnable <= processors()), Ordering::Relaxed);
    }
    ROOM.load(Ordering::Relaxed)
}

/// Threads that run or could: the fourth field of /proc/loadavg (proc(5)).
fn runnable() -> Option<u32> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(c"/proc/loadavg", flags, rustix::fs::Mode::empty()).ok()?;
    let mut text = [0u8; 64];
    let len = rustix::io::read(&file, &mut text).ok()?;
    let text = core::str::from_utf8(text.get(..len)?).ok()?;
    text.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

/// Processors that this process may use; 1, where a look is never of use, counts as none.
fn processors() -> u32 {
    let count = rustix::thread::sched_getaffinity(None).map_or(0, |set| set.count());
    if count > 1 { count } else { 0 }
}

/// Looks for a while, if that has been of use lately. False: there was nothing, or it was not looked.
pub fn look(is_there: impl Fn() -> bool) -> bool {
    let most = MOST_NANOS.load(Ordering::Relaxed);
    let successes = SUCCESSES.with(Cell::get);
    if successes == 0 || most == 0 {
        return false;
    }
    let began = kernel::now();
    if !is_room(began) {
        return false;
    }
    loop {
        for _ in 0..32 {
            if is_there() {
                SUCCESSES.with(|count| count.set((successes + 1).min(MOST)));
                return true;
            }
            core::hint::spin_loop();
        }
        if kernel::now() - began > most {
            SUCCESSES.with(|count| count.set(successes.saturating_sub(MISS)));
            return false;
        }
    }
}

/// A thread has slept for so long, and was woken by the other end.
pub fn slept(nanos: u64) {
    SUCCESSES.with(|count| {
        let more = if nanos < SHORT { count.get() + 1 } else { count.get().saturating_sub(1) };
        count.set(more.min(MOST));
    });
}
