//! Limits of the machine itself, measured without any device: `softrnic bench` prints them beside its own figures.
//!
//! A measurement has two processes on two cores. One, *near*, measures the time; the other, *far*, answers. Every
//! function here is one of the two sides of a measurement, and does a stated number of turns; the caller makes sure
//! that both sides are there, and on which cores. No code of softrnic is used: a limit measured with the device's own
//! code would hide the cost of that code.
//!
//! * [`mod@line`]: a cache line from one core to the other.
//! * [`wake`]: an eventfd wakes a process that sleeps in epoll.
//! * [`stream`]: a message over TCP or a unix socket.
//! * [`copy`]: memcpy, and the kernel's copies from process to process.
//! * [`chain`]: bytes along a chain of replicas.
//! * [`sched`]: what the scheduler is asked for.
//! * [`system_call`]: the cheapest one.

pub mod chain;
pub mod copy;
pub mod line;
mod memory;
pub mod sched;
pub mod stream;
pub mod wake;

pub use memory::{Buffer, Place, Remote, Shared};

use std::io;
use std::time::{Duration, Instant};

/// Longest wait for the other side.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Time for `count` system calls that do next to nothing (`getppid(2)`).
pub fn system_call(count: u32) -> Duration {
    let start = Instant::now();
    for _ in 0..count {
        std::hint::black_box(rustix::process::getppid());
    }
    start.elapsed()
}

/// Time for `count` times a thousand steps of arithmetic that touch no memory and depend on one another little. A
/// processor alone in its core does these quickest, and one that shares its core with another is slowed down most.
pub fn work(count: u32) -> Duration {
    let start = Instant::now();
    let mut chains = std::hint::black_box([1u64, 2, 3, 4, 5, 6]);
    for step in 0..u64::from(count) * 1000 {
        for chain in &mut chains {
            *chain = chain.rotate_left(5) ^ step;
        }
    }
    std::hint::black_box(chains);
    start.elapsed()
}

/// Spin until `done`; read the clock now and then only.
#[inline]
fn spin(mut done: impl FnMut() -> bool) -> io::Result<()> {
    let mut deadline = None;
    loop {
        for _ in 0..1 << 16 {
            if done() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let now = Instant::now();
        if now > *deadline.get_or_insert(now + PATIENCE) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Where both processes share a core, the other one must run.
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests;
