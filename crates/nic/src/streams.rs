//! The TCP connections of iWARP: sockets, and when they are read and written. The connection manager makes them, and
//! gives them to their queue pairs ([`Nic::attach_stream`]); what their bytes mean is the engine's matter.
//!
//! All calls on sockets are made under the adapter's lock, none waits, and each moves a bounded number of bytes. A
//! program that polls reads and writes them itself; otherwise the NIC thread sleeps until one of them is ready.

use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::sync::Arc;

use ::verbs::{Errno, QpId, Qpn, Result};
use iwarp::mpa::{Agreed, Role};
use memory::fds::{FdSet, TrackedFd};
use memory::tcp;
use parking_lot::Mutex;
use report::streams::Ended;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno as Os;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use taps::StreamTap;

use crate::core::Core;
use crate::tapped_streams::Tapping;
use crate::{Nic, errno};

/// Bytes that one call reads or writes at most.
pub(crate) const CHUNK: usize = 256 << 10;
/// Bytes of FPDUs, if the settings have no other number. Longer ones than TCP's segments cost fewer calls, and every
/// receiver has to take them: their length field says what it can.
const FPDU: usize = u16::MAX as usize;
/// Connections up to which a poll tries each of them, without asking the system first which are ready.
const FEW: usize = 4;
/// The number of events that are taken from the kernel at a time.
const BATCH: usize = 32;
/// Bytes read behind the rest of a segment that is read straight to its place: padding, CRC, and the headers of the
/// FPDU behind it, so that the payload of that one can be read straight to its place, too.
const BEHIND: usize = 32;
/// Bytes read at the start of an FPDU that is probably large: they are copied.
const AHEAD: usize = 4096;
/// Calls that write to one connection in a row while it takes all.
pub(crate) const WRITES: u32 = 4;
/// The shortest time, in nanoseconds, between two questions of a program that polls whether TCP has room: a lot of
/// small sends would take more time than one of what has room then.
pub(crate) const ROOM_PAUSE: u64 = 30_000;
/// How long requests may take that were posted before the program ended the connection, in nanoseconds.
const CLOSE_PATIENCE: u64 = 5_000_000_000;
/// How long an initiator holds back its first bytes behind the responder's reply, in nanoseconds. Linux's siw looks for
/// bytes only when some come after it has made itself ready, which it does behind its reply: bytes that come earlier
/// lie there until more come, and the connection hangs if those wait for an answer.
const HOLD: u64 = 2_000_000;
/// The times between nudges: messages of no bytes, for an siw that took longer to make itself ready.
const NUDGES: [u64; 4] = [20_000_000, 100_000_000, 500_000_000, 2_000_000_000];
/// How long the peer's FIN is awaited behind this side's, in nanoseconds. Until it comes, what the peer has sent is
/// read and thrown away: bytes that are not read make TCP send RST, which would destroy a Terminate message on its way.
const LINGER: u64 = 2_000_000_000;

/// One connection.
pub(crate) struct Conn {
    pub(crate) socket: TrackedFd,
    /// Its queue pair; `None` once the connection is over and only its last bytes are on their way.
    pub(crate) qp: Option<QpId>,
    /// Bytes that are to be sent before FIN, when the queue pair is gone.
    tail: Vec<u8>,
    /// FIN has been sent.
    finished: bool,
    /// The socket's epoll entry asks for room.
    wants_room: bool,
    /// TCP had no room, and is not asked before this time, or before epoll tells of room.
    pub(crate) full: bool,
    pub(crate) again: u64,
    /// When the connection is given up; `u64::MAX`: never.
    until: u64,
    /// When the first bytes may be sent, then when the next nudge is due; 0: neither is to come.
    hold: u64,
    /// The first bytes may be sent.
    begun: bool,
    nudges: usize,
    /// The last FPDU was one that is worth reading straight to its place.
    large: bool,
    /// Since when TCP has taken nothing; 0: it takes what it gets.
    pub(crate) full_since: u64,
    /// Captures and faults.
    pub(crate) taps: Option<Box<Tapping>>,
}

/// The connections of an adapter.
#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) conns: BTreeMap<u64, Conn>,
    /// By [`name`] of the queue pair.
    by_qp: BTreeMap<u64, u64>,
    last: u64,
    epoll: Option<Arc<TrackedFd>>,
    bounce: Vec<u8>,
    /// The connections that an error has ended, the last ones.
    pub(crate) ended: VecDeque<Ended>,
    /// The earliest `until`, or an earlier time.
    deadline: u64,
}

impl Streams {
    pub(crate) fn new() -> Self {
        Streams { deadline: u64::MAX, ..Streams::default() }
    }

    /// True if there is no connection.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// When something is to be done about a connection though nothing comes; `u64::MAX`: never.
    pub(crate) fn deadline(&self) -> u64 {
        self.deadline
    }

    /// The descriptor that is readable when a connection is ready.
    pub(crate) fn epoll(&self) -> Option<Arc<TrackedFd>> {
        self.epoll.clone()
    }

    fn add(&mut self, socket: TrackedFd, fds: &Arc<FdSet>) -> Result<u64> {
        if self.epoll.is_none() {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(errno)?;
            self.epoll = Some(Arc::new(TrackedFd::new(epoll, fds)));
            self.bounce = vec![0; CHUNK];
        }
        let Some(epoll) = &self.epoll else { return Err(Errno::EIO) };
        self.last += 1;
        epoll::add(epoll.as_fd(), &socket, EventData::new_u64(self.last), EventFlags::IN).map_err(errno)?;
        let conn = Conn {
            socket,
            qp: None,
            tail: Vec::new(),
            finished: false,
            wants_room: false,
            full: false,
            again: 0,
            until: u64::MAX,
            hold: 0,
            begun: true,
            nudges: 0,
            large: false,
            full_since: 0,
            taps: None,
        };
        self.conns.insert(self.last, conn);
        Ok(self.last)
    }

    /// Closes a connection.
    pub(crate) fn remove(&mut self, key: u64) {
        if let (Some(epoll), Some(conn)) = (&self.epoll, self.conns.remove(&key)) {
            // Closing alone does not remove the socket from epoll if a forked child still has the descriptor.
            let _ = epoll::delete(epoll.as_fd(), &conn.socket);
        }
    }

    /// Stop to wait for the socket, or go on.
    pub(crate) fn watch(&mut self, key: u64, watched: bool) {
        let (Some(epoll), Some(conn)) = (&self.epoll, self.conns.get_mut(&key)) else { return };
        conn.wants_room = false;
        let _ = match watched {
            true => epoll::add(epoll.as_fd(), &conn.socket, EventData::new_u64(key), EventFlags::IN),
            false => epoll::delete(epoll.as_fd(), &conn.socket),
        };
    }

    pub(crate) fn want_room(&mut self, key: u64, want: bool) {
        let (Some(epoll), Some(conn)) = (&self.epoll, self.conns.get_mut(&key)) else { return };
        if conn.wants_room != want {
            conn.wants_room = want;
            let flags = if want { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            let _ = epoll::modify(epoll.as_fd(), &conn.socket, EventData::new_u64(key), flags);
        }
    }

    /// Look after the connections at this time.
    pub(crate) fn look_at(&mut self, at: u64) {
        self.deadline = self.deadline.min(at);
    }

    fn give_up_at(&mut self, key: u64, at: u64) {
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.until = at;
            self.look_at(at);
        }
    }
}

/// A queue pair as a number.
fn name(qp: QpId) -> u64 {
    u64::from(qp.generation) << 32 | u64::from(qp.index)
}

/// The ends of connections, for the connection manager.
pub(crate) struct Ends {
    keys: Mutex<Vec<u64>>,
    bell: OwnedFd,
}

impl Ends {
    pub(crate) fn new() -> Result<Ends> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(errno)?;
        Ok(Ends { keys: Mutex::default(), bell })
    }

    fn add(&self, key: u64) {
        self.keys.lock().push(key);
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// The result of a call on a socket.
pub(crate) enum Moved {
    Bytes(usize),
    Nothing,
    /// Memory of the program is not there.
    Fault,
    Over,
}

fn moved(result: rustix::io::Result<usize>) -> Moved {
    match result {
        Ok(0) => Moved::Over,
        Ok(n) => Moved::Bytes(n),
        Err(Os::AGAIN | Os::INTR) => Moved::Nothing,
        Err(Os::FAULT) => Moved::Fault,
        Err(_) => Moved::Over,
    }
}

pub(crate) fn send(socket: &TrackedFd, bytes: &[u8]) -> Moved {
    let bytes = bytes.get(..bytes.len().min(CHUNK)).unwrap_or_default();
    moved(rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
}

impl Core {
    /// Reads the connections that have something, and writes to those that have room again.
    pub(crate) fn serve_streams(&mut self, now: u64) {
        if self.streams.conns.len() <= FEW {
            let mut keys = [0; FEW];
            let count = self.streams.conns.len();
            for (room, key) in keys.iter_mut().zip(self.streams.conns.keys()) {
                *room = *key;
            }
            for &key in keys.get(..count).unwrap_or_default() {
                let may_write = |conn: &Conn| conn.wants_room && (!conn.full || conn.again <= now);
                let write = self.streams.conns.get(&key).is_some_and(may_write);
                self.serve(key, true, write, now);
            }
        } else if let Some(epoll) = self.streams.epoll() {
            let mut events = [const { MaybeUninit::uninit() }; BATCH];
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let (ready, _) = epoll::wait(epoll.as_fd(), &mut events[..], Some(&at_once)).unwrap_or_default();
            for event in ready {
                let (key, flags) = (event.data.u64(), event.flags);
                let ends = EventFlags::HUP | EventFlags::ERR;
                self.serve(key, flags.intersects(EventFlags::IN | ends), flags.contains(EventFlags::OUT), now);
            }
        }
        if self.streams.deadline <= now {
            self.end_late_streams(now);
        }
        self.run_streams(now);
    }

    /// Serves one connection.
    fn serve(&mut self, key: u64, read: bool, write: bool, now: u64) {
        let Some(conn) = self.streams.conns.get_mut(&key) else { return };
        if conn.taps.as_ref().is_some_and(|taps| taps.is_stalled(now)) {
            return;
        }
        let Some(qp) = conn.qp else {
            return self.end_stream(key, read);
        };
        if write {
            conn.full = false;
            self.engine.stream_writable(qp);
        }
        if !read {
            return;
        }
        let mut bounce = std::mem::take(&mut self.streams.bounce);
        self.read_stream(key, qp, &mut bounce, now);
        self.streams.bounce = bounce;
    }

    /// Reads what has come over a connection, up to [`CHUNK`] bytes.
    fn read_stream(&mut self, key: u64, qp: QpId, bounce: &mut [u8], now: u64) {
        let mut left = CHUNK;
        while left > 0
            && let Some(conn) = self.streams.conns.get_mut(&key)
        {
            let spans = self.engine.stream_direct(qp);
            let direct: usize = spans.iter().map(|span| span.len as usize).sum();
            conn.large |= direct > 0;
            let room = match direct {
                0 if conn.large => AHEAD,
                0 => CHUNK,
                _ => BEHIND,
            };
            let behind = bounce.get_mut(..room).unwrap_or_default();
            let result = tcp::receive(&conn.socket, spans, behind);
            let asked = result.map_or(0, |moved| moved.asked);
            if let Some(taps) = &mut conn.taps {
                taps.heard(self.engine.env_mut(), result.map(|moved| moved.bytes), behind);
            }
            match moved(result.map(|moved| moved.bytes)) {
                Moved::Bytes(n) if direct > 0 => {
                    let placed = n.min(direct);
                    self.engine.stream_placed(qp, placed, behind.get(..n - placed).unwrap_or_default(), now);
                    left = if n < asked { 0 } else { left.saturating_sub(n) };
                }
                Moved::Bytes(n) => {
                    self.engine.stream_input(qp, behind.get(..n).unwrap_or_default(), now);
                    conn.large = conn.large && !self.engine.stream_direct(qp).is_empty();
                    left = if n < asked { 0 } else { left.saturating_sub(n) };
                }
                Moved::Nothing => return,
                Moved::Fault if direct > 0 => self.engine.stream_misplaced(qp, now),
                Moved::Fault | Moved::Over => return self.engine.stream_closed(qp, now),
            }
        }
    }

    /// Sends what the engine has for connections, and takes leave of those that are over.
    #[inline]
    pub(crate) fn run_streams(&mut self, now: u64) {
        if self.engine.has_streams() {
            self.run_some_streams(now);
        }
    }

    #[inline(never)]
    fn run_some_streams(&mut self, now: u64) {
        while let Some(qp) = self.engine.next_stream() {
            let Some(&key) = self.streams.by_qp.get(&name(qp)) else { continue };
            if !self.engine.stream_is_over(qp) {
                self.write_stream(key, qp, now);
            }
            if self.engine.stream_is_over(qp) {
                self.detach(key, qp, now);
            }
        }
    }

    fn write_stream(&mut self, key: u64, qp: QpId, now: u64) {
        let Some(conn) = self.streams.conns.get_mut(&key) else { return };
        if conn.full || !conn.begun {
            return;
        }
        if conn.taps.is_some() {
            return self.write_tapped(key, qp, now);
        }
        for _ in 0..WRITES {
            let Some(output) = self.engine.stream_output(qp, CHUNK, now) else {
                return self.streams.want_room(key, false);
            };
            let result = tcp::send(&conn.socket, output.parts());
            let asked = result.map_or(0, |moved| moved.asked);
            match moved(result.map(|moved| moved.bytes)) {
                Moved::Bytes(n) => {
                    self.engine.stream_sent(qp, n, now);
                    conn.full_since = if n == asked { 0 } else { now };
                    if n == asked {
                        continue;
                    }
                }
                Moved::Nothing if conn.full_since == 0 => conn.full_since = now,
                Moved::Nothing => {}
                Moved::Fault => return self.engine.stream_unreadable(qp, now),
                Moved::Over => return self.engine.stream_closed(qp, now),
            }
            self.engine.stream_full(qp);
            (conn.full, conn.again) = (true, now + ROOM_PAUSE);
            return self.streams.want_room(key, true);
        }
        self.engine.stream_writable(qp); // others have their turn
    }

    /// Takes a connection from its queue pair: what is left of it is its last bytes, and FIN.
    fn detach(&mut self, key: u64, qp: QpId, now: u64) {
        self.note_end(qp, now);
        let tail = self.engine.detach_stream(qp, now);
        self.streams.by_qp.remove(&name(qp));
        if let Some(conn) = self.streams.conns.get_mut(&key) {
            conn.qp = None;
            match &mut conn.taps {
                Some(taps) => taps.say(self.engine.env_mut(), tail),
                None => conn.tail = tail,
            }
        }
        if let Some(ends) = &self.ends {
            ends.add(key);
        }
        self.streams.want_room(key, false);
        self.streams.give_up_at(key, now + LINGER);
        self.end_stream(key, true);
    }

    /// Goes on with a connection that is over: sends its last bytes and FIN, reads what the peer still sends, and
    /// closes it when the peer has done so.
    pub(crate) fn end_stream(&mut self, key: u64, read: bool) {
        if self.end_tapped(key) {
            return;
        }
        let Some(conn) = self.streams.conns.get_mut(&key) else { return };
        if !conn.tail.is_empty() {
            match send(&conn.socket, &conn.tail) {
                Moved::Bytes(n) => drop(conn.tail.drain(..n)),
                Moved::Nothing => {}
                Moved::Fault | Moved::Over => return self.streams.remove(key),
            }
        }
        let wants_room = !conn.tail.is_empty();
        if !wants_room && !std::mem::replace(&mut conn.finished, true) {
            if let Some(taps) = &mut conn.taps {
                taps.hangs_up(self.engine.env_mut());
            }
            let _ = rustix::net::shutdown(&conn.socket, Shutdown::Write);
        }
        self.streams.want_room(key, wants_room);
        if !read {
            return;
        }
        let mut bounce = std::mem::take(&mut self.streams.bounce);
        let mut is_over = false;
        if let Some(conn) = self.streams.conns.get_mut(&key) {
            let result = rustix::net::recv(&conn.socket, &mut bounce[..], RecvFlags::DONTWAIT).map(|(n, _)| n);
            if let Some(taps) = &mut conn.taps {
                taps.heard(self.engine.env_mut(), result, &bounce);
            }
            is_over = matches!(moved(result), Moved::Over);
        }
        self.streams.bounce = bounce;
        if is_over {
            self.streams.remove(key);
        }
    }

    /// Goes on with connections that were held back, and ends those whose time is over.
    #[cold]
    fn end_late_streams(&mut self, now: u64) {
        for conn in self.streams.conns.values_mut().filter(|conn| conn.hold != 0 && conn.hold <= now) {
            let Some(qp) = conn.qp else {
                conn.hold = 0;
                continue;
            };
            if !std::mem::replace(&mut conn.begun, true) {
                self.engine.stream_writable(qp);
            } else if !self.engine.nudge_stream(qp, now) {
                conn.hold = 0;
                continue;
            }
            conn.hold = NUDGES.get(conn.nudges).map_or(0, |pause| now + pause);
            conn.nudges += 1;
        }
        self.wake_tapped(now);
        let late = self.streams.conns.iter().filter(|(_, conn)| conn.until <= now);
        let late: Vec<(u64, Option<QpId>)> = late.map(|(key, conn)| (*key, conn.qp)).collect();
        for (key, qp) in late {
            match qp {
                Some(qp) if self.engine.stream_is_late(qp, now) => self.detach(key, qp, now),
                Some(_) => {
                    if let Some(conn) = self.streams.conns.get_mut(&key) {
                        conn.until = u64::MAX;
                    }
                }
                None => self.streams.remove(key),
            }
        }
        let next = |conn: &Conn| {
            let taps = conn.taps.as_ref().map_or(u64::MAX, |taps| taps.wakes_at());
            conn.until.min(taps).min(if conn.hold == 0 { u64::MAX } else { conn.hold })
        };
        self.streams.deadline = self.streams.conns.values().map(next).min().unwrap_or(u64::MAX);
    }

    /// Takes leave of the connection of a queue pair that is about to be destroyed, if it has one.
    pub(crate) fn leave_stream(&mut self, qp: QpId) {
        if let Some(&key) = self.streams.by_qp.get(&name(qp)) {
            let now = self.read_time();
            self.engine.close_stream(qp, now);
            self.detach(key, qp, now);
        }
    }
}

impl Nic {
    /// Connect a queue pair over a TCP connection that is in full operation. `before` is sent before all else. The
    /// result names the connection. `tap`: that of [`Nic::tap_stream`].
    ///
    /// # Errors
    /// EINVAL: no such queue pair; EISCONN: it has a connection, or had one; EMFILE, ENOMEM.
    pub fn attach_stream(
        &self,
        qpn: u32,
        socket: TrackedFd,
        agreed: &Agreed,
        before: &[u8],
        tap: Option<Box<StreamTap>>,
    ) -> Result<u64> {
        let fpdu = self.settings.mpa_fpdu.map_or(FPDU, usize::from);
        let mut core = self.lock();
        let now = core.read_time();
        let key = core.streams.add(socket, &self.fds)?;
        match core.engine.attach_stream(Qpn::new(qpn), agreed, fpdu, before, now) {
            Ok(qp) => {
                core.want_exact_time(); // no poll goes past the connections
                let hold = if agreed.role == Role::Initiator { now + HOLD } else { 0 };
                if let Some(conn) = core.streams.conns.get_mut(&key) {
                    (conn.qp, conn.hold, conn.begun) = (Some(qp), hold, hold == 0);
                    conn.taps = tap.map(|tap| Tapping::new(tap, Qpn::new(qpn), before.len(), agreed.markers_out));
                }
                if hold != 0 {
                    core.streams.deadline = core.streams.deadline.min(hold);
                }
                if let Some(at) = core.engine.stream_deadline(qp) {
                    core.streams.give_up_at(key, at);
                }
                core.streams.by_qp.insert(name(qp), key);
                core.run_streams(now);
                self.wake_thread(&mut core);
                Ok(key)
            }
            Err(errno) => {
                core.streams.remove(key);
                Err(errno)
            }
        }
    }

    /// End a connection when what was posted before is done, as far as that happens in time.
    pub fn close_stream(&self, key: u64) {
        let mut core = self.lock();
        let now = core.read_time();
        if let Some(qp) = core.streams.conns.get(&key).and_then(|conn| conn.qp) {
            core.engine.close_stream(qp, now);
            core.streams.give_up_at(key, now + CLOSE_PATIENCE);
            core.run_streams(now);
            self.wake_thread(&mut core);
        }
    }

    /// The descriptor that is readable while [`Nic::take_ended`] has something; `None`: this is no device of iWARP.
    pub fn ends_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ends.as_ref().map(|ends| ends.bell.as_fd())
    }

    /// The connections that have ended since the last call.
    pub fn take_ended(&self) -> Vec<u64> {
        let Some(ends) = &self.ends else { return Vec::new() };
        let _ = rustix::io::read(&ends.bell, &mut [0u8; 8]);
        std::mem::take(&mut ends.keys.lock())
    }
}
