//! Reports of what this process waits for: over a socket, and (SIGUSR1) on stderr.
//!
//! The socket exists from the first time that the device is opened. The NIC thread sleeps on it as on its other
//! descriptors, so the socket costs nothing until a process connects. Each connection is answered with one packet, the
//! descriptor of a sealed memfd that holds the report. The NIC thread reads nothing from a connection, waits for none,
//! and closes each at once.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memory::deferred_close;
use memory::fds::{TrackedFd, peer_credentials};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::facts::CmFactsOf;
use crate::{Nic, now, signal, thread};

/// Connections answered with one report; the others wait for the next.
const MOST: usize = 16;
/// The shortest time between two reports, so that a process that asks without pause does not keep the NIC thread busy.
const PAUSE: u64 = 20_000_000;
/// The pause while strangers' connections are closed more slowly than they come.
const LONG_PAUSE: u64 = 1_000_000_000;

/// The state of the reports.
#[derive(Default)]
pub(crate) struct Doctor {
    socket: OnceLock<TrackedFd>,
    pub cm: OnceLock<CmFactsOf>,
    /// True if a report is to be printed.
    pub print: AtomicBool,
    /// True while a report is being printed.
    printing: AtomicBool,
    /// The time before which no connection is accepted.
    rests_until: AtomicU64,
}

impl Nic {
    /// Start to answer. Without a socket the process works as well, and answers nothing.
    pub(crate) fn start_doctor(&'static self) {
        if self.settings.signal {
            signal::offer();
        }
        if self.doctor.socket.get().is_some() {
            return;
        }
        let Ok(socket) = listen(&report::socket_name(std::process::id())) else { return };
        if self.doctor.socket.set(TrackedFd::new(socket, &self.fds)).is_ok() {
            self.wake_thread(&mut self.core.lock());
        }
    }

    /// The listening socket, if there is one.
    pub(crate) fn doctor_socket(&self) -> Option<BorrowedFd<'_>> {
        self.doctor.socket.get().map(AsFd::as_fd)
    }

    /// The time before which no connection is accepted because one was answered just now.
    pub(crate) fn doctor_not_before(&self) -> Option<u64> {
        let until = self.doctor.rests_until.load(Ordering::Relaxed);
        (until > 0 && now() < until).then_some(until)
    }

    /// Wake the NIC thread to print a report. Async-signal-safe.
    pub(crate) fn ask_to_print(&self) {
        self.doctor.print.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Answer the processes that have asked. The NIC thread calls this. `asked`: there may be such processes. A look
    /// for them costs the system as much as a socket, which it makes before it finds that no process has connected.
    pub(crate) fn answer_doctor(&'static self, asked: bool) {
        if self.doctor.print.swap(false, Ordering::Relaxed) && !self.doctor.printing.swap(true, Ordering::Relaxed) {
            let text = self.report_text();
            // A thread of its own prints: stderr may be a pipe that no process reads, and the device must not wait for
            // that.
            let printed = thread::spawn("softrnic-report", move || {
                // One write, so that the report does not mix with the output of other processes.
                let _ = std::io::stderr().write_all(text.as_bytes());
                self.doctor.printing.store(false, Ordering::Relaxed);
            });
            if printed.is_err() {
                self.doctor.printing.store(false, Ordering::Relaxed);
            }
        }
        let may = || asked && self.doctor_not_before().is_none();
        let Some(listener) = self.doctor_socket().filter(|_| may()) else { return };
        let mut answer = None;
        for _ in 0..MOST {
            if !deferred_close::has_room() {
                self.doctor.rests_until.store(now() + LONG_PAUSE, Ordering::Relaxed);
                break;
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let asker = match rustix::net::accept_with(listener, flags) {
                Ok(asker) => TrackedFd::connection(asker, &self.fds),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => continue,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(_) => {
                    // There may be no more descriptors. The connection then stays in the queue of the socket, and the
                    // NIC thread would do nothing else but try again.
                    self.doctor.rests_until.store(now() + PAUSE, Ordering::Relaxed);
                    break;
                }
            };
            if !may_ask(&asker) {
                continue;
            }
            if answer.is_none() {
                answer = Some(report::encode(&self.report()).ok().and_then(|bytes| sealed(&bytes).ok()));
            }
            if let Some(Some(memfd)) = &answer {
                let _ = send(&asker, memfd);
            }
        }
        if answer.is_some() {
            self.doctor.rests_until.store(now() + PAUSE, Ordering::Relaxed);
        }
    }
}

/// A report names addresses of memory and peers: it is for processes of the same user and of root.
fn may_ask(asker: &TrackedFd) -> bool {
    let own = rustix::process::geteuid().as_raw();
    peer_credentials(asker).is_ok_and(|(_, uid)| uid == own || uid == 0)
}

fn listen(name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    memory::received_fds::refuse_fds(&socket); // no descriptor is taken from any peer here
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::net::listen(&socket, 64)?;
    Ok(socket)
}

/// A memfd with these bytes that no process can change.
fn sealed(bytes: &[u8]) -> rustix::io::Result<OwnedFd> {
    let memfd = rustix::fs::memfd_create("softrnic-report", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut left = bytes;
    while !left.is_empty() {
        left = &left[rustix::io::write(&memfd, left)?..];
    }
    rustix::fs::fcntl_add_seals(&memfd, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    Ok(memfd)
}

fn send(asker: &TrackedFd, memfd: &OwnedFd) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [memfd.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(asker, &[IoSlice::new(&[report::ANSWER])], &mut control, flags)
}
