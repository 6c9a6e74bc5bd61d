//! Moves while threads, system calls, signal handlers and children use the memory.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::protection::UNPRIVILEGED;

/// A flag that is raised when the mover is done, or fails: else the threads that wait for it would hide why.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Moves an area to and fro `rounds` times.
fn to_and_fro(area: &Area, rounds: usize) {
    let file = file(area.len / PAGE + 4);
    for round in 0..rounds {
        let offset = (round % 5 * PAGE) as u64;
        migrate(file.as_fd(), offset, area.base, area.len).unwrap();
        std::thread::yield_now();
        migrate_back(file.as_fd(), offset, area.len).unwrap();
        assert_eq!(used(&file), 0);
    }
}

#[test]
fn no_update_is_lost() {
    if !can("no_update_is_lost") {
        return;
    }
    for unprivileged in [false, true] {
        UNPRIVILEGED.set(unprivileged);
        let (area, stop, turns) = (Area::new(64), AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (area, stop, turns) = (&area, &stop, &turns);
                scope.spawn(move || {
                    let mut turn = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        for page in 0..64 {
                            // Each thread counts up a word of its own, not in one step, and a word that both count up.
                            let own = area.word(page * 512 + 1 + thread);
                            let seen = own.load(Ordering::Relaxed);
                            assert_eq!(seen, turn, "page {page}, thread {thread}");
                            own.store(seen + 1, Ordering::Relaxed);
                            area.word(page * 512 + 511).fetch_add(1, Ordering::Relaxed);
                        }
                        turn += 1;
                        turns.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let _stop = Stop(&stop);
            to_and_fro(&area, 50);
        });
        let turns = turns.into_inner() as u64;
        assert!(turns > 100, "nobody wrote");
        for page in 0..64 {
            assert_eq!(area.word(page * 512 + 511).load(Ordering::Relaxed), turns, "page {page}");
        }
    }
}

#[test]
fn system_calls_wait() {
    if !can("system_calls_wait") {
        return;
    }
    if protection::open(Whose::All).is_err() {
        let _ = writeln!(std::io::stderr(), "SKIPPED migrate: system_calls_wait: needs privileges for userfaultfd");
        return;
    }
    let (area, source, stop) = (Area::new(64), file(64), AtomicBool::new(false));
    area.fill(1);
    let read = || {
        // SAFETY: within our own mapping.
        let got = unsafe { libc::pread(source.as_raw_fd(), place(area.base), area.len, 0) };
        usize::try_from(got).map_err(|_| std::io::Error::last_os_error().raw_os_error())
    };
    // This system call meets the protection, and waits.
    std::thread::scope(|scope| {
        let held = Protection::new(area.base, area.len).unwrap();
        let (done, finished) = mpsc::channel();
        scope.spawn(move || done.send(read()).unwrap());
        assert!(finished.recv_timeout(Duration::from_millis(100)).is_err(), "it did not wait");
        drop(held);
        assert_eq!(finished.recv().unwrap(), Ok(area.len));
        // Where the kernel's writes do not wait, it fails.
        UNPRIVILEGED.set(true);
        let held = Protection::new(area.base, area.len).unwrap();
        UNPRIVILEGED.set(false);
        assert_eq!(scope.spawn(read).join().unwrap(), Err(Some(libc::EFAULT)));
        drop(held);
    });
    // These system calls are under way when the memory is replaced.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut content = vec![0u8; area.len];
            for turn in (1..=255u8).cycle() {
                content.fill(turn);
                assert_eq!(rustix::io::pwrite(&source, &content, 0), Ok(area.len));
                assert_eq!(read(), Ok(area.len));
                let expected = u64::from_ne_bytes([turn; 8]);
                assert!((0..64).all(|page| area.word(page * 513).load(Ordering::Relaxed) == expected));
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let _stop = Stop(&stop);
        to_and_fro(&area, 100);
    });
}

#[test]
fn signal_handlers_may_write() {
    static AT: AtomicU64 = AtomicU64::new(0);
    extern "C" fn count(_: libc::c_int) {
        word(AT.load(Ordering::Relaxed)).fetch_add(1, Ordering::Relaxed);
    }
    if !can("signal_handlers_may_write") {
        return;
    }
    let (area, stop, sent) = (Area::new(4), AtomicBool::new(false), AtomicUsize::new(0));
    AT.store(area.base, Ordering::Relaxed);
    let signal = libc::SIGRTMIN() + 7;
    // SAFETY: the handler does one atomic addition, and no other code uses this signal.
    let mover = unsafe {
        libc::signal(signal, count as extern "C" fn(libc::c_int) as libc::sighandler_t);
        libc::pthread_self()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the thread lives, for it waits for this one. At most so many of them wait in its queue.
                if unsafe { libc::pthread_kill(mover, signal) } == 0 {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let _stop = Stop(&stop);
        to_and_fro(&area, 200);
    });
    let sent = sent.into_inner() as u64;
    assert!(sent > 0 && word(area.base).load(Ordering::Relaxed) == sent);
}

#[test]
fn a_child_forked_meanwhile_keeps_nobody_waiting() {
    if !can("a_child_forked_meanwhile_keeps_nobody_waiting") {
        return;
    }
    /// A child that waits to be killed.
    struct Child(libc::pid_t);
    impl Drop for Child {
        fn drop(&mut self) {
            // SAFETY: this is our own child. Its end closes its descriptors, so a thread that waits for them goes on in
            // any case.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, ptr::null_mut(), 0);
            }
        }
    }
    let area = Area::new(1);
    area.fill(1);
    let (started, ready) = mpsc::channel();
    let (done, finished) = mpsc::channel();
    std::thread::scope(|scope| {
        let held = Protection::new(area.base, area.len).unwrap();
        // SAFETY: the child does nothing but wait.
        let child = Child(unsafe { libc::fork() });
        if child.0 == 0 {
            loop {
                // SAFETY: no precondition.
                unsafe { libc::pause() };
            }
        }
        scope.spawn(|| {
            started.send(()).unwrap();
            area.word(0).store(5, Ordering::Relaxed);
            done.send(()).unwrap();
        });
        ready.recv().unwrap();
        assert!(finished.recv_timeout(Duration::from_millis(100)).is_err(), "it did not wait");
        drop(held);
        finished.recv_timeout(Duration::from_secs(20)).unwrap();
        drop(child);
    });
}
