//! Waiting for completions: by polling, and by events.

use std::time::{Duration, Instant};

use rdma::{CompChannel, Cq, Status, Wc};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::fixture::{PATIENCE, text};

/// Takes completions; says for how many requests they are.
#[inline]
pub fn reap(cq: &Cq) -> Result<u64, String> {
    reap_most::<16>(cq)
}

/// The same, at most so many.
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

/// Polls until `wanted` requests are done, and says how many are.
#[inline]
pub fn poll_for(cq: &Cq, mut done: u64, wanted: u64) -> Result<u64, String> {
    let mut watch = Watch::new();
    while done < wanted {
        // Who waits for one asks for one, as perftest does.
        done += if wanted - done == 1 { reap_most::<1>(cq) } else { reap(cq) }?;
        watch.tick()?;
    }
    Ok(done)
}

/// Sleeps until `wanted` requests are done, as ibv_get_cq_event(3) has it: an event, the queue armed anew, and emptied.
/// The queue is armed already. `loses`: what is waited for may never come, so not for ever.
///
/// `last`: nobody waits after this, so it is not armed anew: a queue that stays armed is an event that somebody waits
/// for, and would be felt by what is measured next.
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

/// Sleeps until the channel has an event, but not for ever.
pub fn await_event(channel: &CompChannel) -> Result<(), String> {
    match is_readable(channel, PATIENCE)? {
        true => Ok(()),
        false => Err(format!("no event for {} s", PATIENCE.as_secs())),
    }
}

/// Sleeps until the channel has an event, so long at most.
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

/// Ends a wait that takes too long, at little cost.
pub struct Watch {
    spins: u32,
    deadline: Option<Instant>,
}

impl Watch {
    /// Starts.
    pub fn new() -> Self {
        Watch { spins: 0, deadline: None }
    }

    /// One more turn.
    #[inline]
    pub fn tick(&mut self) -> Result<(), String> {
        self.spins = self.spins.wrapping_add(1);
        if self.spins.is_multiple_of(1 << 16) { self.look() } else { Ok(()) }
    }

    #[cold]
    fn look(&mut self) -> Result<(), String> {
        let now = Instant::now();
        // Where both share a core, the other one must run.
        std::thread::yield_now();
        match *self.deadline.get_or_insert(now + PATIENCE) {
            deadline if now > deadline => Err(format!("nothing happened for {} s", PATIENCE.as_secs())),
            _ => Ok(()),
        }
    }
}

/// Longest wait for messages that an unreliable transport may have lost.
pub const SILENCE: Duration = Duration::from_millis(2);
