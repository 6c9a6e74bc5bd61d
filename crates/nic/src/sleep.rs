//! The sleep of the NIC thread.
//!
//! One system call, epoll_wait(2), waits for all that can wake the thread, and takes the events. A chain of processes
//! on one processor pays each call of the thread once for each hop. The call has no time limit. Deadlines are those of
//! a timer, which is set only when a deadline is earlier than the time that it stands at, and not at each sleep: the
//! deadline of an acknowledgement mostly moves to later times.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ::verbs::Result;
use memory::fds::TrackedFd;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::time::{Itimerspec, TimerfdTimerFlags};
use window::Events;

use crate::{Nic, now};

/// What the NIC thread knows about its sleep.
#[derive(Default)]
pub(crate) struct Sleeper {
    /// The events that ended the sleep.
    pub events: Events,
    /// The time at which the timer stands; 0 before it was set.
    timer_at: u64,
    /// True while a connection to the socket of reports will be heard ([`window::hear_once`]).
    hears_doctor: bool,
    /// True if that socket is in the epoll instance.
    knows_doctor: bool,
}

/// More than any two processors' clocks differ by, in nanoseconds.
const SKEW: u64 = 1_000_000;

fn timespec(nanos: u64) -> Timespec {
    Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 }
}

impl Nic {
    /// Let the eventfd of the NIC thread and its timer wake it.
    pub(crate) fn hear_wakes(&self, epoll: BorrowedFd<'_>) -> Result<()> {
        window::hear_wakes(epoll, &self.wake)?;
        window::hear_timer(epoll, &self.timer)
    }

    /// Sleep until something happens, or until that time. True if a process may have asked for a report.
    pub(crate) fn sleep(
        &self,
        sleeper: &mut Sleeper,
        epoll: BorrowedFd<'_>,
        streams: Option<Arc<TrackedFd>>,
        until: u64,
    ) -> bool {
        // The socket of reports, once the device is open, is left out directly after an answer.
        let not_before = self.doctor_not_before();
        let until = not_before.map_or(until, |at| until.min(at));
        if not_before.is_none()
            && !sleeper.hears_doctor
            && let Some(socket) = self.doctor_socket()
        {
            sleeper.hears_doctor = window::hear_once(epoll, socket, sleeper.knows_doctor).is_ok();
            sleeper.knows_doctor |= sleeper.hears_doctor;
        }
        // What was asked for when the last events were handled. The order to print is given before the eventfd is
        // written, so that it is seen here if that event has been taken.
        let asked = sleeper.events.take_once();
        if !asked && !self.doctor.print.load(Ordering::Acquire) {
            match streams {
                // While there are TCP connections, which have an epoll instance of their own: a program that polls
                // serves them itself.
                Some(streams) => sleep_on(&[epoll, streams.as_fd()], until),
                None => self.sleep_on_epoll(sleeper, epoll, until),
            }
        }
        if asked {
            sleeper.hears_doctor = false;
        }
        asked
    }

    fn sleep_on_epoll(&self, sleeper: &mut Sleeper, epoll: BorrowedFd<'_>, until: u64) {
        if until != u64::MAX {
            let now = now();
            if until <= now {
                return;
            }
            // A timer that has expired wakes this thread once, and then not again. It counts as expired a little
            // early: its event may have been taken while this processor's clock was behind that of the timer.
            if until < sleeper.timer_at || sleeper.timer_at <= now + SKEW {
                let at = Itimerspec { it_interval: timespec(0), it_value: timespec(until) };
                if rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &at).is_err() {
                    return sleep_on(&[epoll], until); // a sandbox forbids it
                }
                sleeper.timer_at = until;
            }
        }
        sleeper.events.wait(epoll);
    }
}

/// Sleep until one of these descriptors is readable, or until that time.
fn sleep_on<const N: usize>(fds: &[BorrowedFd<'_>; N], until: u64) {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let limit = (until != u64::MAX).then(|| timespec(until.saturating_sub(now())));
    let _ = rustix::event::poll(&mut fds, limit.as_ref());
}

#[cfg(all(test, not(miri)))]
mod tests {
    use report::Settings;

    use super::*;

    /// An adapter without a thread, and what its thread would sleep with.
    fn asleep() -> (Nic, Arc<TrackedFd>, Sleeper) {
        let nic = Nic::new(Settings::of_process()).unwrap();
        let epoll = nic.core.lock().engine.env().epoll_fd().clone();
        nic.hear_wakes(epoll.as_fd()).unwrap();
        (nic, epoll, Sleeper::default())
    }

    fn handle(nic: &Nic, sleeper: &mut Sleeper) {
        nic.core.lock().engine.env_mut().handle_events_of(&mut sleeper.events, now());
    }

    #[test]
    fn a_wake_is_heard_before_and_after_the_sleep_begins() {
        let (nic, epoll, mut sleeper) = asleep();
        // Each of these sleeps has no end of its own. The eventfd is never read, and each write is heard.
        for _ in 0..3 {
            rustix::io::write(&nic.wake, &1u64.to_ne_bytes()).unwrap();
            assert!(!nic.sleep(&mut sleeper, epoll.as_fd(), None, u64::MAX));
            assert!(!sleeper.events.only_timer());
            handle(&nic, &mut sleeper);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                rustix::io::write(&nic.wake, &1u64.to_ne_bytes()).unwrap();
            });
            nic.sleep(&mut sleeper, epoll.as_fd(), None, u64::MAX);
        });
    }

    #[test]
    fn an_order_to_print_is_kept_where_its_wake_was_taken() {
        let (nic, epoll, mut sleeper) = asleep();
        nic.ask_to_print();
        handle(&nic, &mut sleeper);
        nic.sleep(&mut sleeper, epoll.as_fd(), None, u64::MAX);
    }

    #[test]
    fn a_deadline_ends_the_sleep_and_not_before() {
        const STEP: u64 = 5_000_000;
        let (nic, epoll, mut sleeper) = asleep();
        let began = now();
        nic.sleep(&mut sleeper, epoll.as_fd(), None, began);
        assert_eq!(sleeper.timer_at, 0, "a deadline that has passed needs no timer");
        assert!(!sleeper.events.only_timer());
        nic.sleep(&mut sleeper, epoll.as_fd(), None, began + STEP);
        assert!(now() >= began + STEP && sleeper.events.only_timer());
        handle(&nic, &mut sleeper);
        assert!(!sleeper.events.only_timer(), "what it was woken for is done");
        // A later deadline leaves the timer alone: it ends the sleep once too early, and then stands at the deadline.
        let (early, late) = (now() + STEP, now() + 4 * STEP);
        let at = Itimerspec { it_interval: timespec(0), it_value: timespec(early) };
        rustix::time::timerfd_settime(&nic.timer, TimerfdTimerFlags::ABSTIME, &at).unwrap();
        sleeper.timer_at = early;
        while now() < late {
            nic.sleep(&mut sleeper, epoll.as_fd(), None, late);
            assert!(now() >= early);
            handle(&nic, &mut sleeper);
        }
        // On a busy machine the first sleep may last beyond the second deadline.
        assert!([early, late].contains(&sleeper.timer_at));
    }
}
