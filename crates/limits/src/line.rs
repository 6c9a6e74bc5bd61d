//! A cache line from one core to the other: near writes a word, far sees it and writes another one, near sees that.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::{Shared, spin};

/// The lines that near and far write: each has one of its own.
const WORDS: [usize; 2] = [0, 1];

/// The number of bytes of the memory that both share.
pub const BYTES: usize = 2 * Shared::LINE;

/// Clear the words before far begins.
pub fn reset(shared: &Shared) {
    WORDS.iter().for_each(|line| shared.word(*line).store(0, Ordering::SeqCst));
}

/// Time for `count` lines there and as many back.
///
/// # Errors
/// `TimedOut` if the other side does not answer.
pub fn near(shared: &Shared, count: u32) -> io::Result<Duration> {
    let [to, from] = WORDS.map(|line| shared.word(line));
    let start = Instant::now();
    for turn in 1..=u64::from(count) {
        to.store(turn, Ordering::Release);
        spin(|| from.load(Ordering::Acquire) == turn)?;
    }
    Ok(start.elapsed())
}

/// Answer `count` times.
///
/// # Errors
/// `TimedOut` if no line comes.
pub fn remote(shared: &Shared, count: u32) -> io::Result<()> {
    let [from, to] = WORDS.map(|line| shared.word(line));
    for turn in 1..=u64::from(count) {
        spin(|| from.load(Ordering::Acquire) == turn)?;
        to.store(turn, Ordering::Release);
    }
    Ok(())
}
