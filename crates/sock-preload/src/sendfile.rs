//! sendfile(2): bytes of a file into a connection's memory, or from a connection's memory into a pipe.

use core::mem::MaybeUninit;
use std::ffi::c_void;

use rustix::fs::{FileType, SeekFrom};

use crate::data::{one, send_all, with};
use crate::kernel::borrow;
use crate::next::{self, entries_if, fail};
use crate::splice;
use crate::table::{self, Tag};
use crate::work::Use;

/// Bytes that are read at once, onto the stack.
const CHUNK: usize = 32 << 10;
/// Most bytes of a call (sendfile(2)).
const MOST: usize = 0x7FFF_F000;

/// sendfile(2) is no cancellation point.
unsafe extern "C" fn sendfile_known(out: i32, file: i32, offset: *mut i64, count: usize) -> isize {
    // SAFETY: the caller's arguments.
    next::uncancelled(|| unsafe { send(out, file, offset, count) })
}

unsafe fn send(out: i32, file: i32, offset: *mut i64, count: usize) -> isize {
    // SAFETY: the caller's arguments.
    let by_kernel = || unsafe { next::sendfile()(out, file, offset.cast::<c_void>(), count) };
    if count == 0 {
        return by_kernel();
    }
    if matches!(table::tag(file), Tag::Shared(_)) {
        // ESPIPE for a place in a socket, EINVAL where the other file is no pipe: the kernel says so.
        let sent = if offset.is_null() { splice::send_connection(out, file, count) } else { None };
        return sent.unwrap_or_else(by_kernel);
    }
    let by_ring = |connection: &Use| {
        // SAFETY: the caller's promise of sendfile(2): null, or an offset that may be written.
        unsafe { send_file(connection, file, offset, count) }.unwrap_or_else(|| {
            // What the kernel sends by itself goes by TCP, and all that follows.
            connection.demote(true, false, true);
            by_kernel()
        })
    };
    with(out, by_ring, by_kernel)
}

/// `None`: the kernel has to do it. That is so for all but regular files: of a pipe, no more may be taken than is sent.
unsafe fn send_file(connection: &Use, file: i32, offset: *mut i64, count: usize) -> Option<isize> {
    let from = borrow(file);
    let kind = rustix::fs::fstat(from).ok().map(|stat| FileType::from_raw_mode(stat.st_mode));
    if kind != Some(FileType::RegularFile) {
        return None;
    }
    let begin = if offset.is_null() {
        rustix::fs::seek(from, SeekFrom::Current(0)).ok()?
    } else {
        // SAFETY: the caller's promise.
        match u64::try_from(unsafe { *offset }) {
            Ok(begin) => begin,
            Err(_) => return Some(fail(libc::EINVAL)),
        }
    };
    let (wanted, mut sent) = (count.min(MOST), 0);
    let mut buffer = MaybeUninit::<[u8; CHUNK]>::uninit();
    let mut error = None;
    while sent < wanted && error.is_none() {
        // SAFETY: bytes may be uninitialized here, and there are so many.
        let room = unsafe {
            core::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<MaybeUninit<u8>>(), CHUNK.min(wanted - sent))
        };
        let bytes = match rustix::io::pread(from, &mut *room, begin + sent as u64) {
            Ok(([], _)) => break,
            Ok((bytes, _)) => &*bytes,
            Err(stop) => {
                error = Some(stop.raw_os_error());
                break;
            }
        };
        match send_all(connection, &one(bytes.as_ptr().cast(), bytes.len()), 0) {
            Some(some) if some >= 0 => {
                sent += some as usize;
                if (some as usize) < bytes.len() {
                    break;
                }
            }
            Some(_) => error = Some(next::errno()),
            // The connection has left its memory. What was sent is told first: the next call goes to the kernel.
            None if sent > 0 => break,
            None => return None,
        }
    }
    if let (0, Some(error)) = (sent, error) {
        return Some(fail(error));
    }
    let end = begin + sent as u64;
    if !offset.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *offset = end as i64 };
    } else if sent > 0 {
        let _ = rustix::fs::seek(from, SeekFrom::Start(end));
    }
    Some(sent as isize)
}

/// Whether one of the two is a connection that is known.
unsafe extern "C" fn sendfile_needs_us(out: i32, file: i32) -> i32 {
    i32::from(table::tag(out) != Tag::Unknown || matches!(table::tag(file), Tag::Shared(_)))
}

entries_if! {
    sendfile sendfile sendfile_needs_us, sendfile_known;
    sendfile64 sendfile sendfile_needs_us, sendfile_known;
}
