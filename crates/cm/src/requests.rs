//! Requests and their answers: from the id that connects to the listener that gets the request, and back.

use std::net::SocketAddr;

use report::Device;
use verbs::{Errno, Result};

use crate::channel::Queued;
use crate::conn::{Conn, Out, reason, sidr};
use crate::ids::{Id, IdKey, Phase, Retry, State, UD};
use crate::links::LinkKey;
use crate::manager::{ConnectParams, Options, UDP_QKEY};
use crate::message::{Body, Half, Message, Service};
use crate::names::{self, is_wildcard};
use crate::ports;
use crate::route::Wire;

/// How long a request without listener is repeated before that is reported, and the pauses in between, in nanoseconds.
pub(crate) const RETRY_TIME: u64 = 200_000_000;
/// The longer time of repetition, in nanoseconds, while a connection to this very address and port stands (of any port
/// space). Its acceptor lives, and programs that agree on the next connection over the first one (perftest -R) close
/// the port and listen anew. On a busy machine that takes a while, and perftest's client dies of a REJECTED.
const RETRY_TIME_KNOWN: u64 = 3_000_000_000;
pub(crate) const RETRY_FIRST: u64 = 500_000;
const RETRY_LAST: u64 = 32_000_000;
/// Requests beyond the backlog that wait at a listener for room, as repetitions of the REQ would.
const MAX_PARKED: usize = 16_384;

impl State {
    pub(crate) fn connect(&mut self, id: IdKey, params: ConnectParams) -> Result<()> {
        let entry = self.id(id)?;
        let (Some(src), Some(dst), Phase::RouteResolved) = (entry.src, entry.dst, entry.phase) else {
            return Err(Errno::EINVAL);
        };
        if entry.wire == Wire::Tcp {
            return self.connect_mpa(id, src, dst, params);
        }
        let service = Service { port_space: entry.port_space, qp_type: entry.qp_type as u8, src, dst };
        let (wire, space, datagram, psn) = (entry.wire, entry.port_space, entry.qp_type == UD, entry.psn);
        let mut conn = Conn::default();
        let mut out = Vec::new();
        let now = nic::now();
        if datagram {
            conn.look_up(service, params.data, now, &mut out)?;
        } else {
            let (half, data) = half(params, psn);
            conn.connect(service, half, data, now, &mut out)?;
        }
        let entry = self.id(id)?;
        entry.conn = Some(conn);
        entry.phase = Phase::Connect;
        if wire == Wire::None && self.has(Device::Iwarp) {
            report::log_once(
                report::Matter::OtherHost,
                format_args!(
                    "rdma_connect to {dst}: it is no address of this network namespace. softiw0, which reaches other \
                     hosts, has connections of RDMA_PS_TCP only"
                ),
            );
            self.with_conn(id, |conn, _, out| conn.unreachable(out));
            return Ok(());
        }
        if wire == Wire::None {
            report::log_once(
                report::Matter::OtherHost,
                format_args!(
                    "rdma_connect to {dst}: it is no address of this network namespace. softrnic0 connects processes \
                     of one host that share a network namespace (for containers: the host's, or one of a pod). To \
                     reach other hosts, run both programs with --device iwarp"
                ),
            );
            self.with_conn(id, |conn, _, out| conn.unreachable(out));
            return Ok(());
        }
        let Some(Out::Send(body)) = out.pop() else { return Err(Errno::EIO) };
        self.id(id)?.retry = Retry { next: None, pause: RETRY_FIRST, until: now + RETRY_TIME };
        self.ask(id, space, &dst, &body);
        self.mind(id);
        Ok(())
    }

    /// Send a request to its listener. If there is none, the thread looks up, without the lock, whether a process
    /// listens at the port for another address ([`State::unheard`]).
    pub(crate) fn ask(&mut self, id: IdKey, space: u16, dst: &SocketAddr, body: &Body) {
        if !self.asked(id, space, dst, body) {
            self.unheard.push(id);
            self.wake();
        }
    }

    /// Decide, by the names, about requests that no listener took.
    pub(crate) fn look_up(&mut self, unheard: Vec<IdKey>, names: &str) {
        for id in unheard {
            let Some(entry) = self.ids.get(&id) else { continue };
            // The request may have been answered in the meantime, by a timeout or by the device's removal.
            let (Some(dst), Some(body)) = (entry.dst, entry.conn.as_ref().and_then(Conn::request)) else { continue };
            let space = entry.port_space;
            // If a process listens at the port for another address, the service is known, and the answer is a refusal
            // (Linux). Such a listener may also have begun to listen for this address since the request was sent: then
            // the second attempt finds it.
            let known = ports::has_listener(names, space, dst.port());
            if !(known && self.asked(id, space, &dst, &body)) {
                self.not_heard(id, known, &body);
            }
        }
    }

    /// Answer a request that no listener takes. `known`: a process listens at the port for another address.
    fn not_heard(&mut self, id: IdKey, known: bool, body: &Body) {
        if !known && self.retry_later(id) {
            return;
        }
        let (status, reason) = match known {
            true => (sidr::REJECT, reason::CONSUMER),
            false => (sidr::UNSUPPORTED, reason::INVALID_SERVICE_ID),
        };
        let nobody = match body {
            Body::SidrReq { .. } => Body::SidrRep { status, qpn: 0, qkey: 0, data: Vec::new() },
            _ => Body::Rej { reason, data: Vec::new() },
        };
        self.with_conn(id, |conn, now, out| conn.receive(nobody, now, out));
    }

    /// Schedule the request again after a pause; false when that has been done for long enough.
    pub(crate) fn retry_later(&mut self, id: IdKey) -> bool {
        let Some(entry) = self.ids.get_mut(&id) else { return false };
        let now = nic::now();
        let Retry { pause, until, .. } = entry.retry;
        let dst = entry.dst;
        if now >= until {
            let known = |e: &Id| e.dst == dst && e.link.is_some() && e.is_connected();
            let longer = until + (RETRY_TIME_KNOWN - RETRY_TIME);
            if now >= longer || !self.ids.values().any(known) {
                return false;
            }
        }
        let Some(entry) = self.ids.get_mut(&id) else { return false };
        (entry.link, entry.link_may_be_stale) = (None, false);
        entry.retry = Retry { next: Some(now + pause), pause: (pause * 2).min(RETRY_LAST), until };
        self.mind(id);
        true
    }

    /// Repeat a request whose pause is over.
    pub(crate) fn ask_again(&mut self, id: IdKey) {
        let Some(entry) = self.ids.get(&id) else { return };
        if entry.mpa.is_some() {
            return self.connect_again(id);
        }
        if let (Some(dst), Some(body)) = (entry.dst, entry.conn.as_ref().and_then(Conn::request)) {
            self.ask(id, entry.port_space, &dst, &body);
        }
    }

    pub(crate) fn accept(&mut self, id: IdKey, params: ConnectParams) -> Result<()> {
        let entry = self.id(id)?;
        if entry.mpa.is_some() {
            return self.accept_mpa(id, params);
        }
        let (datagram, psn) = (entry.qp_type == UD, entry.psn);
        // Set before the answer goes out: the answer may meet the peer's death, and the program must get the event of
        // that.
        let known = std::mem::replace(&mut entry.known, true);
        let result = self.with_result(id, |conn, now, out| {
            if datagram {
                conn.answer(sidr::SUCCESS, params.qpn, UDP_QKEY, params.data, out)
            } else {
                let (half, data) = half(params, psn);
                conn.accept(half, data, now, out)
            }
        });
        if result.is_err() {
            self.id(id)?.known = known;
            let _ = self.with_result(id, |conn, now, out| conn.reject(reason::CONSUMER, Vec::new(), now, out));
        }
        result
    }

    /// Handle a message that came over a link.
    pub(crate) fn received(&mut self, link: LinkKey, message: Message) {
        if matches!(message.body, Body::Req { .. } | Body::SidrReq { .. }) {
            if let Some(&id) = self.by_peer.get(&(link, message.from)) {
                self.with_conn(id, |conn, now, out| conn.receive(message.body, now, out));
            } else {
                self.request(link, message);
            }
            return;
        }
        if let Body::Ask { port_space, claim } = &message.body {
            let errno = self.answer(*port_space, claim).err().map_or(0, |e| e.0 as u16);
            self.send(link, &Message { from: message.to, to: message.from, body: Body::Answer { errno } });
            return;
        }
        // A peer that gives up before an answer came does not know this side's number.
        let id = match message.to {
            0 => {
                self.forget_parked(link, message.from);
                self.by_peer.get(&(link, message.from)).copied().unwrap_or(IdKey(0))
            }
            to => IdKey(to),
        };
        let expected =
            self.ids.get(&id).is_some_and(|e| e.link == Some(link) && (e.peer == 0 || e.peer == message.from));
        if !expected {
            if message.body == Body::Dreq {
                self.send(link, &Message { from: message.to, to: message.from, body: Body::Drep });
            }
            return;
        }
        let nobody = matches!(message.body, Body::Rej { reason: reason::INVALID_SERVICE_ID, .. })
            || matches!(message.body, Body::SidrRep { status: sidr::UNSUPPORTED, .. });
        let Some(entry) = self.ids.get_mut(&id) else { return };
        if nobody && entry.conn.as_ref().and_then(Conn::request).is_some() {
            let stale = std::mem::take(&mut entry.link_may_be_stale) && nic::now() < entry.retry.until;
            self.forget_name(link);
            if stale {
                if let Some(entry) = self.ids.get_mut(&id) {
                    entry.link = None;
                }
                return self.ask_again(id);
            }
            if self.retry_later(id) {
                return;
            }
        }
        let Some(entry) = self.ids.get_mut(&id) else { return };
        entry.peer = message.from;
        self.with_conn(id, |conn, now, out| conn.receive(message.body, now, out));
    }

    /// Send the request to its listener, or schedule it for later. False: no process listens there.
    fn asked(&mut self, id: IdKey, space: u16, dst: &SocketAddr, body: &Body) -> bool {
        // The second attempt is for a kept link whose process has just died.
        for _ in 0..2 {
            match self.link_to(space, dst) {
                Ok(Some((link, old))) => {
                    if !self.send(link, &Message { from: id.0, to: 0, body: body.clone() }) {
                        continue;
                    }
                    if let Some(entry) = self.ids.get_mut(&id) {
                        (entry.link, entry.link_may_be_stale) = (Some(link), old);
                    }
                    return true;
                }
                Ok(None) => return false,
                Err(Errno::EACCES) => {
                    report::log_once(
                        report::Matter::OtherUser,
                        format_args!(
                            "rdma_connect to {dst}: another user's process listens there. Run both programs as one \
                             user, or both with SOFTRNIC_PEERS=any"
                        ),
                    );
                    return false;
                }
                // There is no descriptor, or no room at the listener's socket, which may change in a moment.
                Err(_) => {
                    if let Some(entry) = self.ids.get_mut(&id) {
                        entry.retry.next = Some(nic::now() + RETRY_LAST);
                    }
                    self.mind(id);
                    return true;
                }
            }
        }
        false
    }

    /// Drop a request that waits for room in a backlog: the peer has withdrawn it.
    pub(crate) fn forget_parked(&mut self, link: LinkKey, peer: u32) {
        for listener in self.ids.values_mut().filter_map(|id| id.listener.as_mut()) {
            listener.parked.retain(|(l, m)| *l != link || m.from != peer);
        }
    }

    /// Handle a request: find its listener.
    pub(crate) fn request(&mut self, link: LinkKey, message: Message) {
        let service = match &message.body {
            Body::Req { service, .. } | Body::SidrReq { service, .. } => service,
            _ => return,
        };
        // softiw0 is reached by TCP only.
        let is_host = self.has(Device::Roce);
        let hears = |entry: &Id| {
            is_host
                && entry.phase == Phase::Listen
                && entry.port_space == service.port_space
                && entry
                    .src
                    .is_some_and(|src| src.port() == service.dst.port() && names::hears(&src, entry.only, &service.dst))
        };
        // The most specific listener gets it.
        let found = self.ids.iter().filter(|(_, entry)| hears(entry));
        let listener = found.min_by_key(|(_, entry)| entry.src.is_none_or(|src| is_wildcard(&src))).map(|(&k, _)| k);
        let Some(listener) = listener else {
            return self.refuse(link, &message, reason::INVALID_SERVICE_ID, sidr::UNSUPPORTED);
        };
        self.offer(listener, link, message);
    }

    pub(crate) fn refuse(&mut self, link: LinkKey, message: &Message, reason: u16, status: u16) {
        if let Body::Req { service, .. } | Body::SidrReq { service, .. } = &message.body {
            self.served(link, service);
        }
        let body = match message.body {
            Body::SidrReq { .. } => Body::SidrRep { status, qpn: 0, qkey: 0, data: Vec::new() },
            _ => Body::Rej { reason, data: Vec::new() },
        };
        self.send(link, &Message { from: 0, to: message.from, body });
    }

    /// Give a request to its listener, or let it wait for room in the backlog.
    pub(crate) fn offer(&mut self, listener: IdKey, link: LinkKey, message: Message) {
        let Some(entry) = self.ids.get_mut(&listener) else { return };
        let (space, qp_type, channel, options) =
            (entry.port_space, entry.qp_type, entry.channel.clone(), entry.options);
        let Some(waiting) = &mut entry.listener else { return };
        let service = match &message.body {
            Body::Req { service, .. } | Body::SidrReq { service, .. } => service.clone(),
            _ => return,
        };
        let asked_for = match (&message.body, service.qp_type) {
            (Body::SidrReq { .. }, _) => UD,
            (_, 9) => 10, // an XRC initiator asks for a target
            (_, other) => other.into(),
        };
        if asked_for != qp_type {
            return self.refuse(link, &message, reason::CONSUMER, sidr::REJECT);
        }
        if waiting.room == 0 {
            let again = waiting.parked.iter().any(|(l, m)| *l == link && m.from == message.from);
            if !again && waiting.parked.len() < MAX_PARKED {
                waiting.parked.push_back((link, message));
            }
            return;
        }
        waiting.room -= 1;
        let from = message.from;
        let Some((conn, event)) = Conn::requested(message.body) else { return };
        let child = self.add_id(channel.clone(), 0, space, qp_type);
        if let Some(entry) = self.ids.get_mut(&child) {
            entry.phase = Phase::Connect;
            (entry.src, entry.dst) = (Some(service.dst), Some(service.src));
            (entry.device, entry.wire) = (Some(Device::Roce), Wire::Host);
            entry.options = Options { reuse: false, ..options };
            entry.conn = Some(conn);
            (entry.link, entry.peer) = (Some(link), from);
            entry.known = false;
            entry.awaited_by = Some(listener);
        }
        self.by_peer.insert((link, from), child);
        channel.push(Queued { id: listener, child: Some(child), event });
    }

    /// Note that the program has got a request: the next one that waits has room.
    pub(crate) fn make_room(&mut self, listener: IdKey) {
        let Some(waiting) = self.ids.get_mut(&listener).and_then(|e| e.listener.as_mut()) else { return };
        waiting.room += 1;
        if let Some((link, message)) = waiting.parked.pop_front() {
            self.offer(listener, link, message);
        }
    }
}

pub(crate) fn half(params: ConnectParams, psn: u32) -> (Half, Vec<u8>) {
    let half = Half {
        qpn: params.qpn & 0xff_ffff,
        psn,
        responder_resources: params.responder_resources,
        initiator_depth: params.initiator_depth,
        flow_control: params.flow_control,
        retry_count: params.retry_count.min(7),
        rnr_retry_count: params.rnr_retry_count.min(7),
        srq: params.srq,
        ece: params.ece,
    };
    (half, params.data)
}
