//! Waking a process that sleeps: an eventfd that it waits for with epoll, as every event loop does.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::PATIENCE;

/// The eventfd that is waited for, and the peer's, which is rung.
pub struct Bells {
    ours: OwnedFd,
    theirs: OwnedFd,
    epoll: OwnedFd,
}

/// Make an eventfd.
///
/// # Errors
/// The system's.
pub fn bell() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

impl Bells {
    /// Make the pair: wait for `ours`, ring `theirs`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(ours: OwnedFd, theirs: OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &ours, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Bells { ours, theirs, epoll })
    }

    fn ring(&self) -> io::Result<()> {
        rustix::io::write(self.theirs.as_fd(), &1u64.to_ne_bytes())?;
        Ok(())
    }

    fn wait(&self) -> io::Result<()> {
        let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut events = Vec::with_capacity(1);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        rustix::io::read(self.ours.as_fd(), &mut [0; 8])?;
        Ok(())
    }

    /// Time for `count` wake-ups there and as many back.
    ///
    /// # Errors
    /// The system's errors, `TimedOut` if the other side does not answer.
    pub fn near(&self, count: u32) -> io::Result<Duration> {
        let start = Instant::now();
        for _ in 0..count {
            self.ring()?;
            self.wait()?;
        }
        Ok(start.elapsed())
    }

    /// Answer `count` times.
    ///
    /// # Errors
    /// As [`Bells::near`].
    pub fn remote(&self, count: u32) -> io::Result<()> {
        for _ in 0..count {
            self.wait()?;
            self.ring()?;
        }
        Ok(())
    }
}
