//! One connection's handshake (IBTA vol. 1, 12.9: the states of communication establishment and release), without
//! sockets and clocks. Its inputs are calls, messages and the time; its outputs are messages and events.
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
    /// The active side gave up.
    pub const TIMEOUT: u16 = 4;
    /// No id listens at the service.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// The program refused.
    pub const CONSUMER: u16 = 28;
    /// Vendor options are not supported.
    pub const VENDOR_OPTION: u16 = 35;
}

/// Statuses of a SIDR REP (IBTA vol. 1, 12.11.2).
pub mod sidr {
    /// The reply names the queue pair.
    pub const SUCCESS: u16 = 0;
    /// No id listens at the service.
    pub const UNSUPPORTED: u16 = 1;
    /// The program refused.
    pub const REJECT: u16 = 2;
}

/// EISCONN, for which `verbs::Errno` has no name.
const EISCONN: Errno = Errno(106);
const ETIMEDOUT: i32 = -110;

/// Time to wait for an answer, in nanoseconds, as in Linux (2 x 4.096 s).
pub const ANSWER_TIME: u64 = 8_192_000_000;
/// Repetitions of a message after the first [`ANSWER_TIME`], as in Linux.
pub const REPEATS: u8 = 15;
/// Time in TimeWait, in nanoseconds: one local ACK timeout.
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

/// An output of the handshake.
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
    /// This side's half, as sent.
    pub local: Half,
    /// The peer's half, as received.
    pub remote: Half,
    /// True if the peer has been told, or has told this side, that the connection is over.
    disconnected: bool,
    /// When to act if no message comes, in nanoseconds.
    deadline: Option<u64>,
    repeats: u8,
    last: Option<Body>,
}

impl Conn {
    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The time at which [`Conn::timeout`] is to be called, in nanoseconds.
    pub fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// The repetitions of the last message that are left.
    pub fn repeats_left(&self) -> u8 {
        self.repeats
    }

    /// The time since when an answer is waited for, in nanoseconds.
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

    /// Report DISCONNECTED, once.
    fn over(&mut self, status: i32, out: &mut Vec<Out>) {
        if !std::mem::replace(&mut self.disconnected, true) {
            out.push(Out::Tell(Event::with_status(EventKind::Disconnected, status)));
        }
    }

    /// Active side: ask for a connection.
    pub fn connect(&mut self, service: Service, half: Half, data: Vec<u8>, now: u64, out: &mut Vec<Out>) -> Result<()> {
        if self.state != State::Idle || data.len() > REQ_DATA {
            return Err(Errno::EINVAL);
        }
        self.local = half.clone();
        self.state = State::ReqSent;
        self.send(Body::Req { service, half, data }, now, out);
        Ok(())
    }

    /// Active side, datagrams: ask for a queue pair.
    pub fn look_up(&mut self, service: Service, data: Vec<u8>, now: u64, out: &mut Vec<Out>) -> Result<()> {
        if self.state != State::Idle || data.len() > SIDR_REQ_DATA {
            return Err(Errno::EINVAL);
        }
        self.state = State::SidrSent;
        self.send(Body::SidrReq { service, data }, now, out);
        Ok(())
    }

    /// Passive side: a new connection for a REQ or a SIDR REQ, and the event for the listener.
    pub fn requested(body: Body) -> Option<(Conn, Event)> {
        let mut conn = Conn::default();
        let event = Event::new(EventKind::ConnectRequest);
        match body {
            Body::Req { half, data, .. } => {
                conn.state = State::ReqRcvd;
                // The values are in the view of the program that gets the event (rdma_get_cm_event(3)): what one side
                // starts, the other answers.
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

    /// Passive side: accept the request.
    pub fn accept(&mut self, half: Half, data: Vec<u8>, now: u64, out: &mut Vec<Out>) -> Result<()> {
        if self.state != State::ReqRcvd || data.len() > REP_DATA {
            return Err(Errno::EINVAL);
        }
        self.local = half.clone();
        self.state = State::RepSent;
        self.send(Body::Rep { half, data }, now, out);
        Ok(())
    }

    /// Passive side, datagrams: name the queue pair, or refuse.
    pub fn answer(&mut self, status: u16, qpn: u32, qkey: u32, data: Vec<u8>, out: &mut Vec<Out>) -> Result<()> {
        if self.state != State::SidrRcvd || data.len() > SIDR_REP_DATA {
            return Err(Errno::EINVAL);
        }
        self.go(State::Idle);
        out.push(Out::Send(Body::SidrRep { status, qpn, qkey, data }));
        Ok(())
    }

    /// Active side: note that the queue pair is ready.
    pub fn ready(&mut self, out: &mut Vec<Out>) -> Result<()> {
        if self.state != State::RepRcvd {
            return Err(Errno::EINVAL);
        }
        self.go(State::Established);
        out.push(Out::Send(Body::Rtu));
        Ok(())
    }

    /// Either side: refuse.
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

    /// Either side: end the connection. This asks the peer, or answers it; it does nothing if there is no connection to
    /// end.
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

    /// Note that data came before the RTU (rdma_notify(3), `IBV_EVENT_COMM_EST`).
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

    /// Send the peer what it must know when the id is destroyed.
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

    /// Handle a message.
    pub fn receive(&mut self, body: Body, now: u64, out: &mut Vec<Out>) {
        match body {
            // A repetition of a message that has been handled: the answer was lost.
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
                    // The RNR retries in the REP are for this side; the count of transport retries is this side's own.
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
            // These messages are not about connections.
            Body::Ask { .. } | Body::Answer { .. } => {}
        }
    }

    /// Handle the end of the peer's process: act on the message that its kernel would have sent on its behalf.
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

    /// Handle that no route leads to the peer.
    pub fn unreachable(&mut self, out: &mut Vec<Out>) {
        if matches!(self.state, State::ReqSent | State::SidrSent | State::RepSent) {
            self.go(State::Idle);
            out.push(Out::Tell(Event::with_status(EventKind::Unreachable, ETIMEDOUT)));
        }
    }

    /// Handle the passing of time.
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

/// A half in the view of the other side.
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
