//! Waiting, with an end.

use std::time::{Duration, Instant};

use rdma::{Cq, Wc};

/// How long anything may take on a busy machine before it counts as a hang.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks until there is an answer.
///
/// # Panics
/// If there is none in time.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut tries = 0u32;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: nothing within {} s", PATIENCE.as_secs());
        tries += 1;
        // The peer may need this core.
        if tries < 64 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(200)) }
    }
}

/// Polls until `count` completions have come.
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
