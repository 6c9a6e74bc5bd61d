//! Bytes between TCP connections and memory of the program, without a copy of ours.
//!
//! The kernel checks every address, so memory that is not there is EFAULT and no signal. No call waits.
//!
//! The C library's functions are not called: they are cancellation points, and a preloaded library may have put its own
//! in their place.

use core::ptr;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::{Errno, Result};
use rustix::net::{RecvFlags, SendFlags};
use wire::{Part, Span};

/// Vectors per call. They are on the stack.
const BATCH: usize = 64;

const EMPTY: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

/// What a call has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes.
    pub bytes: usize,
    /// Bytes that the call was for.
    pub asked: usize,
}

/// A message header over these vectors.
fn header(vectors: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all of its fields are integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (vectors.as_mut_ptr(), vectors.len() as _);
    header
}

fn outcome(moved: libc::c_long, vectors: &[libc::iovec]) -> Result<Moved> {
    let asked = vectors.iter().map(|vector| vector.iov_len).sum();
    match usize::try_from(moved) {
        Ok(bytes) => Ok(Moved { bytes, asked }),
        Err(_) => {
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            Err(Errno::from_raw_os_error(errno))
        }
    }
}

/// Sends the first parts, as many as one call can take.
///
/// # Errors
/// As sendmsg(2). EFAULT: the first memory among the parts is not there, or that of a later part is outside of the
/// address space.
pub fn send<'a>(socket: impl AsFd, parts: impl Iterator<Item = Part<'a>>) -> Result<Moved> {
    let mut parts = parts.peekable();
    let Some(first) = parts.next() else { return Ok(Moved { bytes: 0, asked: 0 }) };
    if let (Part::Own(bytes), None) = (first, parts.peek()) {
        // For one vector, the kernel has a cheaper call.
        let moved = rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        return Ok(Moved { bytes: moved, asked: bytes.len() });
    }
    let mut vectors = [EMPTY; BATCH];
    let mut count = 0;
    for (vector, part) in vectors.iter_mut().zip([first].into_iter().chain(parts)) {
        *vector = match part {
            Part::Own(bytes) => libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() },
            Part::Memory(span) => place(&span),
        };
        count += 1;
    }
    let vectors = &mut vectors[..count];
    let (fd, header) = (socket.as_fd().as_raw_fd(), header(vectors));
    // SAFETY: the vectors of our own bytes are of live slices, which are only read. The kernel checks the others.
    let moved =
        unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    outcome(moved, vectors)
}

/// Receives into these spans, and then into a buffer. At most 63 spans count.
///
/// # Errors
/// As recvmsg(2). EFAULT: the first of the memory is not there.
pub fn receive(socket: impl AsFd, spans: &[Span], behind: &mut [u8]) -> Result<Moved> {
    if spans.is_empty() {
        let asked = behind.len();
        let (_, bytes) = rustix::net::recv(socket, behind, RecvFlags::DONTWAIT)?;
        return Ok(Moved { bytes, asked });
    }
    let mut vectors = [EMPTY; BATCH];
    let count = spans.len().min(BATCH - 1);
    for (vector, span) in vectors.iter_mut().zip(&spans[..count]) {
        *vector = place(span);
    }
    vectors[count] = libc::iovec { iov_base: behind.as_mut_ptr().cast(), iov_len: behind.len() };
    let vectors = &mut vectors[..=count];
    let (fd, mut header) = (socket.as_fd().as_raw_fd(), header(vectors));
    // SAFETY: the last vector is a live exclusive slice. The others are registered memory of this process (see the
    // crate's page), of which no references exist; the kernel checks that it is there.
    let moved = unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut header, libc::MSG_DONTWAIT) };
    outcome(moved, vectors)
}

fn place(span: &Span) -> libc::iovec {
    libc::iovec { iov_base: ptr::with_exposed_provenance_mut(span.addr as usize), iov_len: span.len as usize }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn span(bytes: &mut [u8]) -> Span {
        Span { addr: bytes.as_mut_ptr().expose_provenance() as u64, len: bytes.len() as u32, guarded: false }
    }

    /// Waits until the connection has something to read.
    fn wait(socket: &TcpStream) {
        socket.peek(&mut [0]).unwrap();
    }

    const NOWHERE: Span = Span { addr: 16, len: 100, guarded: false };

    #[test]
    fn bytes_go_from_their_places_to_their_places() {
        let (from, to) = pair();
        let (mut first, mut second, mut behind) = ([1, 2, 3], [0; 4], [0; 9]);
        let parts = [Part::Own(&[9, 8]), Part::Memory(span(&mut first)), Part::Own(&[7])];
        assert_eq!(send(&from, parts.into_iter()), Ok(Moved { bytes: 6, asked: 6 }));
        wait(&to);
        assert_eq!(receive(&to, &[span(&mut second)], &mut behind), Ok(Moved { bytes: 6, asked: 13 }));
        assert_eq!((second, &behind[..2]), ([9, 8, 1, 2], &[3, 7][..]));
        assert_eq!(receive(&to, &[], &mut behind), Err(Errno::AGAIN));
    }

    #[test]
    fn missing_memory_is_an_error_at_its_place() {
        let (from, to) = pair();
        let parts = || [Part::Own(&[5]), Part::Memory(NOWHERE)].into_iter();
        // What lies in front of the missing memory is sent, or nothing is.
        let sent = match send(&from, parts()) {
            Ok(moved) => moved.bytes,
            Err(errno) => {
                assert_eq!(errno, Errno::FAULT);
                0
            }
        };
        assert!(sent <= 1);
        assert_eq!(send(&from, parts().skip(1)), Err(Errno::FAULT));
        assert_eq!(send(&from, [Part::Own(&[6])].into_iter()), Ok(Moved { bytes: 1, asked: 1 }));
        wait(&to);
        assert_eq!(receive(&to, &[NOWHERE], &mut [0]), Err(Errno::FAULT));
        let mut rest = [0; 3];
        while receive(&to, &[], &mut rest).is_ok_and(|moved| rest[moved.bytes - 1] != 6) {
            wait(&to);
        }
        assert!(rest.contains(&6), "the byte that could not be placed is still there");
    }
}
