//! Queue pairs of iWARP over byte streams that are cut anywhere.

use iwarp::mpa::{Agreed, Ready, Role};
use verbs::{EventKind, Opcode, QpId, QpState, QpType, RKey, SendBody, WcOpcode, WcStatus as St};

use wire::{Memory, Nanos, Part, Span};

use super::mock::*;
use crate::Engine;
use crate::wq::cq::Notice;

/// Two queue pairs of iWARP, connected. `crc`, `markers`: as agreed in both directions.
fn connected(seed: u64, crc: bool, markers: bool) -> (World, [QpId; 2]) {
    connected_over(1460, seed, crc, markers)
}

fn connected_over(emss: usize, seed: u64, crc: bool, markers: bool) -> (World, [QpId; 2]) {
    connected_with((4, 2), emss, seed, crc, markers)
}

/// `depths`: the READs that each side takes, and has outstanding.
fn connected_with(depths: (u16, u16), emss: usize, seed: u64, crc: bool, markers: bool) -> (World, [QpId; 2]) {
    let mut w = World::new(2, seed);
    let mut ids = [0, 1].map(|node| {
        let ctx = w.nodes[node].ctx;
        w.nodes[node].engine.set_iwarp(ctx).unwrap();
        w.qp(node, QpType::Rc)
    });
    for (node, role) in [(0, Role::Initiator), (1, Role::Responder)] {
        let agreed = Agreed {
            role,
            crc,
            markers_in: markers,
            markers_out: markers,
            ird: depths.0,
            ord: depths.1,
            ready: (node == 0).then_some(Ready::Write),
            awaits_ready: node == 1,
            unmet: None,
        };
        let (now, (id, qpn)) = (w.now, ids[node]);
        let engine = &mut w.nodes[node].engine;
        assert_eq!(engine.query_qp(id).unwrap().0.state, QpState::Init, "a new queue pair");
        ids[node].0 = engine.attach_stream(qpn, &agreed, emss, &[], now).unwrap();
        assert_eq!(engine.query_qp(id).unwrap().0.state, QpState::Rts);
    }
    (w, ids.map(|(id, _)| id))
}

/// The bytes of a connection's output.
fn output(engine: &mut Engine<Mock>, id: QpId, most: usize, now: Nanos) -> Vec<u8> {
    let parts: Vec<_> = match engine.stream_output(id, most, now) {
        Some(output) => output.parts().map(whole).collect(),
        None => Vec::new(),
    };
    let mut bytes = Vec::new();
    for part in parts {
        match part {
            Err(own) => bytes.extend_from_slice(&own),
            Ok(span) => {
                let at = bytes.len();
                bytes.resize(at + span.len as usize, 0);
                engine.env().load(span.addr, span.guarded, &mut bytes[at..]).unwrap();
            }
        }
    }
    bytes
}

fn whole(part: Part<'_>) -> Result<Span, Vec<u8>> {
    match part {
        Part::Memory(span) => Ok(span),
        Part::Own(bytes) => Err(bytes.to_vec()),
    }
}

/// Carries bytes between the two until there are none, in pieces of at most `most`. What belongs straight to its place
/// goes there; gives how many bytes did.
fn carry(w: &mut World, ids: [QpId; 2], most: usize) -> usize {
    let mut direct = 0;
    loop {
        let mut moved = 0;
        for node in [0, 1] {
            let now = w.now;
            let engine = &mut w.nodes[node].engine;
            engine.run(now);
            while engine.next_stream().is_some() {}
            if engine.stream_is_over(ids[node]) {
                continue;
            }
            let bytes = output(engine, ids[node], 4096, now);
            let bytes = &bytes[..bytes.len().min(most)];
            engine.stream_sent(ids[node], bytes.len(), now);
            direct += bring(&mut w.nodes[1 - node].engine, ids[1 - node], bytes, now);
            moved += bytes.len();
        }
        if moved == 0 {
            return direct;
        }
    }
}

/// Brings bytes to a connection as the driver does: 48 at a time while nothing says that more belong to one place.
/// Gives how many went straight to theirs.
fn bring(engine: &mut Engine<Mock>, id: QpId, mut bytes: &[u8], now: Nanos) -> usize {
    let mut direct = 0;
    while !bytes.is_empty() {
        let spans: Vec<Span> = engine.stream_direct(id).to_vec();
        let mut placed = 0;
        for span in &spans {
            let len = (span.len as usize).min(bytes.len() - placed);
            engine.env().store(span.addr, span.guarded, &bytes[placed..placed + len]).unwrap();
            placed += len;
        }
        let behind;
        (behind, bytes) = bytes[placed..].split_at((bytes.len() - placed).min(48));
        if spans.is_empty() {
            engine.stream_input(id, behind, now);
        } else {
            engine.stream_placed(id, placed, behind, now);
        }
        direct += placed;
    }
    direct
}

fn statuses(w: &mut World, node: usize) -> Vec<(u64, St)> {
    w.poll(node).iter().map(|c| (c.wr_id, c.status)).collect()
}

fn events(w: &mut World, node: usize) -> Vec<EventKind> {
    let mut notices = Vec::new();
    w.nodes[node].engine.take_notices(&mut notices);
    notices.append(&mut w.nodes[node].notices);
    let kind = |n: Notice| if let Notice::Async { kind, .. } = n { Some(kind) } else { None };
    notices.into_iter().filter_map(kind).collect()
}

/// SEND, WRITE and READ bring the bytes, in both directions, however TCP cuts them, and complete in their order.
#[test]
fn messages_in_both_directions() {
    for (seed, crc, markers, most) in
        [(1, true, false, 1), (2, false, false, 7), (3, true, true, 333), (4, true, false, 1 << 20)]
    {
        let (mut w, ids) = connected(seed, crc, markers);
        let data: Vec<u8> = (0..6000u32).map(|n| (n * 7 + n / 256) as u8).collect();
        for node in [0, 1] {
            w.write(node, 0, &data);
            let into = [w.sge(node, 8000, 3000), w.sge(node, 12000, 3000)];
            w.recv(node, ids[node], &into, 50).unwrap();
        }
        // The responder's program may send first: it waits for the message that says "ready to receive".
        for node in [1, 0] {
            let (from, at) = ([w.sge(node, 0, 6000)], w.rdma(1 - node, 20000));
            w.post(node, ids[node], Opcode::RdmaWrite, at, &from, 1).unwrap();
            let (into, at) = ([w.sge(node, 30000, 6000)], w.rdma(1 - node, 0));
            w.post(node, ids[node], Opcode::RdmaRead, at, &into, 2).unwrap();
            w.post(node, ids[node], Opcode::Send, SendBody::Plain, &from, 3).unwrap();
        }
        carry(&mut w, ids, most);
        for node in [0, 1] {
            let mut done = statuses(&mut w, node);
            let received = done.iter().position(|c| *c == (50, St::Success)).expect("the receive");
            done.remove(received);
            assert_eq!(done, [(1, St::Success), (2, St::Success), (3, St::Success)], "seed {seed}, node {node}");
            assert_eq!(w.read(node, 20000, 6000), data, "WRITE, seed {seed}");
            assert_eq!(w.read(node, 30000, 6000), data, "READ, seed {seed}");
            assert_eq!(w.read(node, 8000, 3000), data[..3000], "SEND, seed {seed}");
            assert_eq!(w.read(node, 12000, 3000), data[3000..], "SEND, seed {seed}");
        }
    }
}

/// A SEND without a receive, and a WRITE with a wrong key, end the connection: the side that finds it raises an event,
/// and both flush what is posted.
#[test]
fn errors_end_the_connection() {
    let bad = |w: &World| {
        let SendBody::Rdma { remote_addr, rkey } = w.rdma(1, 0) else { panic!() };
        SendBody::Rdma { remote_addr, rkey: RKey(rkey.0 ^ 0x5500) }
    };
    for (opcode, event) in [(Opcode::Send, EventKind::QpFatal), (Opcode::RdmaWrite, EventKind::QpAccessErr)] {
        let (mut w, ids) = connected(9, true, false);
        let body = if opcode == Opcode::Send { SendBody::Plain } else { bad(&w) };
        let (from, into) = ([w.sge(0, 0, 100)], [w.sge(0, 200, 100)]);
        w.recv(0, ids[0], &into, 7).unwrap();
        w.post(0, ids[0], opcode, body, &from, 1).unwrap();
        carry(&mut w, ids, 1 << 20);
        let now = w.now;
        let tail = w.nodes[1].engine.detach_stream(ids[1], now);
        assert!(!tail.is_empty(), "a Terminate message");
        w.nodes[0].engine.stream_input(ids[0], &tail, now);
        assert!(w.nodes[0].engine.stream_is_over(ids[0]));
        // RFC 5040, section 5.5: the request was complete when TCP had it.
        assert_eq!(statuses(&mut w, 0), [(1, St::Success), (7, St::WrFlushErr)], "{opcode:?}");
        assert_eq!(events(&mut w, 1), [event], "{opcode:?}");
        assert_eq!(events(&mut w, 0), [], "{opcode:?}");
        for node in [0, 1] {
            assert_eq!(w.nodes[node].engine.qp_state(ids[node]), Ok(QpState::Err));
        }
    }
}

/// A READ that waits for its answer keeps a WRITE's completion behind it, and no more READs go out than were agreed
/// upon.
#[test]
fn completions_keep_the_order_of_posts() {
    let (mut w, ids) = connected(5, true, false);
    let (into, at) = ([w.sge(0, 0, 64)], w.rdma(1, 0));
    for id in 1..=3 {
        w.post(0, ids[0], Opcode::RdmaRead, at, &into, id).unwrap();
    }
    let from = [w.sge(0, 100, 64)];
    w.post(0, ids[0], Opcode::RdmaWrite, w.rdma(1, 200), &from, 4).unwrap();
    let now = w.now;
    let first = output(&mut w.nodes[0].engine, ids[0], 1 << 20, now);
    w.nodes[0].engine.stream_sent(ids[0], first.len(), now);
    // "Ready to receive", and two READ requests of 52 bytes.
    assert_eq!(first.len(), 20 + 2 * 52);
    assert_eq!(statuses(&mut w, 0), []);
    w.nodes[1].engine.stream_input(ids[1], &first, now);
    carry(&mut w, ids, 1 << 20);
    let done: Vec<_> = w.poll(0).iter().map(|c| (c.wr_id, c.opcode)).collect();
    let read = WcOpcode::RdmaRead;
    assert_eq!(done, [(1, read), (2, read), (3, read), (4, WcOpcode::RdmaWrite)]);
}

/// What RFC 5040 does not have is refused at its post, and the connection goes on.
#[test]
fn operations_that_iwarp_has_not() {
    let (mut w, ids) = connected(6, true, false);
    let from = [w.sge(0, 0, 8)];
    for opcode in [Opcode::SendWithImm, Opcode::RdmaWriteWithImm, Opcode::FetchAndAdd, Opcode::CmpAndSwp] {
        let body = match opcode {
            Opcode::SendWithImm => SendBody::Plain,
            Opcode::RdmaWriteWithImm => w.rdma(1, 0),
            _ => SendBody::Atomic { remote_addr: BASE, rkey: RKey(1), compare_add: 0, swap: 0 },
        };
        assert_eq!(w.post(0, ids[0], opcode, body, &from, 1), Err(verbs::Errno::EINVAL), "{opcode:?}");
    }
    // A READ has one sink (RFC 5040, section 5.2).
    let two = [w.sge(0, 0, 8), w.sge(0, 64, 8)];
    assert_eq!(w.post(0, ids[0], Opcode::RdmaRead, w.rdma(1, 0), &two, 1), Err(verbs::Errno::EINVAL));
    w.post(0, ids[0], Opcode::RdmaWrite, w.rdma(1, 0), &from, 2).unwrap();
    carry(&mut w, ids, 1 << 20);
    assert_eq!(statuses(&mut w, 0), [(2, St::Success)]);
    let (pd, ah) = (w.nodes[0].pd, verbs::AhAttr::default());
    assert_eq!(w.nodes[0].engine.create_ah(pd, &ah), Err(verbs::Errno::EOPNOTSUPP));
}

/// An end that the program asks for comes behind all that was posted before.
#[test]
fn a_close_waits_for_what_was_posted() {
    let (mut w, ids) = connected(7, true, false);
    let (into, at) = ([w.sge(0, 0, 64)], w.rdma(1, 0));
    w.post(0, ids[0], Opcode::RdmaRead, at, &into, 1).unwrap();
    let now = w.now;
    w.nodes[0].engine.close_stream(ids[0], now);
    assert!(!w.nodes[0].engine.stream_is_over(ids[0]));
    carry(&mut w, ids, 1 << 20);
    assert!(w.nodes[0].engine.stream_is_over(ids[0]));
    assert_eq!(statuses(&mut w, 0), [(1, St::Success)]);
    w.nodes[1].engine.stream_closed(ids[1], now);
    assert_eq!(w.nodes[1].engine.qp_state(ids[1]), Ok(QpState::Err));
    assert_eq!(events(&mut w, 1), [], "an orderly end is no error");
}

/// An idle connection keeps no buffer, however much has gone over it.
#[test]
fn an_idle_connection_is_small() {
    let (mut w, ids) = connected(10, true, false);
    let from = [w.sge(0, 0, 30000)];
    for id in 0..8 {
        w.post(0, ids[0], Opcode::RdmaWrite, w.rdma(1, 0), &from, id).unwrap();
    }
    carry(&mut w, ids, 1 << 20);
    assert_eq!(statuses(&mut w, 0).len(), 8);
    for node in [0, 1] {
        let qp = w.nodes[node].engine.qps.get(ids[node]).unwrap();
        let state = qp.stream.as_ref().unwrap();
        assert_eq!((state.output.capacity(), state.pending.capacity()), (0, 0), "node {node}");
    }
}

/// A nudge has no effect but that bytes come, and a peer that has been heard gets none.
#[test]
fn a_nudge_says_nothing() {
    let (mut w, ids) = connected(8, true, false);
    let now = w.now;
    let first = output(&mut w.nodes[0].engine, ids[0], 4096, now).len();
    w.nodes[0].engine.stream_sent(ids[0], first, now);
    assert!(w.nodes[0].engine.nudge_stream(ids[0], now));
    let nudge = output(&mut w.nodes[0].engine, ids[0], 4096, now);
    assert_eq!(nudge.len(), 20, "a WRITE of no bytes");
    let (mut other, theirs) = connected(8, true, false);
    let ready = output(&mut other.nodes[0].engine, theirs[0], 4096, now);
    w.nodes[1].engine.stream_input(ids[1], &[ready, nudge.clone()].concat(), now);
    w.nodes[0].engine.stream_sent(ids[0], nudge.len(), now);
    let from = [w.sge(1, 0, 8)];
    w.post(1, ids[1], Opcode::RdmaWrite, w.rdma(0, 0), &from, 1).unwrap();
    carry(&mut w, ids, 1 << 20);
    assert_eq!(statuses(&mut w, 1), [(1, St::Success)]);
    assert!(!w.nodes[0].engine.nudge_stream(ids[0], now));
    assert!(w.nodes[0].engine.stream_output(ids[0], 4096, now).is_none());
}

/// The number of parts of an output that are memory of the program.
fn memory_parts(w: &mut World, node: usize, id: QpId) -> usize {
    let now = w.now;
    let output = w.nodes[node].engine.stream_output(id, 1 << 20, now);
    output.map_or(0, |output| output.parts().filter(|part| matches!(part, Part::Memory(_))).count())
}

/// Without CRCs, large payloads are sent from where they are and received to where they belong; with CRCs none is.
#[test]
fn large_payloads_are_not_copied() {
    for (seed, crc, markers, most) in
        [(11, false, false, 1 << 20), (12, false, false, 70_001), (13, true, false, 1 << 20), (14, false, true, 99_999)]
    {
        let (mut w, ids) = connected_over(65_535, seed, crc, markers);
        let data: Vec<u8> = (0..300_000u32).map(|n| (n * 13 + n / 256) as u8).collect();
        w.write(0, 0, &data);
        let into = [w.sge(1, 400_000, 100_000), w.sge(1, 600_000, 200_000)];
        w.recv(1, ids[1], &into, 50).unwrap();
        let from = [w.sge(0, 0, 250_000), w.sge(0, 250_000, 50_000)];
        w.post(0, ids[0], Opcode::Send, SendBody::Plain, &from, 1).unwrap();
        w.post(0, ids[0], Opcode::RdmaWrite, w.rdma(1, 0), &from, 2).unwrap();
        let (sink, at) = ([w.sge(0, 1_000_000, 300_000)], w.rdma(1, 0));
        w.post(0, ids[0], Opcode::RdmaRead, at, &sink, 3).unwrap();
        let copies = crc || markers;
        let now = w.now;
        w.nodes[0].engine.run(now);
        assert_eq!(memory_parts(&mut w, 0, ids[0]) == 0, copies, "seed {seed}");
        let direct = carry(&mut w, ids, most);
        assert_eq!(direct > 500_000, !copies, "seed {seed}: {direct} bytes");
        let done = [(1, St::Success), (2, St::Success), (3, St::Success)];
        assert_eq!(statuses(&mut w, 0), done, "seed {seed}");
        assert_eq!(statuses(&mut w, 1), [(50, St::Success)], "seed {seed}");
        assert!(w.read(1, 0, 300_000) == data, "WRITE, seed {seed}");
        assert!(w.read(0, 1_000_000, 300_000) == data, "READ, seed {seed}");
        assert!(w.read(1, 400_000, 100_000) == data[..100_000], "SEND, seed {seed}");
        assert!(w.read(1, 600_000, 200_000) == data[100_000..], "SEND, seed {seed}");
    }
}

/// A request is done when TCP has its bytes, even if others wait behind them.
#[test]
fn a_request_is_done_when_tcp_has_it() {
    let (mut w, ids) = connected_over(65_535, 15, false, false);
    let from = [w.sge(0, 0, 50_000)];
    for id in 1..=2 {
        w.post(0, ids[0], Opcode::RdmaWrite, w.rdma(1, 0), &from, id).unwrap();
    }
    let now = w.now;
    w.nodes[0].engine.run(now);
    let len = output(&mut w.nodes[0].engine, ids[0], 1 << 20, now).len();
    assert!(len > 100_000);
    w.nodes[0].engine.stream_sent(ids[0], 60_000, now);
    assert_eq!(statuses(&mut w, 0), [(1, St::Success)]);
    w.nodes[0].engine.stream_sent(ids[0], len - 60_001, now);
    assert_eq!(statuses(&mut w, 0), []);
    w.nodes[0].engine.stream_sent(ids[0], 1, now);
    assert_eq!(statuses(&mut w, 0), [(2, St::Success)]);
}

/// A region may go while TCP has only a part of what is sent from it: the rest is what it was then.
#[test]
fn a_region_goes_while_it_is_sent() {
    let (mut w, ids) = connected_over(65_535, 16, false, false);
    let data: Vec<u8> = (0..50_000u32).map(|n| (n * 7) as u8).collect();
    w.write(0, 0, &data);
    let pd = w.nodes[0].pd;
    let engine = &mut w.nodes[0].engine;
    let (mr, lkey, _) = engine.reg_mr(pd, BASE, 50_000, BASE, ALL).unwrap();
    let from = [verbs::Sge { addr: BASE, length: 50_000, lkey }];
    w.post(0, ids[0], Opcode::RdmaWrite, w.rdma(1, 0), &from, 1).unwrap();
    let now = w.now;
    let engine = &mut w.nodes[0].engine;
    engine.run(now);
    let first = output(engine, ids[0], 1 << 20, now)[..20_000].to_vec();
    engine.stream_sent(ids[0], first.len(), now);
    assert_eq!(memory_parts(&mut w, 0, ids[0]), 1);
    w.nodes[0].engine.dereg_mr(mr, false).unwrap();
    assert_eq!(memory_parts(&mut w, 0, ids[0]), 0);
    w.write(0, 0, &[0; 50_000]);
    bring(&mut w.nodes[1].engine, ids[1], &first, now);
    carry(&mut w, ids, 1 << 20);
    assert!(w.read(1, 0, 50_000) == data);
    assert_eq!(statuses(&mut w, 0), [(1, St::Success)]);
}

/// Memory that the program has unmapped is an error of what it was posted for, on either side.
#[test]
fn memory_that_is_not_there() {
    // A request: it fails, and no Terminate message can follow half an FPDU.
    let (mut w, ids) = connected_over(65_535, 17, false, false);
    let from = [w.sge(0, 0, 50_000)];
    for id in 1..=3 {
        w.post(0, ids[0], Opcode::RdmaWrite, w.rdma(1, 0), &from, id).unwrap();
    }
    let now = w.now;
    w.nodes[0].engine.run(now);
    let engine = &mut w.nodes[0].engine;
    let first = output(engine, ids[0], 1 << 20, now);
    engine.stream_sent(ids[0], first.len() - 60_000, now);
    engine.stream_unreadable(ids[0], now);
    assert!(engine.detach_stream(ids[0], now).is_empty());
    assert_eq!(statuses(&mut w, 0), [(1, St::Success), (2, St::LocProtErr), (3, St::WrFlushErr)]);
    // A receive, a WRITE's target, and a READ's sink.
    for opcode in [Opcode::Send, Opcode::RdmaWrite, Opcode::RdmaRead] {
        let (mut w, ids) = connected_over(65_535, 18, false, false);
        let into = [w.sge(1, 100_000, 50_000)];
        w.recv(1, ids[1], &into, 50).unwrap();
        let (from, body) = ([w.sge(0, 0, 50_000)], if opcode == Opcode::Send { SendBody::Plain } else { w.rdma(1, 0) });
        w.post(0, ids[0], opcode, body, &from, 1).unwrap();
        let now = w.now;
        w.nodes[0].engine.run(now);
        let mut bytes = output(&mut w.nodes[0].engine, ids[0], 1 << 20, now);
        w.nodes[0].engine.stream_sent(ids[0], bytes.len(), now);
        let mut to = 1;
        if opcode == Opcode::RdmaRead {
            w.nodes[1].engine.stream_input(ids[1], &bytes, now);
            bytes = output(&mut w.nodes[1].engine, ids[1], 1 << 20, now);
            to = 0;
        }
        let engine = &mut w.nodes[to].engine;
        engine.stream_input(ids[to], &bytes[..5000], now);
        assert!(!engine.stream_direct(ids[to]).is_empty(), "{opcode:?}");
        engine.stream_misplaced(ids[to], now);
        assert!(engine.stream_direct(ids[to]).is_empty(), "{opcode:?}");
        engine.stream_input(ids[to], &bytes[5000..], now);
        assert!(engine.stream_is_over(ids[to]), "{opcode:?}");
        assert!(!engine.detach_stream(ids[to], now).is_empty(), "{opcode:?}: a Terminate message");
        let done = statuses(&mut w, to);
        match opcode {
            Opcode::Send => assert_eq!(done, [(50, St::LocProtErr)]),
            Opcode::RdmaWrite => assert_eq!(done, [(50, St::WrFlushErr)]),
            _ => assert_eq!(done, [(1, St::LocProtErr)]),
        }
        let kind = if opcode == Opcode::RdmaWrite { EventKind::QpAccessErr } else { EventKind::QpFatal };
        assert_eq!(events(&mut w, to), if opcode == Opcode::RdmaRead { vec![] } else { vec![kind] }, "{opcode:?}");
    }
}

/// Neither answers to READs nor requests wait for all of the others.
#[test]
fn answers_and_requests_take_turns() {
    let (mut w, ids) = connected_with((16, 16), 1460, 19, false, false);
    let into = [w.sge(0, 0, 8)];
    for id in 1..=8 {
        w.post(0, ids[0], Opcode::RdmaRead, w.rdma(1, 0), &into, id).unwrap();
    }
    let now = w.now;
    w.nodes[0].engine.run(now);
    let asked = output(&mut w.nodes[0].engine, ids[0], 1 << 20, now);
    let from = [w.sge(1, 0, 8)];
    for id in 1..=3 {
        w.post(1, ids[1], Opcode::RdmaWrite, w.rdma(0, 0), &from, id).unwrap();
    }
    w.nodes[1].engine.stream_input(ids[1], &asked, now);
    w.nodes[1].engine.run(now);
    let bytes = output(&mut w.nodes[1].engine, ids[1], 1 << 20, now);
    // 8 bytes behind a tagged header are an FPDU of 28; the opcode is in the low bits of its fourth byte.
    let order: String = bytes.chunks(28).map(|fpdu| if fpdu[3] & 0xf == 0 { 'W' } else { 'R' }).collect();
    assert_eq!(order, "RRRRWRRRRWW");
}
