//! A socket whose requests are answered.

use std::time::Duration;

use report::{Report, Settings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{RecvFlags, SendFlags};
use view::tree::ViewInfo;

use crate::World;
use crate::nldev::answer;

/// Longest request that is read, in bytes; a longer one is cut off, and so no valid request.
const ROOM: usize = 16 << 10;
/// How long other processes may take to send their reports: those that are stopped do not.
const PATIENCE: Duration = Duration::from_millis(800);

/// This host.
struct Host;

impl World for Host {
    fn infos(&self) -> Vec<ViewInfo> {
        ViewInfo::probe(Settings::of_process())
    }

    fn reports(&self) -> Vec<Report> {
        ask::ask_all(&ask::processes(), PATIENCE)
    }

    fn kernel(&self, request: &[u8]) -> Option<Vec<Vec<u8>>> {
        Settings::of_process().with_hardware.then(|| crate::host::ask(request)).flatten()
    }
}

/// Answer the requests over a connection that keeps datagrams apart, until its other end is closed. `port` gives the
/// port of the program's end.
pub fn serve(socket: &OwnedFd, port: impl Fn() -> u32) {
    let mut room = vec![0; ROOM];
    loop {
        let len = match rustix::net::recv(socket, room.as_mut_slice(), RecvFlags::empty()) {
            Ok((len, _)) => len,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        };
        // A datagram of no bytes looks like the end.
        if len == 0 && closed(socket) {
            return;
        }
        for datagram in answer(&room[..len], port(), &Host) {
            if rustix::net::send(socket, &datagram, SendFlags::NOSIGNAL).is_err() {
                return;
            }
        }
    }
}

fn closed(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_err() || fds[0].revents().contains(PollFlags::HUP)
}
