//! Single copies between processes: `process_vm_readv` and `process_vm_writev`.
//!
//! The kernel checks both sides, so a bad address is an error and never a signal. It permits this between processes
//! of one user that may trace each other; containers, Yama and seccomp may forbid it, hence the probe by the caller.

use core::hint::black_box;
use core::ptr;
use std::time::{Duration, Instant};

use wire::{Fault, SingleCopyError, Span, TicketRef};

use crate::local::{self, Cursor};

/// Vectors per call and side. The kernel takes 1024 (IOV_MAX); ours live on the stack, and work requests have at most
/// 32 entries.
const BATCH: usize = 64;

/// Copies from the process `pid`'s `remote` into our `local`, as far as the shorter list reaches.
///
/// # Errors
/// Which side's memory is missing, or that the kernel does not permit it (or that the process is gone).
pub fn pull(pid: u32, remote: &[Span], local: &[Span]) -> Result<(), SingleCopyError> {
    transfer(pid, Direction::Pull, local, remote)
}

/// Copies from our `local` into the process `pid`'s `remote`, as far as the shorter list reaches.
///
/// # Errors
/// As [`pull`].
pub fn push(pid: u32, local: &[Span], remote: &[Span]) -> Result<(), SingleCopyError> {
    transfer(pid, Direction::Push, local, remote)
}

/// As [`push`] (`to_them`) or [`pull`], of lists whose spans are as long as one another. The result is how many of
/// them, from the first on, are copied whole.
pub fn whole_spans(pid: u32, to_them: bool, local: &[Span], remote: &[Span]) -> usize {
    let direction = if to_them { Direction::Push } else { Direction::Pull };
    let (mut moved, mut end) = (0, 0);
    if transfer_in_batches(pid, direction, local, remote, &mut moved).is_ok() {
        return local.len().min(remote.len());
    }
    local
        .iter()
        .take_while(|span| {
            end += u64::from(span.len);
            end <= moved
        })
        .count()
}

/// Reads another process's memory into a buffer of ours: the probe whether [`pull`] is permitted.
///
/// # Errors
/// As [`pull`].
pub fn peek(pid: u32, addr: u64, dst: &mut [u8]) -> Result<(), SingleCopyError> {
    let len = u32::try_from(dst.len()).map_err(|_| SingleCopyError::Local)?;
    let ours = Span { addr: dst.as_mut_ptr().expose_provenance() as u64, len, guarded: false };
    pull(pid, &[Span { addr, len, guarded: false }], &[ours])
}

/// True if the kernel lets this process trace that one: it looks at that before it looks at the address, at which there
/// is nothing.
pub fn may_trace(pid: u32) -> bool {
    peek(pid, 8, &mut [0]) != Err(SingleCopyError::Denied)
}

/// A look at the word that a ticket names.
///
/// # Errors
/// As [`pull`]; [`SingleCopyError::Void`] if it has another value.
pub fn is_good(pid: u32, ticket: TicketRef) -> Result<(), SingleCopyError> {
    let mut bytes = [0u8; 8];
    peek(pid, ticket.addr, &mut bytes)?;
    if u64::from_ne_bytes(bytes) == ticket.value { Ok(()) } else { Err(SingleCopyError::Void) }
}

/// The time that it takes to move [`Costs::BYTES`] from one buffer to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// By the kernel, as [`pull`] does it.
    pub kernel: Duration,
    /// By a plain copy.
    pub plain: Duration,
}

impl Costs {
    /// How much is moved: enough that what a system call costs by itself matters little.
    pub const BYTES: usize = 64 << 10;

    /// Tries it with memory of this process: the best of a few times (docs/lab/constants.md has what it takes).
    ///
    /// # Errors
    /// As [`pull`].
    pub fn measure() -> Result<Costs, SingleCopyError> {
        const TRIES: usize = 8;
        // Written, so that all pages are there.
        let (source, mut target) = (vec![1u8; Self::BYTES], vec![2u8; Self::BYTES]);
        let mut costs = Costs { kernel: Duration::MAX, plain: Duration::MAX };
        for _ in 0..TRIES {
            let start = Instant::now();
            target.copy_from_slice(black_box(&source));
            black_box(&mut target);
            costs.plain = costs.plain.min(start.elapsed());
            let start = Instant::now();
            peek(std::process::id(), source.as_ptr().expose_provenance() as u64, &mut target)?;
            costs.kernel = costs.kernel.min(start.elapsed());
        }
        Ok(costs)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Pull,
    Push,
}

fn transfer(pid: u32, direction: Direction, ours: &[Span], theirs: &[Span]) -> Result<(), SingleCopyError> {
    // Mostly one piece on each side, all of it copied at once; whatever else happens, the loop finds out.
    if let ([l], [r]) = (ours, theirs)
        && l.len == r.len
        && call(pid as libc::pid_t, direction, &[vector(l)], &[vector(r)]) == Ok(l.len as usize)
    {
        return Ok(());
    }
    transfer_in_batches(pid, direction, ours, theirs, &mut 0)
}

/// `all` becomes the number of bytes that were moved, also if not all were.
fn transfer_in_batches(
    pid: u32,
    direction: Direction,
    ours: &[Span],
    theirs: &[Span],
    all: &mut u64,
) -> Result<(), SingleCopyError> {
    let (mut l, mut r) = (Cursor::new(ours), Cursor::new(theirs));
    // After a fault one vector at a time: the kernel refuses a whole call for an impossible address in any of them.
    let mut batch = BATCH;
    loop {
        let (mut local, mut remote) = ([EMPTY; BATCH], [EMPTY; BATCH]);
        let (locals, remotes) = (gather(l.clone(), &mut local[..batch]), gather(r.clone(), &mut remote[..batch]));
        if locals == 0 || remotes == 0 {
            return Ok(());
        }
        match call(pid as libc::pid_t, direction, &local[..locals], &remote[..remotes]) {
            Ok(moved) if moved > 0 => {
                *all += moved as u64;
                skip(&mut l, moved);
                skip(&mut r, moved);
            }
            // A transfer that ends early in front of a bad page succeeds with what it did; the next call tells.
            Ok(_) => return Err(SingleCopyError::Denied),
            Err(libc::EINTR | libc::EAGAIN) => {}
            Err(libc::EFAULT) if batch > 1 => batch = 1,
            Err(libc::EFAULT) => {
                // The kernel does not say which side. Ours can be asked for.
                return Err(match l.piece() {
                    Some(piece) if !present(piece, &r, direction) => SingleCopyError::Local,
                    _ => SingleCopyError::Remote,
                });
            }
            Err(_) => return Err(SingleCopyError::Denied),
        }
    }
}

/// True if our side of the vector that failed is there. Only as much of it is asked for as the remote vector covers:
/// the transfer stops at the first bad one.
fn present(piece: Span, theirs: &Cursor<'_>, direction: Direction) -> bool {
    let reach = theirs.clone().piece().map_or(piece.len, |p| p.len.min(piece.len));
    local::populate(piece.addr, u64::from(reach), direction == Direction::Pull).is_ok()
}

fn vector(piece: &Span) -> libc::iovec {
    libc::iovec { iov_base: ptr::with_exposed_provenance_mut(piece.addr as usize), iov_len: piece.len as usize }
}

const EMPTY: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

fn gather(mut from: Cursor<'_>, to: &mut [libc::iovec]) -> usize {
    let mut n = 0;
    while n < to.len()
        && let Some(piece) = from.piece()
    {
        to[n] = vector(&piece);
        from.advance(piece.len);
        n += 1;
    }
    n
}

fn skip(cursor: &mut Cursor<'_>, mut bytes: usize) {
    while bytes > 0
        && let Some(piece) = cursor.piece()
    {
        let step = (piece.len as usize).min(bytes);
        cursor.advance(step as u32);
        bytes -= step;
    }
}

fn call(pid: libc::pid_t, direction: Direction, l: &[libc::iovec], r: &[libc::iovec]) -> Result<usize, i32> {
    let (ln, rn) = (l.len() as libc::c_ulong, r.len() as libc::c_ulong);
    // SAFETY: the kernel checks every address on both sides. What is written lies in registered memory of this process
    // (pull; see the crate's page), or in memory of a peer which has named it to us (push).
    let moved = unsafe {
        match direction {
            Direction::Pull => libc::process_vm_readv(pid, l.as_ptr(), ln, r.as_ptr(), rn, 0),
            Direction::Push => libc::process_vm_writev(pid, l.as_ptr(), ln, r.as_ptr(), rn, 0),
        }
    };
    usize::try_from(moved).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// Copies within this process through the kernel: a missing page is an error, no signal.
pub(crate) fn own(source: u64, target: u64, len: usize) -> Result<(), Fault> {
    let (mut from, mut to, mut left) = (source, target, len);
    while left > 0 {
        let vector =
            |addr: u64| libc::iovec { iov_base: ptr::with_exposed_provenance_mut(addr as usize), iov_len: left };
        // A thread's own memory: PTRACE checks are skipped by the kernel for a process's own threads.
        match call(std::process::id() as libc::pid_t, Direction::Pull, &[vector(to)], &[vector(from)]) {
            Ok(0) => return Err(Fault),
            Ok(moved) => {
                from += moved as u64;
                to += moved as u64;
                left -= moved.min(left);
            }
            Err(libc::EINTR | libc::EAGAIN) => {}
            // A sandbox without the call (some seccomp filters).
            Err(libc::EPERM | libc::ENOSYS | libc::EACCES) => return through_pipe(from, to, left),
            Err(_) => return Err(Fault),
        }
    }
    Ok(())
}

/// [`own`] where `process_vm_readv` is forbidden: a pipe's `write` and `read` check addresses just as well.
fn through_pipe(source: u64, target: u64, len: usize) -> Result<(), Fault> {
    let (rx, tx) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|_| Fault)?;
    let (rx, tx) = (std::os::fd::AsRawFd::as_raw_fd(&rx), std::os::fd::AsRawFd::as_raw_fd(&tx));
    let mut done = 0;
    while done < len {
        // One page always fits into an empty pipe, so neither call can block.
        let step = (len - done).min(4096);
        let (from, to) = (source as usize + done, target as usize + done);
        // SAFETY: the kernel checks the source; nothing of ours is written.
        let put = unsafe { libc::syscall(libc::SYS_write, tx, ptr::with_exposed_provenance::<u8>(from), step) };
        let Some(put) = usize::try_from(put).ok().filter(|n| *n > 0) else {
            return Err(Fault);
        };
        // SAFETY: the kernel checks the target, which is registered memory of the program or a buffer of the caller's.
        let got = unsafe { libc::syscall(libc::SYS_read, rx, ptr::with_exposed_provenance_mut::<u8>(to), put) };
        if usize::try_from(got) != Ok(put) {
            return Err(Fault);
        }
        done += put;
    }
    Ok(())
}

#[cfg(all(test, not(loom), not(miri)))]
#[path = "single_copy_tests.rs"]
mod tests;
