//! Connections of iWARP, as Linux's `iw_cm` and siw give them to programs: from the request to the end.
//!
//! ```text
//!  active:   Connecting -REP-> Established
//!  passive:  Asked -rdma_accept: REP-> Established
//!  either:   Established -FIN, RST, Terminate, rdma_disconnect-> Closed
//! ```
//!
//! There is no third message, and no message that ends a connection: the end is the TCP connection's, which the device
//! tells of ([`nic::Nic::take_ended`]).

use std::net::SocketAddr;

use iwarp::mpa::initiator::Answer;
use iwarp::mpa::start::ReadyKinds;
use iwarp::mpa::{Agreed, Failure, Initiator, Responder, Role, Wishes};
use memory::fds::TrackedFd;
use report::Device;
use verbs::{Errno, Result};

use crate::channel::Queued;
use crate::conn;
use crate::event::{ConnParams, Event, EventKind, Params};
use crate::ids::{IdKey, Phase, Retry, State as Manager};
use crate::links::Token;
use crate::manager::{ConnectParams, Options, port_space};
use crate::message::Half;
use crate::names::Claim;
use crate::requests::{RETRY_FIRST, RETRY_TIME, half};
use crate::route::Wire;
use crate::tcp::{self, ECONNRESET, Read, Side, TcpKey};

const ECONNREFUSED: Errno = Errno(111);

/// READs that a side offers before its program has said how many: those of siw.
const DEPTH: u16 = 128;

/// The states of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// This side has asked.
    Connecting,
    /// The program has the peer's request.
    Asked,
    Established,
    Closed,
}

/// A connection of an id.
pub(crate) struct Mpa {
    pub state: State,
    pub local: Half,
    pub remote: Half,
    /// The connection while it is being made.
    starting: Option<TcpKey>,
    /// The request, while it waits to be tried again.
    again: Option<Box<Initiator>>,
    /// The connection once the queue pair has it.
    stream: Option<u64>,
}

impl Mpa {
    fn new(state: State, local: Half, starting: TcpKey) -> Mpa {
        Mpa { state, local, remote: Half::default(), starting: Some(starting), again: None, stream: None }
    }

    /// The state, as one of the machine of InfiniBand's connections.
    pub fn state(&self) -> conn::State {
        match self.state {
            State::Connecting => conn::State::ReqSent,
            State::Asked => conn::State::ReqRcvd,
            State::Established => conn::State::Established,
            State::Closed => conn::State::Idle,
        }
    }
}

/// The parameters of an event about a connection with these terms.
fn params(resources: u16, depth: u16) -> Params {
    let byte = |n: u16| n.min(u8::MAX.into()) as u8;
    // RFC 6581 has no others: Linux leaves them 0.
    Params::Conn(ConnParams {
        responder_resources: byte(resources),
        initiator_depth: byte(depth),
        ..ConnParams::default()
    })
}

/// The event of a connection that did not come about (Linux: `cma_iw_handler`).
fn failed(errno: Errno) -> Event {
    let kind = match errno {
        ECONNRESET | ECONNREFUSED => EventKind::Rejected,
        Errno::ETIMEDOUT => EventKind::Unreachable,
        _ => EventKind::ConnectError,
    };
    Event { params: Params::Conn(ConnParams::default()), ..Event::with_status(kind, -errno.0) }
}

fn with_data(event: Event, data: &[u8]) -> Event {
    event.data(data.to_vec(), data.len())
}

impl Manager {
    /// True if this process has a device.
    pub(crate) fn has(&self, device: Device) -> bool {
        self.nic.settings().devices.has(device)
    }

    /// True if a device serves ids of this port space: softiw0 has connections only.
    pub(crate) fn serves(&self, space: u16) -> bool {
        self.has(Device::Roce) || space == port_space::TCP
    }

    fn wishes(&self, role: Role) -> Wishes {
        // The peer-to-peer model: programs of verbs let the passive side send first, too (RFC 6581, section 9.2).
        let ready = Some(ReadyKinds::QUIET);
        Wishes { crc: self.nic.settings().mpa_crc, ready, ..Wishes::new(role, DEPTH) }
    }

    pub(crate) fn wishes_of_responder(&self) -> Wishes {
        self.wishes(Role::Responder)
    }

    /// Listen at the TCP port of a listener's number, for softiw0. A listener of another port space has none, if
    /// another device serves it.
    pub(crate) fn listen_tcp(&mut self, id: IdKey, backlog: i32) -> Result<Option<TrackedFd>> {
        if !self.has(Device::Iwarp) {
            return Ok(None);
        }
        let space = self.id(id)?.port_space;
        if space != port_space::TCP {
            return if self.serves(space) { Ok(None) } else { Err(Errno::ENODEV) };
        }
        let entry = self.id(id)?;
        let addr = entry.src.ok_or(Errno::EINVAL)?;
        let (only, kept) = (entry.only, entry.kept.take());
        let socket = match kept {
            Some(socket) => socket,
            None => TrackedFd::new(tcp::bind(&addr, only, true)?, self.fds()),
        };
        // The program's backlog is for requests. Visitors that have sent none yet take no place in it, and need some.
        tcp::listen(&socket, backlog.max(1024))?;
        self.watch(&socket, Token::TcpListener(id))?;
        Ok(Some(socket))
    }

    /// A TCP socket with the port of a new id, if softiw0 may listen there. EADDRINUSE: another program has it. What
    /// else goes wrong is left to rdma_listen.
    pub(crate) fn keep_tcp(&self, space: u16, claim: &Claim) -> Result<Option<TrackedFd>> {
        if !self.has(Device::Iwarp) || space != port_space::TCP {
            return Ok(None);
        }
        match tcp::bind(&claim.addr, claim.only, false) {
            Ok(socket) => Ok(Some(TrackedFd::new(socket, self.fds()))),
            Err(Errno::EADDRINUSE) => Err(Errno::EADDRINUSE),
            Err(_) => Ok(None),
        }
    }

    /// Ask for a connection.
    pub(crate) fn connect_mpa(
        &mut self,
        id: IdKey,
        src: SocketAddr,
        dst: SocketAddr,
        params: ConnectParams,
    ) -> Result<()> {
        let now = nic::now();
        let (ird, ord) = (params.responder_resources.into(), params.initiator_depth.into());
        let wishes = Wishes { ird, ord, ..self.wishes(Role::Initiator) };
        let initiator = Initiator::new(wishes, &params.data, now).map_err(|_| Errno::EINVAL)?;
        let key = self.connect_tcp(id, Box::new(initiator), (src, dst))?;
        let (local, _) = half(params, 0);
        let entry = self.id(id)?;
        entry.phase = Phase::Connect;
        entry.retry = Retry { next: None, pause: RETRY_FIRST, until: now + RETRY_TIME };
        entry.mpa = Some(Mpa::new(State::Connecting, local, key));
        Ok(())
    }

    fn connect_tcp(&mut self, id: IdKey, initiator: Box<Initiator>, ends: (SocketAddr, SocketAddr)) -> Result<TcpKey> {
        let socket = TrackedFd::new(tcp::connect(&ends.0, &ends.1)?, self.fds());
        let until = Self::connect_until(nic::now());
        self.add_starting(socket, Side::Connecting(initiator), Some(id), ends, until)
    }

    /// Try again to connect: a moment ago no program listened there.
    pub(crate) fn connect_again(&mut self, id: IdKey) {
        let Some(entry) = self.ids.get_mut(&id) else { return };
        let (Some(src), Some(dst), Some(mpa)) = (entry.src, entry.dst, &mut entry.mpa) else { return };
        let Some(initiator) = mpa.again.take() else { return };
        match self.connect_tcp(id, initiator, (src, dst)) {
            Ok(key) => {
                if let Some(mpa) = self.ids.get_mut(&id).and_then(|entry| entry.mpa.as_mut()) {
                    mpa.starting = Some(key);
                }
            }
            Err(errno) => self.close_mpa(Some(id), failed(errno)),
        }
    }

    /// A reply has come, or a part of it.
    pub(crate) fn reply_came(&mut self, key: TcpKey) {
        let Some(starting) = self.tcp.starting.get_mut(&key) else { return };
        let Side::Asking(initiator) = &mut starting.side else { return };
        let mut bytes = tcp::room();
        let answer = match tcp::read(&starting.socket, &mut bytes) {
            Read::Bytes(n) => {
                let bytes = bytes.get(..n).unwrap_or_default();
                self.nic.tap_hears(&mut starting.tap, bytes);
                initiator.input(bytes)
            }
            Read::Nothing => return,
            Read::Closed(errno) => return self.start_failed(key, errno),
        };
        let data = initiator.private_data().to_vec();
        match answer {
            Ok(Answer::None) => {}
            Ok(Answer::Accepted(agreed)) => self.accepted(key, &agreed, &data),
            Ok(Answer::Rejected) => {
                let Some(starting) = self.take_starting(key) else { return };
                let event = with_data(failed(ECONNREFUSED), &data);
                self.close_mpa(starting.id, event);
            }
            Err(failure) => self.start_failed(key, errno_of(failure)),
        }
    }

    /// The peer has accepted.
    fn accepted(&mut self, key: TcpKey, agreed: &Agreed, data: &[u8]) {
        let Some(starting) = self.take_starting(key) else { return };
        let Some(id) = starting.id else { return };
        let Some(mpa) = self.ids.get_mut(&id).and_then(|entry| entry.mpa.as_mut()) else { return };
        mpa.starting = None;
        match self.nic.attach_stream(mpa.local.qpn, starting.socket, agreed, &[], starting.tap) {
            Ok(stream) => {
                (mpa.state, mpa.stream) = (State::Established, Some(stream));
                let depth = |n: u16| n.min(u8::MAX.into()) as u8;
                (mpa.local.initiator_depth, mpa.local.responder_resources) = (depth(agreed.ord), depth(agreed.ird));
                self.tcp.by_stream.insert(stream, id);
                let event = Event { params: params(agreed.ird, agreed.ord), ..Event::new(EventKind::Established) };
                self.tell(id, with_data(event, data));
            }
            Err(errno) => self.close_mpa(Some(id), failed(errno)),
        }
    }

    /// A request has come, or a part of it.
    pub(crate) fn request_came(&mut self, key: TcpKey) {
        let Some(starting) = self.tcp.starting.get_mut(&key) else { return };
        let Side::Waiting(listener, responder) = &mut starting.side else { return };
        let listener = *listener;
        let mut bytes = tcp::room();
        let asked = match tcp::read(&starting.socket, &mut bytes) {
            Read::Bytes(n) => {
                let bytes = bytes.get(..n).unwrap_or_default();
                if starting.tap.is_none() {
                    starting.tap = self.nic.tap_stream((starting.local, starting.peer), false);
                }
                self.nic.tap_hears(&mut starting.tap, bytes);
                responder.input(bytes)
            }
            Read::Nothing => return,
            Read::Closed(_) => return drop(self.take_starting(key)),
        };
        let asked = match asked {
            Ok(None) => return,
            Ok(Some(asked)) => asked,
            // RFC 5044, section 7.1.2: closed, and no message says why.
            Err(_) => return drop(self.take_starting(key)),
        };
        let (responder, ends) = (responder.clone(), (starting.local, starting.peer));
        let data = responder.private_data().to_vec();
        starting.side = Side::Asked(responder);
        self.give_up_at(key, u64::MAX); // the program may take its time
        let Some(entry) = self.ids.get_mut(&listener).filter(|entry| !entry.removed) else {
            return drop(self.take_starting(key));
        };
        let (space, qp_type, channel, options) =
            (entry.port_space, entry.qp_type, entry.channel.clone(), entry.options);
        let Some(waiting) = entry.listener.as_mut().filter(|waiting| waiting.room > 0) else {
            return drop(self.take_starting(key)); // the backlog is full
        };
        waiting.room -= 1;
        let child = self.add_id(channel.clone(), 0, space, qp_type);
        let (ird, ord) = (asked.ird.unwrap_or(0), asked.ord.unwrap_or(0));
        if let Some(entry) = self.ids.get_mut(&child) {
            entry.phase = Phase::Connect;
            (entry.src, entry.dst) = (Some(ends.0), Some(ends.1));
            (entry.device, entry.wire) = (Some(Device::Iwarp), Wire::Tcp);
            entry.options = Options { reuse: false, ..options };
            entry.mpa = Some(Mpa::new(State::Asked, Half::default(), key));
            entry.known = false;
            entry.awaited_by = Some(listener);
        }
        if let Some(starting) = self.tcp.starting.get_mut(&key) {
            starting.id = Some(child);
        }
        // The values are in the view of the program that gets the event: what one side starts, the other answers.
        let event = Event { params: params(ord, ird), ..Event::new(EventKind::ConnectRequest) };
        channel.push(Queued { id: listener, child: Some(child), event: with_data(event, &data) });
    }

    /// Accept a request.
    pub(crate) fn accept_mpa(&mut self, id: IdKey, params: ConnectParams) -> Result<()> {
        let entry = self.id(id)?;
        entry.known = true;
        let Some(mpa) = entry.mpa.as_mut().filter(|mpa| mpa.state == State::Asked) else {
            return Err(Errno::EINVAL);
        };
        // The peer may have gone since the program got the request.
        let Some(starting) = mpa.starting.take().and_then(|key| self.take_starting(key)) else {
            return Err(ECONNRESET);
        };
        let Side::Asked(mut responder) = starting.side else { return Err(Errno::EINVAL) };
        let (ird, ord) = (params.responder_resources.into(), params.initiator_depth.into());
        let agreed = accept(&mut responder, ird, ord, &params.data)?;
        let (local, _) = half(params, 0);
        // The reply goes out in front of all else over the connection.
        let stream = self.nic.attach_stream(local.qpn, starting.socket, &agreed, responder.output(), starting.tap)?;
        self.tcp.by_stream.insert(stream, id);
        if let Some(mpa) = self.ids.get_mut(&id).and_then(|entry| entry.mpa.as_mut()) {
            (mpa.local, mpa.state, mpa.stream) = (local, State::Established, Some(stream));
        }
        self.tell(id, Event::new(EventKind::Established));
        Ok(())
    }

    /// Refuse a request.
    pub(crate) fn reject_mpa(&mut self, id: IdKey, data: &[u8]) -> Result<()> {
        let Some(mpa) = self.id(id)?.mpa.as_mut().filter(|mpa| mpa.state == State::Asked) else {
            return Err(Errno::EINVAL);
        };
        mpa.state = State::Closed;
        let Some(mut starting) = mpa.starting.take().and_then(|key| self.take_starting(key)) else { return Ok(()) };
        let Side::Asked(mut responder) = starting.side else { return Ok(()) };
        responder.reject(data).map_err(|_| Errno::EINVAL)?;
        self.nic.tap_says(&mut starting.tap, responder.output());
        let _ = tcp::send(&starting.socket, responder.output());
        Ok(())
    }

    /// End a connection.
    pub(crate) fn disconnect_mpa(&mut self, id: IdKey) -> Result<()> {
        let Some(mpa) = &self.id(id)?.mpa else { return Err(Errno::EINVAL) };
        if let Some(stream) = mpa.stream.filter(|_| mpa.state == State::Established) {
            self.nic.close_stream(stream);
        }
        Ok(())
    }

    /// The start of a connection has failed.
    pub(crate) fn start_failed(&mut self, key: TcpKey, errno: Errno) {
        let Some(starting) = self.take_starting(key) else { return };
        // Programs close a port and listen at it again in between: such a moment is not told to the peer.
        if let (Side::Connecting(initiator), Some(id), ECONNREFUSED) = (starting.side, starting.id, errno)
            && let Some(mpa) = self.ids.get_mut(&id).and_then(|entry| entry.mpa.as_mut())
        {
            (mpa.starting, mpa.again) = (None, Some(initiator));
            if self.retry_later(id) {
                return;
            }
        }
        self.close_mpa(starting.id, failed(errno));
    }

    /// The peer of a request that the program has not answered is gone. Linux tells the program nothing before it
    /// answers.
    pub(crate) fn withdrawn(&mut self, key: TcpKey) {
        drop(self.take_starting(key));
    }

    fn close_mpa(&mut self, id: Option<IdKey>, event: Event) {
        let Some(id) = id else { return };
        let Some(mpa) = self.ids.get_mut(&id).and_then(|entry| entry.mpa.as_mut()) else { return };
        (mpa.state, mpa.starting) = (State::Closed, None);
        self.tell(id, event);
    }

    /// Connections that queue pairs had have ended: each id is told once. There is no TIMEWAIT_EXIT.
    pub(crate) fn streams_ended(&mut self) {
        for stream in self.nic.take_ended() {
            let Some(id) = self.tcp.by_stream.remove(&stream) else { continue };
            let Some(mpa) = self.ids.get_mut(&id).and_then(|entry| entry.mpa.as_mut()) else { continue };
            mpa.state = State::Closed;
            mpa.stream = None;
            self.tell(id, Event::new(EventKind::Disconnected));
        }
    }

    /// End the connection of an id that goes.
    pub(crate) fn leave_mpa(&mut self, id: IdKey) {
        let Some(mpa) = self.ids.get_mut(&id).and_then(|entry| entry.mpa.take()) else { return };
        if let Some(mut starting) = mpa.starting.and_then(|key| self.take_starting(key))
            && let Side::Asked(mut responder) = starting.side
            && responder.reject(&[]).is_ok()
        {
            self.nic.tap_says(&mut starting.tap, responder.output());
            let _ = tcp::send(&starting.socket, responder.output());
        }
        if let Some(stream) = mpa.stream {
            self.tcp.by_stream.remove(&stream);
            self.nic.close_stream(stream);
        }
    }

    /// Close the connections that have not sent a whole request to this listener.
    pub(crate) fn forget_requests(&mut self, listener: IdKey) {
        let waits = |side: &Side| matches!(side, Side::Waiting(id, _) if *id == listener);
        let keys: Vec<TcpKey> = self.tcp.starting.iter().filter(|(_, s)| waits(&s.side)).map(|(key, _)| *key).collect();
        for key in keys {
            drop(self.take_starting(key));
        }
    }
}

fn accept(responder: &mut Responder, ird: u16, ord: u16, data: &[u8]) -> Result<Agreed> {
    responder.accept(ird, ord, data).ok().flatten().ok_or(Errno::EINVAL)
}

/// The error of a start that failed (Linux: siw_proc_mpareply).
fn errno_of(failure: Failure) -> Errno {
    match failure {
        Failure::Timeout => Errno::ETIMEDOUT,
        Failure::Closed => ECONNRESET,
        Failure::Key | Failure::Revision | Failure::Length | Failure::Early => Errno(71), // EPROTO
    }
}
