//! One connection's handshake (IBTA vol. 1, 12.9: the states of communication establishment and release), without
//! sockets and clocks: calls, messages and the passing of time go in; messages and events come out.
//!
//! ```text
//!  active:   Idle -REQ-> ReqSent <-REP- RepRcvd -RTU-> Established
//!  passive:  Idle <-REQ- ReqRcvd -REP-> RepSent <-RTU- Established
//!  release:  Established -DREQ-> DreqSent <-DREP- TimeWait;  Established <-DREQ- DreqRcvd -DREP-> TimeWait
//!  datagram: Idle -SIDR REQ-> SidrSent <-SIDR REP- Idle;     Idle <-SIDR REQ- SidrRcvd -SIDR REP-> Idle
//! ```
//!
//! Messages are repeated until they are answered, so the handshake works over wires that lose them. The statuses and
//! the order of events are those of Linux (`drivers/infiniband/core/{cm,cma}.c`).

use verbs::{Errno, Result};

use crate::event::{ConnParams, Event, EventKind, Params, UdParams};
use crate::message::{Body, Half, REJ_DATA, REP_DATA, REQ_DATA, SIDR_REP_DATA, SIDR_REQ_DATA, Service};

/// Reject reasons of IBTA vol. 1, 12.6.7.2.
pub mod reason {
    /// The one who asked gave up.
    pub const TIMEOUT: u16 = 4;
    /// Nobody listens.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// The consumer said no.
    pub const CONSUMER: u16 = 28;
    /// Vendor options are not supported.
    pub const VENDOR_OPTION: u16 = 35;
}

/// Statuses of a SIDR REP (IBTA vol. 1, 12.11.2).
pub mod sidr {
    /// Here it is.
    pub const SUCCESS: u16 = 0;
    /// Nobody listens.
    pub const UNSUPPORTED: u16 = 1;
    /// The consumer said no.
    pub const REJECT: u16 = 2;
}

/// EISCONN, for which `verbs::Errno` has no name.
const EISCONN: Errno = Errno(106);
const ETIMEDOUT: i32 = -110;

/// Time to an answer, in nanoseconds, and repetitions after that: Linux's (2 x 4.096 s, 15).
pub const ANSWER_TIME: u64 = 8_192_000_000;
/// See [`ANSWER_TIME`].
pub const REPEATS: u8 = 15;
/// Time in TimeWait: one local ACK timeout.
pub const TIMEWAIT: u64 = 4_096 << ACK_TIMEOUT;
/// Local ACK timeout that connections get: 4.096 us * 2^18 = 1.07 s, as over RoCE (packet life time 16, plus 1, plus
/// the adapter's delay).
pub const ACK_TIMEOUT: u8 = 18;

/// States; see the module's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs)]
pub enum State {
    #[default]
    Idle,
    ReqSent,
    ReqRcvd,
    RepSent,
    RepRcvd,
    Established,
    DreqSent,
    DreqRcvd,
    TimeWait,
    SidrSent,
    SidrRcvd,
}

/// What comes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out {
    /// A message for the peer.
    Send(Body),
    /// An event for the program.
    Tell(Event),
}

/// A connection.
#[derive(Debug, Default)]
pub struct Conn {
    state: State,
    /// Our half, as sent.
    pub local: Half,
    /// The peer's half, as received.
    pub remote: Half,
    /// The peer has been told, or has told us, that it is over.
    disconnected: bool,
    /// When something is to be done if nothing comes.
    deadline: Option<u64>,
    repeats: u8,
    last: Option<Body>,
}

impl Conn {
    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// When [`Conn::timeout`] wants to be called.
    pub fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// Repetitions of the last message that are left.
    pub fn repeats_left(&self) -> u8 {
        self.repeats
    }

    /// Since when an answer is waited for.
    pub fn asked_at(&self) -> Option<u64> {
        let repeated = u64::from(REPEATS.saturating_sub(self.repeats));
        self.last.as_ref()?;
        self.deadline?.checked_sub(ANSWER_TIME * (repeated + 1))
    }

    /// The request that waits for an answer.
    pub fn request(&self) -> Option<Body> {
        self.last.clone().filter(|_| matches!(self.state, State::ReqSent | State::SidrSent))
    }

    fn send(&mut self, body: Body, now: u64, out: &mut Vec<Out>) {
        self.deadline = Some(now + ANSWER_TIME);
        self.repeats = REPEATS;
        self.last = Some(body.clone());
        out.push(Out::Send(body));
    }

    fn go(&mut self, state: State) {
        self.state = state;
        self.deadline = None;
        self.last = None;
    }

    fn end(&mut self, now: u64) {
        self.go(State::TimeWait);
        self.deadline = Some(now + TIMEWAIT);
    }

    /// DISCONNECTED, once.
    fn over(&mut self, status: i32, out: &mut Vec<Out>) {
        if !std::mem::replace(&mut self.disconnected, true) {
            out.push(Out::Tell(Event::with_status(EventKind::Disconnected, status)));
        }
    }

    /// Active side: asks for a connection.
    pub fn connect(&mut self, service: Service, half: Half, data: Vec<u8>, now: u64, out: &mut Vec<Out>) -> Result<()> {
        if self.state != State::Idle || data.len() > REQ_DATA {
            return Err(Errno::EINVAL);
        }
        self.local = half.clone();
        self.state = State::ReqSent;
        self.send(Body::Req { service, half, data }, now, out);
        Ok(())
    }

    /// Active side, datagrams: asks for a queue pair.
    pub fn look_up(&mut self, service: Service, data: Vec<u8>, now: u64, out: &mut Vec<Out>) -> Result<()> {
        if self.state != State::Idle || data.len() > SIDR_REQ_DATA {
            return Err(Errno::EINVAL);
        }
        self.state = State::SidrSent;
        self.send(Body::SidrReq { service, data }, now, out);
        Ok(())
    }

    /// Passive side: a new connection for a REQ or a SIDR REQ, and the event that tells the listener.
    pub fn requested(body: Body) -> Option<(Conn, Event)> {
        let mut conn = Conn::default();
        let event = Event::new(EventKind::ConnectRequest);
        match body {
            Body::Req { half, data, .. } => {
                conn.state = State::ReqRcvd;
                // In the view of the one who gets the event (rdma_get_cm_event(3)): what one side starts, the other
                // answers.
                conn.local.responder_resources = half.initiator_depth;
                conn.local.initiator_depth = half.responder_resources;
                let params = Params::Conn(view(&half));
                conn.remote = half;
                Some((conn, Event { params, ..event.data(data, REQ_DATA) }))
            }
            Body::SidrReq { data, .. } => {
                conn.state = State::SidrRcvd;
                Some((conn, Event { params: Params::Ud(UdParams::default()), ..event.data(data, SIDR_REQ_DATA) }))
            }
            _ => None,
        }
    }

    /// Passive side: agrees.
    pub fn accept(&mut self, half: Half, data: Vec<u8>, now: u64, out: &mut Vec<Out>) -> Result<()> {
        if self.state != State::ReqRcvd || data.len() > REP_DATA {
            return Err(Errno::EINVAL);
        }
        self.local = half.clone();
        self.state = State::RepSent;
        self.send(Body::Rep { half, data }, now, out);
        Ok(())
    }

    /// Passive side, datagrams: names the queue pair, or says no.
    pub fn answer(&mut self, status: u16, qpn: u32, qkey: u32, data: Vec<u8>, out: &mut Vec<Out>) -> Result<()> {
        if self.state != State::SidrRcvd || data.len() > SIDR_REP_DATA {
            return Err(Errno::EINVAL);
        }
        self.go(State::Idle);
        out.push(Out::Send(Body::SidrRep { status, qpn, qkey, data }));
        Ok(())
    }

    /// Active side: the queue pair is ready.
    pub fn ready(&mut self, out: &mut Vec<Out>) -> Result<()> {
        if self.state != State::RepRcvd {
            return Err(Errno::EINVAL);
        }
        self.go(State::Established);
        out.push(Out::Send(Body::Rtu));
        Ok(())
    }

    /// Either side: says no.
    pub fn reject(&mut self, reason: u16, data: Vec<u8>, now: u64, out: &mut Vec<Out>) -> Result<()> {
        if data.len() > REJ_DATA {
            return Err(Errno::EINVAL);
        }
        match self.state {
            State::ReqSent | State::ReqRcvd | State::RepRcvd => self.go(State::Idle),
            State::RepSent => self.end(now),
            _ => return Err(Errno::EINVAL),
        }
        out.push(Out::Send(Body::Rej { reason, data }));
        Ok(())
    }

    /// Either side: it is over. Asks the peer, or answers it; nothing if there is no connection to end.
    pub fn disconnect(&mut self, now: u64, out: &mut Vec<Out>) {
        match self.state {
            State::Established => {
                self.state = State::DreqSent;
                self.send(Body::Dreq, now, out);
            }
            State::DreqRcvd => {
                out.push(Out::Send(Body::Drep));
                self.end(now);
            }
            _ => {}
        }
    }

    /// Data came before the RTU (rdma_notify(3), `IBV_EVENT_COMM_EST`).
    pub fn data_came(&mut self, out: &mut Vec<Out>) -> Result<()> {
        match self.state {
            State::RepSent => {
                self.go(State::Established);
                out.push(Out::Tell(Event::new(EventKind::Established)));
                Ok(())
            }
            State::Established => Err(EISCONN),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The id goes away: what the peer is told.
    pub fn destroy(&mut self, out: &mut Vec<Out>) {
        let no = |reason| Out::Send(Body::Rej { reason, data: Vec::new() });
        match self.state {
            State::ReqSent => out.push(no(reason::TIMEOUT)),
            State::ReqRcvd | State::RepSent | State::RepRcvd => out.push(no(reason::CONSUMER)),
            State::Established => out.push(Out::Send(Body::Dreq)),
            State::DreqRcvd => out.push(Out::Send(Body::Drep)),
            State::SidrRcvd => {
                out.push(Out::Send(Body::SidrRep { status: sidr::REJECT, qpn: 0, qkey: 0, data: Vec::new() }));
            }
            State::Idle | State::DreqSent | State::TimeWait | State::SidrSent => {}
        }
        self.go(State::Idle);
    }

    /// A message came.
    pub fn receive(&mut self, body: Body, now: u64, out: &mut Vec<Out>) {
        match body {
            // Repetitions of what has been dealt with: the answer was lost.
            Body::Req { .. } | Body::SidrReq { .. } => {
                if self.state == State::RepSent
                    && let Some(rep) = self.last.clone()
                {
                    out.push(Out::Send(rep));
                }
            }
            Body::Rep { half, data } => match self.state {
                State::ReqSent => {
                    self.go(State::RepRcvd);
                    self.local.initiator_depth = half.responder_resources;
                    self.local.responder_resources = half.initiator_depth;
                    let event = Event::new(EventKind::ConnectResponse).data(data, REP_DATA);
                    out.push(Out::Tell(Event { params: Params::Conn(view(&half)), ..event }));
                    // What the REP says of retries is for us; the count of transport retries is our own.
                    let retry_count = self.local.retry_count;
                    self.remote = Half { retry_count, ..half };
                }
                State::Established => out.push(Out::Send(Body::Rtu)),
                _ => {}
            },
            Body::Rtu => {
                if self.state == State::RepSent {
                    self.go(State::Established);
                    out.push(Out::Tell(Event::new(EventKind::Established)));
                }
            }
            Body::Rej { reason, data } => {
                match self.state {
                    State::ReqSent | State::ReqRcvd | State::RepRcvd => self.go(State::Idle),
                    State::RepSent => self.end(now),
                    _ => return,
                }
                let event = Event::with_status(EventKind::Rejected, reason.into());
                out.push(Out::Tell(Event {
                    params: Params::Conn(ConnParams::default()),
                    ..event.data(data, REJ_DATA)
                }));
            }
            Body::Dreq => match self.state {
                State::Established | State::RepSent | State::DreqSent => {
                    self.go(State::DreqRcvd);
                    self.over(0, out);
                }
                State::TimeWait | State::Idle => out.push(Out::Send(Body::Drep)),
                _ => {}
            },
            Body::Drep => {
                if self.state == State::DreqSent {
                    self.end(now);
                    self.over(0, out);
                }
            }
            Body::SidrRep { status, qpn, qkey, data } => {
                if self.state != State::SidrSent {
                    return;
                }
                self.go(State::Idle);
                let kind = if status == sidr::SUCCESS { EventKind::Established } else { EventKind::Unreachable };
                let event = Event::with_status(kind, status.into()).data(data, SIDR_REP_DATA);
                out.push(Out::Tell(Event { params: Params::Ud(UdParams { qpn, qkey }), ..event }));
            }
            // Not about connections.
            Body::Ask { .. } | Body::Answer { .. } => {}
        }
    }

    /// The peer's process is gone: what its kernel would have told us on its behalf.
    pub fn peer_gone(&mut self, now: u64, out: &mut Vec<Out>) {
        match self.state {
            State::ReqSent | State::ReqRcvd | State::RepRcvd | State::RepSent => {
                self.receive(Body::Rej { reason: reason::CONSUMER, data: Vec::new() }, now, out);
            }
            State::Established => self.receive(Body::Dreq, now, out),
            State::DreqSent => self.receive(Body::Drep, now, out),
            State::SidrSent => {
                let rep = Body::SidrRep { status: sidr::REJECT, qpn: 0, qkey: 0, data: Vec::new() };
                self.receive(rep, now, out);
            }
            State::SidrRcvd => self.go(State::Idle),
            State::Idle | State::DreqRcvd | State::TimeWait => {}
        }
    }

    /// Nothing leads to the peer.
    pub fn unreachable(&mut self, out: &mut Vec<Out>) {
        if matches!(self.state, State::ReqSent | State::SidrSent | State::RepSent) {
            self.go(State::Idle);
            out.push(Out::Tell(Event::with_status(EventKind::Unreachable, ETIMEDOUT)));
        }
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: u64, out: &mut Vec<Out>) {
        if self.deadline.is_none_or(|at| at > now) {
            return;
        }
        if self.state == State::TimeWait {
            self.go(State::Idle);
            if self.disconnected {
                out.push(Out::Tell(Event::new(EventKind::TimewaitExit)));
            }
            return;
        }
        if self.repeats > 0
            && let Some(last) = self.last.clone()
        {
            self.repeats -= 1;
            self.deadline = Some(now + ANSWER_TIME);
            out.push(Out::Send(last));
            return;
        }
        match self.state {
            State::DreqSent => {
                self.end(now);
                self.over(ETIMEDOUT, out);
            }
            _ => {
                self.deadline = None;
                self.unreachable(out);
            }
        }
    }
}

/// A half as the other side sees it.
fn view(half: &Half) -> ConnParams {
    ConnParams {
        responder_resources: half.initiator_depth,
        initiator_depth: half.responder_resources,
        flow_control: half.flow_control,
        retry_count: half.retry_count,
        rnr_retry_count: half.rnr_retry_count,
        srq: half.srq,
        qpn: half.qpn,
        ece: half.ece,
    }
}

#[cfg(test)]
#[path = "conn_tests.rs"]
mod tests;
