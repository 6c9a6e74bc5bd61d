//! The TCP connections of iWARP while packets are captured or faults are to strike: what a queue pair sends waits here
//! until the taps have seen it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use ::verbs::{QpId, Qpn};
use rustix::net::{Shutdown, sockopt};
use taps::{Act, StreamTap};

use crate::Nic;
use crate::core::{Core, Wire};
use crate::streams::{CHUNK, Moved, ROOM_PAUSE, WRITES, send};

/// What lies between a queue pair and its TCP connection.
pub(crate) struct Tapping {
    tap: Box<StreamTap>,
    /// What is to be done next, and how many bytes of the first TCP has.
    acts: VecDeque<Act>,
    taken: usize,
    /// The first has been captured.
    captured: bool,
    waits_until: u64,
    stalled_until: u64,
    /// The socket is not watched, as nothing is to be read.
    unwatched: bool,
    /// FIN has been sent by a fault: nothing can follow.
    half_closed: bool,
    reset: bool,
}

/// How far a connection has come with what is to be done.
enum Progress {
    Done,
    /// TCP has no room.
    Full,
    /// It is not yet time.
    Early,
    Over,
}

impl Tapping {
    pub(crate) fn new(mut tap: Box<StreamTap>, qpn: Qpn, before: usize, markers: bool) -> Box<Tapping> {
        tap.operate(qpn, before, markers);
        Box::new(Tapping {
            tap,
            acts: VecDeque::new(),
            taken: 0,
            captured: false,
            waits_until: 0,
            stalled_until: 0,
            unwatched: false,
            half_closed: false,
            reset: false,
        })
    }

    /// True while nothing is to be sent or read.
    pub(crate) fn is_stalled(&self, now: u64) -> bool {
        self.stalled_until > now
    }

    /// When something waits that is to go on; `u64::MAX`: nothing does.
    pub(crate) fn wakes_at(&self) -> u64 {
        match self.stalled_until.max(self.waits_until) {
            0 => u64::MAX,
            at => at,
        }
    }

    /// Give bytes to the taps.
    pub(crate) fn say(&mut self, wire: &mut Wire, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.acts.extend(wire.stream_out(&mut self.tap, bytes));
        }
    }

    /// Note the result of a read.
    pub(crate) fn heard(&mut self, wire: &mut Wire, result: rustix::io::Result<usize>, bytes: &[u8]) {
        match result {
            Ok(0) => wire.stream_hangs_up(&mut self.tap, false, false),
            Ok(n) => wire.stream_hears(&mut self.tap, bytes.get(..n).unwrap_or_default()),
            Err(rustix::io::Errno::CONNRESET) => wire.stream_hangs_up(&mut self.tap, false, true),
            Err(_) => {}
        }
    }

    /// Note that FIN is about to be sent.
    pub(crate) fn hangs_up(&mut self, wire: &mut Wire) {
        wire.stream_hangs_up(&mut self.tap, true, false);
    }
}

impl Core {
    /// Sends what the engine has for a connection, by way of its taps.
    #[cold]
    pub(crate) fn write_tapped(&mut self, key: u64, qp: QpId, now: u64) {
        for _ in 0..WRITES {
            match self.go_on(key, now) {
                Progress::Done => {}
                Progress::Over => return self.engine.stream_closed(qp, now),
                early_or_full => {
                    self.engine.stream_full(qp);
                    let is_full = matches!(early_or_full, Progress::Full);
                    if let Some(conn) = self.streams.conns.get_mut(&key) {
                        (conn.full, conn.again) = (true, if is_full { now + ROOM_PAUSE } else { u64::MAX });
                    }
                    return self.streams.want_room(key, is_full);
                }
            }
            let Some(output) = self.engine.stream_output(qp, CHUNK, now) else {
                return self.streams.want_room(key, false);
            };
            let mut bytes = Vec::with_capacity(output.len());
            for part in output.parts() {
                // With taps, the engine copies everything.
                if let wire::Part::Own(own) = part {
                    bytes.extend_from_slice(own);
                }
            }
            self.engine.stream_sent(qp, bytes.len(), now);
            if let Some(taps) = self.streams.conns.get_mut(&key).and_then(|conn| conn.taps.as_mut()) {
                taps.say(self.engine.env_mut(), bytes);
            }
        }
        self.engine.stream_writable(qp); // others have their turn
    }

    /// Goes on with what is to be done for a connection.
    fn go_on(&mut self, key: u64, now: u64) -> Progress {
        loop {
            let Some(conn) = self.streams.conns.get_mut(&key) else { return Progress::Over };
            let Some(taps) = &mut conn.taps else { return Progress::Done };
            if taps.reset {
                return Progress::Over;
            }
            let wakes_at = taps.stalled_until.max(taps.waits_until);
            if wakes_at > now {
                let unwatch = taps.stalled_until > now && !std::mem::replace(&mut taps.unwatched, true);
                if unwatch {
                    self.streams.watch(key, false);
                }
                self.streams.look_at(wakes_at);
                return Progress::Early;
            }
            match taps.acts.front() {
                None => return Progress::Done,
                Some(Act::Wait(at)) => taps.waits_until = *at,
                Some(Act::Stall(until)) => taps.stalled_until = *until,
                Some(Act::HalfClose) => {
                    taps.half_closed = true;
                    taps.hangs_up(self.engine.env_mut());
                    let _ = rustix::net::shutdown(&conn.socket, Shutdown::Write);
                }
                Some(Act::Reset) => {
                    let _ = sockopt::set_socket_linger(&conn.socket, Some(Duration::ZERO));
                    taps.reset = true;
                    self.engine.env_mut().stream_hangs_up(&mut taps.tap, true, true);
                    return Progress::Over;
                }
                Some(Act::Send(..)) if taps.half_closed => {}
                Some(Act::Send(bytes, note)) => {
                    if !std::mem::replace(&mut taps.captured, true) {
                        self.engine.env_mut().stream_says(&mut taps.tap, bytes, *note);
                    }
                    match send(&conn.socket, bytes.get(taps.taken..).unwrap_or_default()) {
                        Moved::Bytes(n) => {
                            taps.taken += n;
                            if taps.taken < bytes.len() {
                                continue;
                            }
                        }
                        Moved::Nothing => return Progress::Full,
                        Moved::Fault | Moved::Over => return Progress::Over,
                    }
                }
            }
            taps.acts.pop_front();
            (taps.taken, taps.captured) = (0, false);
        }
    }

    /// Goes on with a connection that has taps and is over. True: it is not ready for more, or has gone.
    pub(crate) fn end_tapped(&mut self, key: u64) -> bool {
        if self.streams.conns.get(&key).is_none_or(|conn| conn.taps.is_none()) {
            return false;
        }
        let now = self.read_time();
        match self.go_on(key, now) {
            Progress::Done => return false,
            Progress::Full => self.streams.want_room(key, true),
            Progress::Early => {}
            Progress::Over => self.streams.remove(key),
        }
        true
    }

    /// Goes on with connections that have waited long enough.
    pub(crate) fn wake_tapped(&mut self, now: u64) {
        let due = self.streams.conns.iter().filter(|(_, conn)| conn.taps.as_ref().is_some_and(|t| t.wakes_at() <= now));
        let due: Vec<u64> = due.map(|(key, _)| *key).collect();
        for key in due {
            let Some(conn) = self.streams.conns.get_mut(&key) else { continue };
            let Some(taps) = &mut conn.taps else { continue };
            (taps.stalled_until, taps.waits_until) = (0, 0);
            conn.full = false;
            let qp = conn.qp;
            if std::mem::take(&mut taps.unwatched) {
                self.streams.watch(key, true);
            }
            match qp {
                Some(qp) => self.engine.stream_writable(qp),
                None => self.end_stream(key, true),
            }
        }
    }
}

impl Nic {
    /// The tap of a TCP connection between these ends, if packets are captured or faults are to strike: this side has
    /// connected (`active`), or has accepted, and has the first bytes.
    pub fn tap_stream(&self, ends: (SocketAddr, SocketAddr), active: bool) -> Option<Box<StreamTap>> {
        self.lock().engine.env_mut().tap_stream(ends, active)
    }

    /// Show a tap bytes that are about to be sent.
    pub fn tap_says(&self, tap: &mut Option<Box<StreamTap>>, bytes: &[u8]) {
        if let Some(tap) = tap {
            self.lock().engine.env_mut().stream_says(tap, bytes, None);
        }
    }

    /// Show a tap bytes that have come.
    pub fn tap_hears(&self, tap: &mut Option<Box<StreamTap>>, bytes: &[u8]) {
        if let Some(tap) = tap {
            self.lock().engine.env_mut().stream_hears(tap, bytes);
        }
    }
}
