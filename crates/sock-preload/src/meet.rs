//! How a connection gets its memory: the two ends find each other by a name made of their addresses (`sock::hello`).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use memory::backing::Memfd;
use memory::stream::Pair;
use rustix::event::EventfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType,
};
use sock::hello::{self, Hello};

use crate::kernel::{self, borrow};
use crate::table::{self, Tag};
use crate::work::locked;
use crate::{descriptors, epoll, process};

/// Calls before a connection looks for its other end: short ones pay nothing.
const FEW: u32 = 2;
/// Calls after which the other end is given up.
const MANY: u32 = 4096;

static LOCK: AtomicU32 = AtomicU32::new(0);

/// Before a call that moves bytes of a connection without shared memory: brings it nearer to having some.
pub fn advance(fd: i32) {
    match table::tag(fd) {
        Tag::Fresh(count) if count < FEW => drop(table::change_tag(fd, Tag::Fresh(count), Tag::Fresh(count + 1))),
        Tag::Fresh(_) | Tag::Waiting(_) if !process::is_own() => {}
        Tag::Fresh(_) => locked(
            &LOCK,
            || {},
            || {
                if matches!(table::tag(fd), Tag::Fresh(_)) && look_for_other_end(fd).is_none() {
                    descriptors::untrack(fd);
                }
            },
        ),
        Tag::Waiting(number) => {
            let calls = table::slot(number).calls.fetch_add(1, Ordering::Relaxed);
            if calls < 16 || calls.is_power_of_two() {
                locked(
                    &LOCK,
                    || {},
                    || {
                        if table::tag(fd) == Tag::Waiting(number) && see_who_came(fd, number, calls).is_none() {
                            descriptors::untrack(fd);
                        }
                    },
                );
            }
        }
        _ => {}
    }
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

fn unix_socket() -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()
}

/// `None`: this connection stays with TCP.
fn look_for_other_end(fd: i32) -> Option<()> {
    let (local, remote) = addresses(fd)?;
    let (name, first) = hello::name(local, remote)?;
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
    let socket = unix_socket()?;
    match rustix::net::connect(&socket, &name) {
        Ok(()) => return join(fd, &socket, Hello { local, remote }, first),
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
    slot.first.store(u32::from(first), Ordering::Relaxed);
    table::set_tag(fd, Tag::Waiting(number));
    Some(())
}

fn is_of_this_user(socket: BorrowedFd<'_>) -> bool {
    let user = memory::fds::peer_credentials(socket).map(|(_, user)| user);
    user == Ok(rustix::process::geteuid().as_raw())
}

fn join(fd: i32, socket: &OwnedFd, hello: Hello, first: bool) -> Option<()> {
    if !is_of_this_user(socket.as_fd()) {
        return None;
    }
    let (memory, file) = Memfd::create(Pair::<Memfd>::LEN).ok()?;
    let bell = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
    let (mine, theirs) = (bell()?, bell()?);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd(), theirs.as_fd(), mine.as_fd()];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
        return None;
    }
    let bytes = hello.emit();
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        .ok()?;
    let number = table::claim()?;
    install(fd, number, memory, mine, theirs, first)
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
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
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
    let (file, mine, theirs) = (files.next()?, files.next()?, files.next()?);
    let said = Hello::parse(bytes.get(..got)?)?;
    let (local, remote) = addresses(fd)?;
    let is_other_end = (said.local, said.remote) == (hello::canonical(remote), hello::canonical(local));
    if !is_other_end || !is_of_this_user(fd_there()) || !is_bell(&mine) || !is_bell(&theirs) {
        return None;
    }
    let memory = Memfd::open(&file, Pair::<Memfd>::LEN).ok()?;
    let first = slot.first.load(Ordering::Relaxed) != 0;
    descriptors::close_own(&slot.listener);
    install(fd, number, memory, mine, theirs, first)
}

/// Whether writing to it can do nothing but wake.
fn is_bell(file: &OwnedFd) -> bool {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let is_eventfd =
        rustix::fs::readlink(path, Vec::new()).is_ok_and(|name| name.to_bytes() == b"anon_inode:[eventfd]");
    is_eventfd && rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

/// Moves a descriptor of this library to a high number, where programs do not look for theirs.
fn out_of_the_way(file: OwnedFd) -> Option<i32> {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 16);
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

fn install(fd: i32, number: usize, memory: Memfd, mine: OwnedFd, theirs: OwnedFd, first: bool) -> Option<()> {
    let slot = table::slot(number);
    let made = (|| {
        memory.inherit().ok()?;
        let (bell, their_bell) = (out_of_the_way(mine)?, out_of_the_way(theirs)?);
        slot.bell.store(bell, Ordering::Relaxed);
        slot.their_bell.store(their_bell, Ordering::Relaxed);
        let (all, shared) = (rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE, rustix::mm::MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let held = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), 4096, all, shared) }.ok()?;
        slot.held.store(held.cast(), Ordering::Relaxed);
        Pair::new(memory)
    })();
    let Some(pair) = made else {
        // The tag does not name the slot any more when it is given back.
        table::set_tag(fd, Tag::Unknown);
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
    slot.taken.store(0, Ordering::Relaxed);
    table::set_tag(fd, Tag::Shared(number));
    epoll::attach(fd, number);
    Some(())
}
