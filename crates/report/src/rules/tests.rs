//! One case for each rule: the facts, and the sentence that they must lead to.

use std::collections::{BTreeMap, BTreeSet};

use verbs::{Opcode, QpState, QpType};

use super::*;
use crate::facts::*;
use crate::streams::Stream;

const SECOND: u64 = 1_000_000_000;
const US: u32 = 100;
const PEER: u32 = 200;

fn link() -> Link {
    Link { id: 1, pid: PEER, up: true, single_copy: true, ..Link::default() }
}

fn qp(number: u32, peer: u32) -> Qp {
    Qp {
        number,
        qp_type: QpType::Rc,
        state: QpState::Rts,
        pd: Some(0),
        send_cq: Some(3),
        recv_cq: Some(3),
        srq: None,
        peer: Some(Peer { gid: "::ffff:10.0.0.1".into(), qpn: peer, link: Some(1), owned: None, answered: true }),
        sq: Some(Sq { depth: 128, next_psn: 7, unacked_psn: 7, ..Sq::default() }),
        rq: Some(Rq { depth: 16, posted: 16, held: 16, total: 16, expected_psn: 7 }),
        waits: Waits::default(),
        counters: QpCounters::default(),
    }
}

fn head(age_ns: u64) -> Option<Head> {
    Some(Head { wr_id: 5, opcode: Some(Opcode::Send), len: 8, moved: 0, signaled: true, age_ns: Some(age_ns) })
}

/// A process without any finding.
fn process(pid: u32, qp: Qp) -> Report {
    let cq = Cq { handle: 3, depth: 128, users: 1, ..Cq::default() };
    Report {
        version: VERSION,
        pid,
        adapter: Adapter { qps: vec![qp], cqs: vec![cq], links: vec![link()], ..Adapter::default() },
        ..Report::default()
    }
}

/// The process in question, the same a moment before, and the peer.
struct World {
    us: Report,
    before: Option<Report>,
    peer: Report,
}

impl World {
    fn new() -> World {
        let mut peer = process(PEER, qp(0x22, 0x11));
        peer.adapter.links[0].pid = US;
        World { us: process(US, qp(0x11, 0x22)), before: None, peer }
    }

    fn qp(&mut self) -> &mut Qp {
        &mut self.us.adapter.qps[0]
    }

    fn sq(&mut self) -> &mut Sq {
        self.qp().sq.as_mut().unwrap()
    }

    fn cq(&mut self) -> &mut Cq {
        &mut self.us.adapter.cqs[0]
    }

    fn channel(&mut self) -> &mut Channel {
        self.cq().channel.get_or_insert_with(|| Channel { fd: 9, ..Channel::default() })
    }

    fn id(&mut self, handshake: Option<CmState>) -> &mut CmId {
        let cm = self.us.cm.get_or_insert_default();
        cm.ids.push(CmId {
            number: 4,
            handshake,
            src: Some("10.0.0.1:40000".into()),
            dst: Some("10.0.0.1:7174".into()),
            pid: Some(PEER),
            ..CmId::default()
        });
        cm.ids.last_mut().unwrap()
    }

    /// Make the report before equal to the present one.
    fn nothing_moves(&mut self) {
        self.before = Some(self.us.clone());
    }

    fn findings(&self) -> Vec<Finding> {
        let others = BTreeMap::from([(PEER, self.peer.clone())]);
        findings(&Situation { report: &self.us, others: &others, before: self.before.as_ref() })
    }
}

type Case = (&'static str, Severity, fn(&mut World), &'static str);

use Severity::{Note, Stuck, Waits as Waiting};

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("state", Note, |w| w.qp().state = QpState::Init, "QP 0x000011: in INIT: nothing is received"),
    ("state", Note, |w| w.qp().state = QpState::Err, "in ERR: whatever is posted is flushed"),
    ("state", Waiting, |w| { w.qp().state = QpState::Sqd; w.sq().waiting = 2 },
        "in SQD: 2 send requests that had not begun wait for RTS"),
    ("ring-full", Stuck, |w| {
        w.qp().waits.room = true;
        let full_ns = Some(2_000_000_000);
        let stream = Stream { qpn: 0x11, peer: "10.0.0.2:7174".into(), unsent: 300_000, full_ns, ..Stream::default() };
        w.us.adapter.streams.push(stream);
    }, "QP 0x000011: TCP has taken nothing for 2.0 s, and 293 KiB wait: 10.0.0.2:7174 does not read, or is not reached"),
    ("rnr", Stuck, |w| {
        w.qp().waits.rnr = Some(RnrWait { age_ns: 2_100_000_000, naks: 4, retries: 3, rnr_retry: 6, left_ns: None });
        w.peer.adapter.qps[0].rq = Some(Rq { depth: 16, posted: 0, held: 16, total: 16, expected_psn: 7 });
        w.peer.adapter.cqs[0].inside = 16;
    }, "RNR: the peer has posted no receive for 2.1 s (4 RNR NAKs); rnr_retry 3 of 6, then IBV_WC_RNR_RETRY_EXC_ERR; \
        there, in process 200, the receive queue holds 0 receives, of 16 posted so far; 16 completions wait in its CQ \
        3"),
    ("rnr", Waiting, |w| {
        w.qp().waits.rnr = Some(RnrWait { age_ns: SECOND / 2, naks: 1, retries: 0, rnr_retry: 7, left_ns: None });
        w.peer.adapter.qps[0].srq = Some(1);
        w.peer.adapter.srqs = vec![Srq { handle: 1, total: 8, posted: 0, ..Srq::default() }];
    }, "for 500 ms (one RNR NAK); rnr_retry 7: it is tried for ever; there, in process 200, SRQ 1 holds 0 receives, \
        of 8 posted"),
    ("no-link", Stuck, |w| {
        w.sq().waiting = 1;
        let peer = w.qp().peer.as_mut().unwrap();
        (peer.link, peer.owned) = (None, Some(false));
    }, "no link to QP 0x000022 at ::ffff:10.0.0.1: no process on this host owns this number"),
    ("no-link", Stuck, |w| {
        w.sq().waiting = 1;
        let peer = w.qp().peer.as_mut().unwrap();
        (peer.link, peer.owned) = (None, Some(true));
    }, "its owner cannot be reached"),
    ("peer-stopped", Stuck, |w| w.us.adapter.links[0].life = Life::Stopped,
        "the peer, process 200, is stopped (SIGSTOP, or a debugger)"),
    ("peer-gone", Stuck, |w| w.us.adapter.links[0].life = Life::Gone, "the peer, process 200, is gone"),
    ("ack", Stuck, |w| w.qp().waits.ack = ack(2 * SECOND),
        "waits for an acknowledgement since 2.0 s; retry 2 of 7, timeout 536 ms; the peer has not taken it from the \
         ring"),
    ("ack", Stuck, |w| {
        w.qp().waits.ack = Some(AckWait { timeout_ns: None, untaken: false, ..ack(SECOND).unwrap() });
    }, "timeout 0: it waits for ever"),
    ("ack", Stuck, |w| {
        w.qp().waits.ack = ack(SECOND / 10);
        w.peer.adapter.qps.clear();
    }, "process 200 has no QP 0x000022"),
    ("ack", Stuck, |w| {
        w.qp().waits.ack = ack(SECOND / 10);
        w.peer.adapter.qps[0].state = QpState::Init;
    }, "in process 200, QP 0x000022 is in INIT and receives nothing"),
    ("ack", Stuck, |w| {
        w.qp().waits.ack = ack(SECOND / 10);
        w.peer.adapter.qps[0].peer.as_mut().unwrap().qpn = 0x33;
    }, "QP 0x000022 is connected to QP 0x000033, not to us"),
    ("ack", Stuck, |w| {
        w.qp().waits.ack = ack(SECOND / 10);
        w.qp().peer.as_mut().unwrap().answered = false;
        w.peer.adapter.qps[0].rq.as_mut().unwrap().expected_psn = 100;
    }, "expects sequence number 100, and the oldest that is sent is 7"),
    ("ring-full", Stuck, |w| { w.qp().waits.room = true; w.nothing_moves() }, "the ring to process 200 is full"),
    ("reads", Waiting, |w| {
        w.qp().waits.reads = Some((4, 4));
        (w.sq().waiting, w.sq().head) = (1, head(SECOND));
    }, "one send request waits: 4 READs or atomics are outstanding, and max_rd_atomic is 4"),
    ("fence", Waiting, |w| { w.qp().waits.fence = true; w.sq().head = head(SECOND) }, "the next send request is fenced"),
    ("send-queue-full", Stuck, |w| w.sq().held = 128,
        "send queue full: 128 unsignaled, none signaled: no completion can ever free it (ibv_post_send(3))"),
    ("send-queue-full", Waiting, |w| {
        (w.sq().held, w.sq().held_signaled) = (128, 1);
        w.nothing_moves();
    }, "all 128 requests are complete, and their completions wait in CQ 3"),
    ("wait", Note, |w| w.qp().waits.completions = Some(CountWait { cq: 3, count: 9, had: 7 }),
        "a WAIT holds the send queue back: CQ 3 has had 7 completions, and 2 are missing until 9"),
    ("wait", Stuck, |w| {
        w.qp().waits.completions = Some(CountWait { cq: 3, count: 1, had: 0 });
        w.qp().rq.as_mut().unwrap().posted = 0;
    }, "and 1 is missing until 1; nothing that is under way can complete there (unsignaled requests do not"),
    ("wait-cycle", Stuck, |w| {
        let mut other = qp(0x12, 0x23);
        (other.send_cq, other.recv_cq) = (Some(4), Some(5));
        other.waits.completions = Some(CountWait { cq: 3, count: 1, had: 0 });
        w.qp().waits.completions = Some(CountWait { cq: 4, count: 1, had: 0 });
        w.qp().rq.as_mut().unwrap().posted = 0;
        w.us.adapter.qps.push(other);
    }, "QP 0x000011 waits for CQ 4, which only QP 0x000012 could complete to; QP 0x000012 waits for CQ 3, which only QP \
        0x000011 could complete to: a circle of WAITs"),
    ("not-enabled", Waiting, |w| (w.sq().waiting, w.sq().enabled) = (4, Some(0)),
        "4 send requests wait for an ENABLE: none was ever enabled"),
    ("not-enabled", Note, |w| (w.sq().waiting, w.sq().enabled, w.sq().begun) = (1, Some(3), 3),
        "one send request waits for an ENABLE: 3 were enabled so far"),
    ("refused", Waiting, |w| {
        w.qp().counters.rnr_naks_out = 3;
        w.qp().rq = Some(Rq { depth: 16, total: 16, ..Rq::default() });
    }, "no receive is posted: 3 messages refused with an RNR NAK; the receive queue holds 0 receives, of 16 posted so \
        far"),
    ("dropped", Note, |w| w.qp().counters.dropped = 1, "one message was lost: no receive was posted"),
    ("dropped-too-long", Note, |w| w.qp().counters.too_long = 2, "2 datagrams were lost: longer than the receive"),
    ("dropped-qkey", Note, |w| w.qp().counters.wrong_qkey = 1, "one datagram was lost: the Q_Key is not this queue \
        pair's"),
    ("dropped-no-room", Note, |w| w.qp().counters.no_room = 1, "one message was not sent: the ring to the peer was \
        full"),
    ("cq-overrun", Stuck, |w| w.cq().overrun = true, "CQ 3: overrun: it was full with 128 completions"),
    ("cq-full", Waiting, |w| w.cq().inside = 128, "full: 128 completions, no thread polls them"),
    ("cq-solicited", Stuck, |w| {
        w.channel();
        (w.cq().armed, w.cq().inside) = (Armed::Solicited, 2);
    }, "armed for solicited completions only, 2 completions inside that are not"),
    ("cq-armed-late", Stuck, |w| (w.cq().armed, w.cq().inside) = (Armed::Any, 1),
        "armed, and one completion came before the last event"),
    ("cq-armed-late", Note, |w| (w.cq().armed, w.cq().inside, w.cq().moderated_ns) = (Armed::Any, 1, Some(1000)),
        "held back by moderation"),
    ("cq-not-armed", Stuck, |w| { w.channel().waiters = 1; w.cq().inside = 2 },
        "not armed, 2 completions inside, and one thread in ibv_get_cq_event: no event comes for them"),
    ("cq-not-armed", Stuck, |w| w.channel().waiters = 1,
        "not armed, and one thread in ibv_get_cq_event: no event will come"),
    ("cq-unpolled", Waiting, |w| { w.cq().inside = 3; w.nothing_moves() }, "3 completions wait, and no thread polls"),
    ("cq-event-unread", Note, |w| w.channel().unread = 2,
        "2 events wait in its completion channel (descriptor 9), and the program has not got them"),
    ("cq-event-unacked", Note, |w| w.cq().unacked = 1, "one event got and not acknowledged"),
    ("srq-empty", Note, |w| w.us.adapter.srqs = vec![Srq { handle: 2, users: 4, total: 9, ..Srq::default() }],
        "SRQ 2: empty: 4 queue pairs can receive nothing; 9 posted so far"),
    ("srq-limit", Note, |w| w.us.adapter.srqs = vec![Srq { limit: 4, posted: 2, ..Srq::default() }],
        "below its limit: 2 posted, limit 4"),
    ("faults", Note, |w| w.us.faults = Some("drop:n=3; seed 7".into()),
        "process: the device misbehaves on purpose, by SOFTRNIC_FAULT: drop:n=3; seed 7"),
    ("locked", Stuck, |w| w.us.locked = Some("a thread holds the lock".into()), "process: a thread holds the lock"),
    ("destroy", Stuck, |w| w.us.adapter.destroys = vec![Destroy { object: "CQ 3".into(), unacked: 2 }],
        "the destruction of CQ 3 waits: 2 events got and not acknowledged"),
    ("async-unread", Note, |w| w.us.adapter.unread_events = vec!["IBV_EVENT_QP_FATAL".into()],
        "asynchronous events that the program has not got (ibv_get_async_event(3)): IBV_EVENT_QP_FATAL"),
    ("told", Note, |w| w.us.told = vec!["no descriptors are left".into()], "told on standard error: no descriptors \
        are left"),
    ("strangers", Note, |w| w.us.adapter.strangers = 1, "one packet dropped: from another process"),
    ("cm-unread", Waiting, |w| w.id(None).unread = vec!["CONNECT_REQUEST".into()],
        "cm_id 4: one event waits, and the program has not got it (rdma_get_cm_event(3)): CONNECT_REQUEST"),
    ("cm-retrying", Waiting, |w| w.id(Some(CmState::ReqSent)).retrying_ns = Some(100_000_000),
        "no program listens at 10.0.0.1:7174: asked again for 100 ms more"),
    ("cm-request", Stuck, |w| {
        w.id(Some(CmState::ReqSent)).age_ns = Some(3 * SECOND);
        w.peer.cm = Some(Cm { ids: vec![CmId {
            src: Some("0.0.0.0:7174".into()), backlog_room: Some(0), parked: 1,
            unread: vec!["CONNECT_REQUEST".into()], ..CmId::default()
        }], ..Cm::default() });
    }, "CONNECT sent 3.0 s ago to 10.0.0.1:7174, no answer; the listener's backlog is full: one CONNECT_REQUEST event \
        that process 200 has not got"),
    ("cm-request", Stuck, |w| {
        w.id(Some(CmState::ReqSent)).age_ns = Some(3 * SECOND);
        w.peer.cm = Some(Cm { ids: vec![CmId {
            src: Some("10.0.0.1:7174".into()), dst: Some("10.0.0.1:40000".into()), undecided: true, ..CmId::default()
        }], ..Cm::default() });
    }, "process 200 has got the request, and neither accepted nor rejected it"),
    ("cm-request", Stuck, |w| {
        let id = w.id(Some(CmState::SidrSent));
        (id.age_ns, id.left_ns, id.repeats_left) = (Some(SECOND), Some(SECOND), 15);
    }, "SIDR REQ sent 1.0 s ago to 10.0.0.1:7174, no answer; repeated in 1.0 s, 15 more times"),
    ("cm-undecided", Waiting, |w| w.id(Some(CmState::ReqRcvd)).undecided = true,
        "a request from 10.0.0.1:7174 was got, and neither accepted nor rejected"),
    ("cm-backlog", Stuck, |w| { let id = w.id(None); (id.backlog_room, id.parked) = (Some(0), 2) },
        "its backlog is full: 2 requests wait for room"),
    ("cm-reply", Stuck, |w| w.id(Some(CmState::RepSent)).age_ns = Some(SECOND),
        "accepted 1.0 s ago, and the peer 10.0.0.1:7174 has not answered"),
    ("cm-response", Waiting, |w| { w.id(Some(CmState::RepRcvd)); }, "CONNECT_RESPONSE was got"),
    ("cm-release", Waiting, |w| w.id(Some(CmState::DreqSent)).age_ns = Some(SECOND), "DISCONNECT sent 1.0 s ago"),
    ("cm-release", Note, |w| { w.id(Some(CmState::DreqRcvd)); }, "has disconnected: rdma_disconnect is due"),
];

fn ack(age_ns: u64) -> Option<AckWait> {
    let timeout_ns = Some(536_870_912);
    Some(AckWait { age_ns, timeout_ns, left_ns: Some(1), retries: 2, retry_cnt: 7, untaken: true })
}

#[test]
fn every_rule_says_what_it_should() {
    for (rule, severity, make, sentence) in CASES {
        let mut world = World::new();
        make(&mut world);
        let found = world.findings();
        let told = |finding: &&Finding| {
            finding.rule == *rule && format!("{}: {}", finding.object, finding.text).contains(sentence)
        };
        let finding = found.iter().find(told).unwrap_or_else(|| panic!("{rule}: {sentence}\n{found:#?}"));
        assert_eq!(finding.severity, *severity, "{rule}: {sentence}");
    }
}

#[test]
fn every_rule_has_a_case() {
    let names = |rules: &[Rule<Qp>]| rules.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    let mut rules: BTreeSet<&str> = names(qp::RULES).into_iter().collect();
    rules.extend(managed::RULES.iter().map(|(name, _)| *name));
    rules.extend(cq::RULES.iter().map(|(name, _)| *name));
    rules.extend(cq::SRQ_RULES.iter().map(|(name, _)| *name));
    rules.extend(whole::RULES.iter().map(|(name, _)| *name));
    rules.extend(cm::RULES.iter().map(|(name, _)| *name));
    let cases: BTreeSet<&str> = CASES.iter().map(|(rule, ..)| *rule).collect();
    assert_eq!(rules, cases);
}

#[test]
fn where_all_is_well_nothing_is_found() {
    let mut world = World::new();
    assert_eq!(world.findings(), []);
    // Work under way, as it looks at a moment: requests out for microseconds, a ring that is full now.
    world.nothing_moves();
    world.qp().waits.ack = Some(AckWait { retries: 0, age_ns: 5_000, ..ack(0).unwrap() });
    world.qp().waits.room = true;
    world.qp().counters.sent += 1;
    (world.sq().held, world.sq().held_signaled, world.sq().executing) = (128, 128, 128);
    world.qp().waits.rnr = Some(RnrWait { age_ns: 20_000, naks: 1, retries: 0, rnr_retry: 7, left_ns: Some(9) });
    world.cq().inside = 128;
    world.cq().polls += 1;
    assert_eq!(world.findings(), []);
}

/// A queue that runs in a circle stays full, and a queue that only counts is not polled.
#[test]
fn circles_and_counts_are_not_stuck() {
    let mut world = World::new();
    (world.sq().held, world.sq().cyclic) = (128, true);
    (world.cq().inside, world.cq().overwrites, world.cq().counts) = (128, true, true);
    world.nothing_moves();
    assert_eq!(world.findings(), []);
    world.cq().counts = false;
    assert_eq!(world.findings()[0].rule, "cq-unpolled");
    world.cq().overwrites = false;
    assert!(world.findings().iter().any(|finding| finding.rule == "cq-full"));
    world.sq().cyclic = false;
    assert!(world.findings().iter().any(|finding| finding.rule == "send-queue-full"));
}

/// A long message takes its time.
#[test]
fn what_moves_is_not_stuck() {
    let mut world = World::new();
    world.qp().waits.ack = ack(10 * SECOND);
    world.sq().head = head(10 * SECOND);
    world.nothing_moves();
    assert_eq!(world.findings()[0].rule, "ack");
    world.sq().head.as_mut().unwrap().moved = 1 << 20;
    assert_eq!(world.findings(), []);
    world.nothing_moves();
    world.sq().head.as_mut().unwrap().wr_id += 1;
    assert_eq!(world.findings(), []);
}

#[test]
fn the_gravest_comes_first() {
    let mut world = World::new();
    world.cq().unacked = 1;
    world.us.adapter.links[0].life = Life::Stopped;
    let severities: Vec<Severity> = world.findings().iter().map(|finding| finding.severity).collect();
    assert_eq!(severities, [Stuck, Note]);
}

#[test]
fn durations_are_short() {
    for (ns, text) in
        [(17, "17 ns"), (12_000, "12 us"), (340_000_000, "340 ms"), (2_100_000_000, "2.1 s"), (150 * SECOND, "150 s")]
    {
        assert_eq!(duration(ns), text);
    }
}

/// Nothing that another process reports reaches the terminal as a command to it.
#[test]
fn reports_are_printed_without_control_characters() {
    let mut world = World::new();
    world.us.program = "evil\u{1b}[2J".into();
    world.us.locked = Some("\u{1b}]0;x\u{7}".into());
    world.id(None).phase = "a\nb".into();
    let text = crate::text::render(&world.us, &world.findings());
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(text.lines().any(|line| line.contains("cm_id 4: a?b")));
}
