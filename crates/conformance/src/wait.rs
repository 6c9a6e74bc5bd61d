//! Waits with a limit.

use std::time::{Duration, Instant};

use rdma::{Cq, Wc};

/// How long anything may take on a busy machine before it counts as a hang.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A wait for something that comes piece by piece. A thread that has waited in vain for some time sleeps a little each
/// time: with many processes on few cores, the others need these.
#[derive(Debug)]
pub struct Pace {
    idle: u32,
    since: Instant,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { idle: 0, since: Instant::now() }
    }
}

impl Pace {
    /// Note a look; `found` if there was something.
    ///
    /// # Panics
    /// If nothing was found for so long that it is a hang; `state` describes the situation.
    pub fn look(&mut self, found: bool, state: impl FnOnce() -> String) {
        if found {
            *self = Pace::default();
            return;
        }
        self.idle += 1;
        // The peer may need this core.
        if self.idle < 64 {
            std::thread::yield_now();
        } else {
            // The sleeps become longer: sixty-four processes that look every 200 us keep two cores busy with that
            // alone.
            std::thread::sleep(Duration::from_micros(200 << ((self.idle - 64) / 8).min(4)));
        }
        assert!(self.since.elapsed() < PATIENCE, "{}: nothing within {} s", state(), PATIENCE.as_secs());
    }
}

/// Ask until there is an answer.
///
/// # Panics
/// If there is none in time.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let mut pace = Pace::default();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        pace.look(false, || what.to_owned());
    }
}

/// Poll until `count` completions have come.
///
/// # Panics
/// If they do not come in time.
pub fn collect(cq: &Cq, count: usize) -> Vec<Wc> {
    let mut found = Vec::new();
    let mut out = [Wc::default(); 16];
    until(&format!("{count} completions"), || {
        while found.len() < count {
            let room = out.len().min(count - found.len());
            match cq.poll(&mut out[..room]).expect("ibv_poll_cq") {
                0 => return None,
                n => found.extend_from_slice(&out[..n]),
            }
        }
        Some(())
    });
    found
}
