//! A message over a stream: TCP or a unix socket, with blocking calls.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// Time for `count` messages of `buffer`'s size there and as many back.
///
/// # Errors
/// The stream's.
pub fn near(stream: &mut (impl Read + Write), buffer: &mut [u8], count: u32) -> io::Result<Duration> {
    let start = Instant::now();
    for _ in 0..count {
        stream.write_all(buffer)?;
        stream.read_exact(buffer)?;
    }
    Ok(start.elapsed())
}

/// Answer `count` times.
///
/// # Errors
/// The stream's.
pub fn remote(stream: &mut (impl Read + Write), buffer: &mut [u8], count: u32) -> io::Result<()> {
    for _ in 0..count {
        stream.read_exact(buffer)?;
        stream.write_all(buffer)?;
    }
    Ok(())
}
