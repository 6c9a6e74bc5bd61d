//! Waits for completions: by polling, and by events.

use std::time::{Duration, Instant};

use rdma::{CompChannel, Cq, Status, Wc};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::fixture::{PATIENCE, text};

/// Take completions; the result is the number of requests that they are for.
#[inline]
pub fn reap(cq: &Cq) -> Result<u64, String> {
    reap_most::<16>(cq)
}

/// Take at most `MOST` completions; see [`reap`].
#[inline]
fn reap_most<const MOST: usize>(cq: &Cq) -> Result<u64, String> {
    let mut out = [Wc::default(); MOST];
    let count = cq.poll(&mut out).map_err(text)?;
    let mut done = 0;
    for wc in &out[..count] {
        if wc.status() != Status::SUCCESS {
            return Err(format!("a request failed with {}", wc.status()));
        }
        done += wc.wr_id();
    }
    Ok(done)
}

/// Poll until `wanted` requests are done; the result is how many are.
#[inline]
pub fn poll_for(cq: &Cq, mut done: u64, wanted: u64) -> Result<u64, String> {
    let mut watch = Watch::new();
    while done < wanted {
        // A wait for one completion polls for one, as perftest does.
        done += if wanted - done == 1 { reap_most::<1>(cq) } else { reap(cq) }?;
        watch.tick()?;
    }
    Ok(done)
}

/// Sleep until `wanted` requests are done, as ibv_get_cq_event(3) describes it: an event, the queue armed anew, and
/// emptied. The queue is armed already. With `loses` the completion may never come, so the wait has a limit.
///
/// With `last` no wait follows, so the queue is not armed anew: a queue that stays armed is an event that a thread
/// waits for, and would disturb the next measurement.
pub fn sleep_for(
    channel: &CompChannel,
    cq: &Cq,
    loses: bool,
    last: bool,
    mut done: u64,
    wanted: u64,
) -> Result<u64, String> {
    let empty = |done: &mut u64| {
        loop {
            match reap(cq)? {
                0 => return Ok::<_, String>(()),
                more => *done += more,
            }
        }
    };
    while done < wanted {
        if loses {
            await_event(channel)?;
        }
        channel.event().map_err(text)?;
        if last {
            empty(&mut done)?;
        }
        if done < wanted || !last {
            cq.arm(false).map_err(text)?;
            empty(&mut done)?;
        }
    }
    Ok(done)
}

/// True if the channel has an event.
pub fn has_event(channel: &CompChannel) -> Result<bool, String> {
    is_readable(channel, Duration::ZERO)
}

/// Sleep until the channel has an event, with a limit.
pub fn await_event(channel: &CompChannel) -> Result<(), String> {
    match is_readable(channel, PATIENCE)? {
        true => Ok(()),
        false => Err(format!("no event for {} s", PATIENCE.as_secs())),
    }
}

/// Sleep until the channel has an event, so long at most.
fn is_readable(channel: &CompChannel, longest: Duration) -> Result<bool, String> {
    let until = Instant::now() + longest;
    loop {
        let mut fds = [PollFd::new(channel, PollFlags::IN)];
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(text(error)),
        }
    }
}

/// A limit for a wait in a loop, at little cost.
pub struct Watch {
    spins: u32,
    deadline: Option<Instant>,
}

impl Watch {
    /// Start the limit.
    pub fn new() -> Self {
        Watch { spins: 0, deadline: None }
    }

    /// Count one more turn.
    #[inline]
    pub fn tick(&mut self) -> Result<(), String> {
        self.spins = self.spins.wrapping_add(1);
        if self.spins.is_multiple_of(1 << 16) { self.look() } else { Ok(()) }
    }

    #[cold]
    fn look(&mut self) -> Result<(), String> {
        let now = Instant::now();
        // Where both processes share a core, the other one must run.
        std::thread::yield_now();
        match *self.deadline.get_or_insert(now + PATIENCE) {
            deadline if now > deadline => Err(format!("nothing happened for {} s", PATIENCE.as_secs())),
            _ => Ok(()),
        }
    }
}

/// The longest wait for messages that an unreliable transport may have lost.
pub const SILENCE: Duration = Duration::from_millis(2);
