//! How a connection gets its memory: the two ends find each other by a name made of their addresses (`sock::hello`).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use memory::backing::Memfd;
use memory::stream::Pair;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType,
};
use sock::hello::{self, Hello};
use sock::status::State;

use sock::end::Kernel;

use crate::kernel::{self, borrow};
use crate::table::{self, Tag};
use crate::work::locked;
use crate::{descriptors, epoll, holders, link, process, status};

/// Calls before a connection looks for its other end: short ones pay nothing.
const FEW: u32 = 2;
/// Calls after which the other end is given up.
const MANY: u32 = 4096;
/// Changes from sending to receiving and back after which few calls look for the other end.
const ANSWERED: u32 = 64;
/// How many calls do not look, then. Calls that send and receive in turn come to the next look by the other direction.
const REST: u8 = 126;
/// A count of calls at which [`advance`] looks.
const LOOKS: u32 = 64;
/// Changes after which it is given up, too, if it was waited for as long: a server that forks has the connection alone
/// only when the other process has closed it.
const TURNS: u32 = 256;
const PATIENCE: u64 = 200_000_000;

static LOCK: AtomicU32 = AtomicU32::new(0);

/// Before a call that moves bytes of a connection without shared memory: brings it nearer to having some.
pub fn advance(fd: i32) {
    match table::tag(fd) {
        Tag::Fresh(count) if count < FEW => drop(table::change_tag(fd, Tag::Fresh(count), Tag::Fresh(count + 1))),
        Tag::Fresh(_) if !process::is_own() => {}
        Tag::Fresh(count) if holders::is_shared(fd) && !is_time_for_holders(fd, count) => {}
        Tag::Fresh(_) => locked(
            &LOCK,
            || {},
            || {
                if matches!(table::tag(fd), Tag::Fresh(_)) && look_for_other_end(fd).is_none() {
                    descriptors::untrack(fd, State::NotMet);
                }
            },
        ),
        Tag::Waiting(number) => {
            let count = &table::slot(number).calls;
            let calls = count.load(Ordering::Relaxed);
            // Where threads meet, a call is not counted.
            count.store(calls.wrapping_add(1), Ordering::Relaxed);
            // A plain peer never comes: a call must cost no system call more than with TCP.
            if (calls < 16 || calls.is_power_of_two()) && process::is_own() {
                locked(
                    &LOCK,
                    || {},
                    || {
                        if table::tag(fd) == Tag::Waiting(number) && see_who_came(fd, number, calls).is_none() {
                            descriptors::untrack(fd, State::NotMet);
                        }
                    },
                );
            }
        }
        _ => {}
    }
}

/// A call has moved bytes by TCP. Where questions are answered, the other end makes as many calls, and would have come
/// by now: the next calls go to the kernel as if nothing was known of the connection, and where none of many looks
/// finds it, all that follow do.
pub fn turned(fd: i32, sends: bool) {
    let Tag::Waiting(number) = table::tag(fd) else { return };
    let turns = &table::slot(number).turns;
    let before = turns.load(Ordering::Relaxed);
    if (before & 1 != 0) == sends {
        return;
    }
    let is_rested = before / 2 >= ANSWERED;
    let after = (before ^ 1).saturating_add(if is_rested { 2 * (u32::from(REST) + 1) } else { 2 });
    turns.store(after, Ordering::Relaxed);
    if after / 2 < ANSWERED {
        return;
    }
    table::set_quiet(fd, REST);
    // The first one behind them looks.
    table::slot(number).calls.store(LOOKS, Ordering::Relaxed);
    let is_time = || kernel::now().saturating_sub(table::slot(number).began.load(Ordering::Relaxed)) > PATIENCE;
    if after / 2 < TURNS || !is_time() || !process::is_own() {
        return;
    }
    locked(
        &LOCK,
        || {},
        || {
            if table::tag(fd) == Tag::Waiting(number) && see_who_came(fd, number, MANY).is_none() {
                descriptors::untrack(fd, State::NotMet);
            }
        },
    );
}

/// Whether this process has the connection alone, though it came by a fork, or was left to a child. It is looked at in
/// the first calls, and then ever more rarely.
fn is_time_for_holders(fd: i32, count: u32) -> bool {
    if count > MANY {
        descriptors::untrack(fd, State::Forked);
        return false;
    }
    let _ = table::change_tag(fd, Tag::Fresh(count), Tag::Fresh(count + 1));
    (count < FEW + 16 || count.is_power_of_two()) && holders::is_alone(fd)
}

/// In the child of fork(2): the lock's holder has not come along.
pub fn in_child() {
    LOCK.store(0, Ordering::SeqCst);
}

fn addresses(fd: i32) -> Option<(SocketAddr, SocketAddr)> {
    let ip = |address: SocketAddrAny| SocketAddr::try_from(address).ok();
    let local = ip(rustix::net::getsockname(borrow(fd)).ok()?)?;
    Some((local, ip(rustix::net::getpeername(borrow(fd)).ok()??)?))
}

/// The addresses of a connection, its own and its peer's.
pub fn both_addresses(fd: i32) -> Option<(SocketAddr, SocketAddr)> {
    addresses(fd)
}

/// A unix socket of packets, which never waits.
pub fn unix_socket() -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()
}

/// Whether an option or a flag, which may have been set before there was a connection, is one that only the kernel
/// knows what to do with: bytes that make a socket readable (SO_RCVLOWAT), where a look begins (SO_PEEK_OFF), SIGIO. Or
/// whether a filter of system calls forbids to count the bytes that have come by TCP.
fn needs_tcp(fd: i32) -> bool {
    let option = |name| kernel::option(fd, libc::SOL_SOCKET, name);
    let is_async = || rustix::fs::fcntl_getfl(borrow(fd)).is_ok_and(|flags| flags.bits() & libc::O_ASYNC as u32 != 0);
    option(libc::SO_RCVLOWAT).is_some_and(|least| least > 1)
        || option(libc::SO_PEEK_OFF).is_some_and(|offset| offset >= 0)
        || is_async()
        || kernel::Tcp { fd, slot: table::slot(0) }.arrived().is_none()
}

/// `None`: this connection stays with TCP.
fn look_for_other_end(fd: i32) -> Option<()> {
    if needs_tcp(fd) {
        descriptors::untrack(fd, State::Given);
        return Some(());
    }
    let (local, remote) = addresses(fd)?;
    let (name, first) = hello::name(local, remote)?;
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
    let socket = unix_socket()?;
    match rustix::net::connect(&socket, &name) {
        Ok(()) => return join(fd, socket, (local, remote), first),
        Err(rustix::io::Errno::CONNREFUSED) => {}
        Err(_) => return None,
    }
    let socket = unix_socket()?;
    match rustix::net::bind(&socket, &name) {
        Ok(()) => {}
        // The other end has come first, and will listen in a moment.
        Err(rustix::io::Errno::ADDRINUSE) => return Some(()),
        Err(_) => return None,
    }
    rustix::net::listen(&socket, 1).ok()?;
    let number = table::claim()?;
    let slot = table::slot(number);
    let Some(listener) = out_of_the_way(socket) else {
        slot.holders.store(0, Ordering::SeqCst);
        return None;
    };
    slot.listener.store(listener, Ordering::Relaxed);
    slot.has_come.store(0, Ordering::Relaxed);
    slot.calls.store(0, Ordering::Relaxed);
    slot.turns.store(0, Ordering::Relaxed);
    slot.began.store(kernel::now(), Ordering::Relaxed);
    slot.first.store(u32::from(first), Ordering::Relaxed);
    status::set(fd, Some(State::Waiting), 0);
    table::set_tag(fd, Tag::Waiting(number));
    Some(())
}

/// The process at the other end of a unix socket, if it is this user's; 0: it has no number here.
pub fn process_of_this_user(socket: BorrowedFd<'_>) -> Option<i32> {
    let (process, user) = memory::fds::peer_credentials(socket).ok()?;
    let is_known = user != UNMAPPED || has_all_users();
    (is_known && user == rustix::process::geteuid().as_raw()).then(|| process.cast_signed())
}

/// What a user namespace shows of all users that it has no number for (`/proc/sys/kernel/overflowuid`): of strangers,
/// and of itself, if it has no numbers at all.
const UNMAPPED: u32 = 65_534;

/// Whether this is the first user namespace, where each user has a number of its own (user_namespaces(7)).
fn has_all_users() -> bool {
    let mut bytes = [0u8; 128];
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(c"/proc/self/uid_map", flags, rustix::fs::Mode::empty());
    let got = file.and_then(|file| rustix::io::read(&file, &mut bytes)).unwrap_or(0);
    let text = bytes.get(..got).and_then(|bytes| core::str::from_utf8(bytes).ok()).unwrap_or("");
    text.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Most descriptors that come along: the memory, the page of a link, and two for each bell.
const FILES: usize = 2 + 2 * memory::link::BELLS;

fn join(fd: i32, socket: OwnedFd, (local, remote): (SocketAddr, SocketAddr), first: bool) -> Option<()> {
    let process = process_of_this_user(socket.as_fd())?;
    let (memory, file) = Memfd::create(Pair::<Memfd>::LEN).ok()?;
    let number = table::claim()?;
    let slot = table::slot(number);
    let Some(offer) = link::offer(process, number) else {
        slot.holders.store(0, Ordering::SeqCst);
        return None;
    };
    slot.link.store(offer.link.number() as u32 + 1, Ordering::Relaxed);
    slot.number.store(offer.number, Ordering::Relaxed);
    slot.bells.store(offer.link.bells(), Ordering::Relaxed);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files: Vec<BorrowedFd<'_>> =
        core::iter::once(borrow(file.as_raw_fd())).chain(offer.files().map(borrow)).collect();
    let (link, is_maker) = offer.token();
    let is_kept = offer.link.life() < 0;
    let bytes = Hello { local, remote, link, is_maker, is_kept, number: offer.number, bells: offer.bells }.emit();
    let sent = if ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, flags)
    } else {
        Err(rustix::io::Errno::MSGSIZE)
    };
    if sent.is_err() {
        slot.holders.store(0, Ordering::SeqCst);
        descriptors::free(slot);
        return None;
    }
    if is_kept {
        offer.link.keep(out_of_the_way(socket).unwrap_or(-1));
    }
    install(fd, number, memory, first)
}

/// Looks whether the other end has come. `None`: it will not, or is not to be believed.
fn see_who_came(fd: i32, number: usize, calls: u32) -> Option<()> {
    let slot = table::slot(number);
    let fd_there = || borrow(slot.listener.load(Ordering::Relaxed));
    let has_not_come = |error| error == rustix::io::Errno::AGAIN && calls < MANY;
    if slot.has_come.load(Ordering::Relaxed) == 0 {
        let socket = match rustix::net::accept_with(fd_there(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => out_of_the_way(socket)?,
            Err(error) => return has_not_come(error).then_some(()),
        };
        descriptors::close_own(&slot.listener);
        slot.listener.store(socket, Ordering::Relaxed);
        slot.has_come.store(1, Ordering::Relaxed);
    }
    let mut bytes = [0u8; hello::LEN + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = match rustix::net::recvmsg(fd_there(), &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
        Ok(got) => got.bytes,
        // The other end sends in the moment after it has connected: a later call looks again.
        Err(error) => return has_not_come(error).then_some(()),
    };
    let mut files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let mut files = files.next()?;
    let file = files.next()?;
    let said = Hello::parse(bytes.get(..got)?)?;
    let (local, remote) = addresses(fd)?;
    let process = process_of_this_user(fd_there())?;
    if (said.local, said.remote) != (hello::canonical(remote), hello::canonical(local)) {
        return None;
    }
    let memory = Memfd::open(&file, Pair::<Memfd>::LEN).ok()?;
    let link = link::accept(&said, process, number, files)?;
    slot.link.store(link.number() as u32 + 1, Ordering::Relaxed);
    slot.number.store(said.number, Ordering::Relaxed);
    slot.bells.store(said.bells, Ordering::Relaxed);
    let first = slot.first.load(Ordering::Relaxed) != 0;
    if said.is_kept && link.life() < 0 {
        link.keep(slot.listener.swap(-1, Ordering::Relaxed));
    }
    descriptors::close_own(&slot.listener);
    install(fd, number, memory, first)
}

/// Whether writing to it can do nothing but wake.
pub fn is_bell(file: &OwnedFd) -> bool {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let is_eventfd =
        rustix::fs::readlink(path, Vec::new()).is_ok_and(|name| name.to_bytes() == b"anon_inode:[eventfd]");
    is_eventfd && rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

/// Moves a descriptor of this library to a high number, where programs do not look for theirs. No more than a quarter
/// of the descriptors that a process may have are this library's.
pub fn out_of_the_way(file: OwnedFd) -> Option<i32> {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 16);
    if table::count_of_own() >= most / 4 {
        return None;
    }
    let from = (most.min(table::LIMIT as u64) / 2) as i32;
    let high = rustix::io::fcntl_dupfd_cloexec(&file, from).ok()?.into_raw_fd();
    if usize::try_from(high).is_ok_and(|high| high < table::LIMIT) {
        table::set_tag(high, Tag::Ours);
        return Some(high);
    }
    // SAFETY: a descriptor of this library that nobody else knows.
    unsafe { rustix::io::close(high) };
    None
}

fn install(fd: i32, number: usize, memory: Memfd, first: bool) -> Option<()> {
    let slot = table::slot(number);
    let made = (|| {
        memory.inherit().ok()?;
        let (all, shared) = (rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE, rustix::mm::MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let held = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), 4096, all, shared) }.ok()?;
        slot.held.store(held.cast(), Ordering::Relaxed);
        let (read, write) = kernel::shut_down(fd);
        // SAFETY: the new page, which is all zeroes, and which nobody else has.
        unsafe { &*held.cast::<table::Held>() }.own.shut(read, write);
        Pair::new(memory)
    })();
    let Some(pair) = made else {
        // The tag does not name the slot any more when it is given back.
        table::set_tag(fd, Tag::Unknown);
        status::set(fd, Some(State::NotMet), 0);
        slot.holders.store(0, Ordering::SeqCst);
        descriptors::free(slot);
        return None;
    };
    // SAFETY: the slot is ours, and no tag names it as a connection with memory.
    unsafe { *slot.pair.get() = Some(pair) };
    slot.first.store(u32::from(first), Ordering::Relaxed);
    slot.waiters.store(0, Ordering::Relaxed);
    slot.cookie.store(kernel::cookie(fd), Ordering::Relaxed);
    slot.looked.store(0, Ordering::Relaxed);
    slot.asked.store(0, Ordering::Relaxed);
    slot.taken.store(0, Ordering::Relaxed);
    status::begin(number);
    status::set(fd, Some(State::Moved), number);
    table::set_tag(fd, Tag::Shared(number));
    epoll::attach(fd, number);
    descriptors::tell(fd, State::Moved);
    Some(())
}
