//! Two connections on a virtual clock, with a network between them that loses, delays and repeats messages by a seed.

use std::collections::VecDeque;

use super::*;

const MS: u64 = 1_000_000;

fn service() -> Service {
    Service {
        port_space: 0x106,
        qp_type: 2,
        src: "127.0.0.1:40000".parse().unwrap(),
        dst: "127.0.0.1:7174".parse().unwrap(),
    }
}

fn half(qpn: u32) -> Half {
    Half { qpn, psn: qpn + 1, responder_resources: 3, initiator_depth: 5, retry_count: 6, ..Half::default() }
}

/// What the program of a side does at an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Program {
    /// Accepts, answers a response, disconnects when the other side does.
    Polite,
    /// Rejects requests with this data.
    Rejects,
    /// Does nothing at all.
    Asleep,
}

struct Side {
    conn: Option<Conn>,
    program: Program,
    events: Vec<(EventKind, i32)>,
    last: Option<Event>,
}

struct Net {
    now: u64,
    sides: [Side; 2],
    /// Arrival time, receiver, message.
    flying: VecDeque<(u64, usize, Body)>,
    seed: u64,
    /// The number of messages that are lost, of 256.
    loss: u64,
}

impl Net {
    fn new(passive: Program, loss: u64, seed: u64) -> Self {
        let side = |program| Side { conn: None, program, events: Vec::new(), last: None };
        Net { now: 0, sides: [side(Program::Polite), side(passive)], flying: VecDeque::new(), seed, loss }
    }

    fn random(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed >> 8
    }

    fn with(&mut self, side: usize, work: impl FnOnce(&mut Conn, u64, &mut Vec<Out>)) {
        let mut out = Vec::new();
        let now = self.now;
        if let Some(conn) = &mut self.sides[side].conn {
            work(conn, now, &mut out);
        }
        for out in out {
            match out {
                Out::Send(body) => {
                    // The messages come in order, but now and then one is lost or comes twice.
                    let fate = self.random() % 256;
                    let copies = if fate < self.loss { 0 } else { 1 + u64::from(fate > 250 && self.loss > 0) };
                    for _ in 0..copies {
                        self.flying.push_back((self.now + MS, 1 - side, body.clone()));
                    }
                }
                Out::Tell(event) => self.event(side, event),
            }
        }
    }

    fn event(&mut self, side: usize, event: Event) {
        self.sides[side].events.push((event.kind, event.status));
        let kind = event.kind;
        self.sides[side].last = Some(event);
        match (self.sides[side].program, kind) {
            (Program::Polite, EventKind::ConnectRequest) => {
                self.with(side, |c, now, out| c.accept(half(200), b"yes".to_vec(), now, out).unwrap());
            }
            (Program::Polite, EventKind::ConnectResponse) => self.with(side, |c, _, out| c.ready(out).unwrap()),
            (Program::Polite, EventKind::Disconnected) => self.with(side, |c, now, out| c.disconnect(now, out)),
            (Program::Rejects, EventKind::ConnectRequest) => self.with(side, |c, now, out| {
                c.reject(reason::CONSUMER, b"no".to_vec(), now, out).unwrap();
            }),
            _ => {}
        }
    }

    fn connect(&mut self) {
        self.sides[0].conn = Some(Conn::default());
        self.with(0, |c, now, out| c.connect(service(), half(100), b"hello".to_vec(), now, out).unwrap());
    }

    /// Let messages arrive and time pass, until nothing more would happen.
    fn run(&mut self) {
        for _ in 0..10_000 {
            let arrival = self.flying.front().map(|f| f.0);
            let due = self.sides.iter().filter_map(|s| s.conn.as_ref()?.deadline()).min();
            match (arrival, due) {
                (Some(at), due) if due.is_none_or(|due| at <= due) => {
                    self.now = self.now.max(at);
                    let Some((_, to, body)) = self.flying.pop_front() else { return };
                    if self.sides[to].conn.is_none() && matches!(body, Body::Req { .. }) {
                        let (conn, event) = Conn::requested(body).unwrap();
                        self.sides[to].conn = Some(conn);
                        self.event(to, event);
                    } else {
                        self.with(to, |c, now, out| c.receive(body, now, out));
                    }
                }
                (_, Some(due)) => {
                    self.now = self.now.max(due);
                    for side in 0..2 {
                        self.with(side, |c, now, out| c.timeout(now, out));
                    }
                }
                (None, None) => return,
                (Some(_), None) => unreachable!("the first arm takes it"),
            }
        }
        panic!("it never ends; seed {:#x}", self.seed);
    }

    fn events(&self, side: usize) -> &[(EventKind, i32)] {
        &self.sides[side].events
    }

    fn state(&self, side: usize) -> State {
        self.sides[side].conn.as_ref().map_or(State::Idle, Conn::state)
    }
}

use EventKind::{ConnectRequest, ConnectResponse, Disconnected, Established, Rejected, TimewaitExit, Unreachable};

#[test]
fn connect_and_disconnect() {
    let mut net = Net::new(Program::Polite, 0, 1);
    net.connect();
    net.run();
    assert_eq!(net.events(0), [(ConnectResponse, 0)]);
    assert_eq!(net.events(1), [(ConnectRequest, 0), (Established, 0)]);
    assert_eq!((net.state(0), net.state(1)), (State::Established, State::Established));
    net.with(0, |c, now, out| c.disconnect(now, out));
    net.run();
    assert_eq!(net.events(0)[1..], [(Disconnected, 0), (TimewaitExit, 0)]);
    assert_eq!(net.events(1)[2..], [(Disconnected, 0), (TimewaitExit, 0)]);
    assert!(net.now >= TIMEWAIT);
}

#[test]
fn each_side_sees_the_other_ones_parameters() {
    let mut net = Net::new(Program::Polite, 0, 1);
    net.connect();
    // Only the request is delivered: the test is about the event that the passive side gets.
    let (_, to, body) = net.flying.pop_front().unwrap();
    let (conn, event) = Conn::requested(body).unwrap();
    let Params::Conn(p) = event.params else { panic!("{event:?}") };
    assert_eq!((p.responder_resources, p.initiator_depth, p.qpn, p.retry_count), (5, 3, 100, 6));
    assert_eq!((event.data.len(), &event.data[..6]), (REQ_DATA, &b"hello\0"[..]));
    net.sides[to].conn = Some(conn);
    net.with(1, |c, now, out| c.accept(half(200), b"yes".to_vec(), now, out).unwrap());
    net.run();
    let response = net.sides[0].last.take().unwrap();
    assert_eq!((response.data.len(), &response.data[..4]), (REP_DATA, &b"yes\0"[..]));
    let conn = net.sides[0].conn.as_ref().unwrap();
    assert_eq!((conn.remote.qpn, conn.remote.psn, conn.local.initiator_depth), (200, 201, 3));
}

#[test]
fn a_rejection_brings_its_reason_and_data() {
    let mut net = Net::new(Program::Rejects, 0, 1);
    net.connect();
    net.run();
    assert_eq!(net.events(0), [(Rejected, 28)]);
    let event = net.sides[0].last.take().unwrap();
    assert_eq!((event.data.len(), &event.data[..3]), (REJ_DATA, &b"no\0"[..]));
    assert_eq!((net.state(0), net.state(1)), (State::Idle, State::Idle));
}

#[test]
fn nobody_answers() {
    let mut net = Net::new(Program::Polite, 256, 1);
    net.connect();
    net.run();
    assert_eq!(net.events(0), [(Unreachable, -110)]);
    assert_eq!(net.now, ANSWER_TIME * (u64::from(REPEATS) + 1));
}

#[test]
fn a_program_that_sleeps_is_asked_again_and_again_and_then_given_up() {
    let mut net = Net::new(Program::Asleep, 0, 1);
    net.connect();
    net.run();
    assert_eq!(net.events(0), [(Unreachable, -110)]);
    // Repetitions are not new requests.
    assert_eq!(net.events(1), [(ConnectRequest, 0)]);
}

#[test]
fn handshakes_survive_loss_and_repetition() {
    for seed in 1..500u64 {
        let mut net = Net::new(Program::Polite, 64, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        net.connect();
        net.run();
        assert_eq!(net.events(0), [(ConnectResponse, 0)], "seed {seed}");
        assert_eq!(net.events(1), [(ConnectRequest, 0), (Established, 0)], "seed {seed}");
        net.with(0, |c, now, out| c.disconnect(now, out));
        net.run();
        assert_eq!(net.events(0)[1..], [(Disconnected, 0), (TimewaitExit, 0)], "seed {seed}");
        assert_eq!(net.events(1)[2..], [(Disconnected, 0), (TimewaitExit, 0)], "seed {seed}");
    }
}

#[test]
fn both_disconnect_at_once() {
    let mut net = Net::new(Program::Polite, 0, 1);
    net.connect();
    net.run();
    net.with(0, |c, now, out| c.disconnect(now, out));
    net.with(1, |c, now, out| c.disconnect(now, out));
    net.run();
    for side in 0..2 {
        let over = net.events(side).iter().filter(|(k, _)| *k == Disconnected).count();
        assert_eq!(over, 1, "{:?}", net.events(side));
    }
}

#[test]
fn a_peer_that_never_answers_a_disconnect() {
    let mut net = Net::new(Program::Polite, 0, 1);
    net.connect();
    net.run();
    net.sides[1].program = Program::Asleep;
    net.with(0, |c, now, out| c.disconnect(now, out));
    net.run();
    assert_eq!(net.events(0)[1..], [(Disconnected, -110), (TimewaitExit, 0)]);
    assert_eq!(net.events(1)[2..], [(Disconnected, 0)]);
}

/// The events of the survivor when the other process dies, by the survivor's state.
#[test]
fn death_of_the_peer_in_every_state() {
    let cases: [(State, &[(EventKind, i32)]); 8] = [
        (State::Idle, &[]),
        (State::ReqSent, &[(Rejected, 28)]),
        (State::ReqRcvd, &[(Rejected, 28)]),
        (State::RepRcvd, &[(Rejected, 28)]),
        (State::RepSent, &[(Rejected, 28)]),
        (State::Established, &[(Disconnected, 0)]),
        (State::DreqSent, &[(Disconnected, 0)]),
        (State::SidrSent, &[(Unreachable, 2)]),
    ];
    for (state, expected) in cases {
        let mut conn = Conn { state, ..Conn::default() };
        let mut out = Vec::new();
        conn.peer_gone(7, &mut out);
        let told: Vec<(EventKind, i32)> = out
            .iter()
            .filter_map(|o| match o {
                Out::Tell(e) => Some((e.kind, e.status)),
                Out::Send(_) => None,
            })
            .collect();
        assert_eq!(told, expected, "{state:?}");
        // A second report of the same death changes nothing.
        out.clear();
        conn.peer_gone(7, &mut out);
        assert!(out.iter().all(|o| matches!(o, Out::Send(_))), "{state:?}: {out:?}");
    }
}

#[test]
fn calls_in_the_wrong_state_are_refused() {
    let all = [
        State::Idle,
        State::ReqSent,
        State::ReqRcvd,
        State::RepSent,
        State::RepRcvd,
        State::Established,
        State::DreqSent,
        State::DreqRcvd,
        State::TimeWait,
        State::SidrSent,
        State::SidrRcvd,
    ];
    for state in all {
        let conn = || Conn { state, ..Conn::default() };
        let mut out = Vec::new();
        assert_eq!(conn().accept(half(1), Vec::new(), 0, &mut out).is_ok(), state == State::ReqRcvd);
        assert_eq!(conn().ready(&mut out).is_ok(), state == State::RepRcvd);
        assert_eq!(conn().connect(service(), half(1), Vec::new(), 0, &mut out).is_ok(), state == State::Idle);
        assert_eq!(conn().answer(0, 1, 1, Vec::new(), &mut out).is_ok(), state == State::SidrRcvd);
        let rejectable = [State::ReqSent, State::ReqRcvd, State::RepRcvd, State::RepSent];
        assert_eq!(conn().reject(28, Vec::new(), 0, &mut out).is_ok(), rejectable.contains(&state));
        let expected = match state {
            State::RepSent => Ok(()),
            State::Established => Err(EISCONN),
            _ => Err(Errno::EINVAL),
        };
        assert_eq!(conn().data_came(&mut out), expected);
    }
}

#[test]
fn private_data_beyond_the_limits_is_refused() {
    let mut out = Vec::new();
    let mut conn = Conn::default();
    assert_eq!(conn.connect(service(), half(1), vec![0; REQ_DATA + 1], 0, &mut out), Err(Errno::EINVAL));
    assert_eq!(conn.look_up(service(), vec![0; SIDR_REQ_DATA + 1], 0, &mut out), Err(Errno::EINVAL));
    let mut conn = Conn { state: State::ReqRcvd, ..Conn::default() };
    assert_eq!(conn.accept(half(1), vec![0; REP_DATA + 1], 0, &mut out), Err(Errno::EINVAL));
    assert_eq!(conn.reject(28, vec![0; REJ_DATA + 1], 0, &mut out), Err(Errno::EINVAL));
    let mut conn = Conn { state: State::SidrRcvd, ..Conn::default() };
    assert_eq!(conn.answer(0, 1, 1, vec![0; SIDR_REP_DATA + 1], &mut out), Err(Errno::EINVAL));
    assert!(out.is_empty());
}

#[test]
fn datagram_services_are_looked_up() {
    let mut net = Net::new(Program::Asleep, 0, 1);
    net.sides[0].conn = Some(Conn::default());
    net.with(0, |c, now, out| c.look_up(service(), b"who".to_vec(), now, out).unwrap());
    let (_, _, body) = net.flying.pop_front().unwrap();
    let (conn, event) = Conn::requested(body).unwrap();
    assert_eq!((event.data.len(), &event.data[..4]), (SIDR_REQ_DATA, &b"who\0"[..]));
    net.sides[1].conn = Some(conn);
    net.with(1, |c, _, out| c.answer(sidr::SUCCESS, 77, 0x123, b"me".to_vec(), out).unwrap());
    net.run();
    assert_eq!(net.events(0), [(Established, 0)]);
    let event = net.sides[0].last.take().unwrap();
    assert_eq!(event.params, Params::Ud(UdParams { qpn: 77, qkey: 0x123 }));
    assert_eq!((event.data.len(), &event.data[..3]), (SIDR_REP_DATA, &b"me\0"[..]));
}
