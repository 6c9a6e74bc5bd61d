//! The biased mutex with real threads and the real barrier. Which interleavings are possible is for `loom_tests.rs`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::lock_api::{RawMutex, RawMutexTimed};

use super::*;

/// More calls than a row needs at first.
const ROW: u32 = 2 * NEEDED_LEAST + 2;
const SHORT: Duration = Duration::from_millis(2);

fn unheld() -> RawBiased {
    permit();
    assert_eq!(PERMIT.load(Ordering::Relaxed), GIVEN, "membarrier(2)");
    <RawBiased as RawMutex>::INIT
}

fn take(mutex: &RawBiased, times: u32) {
    for _ in 0..times {
        mutex.lock();
        // SAFETY: taken just now.
        unsafe { mutex.unlock() };
    }
}

fn tried(mutex: &RawBiased) -> bool {
    let held = mutex.try_lock();
    if held {
        // SAFETY: taken just now.
        unsafe { mutex.unlock() };
    }
    held
}

/// The result of a function on another thread.
fn elsewhere<R: Send>(run: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(run).join().expect("no panic"))
}

#[test]
fn it_leans_to_who_takes_it_often_until_another_comes() {
    let mutex = unheld();
    let me = os::thread();
    take(&mutex, NEEDED_LEAST);
    assert_eq!(mutex.leans_to(), None, "not often enough");
    take(&mutex, 1);
    assert_eq!(mutex.leans_to(), Some(me));
    take(&mutex, 10);
    assert_eq!(mutex.leans_to(), Some(me));
    elsewhere(|| take(&mutex, 1));
    if NEEDED_LEAST > 0 {
        assert_eq!(mutex.leans_to(), None);
        take(&mutex, ROW + 1); // it was not worth it: twice as often
        assert_eq!(mutex.leans_to(), Some(me));
    }
}

#[test]
fn who_only_tries_earns_nothing_and_breaks_the_row() {
    let mutex = unheld();
    for _ in 0..ROW {
        assert!(tried(&mutex));
        assert_eq!(mutex.leans_to(), None);
    }
    if NEEDED_LEAST > 0 {
        take(&mutex, NEEDED_LEAST);
        assert!(elsewhere(|| tried(&mutex)));
        take(&mutex, NEEDED_LEAST);
        assert_eq!(mutex.leans_to(), None);
    }
}

#[test]
fn it_is_harder_to_earn_where_others_come_soon_and_easier_where_they_do_not() {
    let row = Row::new();
    let need = |row: &Row| row.needed.load(Ordering::Relaxed);
    if NEEDED_MOST == NEEDED_LEAST {
        return;
    }
    for _ in 0..40 {
        let before = need(&row);
        row.revoked(2 * (WORTH - 1));
        assert_eq!(need(&row), (before * 2).min(NEEDED_MOST));
    }
    for _ in 0..40 {
        let before = need(&row);
        row.revoked(2 * WORTH);
        assert_eq!(need(&row), (before / 2).max(NEEDED_LEAST));
    }
}

/// A thread takes a mutex that it holds itself, as in a signal handler.
#[test]
fn what_is_held_cannot_be_taken_again() {
    for row in [0, ROW] {
        let mutex = unheld();
        take(&mutex, row);
        mutex.lock();
        assert!(mutex.is_locked());
        assert!(!mutex.try_lock());
        assert!(!mutex.try_lock_for(SHORT));
        assert!(!mutex.try_lock());
        // SAFETY: held.
        unsafe { mutex.unlock() };
        assert!(!mutex.is_locked());
        take(&mutex, ROW);
        assert!(tried(&mutex));
    }
}

#[test]
fn an_owner_that_does_not_let_go_is_given_up() {
    let mutex = unheld();
    take(&mutex, ROW);
    mutex.lock();
    let leans = mutex.leans_to();
    elsewhere(|| {
        assert!(!mutex.try_lock());
        assert_eq!(mutex.leans_to(), leans, "who cannot have it anyway disturbs nobody");
        let began = Instant::now();
        assert!(!mutex.try_lock_for(SHORT));
        assert!(began.elapsed() >= SHORT);
        assert!(!mutex.try_lock_until(began), "over already");
        assert!(!mutex.try_lock());
        assert!(mutex.is_locked());
    });
    // SAFETY: held.
    unsafe { mutex.unlock() };
    assert!(elsewhere(|| tried(&mutex)));
}

/// It sleeps in futex(2), for ever: the test would hang.
#[test]
fn who_waits_for_the_owner_is_woken() {
    let mutex = unheld();
    for _ in 0..if cfg!(miri) { 2 } else { 20 } {
        take(&mutex, 8 * ROW);
        mutex.lock();
        thread::scope(|scope| {
            let waits = scope.spawn(|| take(&mutex, 1));
            while mutex.leans_to().is_some() {
                thread::yield_now();
            }
            thread::sleep(SHORT);
            assert!(!waits.is_finished());
            // SAFETY: held.
            unsafe { mutex.unlock() };
        });
    }
}

/// A thread that has earned the bias, and ends when the sender does.
fn earn<'s>(scope: &'s thread::Scope<'s, '_>, mutex: &'s RawBiased, me: usize) -> Sender<()> {
    let (ends, end) = channel();
    let (tells, told) = channel();
    scope.spawn(move || {
        for _ in 0..=NEEDED_MOST {
            mutex.lock_as(me);
            // SAFETY: taken just now.
            unsafe { mutex.release() };
        }
        let _ = tells.send(());
        let _ = end.recv();
    });
    let _ = told.recv();
    ends
}

/// Their numbers may be written to for as long as there are threads with their pointers.
#[test]
fn there_are_as_many_owners_as_slots() {
    let mutex = unheld();
    let name = |n: usize| (1000 + n) * SLOTS;
    thread::scope(|scope| {
        for n in 0..SLOTS {
            drop(earn(scope, &mutex, name(n)));
            assert_eq!(mutex.leans_to(), Some(name(n)));
        }
        drop(earn(scope, &mutex, name(SLOTS)));
        assert_eq!(mutex.leans_to(), None);
        drop(earn(scope, &mutex, name(2)));
        assert_eq!(mutex.leans_to(), Some(name(2)), "who has one keeps it");
    });
}

/// `ibv_end_poll` without a section, say: as harmless as to an ordinary mutex.
#[test]
fn let_go_once_too_often() {
    let stray = |mutex: &RawBiased| {
        // SAFETY: no thread holds the mutex, and it protects nothing.
        unsafe { mutex.unlock() };
    };
    let mutex = unheld();
    stray(&mutex);
    take(&mutex, ROW);
    assert!(mutex.leans_to().is_some() || cfg!(miri));
    stray(&mutex);
    take(&mutex, ROW);
    assert!(elsewhere(|| tried(&mutex)));
    stray(&mutex);
    take(&mutex, ROW);
    assert!(elsewhere(|| tried(&mutex)));
}

/// Two numbers that are equal unless two threads hold the mutex at once.
struct Pair(u64, u64);

impl Pair {
    fn count(&mut self) {
        assert_eq!(self.0, self.1);
        self.0 += 1;
        std::hint::black_box(&mut *self);
        self.1 += 1;
    }
}

/// One thread takes the mutex all the time, so that it leans to that thread. Others come now and then, each in its way.
#[test]
fn nobody_is_in_beside_another() {
    const REVOCATIONS: u64 = if cfg!(miri) { 4 } else { 3000 };
    /// So that each bias is given again at once.
    const EASY: u32 = if cfg!(miri) { 0 } else { 4 };
    permit();
    let mutex = Mutex::new(Pair(0, 0));
    let (over, total, revocations) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let run = |pause: Duration, stores: &dyn Fn() -> bool| {
        let mut n = 0;
        while !over.load(Ordering::Relaxed) {
            // SAFETY: only looked at.
            let leant = unsafe { mutex.raw() }.leans_to().is_some_and(|owner| owner != os::thread());
            let held = stores();
            n += u64::from(held);
            // SAFETY: these are atomics, and another number does no harm to any thread.
            unsafe { mutex.raw() }.row.needed.store(EASY, Ordering::Relaxed);
            revocations.fetch_add(u64::from(held && leant), Ordering::Relaxed);
            if !pause.is_zero() {
                thread::sleep(pause);
            }
        }
        total.fetch_add(n, Ordering::Relaxed);
    };
    let lock = || {
        mutex.lock().count();
        true
    };
    let try_lock = || mutex.try_lock().map(|mut pair| pair.count()).is_some();
    let try_lock_for = || mutex.try_lock_for(Duration::from_micros(30)).map(|mut pair| pair.count()).is_some();
    thread::scope(|scope| {
        scope.spawn(|| run(Duration::ZERO, &lock));
        scope.spawn(|| run(Duration::from_micros(100), &lock));
        scope.spawn(|| run(Duration::from_micros(130), &try_lock));
        scope.spawn(|| run(Duration::from_micros(80), &try_lock_for));
        // One that comes in bursts, and so is the owner by turns with the first.
        scope.spawn(|| {
            run(Duration::from_micros(200), &|| {
                for _ in 0..4 * EASY {
                    mutex.lock().count();
                    total.fetch_add(1, Ordering::Relaxed);
                }
                lock()
            })
        });
        while revocations.load(Ordering::Relaxed) < REVOCATIONS {
            thread::sleep(SHORT);
        }
        over.store(true, Ordering::Relaxed);
    });
    let Pair(one, other) = *mutex.lock();
    assert_eq!((one, other), (total.load(Ordering::Relaxed), total.load(Ordering::Relaxed)));
}

/// A thread that lets go in between and takes the mutex again at once comes behind the waiting threads. This holds
/// whether the mutex leans to that thread or not.
#[test]
fn who_waits_has_it_next() {
    use parking_lot::lock_api::RawMutexFair;
    for leans in [false, true] {
        let (mutex, got) = (unheld(), AtomicBool::new(false));
        let until = Instant::now() + Duration::from_secs(10);
        take(&mutex, if leans { ROW } else { 0 });
        mutex.lock();
        thread::scope(|scope| {
            scope.spawn(|| {
                mutex.lock();
                got.store(true, Ordering::Relaxed);
                // SAFETY: taken just now.
                unsafe { mutex.unlock() };
            });
            while leans && mutex.owner.load(Ordering::Relaxed) != REVOKED && Instant::now() < until {
                thread::yield_now();
            }
            // SAFETY: taken above.
            unsafe { mutex.bump() };
            assert!(got.load(Ordering::Relaxed) || !leans, "it waited");
            while !got.load(Ordering::Relaxed) && Instant::now() < until {
                thread::yield_now();
                // SAFETY: as above.
                unsafe { mutex.bump() };
            }
            assert!(got.load(Ordering::Relaxed));
            // SAFETY: as above.
            unsafe { mutex.unlock() };
        });
    }
}
