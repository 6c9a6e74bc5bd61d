//! Several messages at once: recvmmsg(2).

use libc::mmsghdr;
use verbs::Errno;

use crate::cancel::{point_at, points_if};
use crate::data::{many, receive, with};
use crate::kernel;
use crate::next::{self, fail};
use crate::table::{self, Tag};
use crate::work::{Use, timespec};

/// The headers of a call. `None`: the kernel has to refuse them.
unsafe fn headers<'a>(all: *mut mmsghdr, count: u32) -> Option<&'a mut [mmsghdr]> {
    if all.is_null() {
        return None;
    }
    // SAFETY: the caller of recvmmsg(2) promises so many headers, which the call may write to.
    Some(unsafe { core::slice::from_raw_parts_mut(all, count as usize) })
}

/// What a call returns that fails behind `done` messages.
fn done_or(done: u32, failed: i32) -> i32 {
    if done > 0 { done.cast_signed() } else { failed }
}

/// Whether the messages come by a connection of ours.
unsafe extern "C" fn recvmmsg_needs_us(fd: i32, all: *mut mmsghdr) -> i32 {
    i32::from(table::tag(fd) != Tag::Unknown && !all.is_null())
}

/// When the call's time is over: it is looked at behind each message, and ends no wait (recvmmsg(2), BUGS).
struct Deadline(Option<u64>);

impl Deadline {
    /// The caller's time. `None`: it is none (EINVAL).
    fn new(time: Option<&libc::timespec>) -> Option<Deadline> {
        const SECOND: i64 = 1_000_000_000;
        let Some(time) = time else { return Some(Deadline(None)) };
        if time.tv_sec < 0 || !(0..SECOND).contains(&time.tv_nsec) {
            return None;
        }
        let nanos = time.tv_sec.cast_unsigned().saturating_mul(SECOND.cast_unsigned());
        let nanos = nanos.saturating_add(time.tv_nsec.cast_unsigned());
        Some(Deadline(Some(kernel::now().saturating_add(nanos))))
    }

    /// Nanoseconds that are left; `None`: there is no end.
    fn left(&self) -> Option<u64> {
        self.0.map(|until| until.saturating_sub(kernel::now()))
    }
}

unsafe extern "C" fn recvmmsg_known(
    fd: i32,
    all: *mut mmsghdr,
    count: u32,
    flags: i32,
    time: *mut libc::timespec,
) -> i32 {
    let by_kernel = |skip: u32, flags: i32| {
        let (all, time) = (all.wrapping_add(skip as usize), time);
        // SAFETY: the caller's arguments; not more headers are left out than there are.
        unsafe { point_at!(recvmmsg, fd, all, count - skip, flags, time) as i32 }
    };
    let by_ring = |connection: &Use| {
        // SAFETY: the caller's promise of recvmmsg(2).
        let Some(headers) = (unsafe { headers(all, count) }) else { return by_kernel(0, flags) };
        // SAFETY: the caller's time, or null, which the call may write. It is looked at first of all (do_recvmmsg).
        let mut time = unsafe { time.as_mut() };
        let Some(deadline) = Deadline::new(time.as_deref()) else { return fail(libc::EINVAL) as i32 };
        // Unlike recvmsg(2), the call tells an error before it reads anything (do_recvmmsg).
        if flags & libc::MSG_ERRQUEUE == 0
            && let Some(error) = connection.take_error()
        {
            return fail(error.0) as i32;
        }
        let (mut done, mut flags) = (0, flags);
        for header in headers {
            // SAFETY: as before.
            let pieces = unsafe { many(header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) };
            let asked = flags & !libc::MSG_WAITFORONE;
            let Some(got) = pieces.and_then(|pieces| receive(connection, &pieces, asked)) else {
                let rest = by_kernel(done, flags);
                return if rest >= 0 { done.cast_signed() + rest } else { done_or(done, rest) };
            };
            if got < 0 {
                let error = next::errno();
                // The next call tells what this one cannot.
                if done > 0 && error != libc::EAGAIN && error != libc::EINTR {
                    connection.end().keep(Errno(error));
                }
                return done_or(done, -1);
            }
            let message = &mut header.msg_hdr;
            (message.msg_namelen, message.msg_controllen, message.msg_flags) = (0, 0, 0);
            header.msg_len = got as u32;
            done += 1;
            if flags & libc::MSG_WAITFORONE != 0 {
                flags |= libc::MSG_DONTWAIT;
            }
            // What is left is told, and 0 ends the call.
            if let (Some(left), Some(time)) = (deadline.left(), time.as_mut()) {
                **time = timespec(left);
                if left == 0 {
                    break;
                }
            }
        }
        done.cast_signed()
    };
    with(fd, by_ring, || by_kernel(0, flags))
}

points_if! {
    recvmmsg recvmmsg recvmmsg_needs_us, recvmmsg_known;
}
