//! The calls that move bytes.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use libc::{iovec, msghdr};
use verbs::Errno;

use crate::cancel::{point_at, points_if, quiet_points};
use crate::kernel;
use crate::next::{self, fail};
use crate::table::{self, Tag};
use crate::work::{Use, connection};
use crate::{meet, process};

/// A buffer of the program, or its pieces.
pub enum Pieces<'a> {
    One(iovec),
    Many(&'a [iovec]),
}

/// Most bytes that a call moves (read(2)).
const MOST: usize = 0x7FFF_F000;

impl Pieces<'_> {
    fn all(&self) -> &[iovec] {
        match self {
            Pieces::One(one) => core::slice::from_ref(one),
            Pieces::Many(many) => many,
        }
    }

    fn len(&self) -> usize {
        self.all().iter().fold(0usize, |sum, piece| sum.saturating_add(piece.iov_len)).min(MOST)
    }

    /// The pieces from byte `skip` on.
    fn from(&self, skip: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        let (mut skip, mut room) = (skip, MOST.saturating_sub(skip));
        self.all().iter().filter_map(move |piece| {
            let leave_out = skip.min(piece.iov_len);
            skip -= leave_out;
            let left = (piece.iov_len - leave_out).min(room);
            room -= left;
            (left > 0).then(|| (piece.iov_base.cast::<u8>().wrapping_add(leave_out), left))
        })
    }
}

/// No program has memory below it (`vm.mmap_min_addr`).
const LOWEST: usize = 4096;

impl Pieces<'_> {
    /// Whether a piece is nowhere: EFAULT. Other addresses without memory are not looked for.
    fn is_nowhere(&self) -> bool {
        self.all().iter().any(|piece| piece.iov_base.addr() < LOWEST && piece.iov_len > 0)
    }
}

/// Bytes of small pieces that are sent together: a reader is woken once, and TCP makes one segment of them.
const TOGETHER: usize = 8192;

impl Pieces<'_> {
    /// The bytes from number `skip` on that are sent next: a piece where it lies, or several small ones.
    fn part<'a>(&'a self, skip: usize, together: &'a mut MaybeUninit<[u8; TOGETHER]>) -> &'a [u8] {
        let mut pieces = self.from(skip);
        let Some((base, len)) = pieces.next() else { return &[] };
        if len >= TOGETHER || skip + len >= self.len() {
            // SAFETY: the program has lent this memory to the call, which reads it until it returns.
            return unsafe { core::slice::from_raw_parts(base, len) };
        }
        let mut filled = 0;
        for (base, len) in core::iter::once((base, len)).chain(pieces) {
            let some = len.min(TOGETHER - filled);
            // SAFETY: as above, and so many bytes of the buffer of this library are left.
            unsafe { core::ptr::copy_nonoverlapping(base, together.as_mut_ptr().cast::<u8>().add(filled), some) };
            filled += some;
        }
        // SAFETY: so many bytes have been written.
        unsafe { core::slice::from_raw_parts(together.as_ptr().cast::<u8>(), filled) }
    }
}

pub fn one(buf: *const c_void, len: usize) -> Pieces<'static> {
    Pieces::One(iovec { iov_base: buf.cast_mut(), iov_len: len.min(MOST) })
}

/// The pieces of a vector. `None`: the kernel has to refuse it.
pub unsafe fn many<'a>(vector: *const iovec, count: usize) -> Option<Pieces<'a>> {
    if count > 1024 || vector.is_null() && count > 0 {
        return None;
    }
    // SAFETY: the caller of readv(2) and its like promises so many elements; they are read only.
    let pieces = if count == 0 { &[] } else { unsafe { core::slice::from_raw_parts(vector, count) } };
    // EINVAL: a length that is none (readv(2)). More than a call moves is cut off, as the kernel does it.
    let is_length = |piece: &iovec| isize::try_from(piece.iov_len).is_ok();
    pieces.iter().all(is_length).then_some(Pieces::Many(pieces))
}

/// Does a call on a connection that has no shared memory, yet; with it, if it has some now.
pub fn with<R>(fd: i32, by_ring: impl FnOnce(&Use) -> R, by_kernel: impl FnOnce() -> R) -> R {
    meet::advance(fd);
    if let Some(connection) = connection(fd) {
        return by_ring(&connection);
    }
    if table::tag(fd) == Tag::Unknown {
        return by_kernel();
    }
    // Others see that we are inside before we look whether there is memory now.
    table::enter(fd, true);
    if let Some(connection) = connection(fd) {
        table::enter(fd, false);
        return by_ring(&connection);
    }
    let result = by_kernel();
    table::enter(fd, false);
    result
}

/// As [`with`], for one call in one direction.
fn moving(fd: i32, sends: bool, by_ring: impl FnOnce(&Use) -> isize, by_kernel: impl FnOnce() -> isize) -> isize {
    let by_tcp = || {
        let moved = by_kernel();
        if moved > 0 {
            meet::turned(fd, sends);
        }
        moved
    };
    with(fd, by_ring, by_tcp)
}

const RECEIVE_FLAGS: i32 = libc::MSG_PEEK
    | libc::MSG_WAITALL
    | libc::MSG_DONTWAIT
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC
    | libc::MSG_TRUNC;

/// Receives. `None`: the kernel has to do it.
pub fn receive(connection: &Use, pieces: &Pieces<'_>, flags: i32) -> Option<isize> {
    if flags & !RECEIVE_FLAGS != 0 {
        // The sender of urgent data has gone back to TCP, and the kernel's socket has them (tcp(7)).
        if flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) == 0 {
            connection.demote(false, true, false);
        }
        return None;
    }
    if pieces.is_nowhere() && flags & libc::MSG_TRUNC == 0 {
        // The kernel finds that out when there is something to be copied, and takes nothing then.
        let looks = (flags | libc::MSG_PEEK) & !libc::MSG_WAITALL;
        let mut byte = 0u8;
        let there = receive(connection, &one((&raw mut byte).cast(), 1), looks)?;
        return Some(if there > 0 { fail(libc::EFAULT) } else { there });
    }
    connection.serve();
    let (peek, wanted) = (flags & libc::MSG_PEEK != 0, pieces.len());
    let mut got = 0;
    let mut until = None;
    loop {
        let error = match receive_there_is(connection, pieces, if peek { 0 } else { got }, flags) {
            Ok(some) => {
                got = if peek { some } else { got + some };
                let is_all = got >= wanted || flags & (libc::MSG_WAITALL | libc::MSG_DONTWAIT) != libc::MSG_WAITALL;
                if is_all || some == 0 || peek && !connection.waits_for_more(&mut until) {
                    return Some(got as isize);
                }
                continue;
            }
            Err(error) => error,
        };
        if !connection.check() {
            return None;
        }
        if error != Errno::EAGAIN || flags & libc::MSG_DONTWAIT != 0 || !connection.blocks() {
            if got > 0 && error != Errno::EAGAIN {
                connection.end().keep(error);
            }
            return Some(if got > 0 { got as isize } else { fail(error.0) });
        }
        if until.is_none() {
            until = connection.most_wait(true).map(|most| kernel::now() + most);
        }
        let error = match connection.wait(true, until) {
            Ok(true) => continue,
            Ok(false) => libc::EAGAIN,
            Err(error) => error,
        };
        // A receive of nothing waits once, and says nothing of why that is over (tcp_recvmsg).
        return Some(if got > 0 || wanted == 0 { got as isize } else { fail(error) });
    }
}

/// Receives what is there, behind the first `skip` bytes of the buffer.
fn receive_there_is(connection: &Use, pieces: &Pieces<'_>, skip: usize, flags: i32) -> Result<usize, Errno> {
    let (peek, discard) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_TRUNC != 0);
    if pieces.len() == skip {
        // A receive of nothing needs something to be there as any other does (tcp_recvmsg).
        return connection.receive(&mut [0], true, true).map(|_| 0);
    }
    if peek && (discard || pieces.all().len() > 1) {
        return look_by_copy(connection, pieces, discard);
    }
    if discard {
        let (mut scratch, wanted) = ([0u8; 4096], pieces.len() - skip);
        return receive_into(connection, wanted, peek, |from| {
            let len = (wanted - from).min(scratch.len());
            (scratch.as_mut_ptr(), len)
        });
    }
    let mut got = 0;
    for (base, len) in pieces.from(skip) {
        let part = |from| (base.wrapping_add(from), len - from);
        match receive_into(connection, len, peek, part) {
            Ok(some) => {
                got += some;
                if some < len || skip + got >= pieces.len() {
                    break;
                }
                // What follows is not waited for, and an error stays for the next call.
                if !connection.end().has_more() {
                    break;
                }
            }
            Err(error) => return if got > 0 { Ok(got) } else { Err(error) },
        }
    }
    Ok(got)
}

/// Receives up to `wanted` bytes. `part` says where those from a number on go.
fn receive_into(
    connection: &Use,
    wanted: usize,
    peek: bool,
    mut part: impl FnMut(usize) -> (*mut u8, usize),
) -> Result<usize, Errno> {
    let mut got = 0;
    loop {
        let (base, len) = part(got);
        // Bytes that came by TCP and those in the ring are one stream; what TCP alone has comes at once.
        let has_border = connection.end().unread() > 0;
        // SAFETY: memory of this library, or what the program has given to the call, which writes to it until it
        // returns.
        let to = unsafe { core::slice::from_raw_parts_mut(base, len) };
        match connection.receive(to, peek, got == 0) {
            Ok(some) => {
                got += some;
                let may_be_all = some < len && !has_border;
                // A receive stops at urgent data (tcp(7)); the kernel knows only of those before it that came by TCP.
                let is_at_mark = || connection.end().unread() == 0 && kernel::is_at_mark(connection.fd);
                if got >= wanted || peek || may_be_all || !connection.end().has_more() || is_at_mark() {
                    return Ok(got);
                }
            }
            Err(error) => return if got > 0 { Ok(got) } else { Err(error) },
        }
    }
}

/// Looks at bytes for a buffer of several pieces, or for their number alone. A look takes nothing away, so that a
/// second one for the next piece would get the same bytes.
fn look_by_copy(connection: &Use, pieces: &Pieces<'_>, discard: bool) -> Result<usize, Errno> {
    let len = pieces.len();
    let (all, private) = (rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE, rustix::mm::MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
    let memory = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), len, all, private) };
    let memory = memory.map_err(|_| Errno(libc::ENOBUFS))?;
    // SAFETY: the mapping, which nobody else has, until it is given back below.
    let bytes = unsafe { core::slice::from_raw_parts_mut(memory.cast::<u8>(), len) };
    let got = connection.receive(bytes, true, true);
    if let (Ok(some), false) = (got, discard) {
        let mut rest = bytes.get(..some).unwrap_or_default();
        for (base, len) in pieces.from(0) {
            let (part, behind) = rest.split_at(len.min(rest.len()));
            // SAFETY: the program has given this memory to the call, and the mapping is new.
            unsafe { core::ptr::copy_nonoverlapping(part.as_ptr(), base, part.len()) };
            rest = behind;
        }
    }
    // SAFETY: the mapping of this function, to which there is no reference any more.
    let _ = unsafe { rustix::mm::munmap(memory, len) };
    got
}

const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR;

/// Sends. `None`: the kernel has to do it.
pub fn send_all(connection: &Use, pieces: &Pieces<'_>, flags: i32) -> Option<isize> {
    if flags & !SEND_FLAGS != 0 {
        connection.demote(true, false, true);
        return None;
    }
    if !connection.check_before_sending() {
        return None;
    }
    if connection.end().sends_by_tcp_for_good() {
        return None;
    }
    if pieces.is_nowhere() {
        let could = send_all(connection, &one(NonNull::<u8>::dangling().as_ptr().cast(), 0), flags)?;
        return Some(if could < 0 { could } else { fail(libc::EFAULT) });
    }
    let wanted = pieces.len();
    let mut sent = 0;
    let mut until = None;
    let error = 'sending: loop {
        let mut error = None;
        let mut together = MaybeUninit::uninit();
        match connection.send(pieces.part(sent, &mut together)) {
            Ok(some) => sent += some,
            Err(stop) => error = Some(stop),
        }
        if sent >= wanted && error.is_none() {
            return Some(sent as isize);
        }
        match error {
            None => continue,
            Some(Errno::EAGAIN) if flags & libc::MSG_DONTWAIT == 0 && connection.blocks() => {}
            Some(error) => break 'sending error.0,
        }
        if until.is_none() {
            until = connection.most_wait(false).map(|most| kernel::now() + most);
        }
        match connection.wait(false, until) {
            Ok(true) => {}
            Ok(false) => break 'sending libc::EAGAIN,
            Err(error) => break 'sending error,
        }
    };
    if sent > 0 {
        return Some(sent as isize);
    }
    if error == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: a signal to this very thread, as the kernel sends it.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
    }
    Some(fail(error))
}

unsafe extern "C" fn read_known(fd: i32, buf: *mut c_void, len: usize) -> isize {
    // SAFETY: the caller's arguments.
    let by_kernel = || unsafe { point_at!(read, fd, buf, len) };
    // Unlike recv(2), a read of nothing never waits (sock_read_iter).
    if len == 0 {
        return by_kernel();
    }
    let by_ring = |connection: &Use| receive(connection, &one(buf, len), 0).unwrap_or_else(by_kernel);
    moving(fd, false, by_ring, by_kernel)
}

unsafe extern "C" fn readv_known(fd: i32, vector: *const iovec, count: i32) -> isize {
    // SAFETY: the caller's arguments.
    let by_kernel = || unsafe { point_at!(readv, fd, vector, count) };
    let by_ring = |connection: &Use| {
        // SAFETY: the caller's promise of readv(2).
        let pieces = usize::try_from(count).ok().and_then(|count| unsafe { many(vector, count) });
        let pieces = pieces.filter(|pieces| pieces.len() > 0);
        pieces.and_then(|pieces| receive(connection, &pieces, 0)).unwrap_or_else(by_kernel)
    };
    moving(fd, false, by_ring, by_kernel)
}

unsafe extern "C" fn recv_known(fd: i32, buf: *mut c_void, len: usize, flags: i32) -> isize {
    // SAFETY: the caller's arguments.
    let by_kernel = || unsafe { point_at!(recv, fd, buf, len, flags) };
    let by_ring = |connection: &Use| receive(connection, &one(buf, len), flags).unwrap_or_else(by_kernel);
    moving(fd, false, by_ring, by_kernel)
}

unsafe extern "C" fn recvfrom_known(
    fd: i32,
    buf: *mut c_void,
    len: usize,
    flags: i32,
    address: *mut c_void,
    address_len: *mut c_void,
) -> isize {
    // SAFETY: the caller's arguments.
    let by_kernel = || unsafe { point_at!(recvfrom, fd, buf, len, flags, address, address_len) };
    let by_ring = |connection: &Use| {
        let got = receive(connection, &one(buf, len), flags);
        if got.is_some_and(|got| got >= 0) && !address.is_null() && !address_len.is_null() {
            // A stream has no addresses: the kernel sets the length to 0 (tcp_recvmsg).
            // SAFETY: the caller's promise of recvfrom(2).
            unsafe { *address_len.cast::<u32>() = 0 };
        }
        got.unwrap_or_else(by_kernel)
    };
    moving(fd, false, by_ring, by_kernel)
}

unsafe extern "C" fn recvmsg_known(fd: i32, message: *mut msghdr, flags: i32) -> isize {
    // SAFETY: the caller's arguments.
    let by_kernel = || unsafe { point_at!(recvmsg, fd, message, flags) };
    let by_ring = |connection: &Use| {
        // SAFETY: the caller's promise of recvmsg(2), which writes the header and reads the vector.
        let received = unsafe { message.as_mut() }.and_then(|message| {
            // SAFETY: as before.
            let pieces = unsafe { many(message.msg_iov, message.msg_iovlen) }?;
            let received = receive(connection, &pieces, flags)?;
            if received >= 0 {
                (message.msg_namelen, message.msg_controllen, message.msg_flags) = (0, 0, 0);
            }
            Some(received)
        });
        received.unwrap_or_else(by_kernel)
    };
    moving(fd, false, by_ring, by_kernel)
}

unsafe extern "C" fn write_known(fd: i32, buf: *const c_void, len: usize) -> isize {
    // SAFETY: the caller's arguments.
    let by_kernel = || unsafe { point_at!(write, fd, buf, len) };
    let by_ring = |connection: &Use| send_all(connection, &one(buf, len), 0).unwrap_or_else(by_kernel);
    moving(fd, true, by_ring, by_kernel)
}

unsafe extern "C" fn writev_known(fd: i32, vector: *const iovec, count: i32) -> isize {
    // SAFETY: the caller's arguments.
    let by_kernel = || unsafe { point_at!(writev, fd, vector, count) };
    let by_ring = |connection: &Use| {
        // SAFETY: the caller's promise of writev(2).
        let pieces = usize::try_from(count).ok().and_then(|count| unsafe { many(vector, count) });
        let pieces = pieces.filter(|pieces| pieces.len() > 0);
        pieces.and_then(|pieces| send_all(connection, &pieces, 0)).unwrap_or_else(by_kernel)
    };
    moving(fd, true, by_ring, by_kernel)
}

unsafe extern "C" fn send_known(fd: i32, buf: *const c_void, len: usize, flags: i32) -> isize {
    // SAFETY: the caller's arguments.
    let by_kernel = || unsafe { point_at!(send, fd, buf, len, flags) };
    let by_ring = |connection: &Use| send_all(connection, &one(buf, len), flags).unwrap_or_else(by_kernel);
    moving(fd, true, by_ring, by_kernel)
}

unsafe extern "C" fn sendto_known(
    fd: i32,
    buf: *const c_void,
    len: usize,
    flags: i32,
    to: *const c_void,
    to_len: u32,
) -> isize {
    // SAFETY: the caller's arguments.
    let by_kernel = || unsafe { point_at!(sendto, fd, buf, len, flags, to, to_len) };
    // The kernel ignores the address of a connection's peer (tcp_sendmsg).
    let by_ring = |connection: &Use| send_all(connection, &one(buf, len), flags).unwrap_or_else(by_kernel);
    moving(fd, true, by_ring, by_kernel)
}

/// Descriptors that a message carries go to somebody who does not know of the ring.
unsafe fn let_go(message: &msghdr) {
    // SAFETY: the caller's promise of sendmsg(2): so many bytes of control messages, which the macros step through.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = header.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
                let bytes = control.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let files = libc::CMSG_DATA(header).cast::<i32>();
                for n in 0..bytes / size_of::<i32>() {
                    process::leave_to_tcp(files.add(n).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Whether a message goes by a connection of ours. Descriptors in it are let go.
unsafe extern "C" fn sendmsg_needs_us(fd: i32, message: *const msghdr) -> i32 {
    let error = next::errno();
    // SAFETY: the caller's promise of sendmsg(2).
    if let Some(header) = unsafe { message.as_ref() }
        && header.msg_controllen > 0
        && !header.msg_control.is_null()
    {
        // SAFETY: as before.
        unsafe { let_go(header) };
        process::leave_to_tcp(fd);
    }
    next::set_errno(error);
    i32::from(table::tag(fd) != Tag::Unknown && !message.is_null())
}

unsafe extern "C" fn sendmsg_known(fd: i32, message: *const msghdr, flags: i32) -> isize {
    // SAFETY: the caller's arguments.
    let by_kernel = || unsafe { point_at!(sendmsg, fd, message, flags) };
    let by_ring = |connection: &Use| {
        // SAFETY: the caller's promise of sendmsg(2), for a header that is there.
        let pieces = unsafe { message.as_ref() }.and_then(|header| unsafe { many(header.msg_iov, header.msg_iovlen) });
        pieces.and_then(|pieces| send_all(connection, &pieces, flags)).unwrap_or_else(by_kernel)
    };
    moving(fd, true, by_ring, by_kernel)
}

/// Whether messages go by a connection of ours. Descriptors in them are let go.
unsafe extern "C" fn sendmmsg_needs_us(fd: i32, all: *mut libc::mmsghdr, count: u32) -> i32 {
    let error = next::errno();
    for n in 0..if all.is_null() { 0 } else { count as usize } {
        // SAFETY: the caller's promise of sendmmsg(2): so many headers.
        let header = unsafe { &(*all.add(n)).msg_hdr };
        if header.msg_controllen > 0 && !header.msg_control.is_null() {
            // SAFETY: as before.
            unsafe { let_go(header) };
            process::send_by_tcp(fd);
        }
    }
    next::set_errno(error);
    i32::from(table::tag(fd) != Tag::Unknown && !all.is_null())
}

/// One message after the other, as the kernel sends them (`__sys_sendmmsg`): no more than 1,024, none behind one that
/// was sent in part, and an error only if it is the first one's.
unsafe extern "C" fn sendmmsg_known(fd: i32, all: *mut libc::mmsghdr, count: u32, flags: i32) -> i32 {
    let mut done = 0;
    for n in 0..count.min(1024) as usize {
        // SAFETY: the caller's promise of sendmmsg(2): so many headers, which it may write to.
        let message = unsafe { &mut *all.add(n) };
        // SAFETY: the caller's promise of sendmmsg(2), for this header.
        let sent = unsafe { sendmsg_known(fd, &raw const message.msg_hdr, flags) };
        if sent < 0 {
            return if done > 0 { done } else { -1 };
        }
        message.msg_len = sent as u32;
        done += 1;
        // SAFETY: the caller's promise of sendmmsg(2), for this header.
        let wanted = unsafe { many(message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) }.map_or(0, |all| all.len());
        if (sent as usize) < wanted {
            break;
        }
    }
    done
}

points_if! {
    sendmsg sendmsg sendmsg_needs_us, sendmsg_known;
    sendmmsg sendmmsg sendmmsg_needs_us, sendmmsg_known;
}

quiet_points! {
    read read read_known;
    __read read read_known;
    readv readv readv_known;
    recv recv recv_known;
    __recv recv recv_known;
    recvfrom recvfrom recvfrom_known;
    recvmsg recvmsg recvmsg_known;
    write write write_known;
    __write write write_known;
    writev writev writev_known;
    send send send_known;
    __send send send_known;
    sendto sendto sendto_known;
}

/// Entries for programs that are compiled with _FORTIFY_SOURCE: the fourth argument is the size of the buffer, and the
/// program ends if it is smaller than the length, as with glibc. The others are those of the plain function.
macro_rules! checked {
    ($($name:ident $function:path, $shift:literal;)*) => { $(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "cmp rdx, rcx", "ja 2f",
                $shift,
                "jmp {function}",
                "2: sub rsp, 8", "call {abort}", "ud2",
                function = sym $function,
                abort = sym libc::abort,
            )
        }
    )* };
}

checked! {
    __read_chk read, "";
    __recv_chk recv, "mov ecx, r8d";
    __recvfrom_chk recvfrom, "mov ecx, r8d\nmov r8, r9\nmov r9, [rsp + 8]";
}
