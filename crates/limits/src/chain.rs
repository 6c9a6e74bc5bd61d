//! Bytes that go along a chain of memories: by one process that spins, or by one process for each hop, which sleeps.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use crate::memory::Shared;
use crate::spin;

/// The place of memory `hop` of the chain; two lines in front of all are for counters.
fn at(hop: usize, len: usize) -> usize {
    2 * Shared::LINE + hop * len.next_multiple_of(Shared::LINE)
}

/// Bytes of the shared memory of a chain: the client's `len` bytes, then those of each replica.
pub fn bytes(replicas: usize, len: usize) -> usize {
    at(replicas + 1, len)
}

/// Copy to replica `hop` what is before it.
///
/// # Panics
/// If the memory is smaller.
pub fn copy(shared: &Shared, hop: usize, len: usize) {
    shared.copy(at(hop, len), at(hop + 1, len), len);
}

/// The client's side of a process that spins: write to the first replica, as the initiator of a WRITE does, ask for
/// operation `n`, counted from 1, and wait for it. So the bytes of each operation come from another core.
///
/// # Errors
/// `TimedOut`: no answer came.
pub fn ask(shared: &Shared, len: usize, n: u64) -> io::Result<()> {
    copy(shared, 0, len);
    shared.word(0).store(n, Ordering::Release);
    spin(|| shared.word(1).load(Ordering::Acquire) == n)
}

/// The other side: copy from the first replica along the chain for each operation, for ever.
///
/// # Errors
/// `TimedOut`: nothing was asked for.
pub fn answer(shared: &Shared, replicas: usize, len: usize) -> io::Result<()> {
    for n in 1.. {
        spin(|| shared.word(0).load(Ordering::Acquire) == n)?;
        (1..replicas).for_each(|hop| copy(shared, hop, len));
        shared.word(1).store(n, Ordering::Release);
    }
    Ok(())
}

/// One hop: sleep until the eventfd `before` is rung, copy, ring the eventfd `after`; for ever.
///
/// # Errors
/// The system's.
pub fn relay(shared: &Shared, hop: usize, len: usize, before: impl AsFd, after: impl AsFd) -> io::Result<()> {
    loop {
        let mut count = [0; 8];
        rustix::io::read(&before, &mut count)?;
        copy(shared, hop, len);
        ring(&after)?;
    }
}

/// Ring an eventfd.
///
/// # Errors
/// The system's.
pub fn ring(bell: impl AsFd) -> io::Result<()> {
    rustix::io::write(bell, &1u64.to_ne_bytes())?;
    Ok(())
}

/// Try to take a ring of an eventfd that does not block, until there is one.
///
/// # Errors
/// `TimedOut`: nothing rang; the system's.
pub fn heard(bell: impl AsFd) -> io::Result<()> {
    let mut outcome = Ok(());
    spin(|| match rustix::io::read(&bell, &mut [0; 8]) {
        Ok(_) => true,
        Err(rustix::io::Errno::AGAIN) => false,
        Err(errno) => {
            outcome = Err(errno.into());
            true
        }
    })?;
    outcome
}

/// Make an eventfd whose reader sleeps.
///
/// # Errors
/// The system's.
pub fn sleeping_bell() -> io::Result<std::os::fd::OwnedFd> {
    Ok(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?)
}
