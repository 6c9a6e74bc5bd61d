//! Sixty-four processes, each connected to each other.

use std::sync::Arc;

use conformance::side::{self, Place};
use conformance::{Fixture, Footprint, Pace, Remote, Wire};
use rdma::{Cq, Mr, Qp, RecvWr, Status, Wc};
use serde::{Deserialize, Serialize};

use crate::accounts::{self, HEAD, Ledger};
use crate::each;

const PROCESSES: usize = 64;
/// The messages of each process to each other.
const SHORT: u64 = 12;
/// Receives posted on each queue pair, and requests of it under way.
const DEPTH: u64 = 4;
/// A length beyond messages that go through the window, so that every path is used.
const LARGEST: usize = 20_000;
const RECEIVE: u64 = 1 << 62;
const MIB: u64 = 1 << 20;
/// The greatest cost of a connected pair of processes, both sides together.
const PAIR: u64 = 2 * MIB;

#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
struct Counts {
    sent: u64,
    received: u64,
    grown: Footprint,
}

fn length(number: u64) -> usize {
    match number % SHORT {
        0 => LARGEST,
        1 => 5000,
        _ => HEAD + (number as usize * 11) % 500,
    }
}

struct End {
    qps: Vec<Option<Arc<Qp>>>,
    cq: Arc<Cq>,
    /// `DEPTH` places for the messages that each queue pair receives; behind them, one for its own.
    mr: Arc<Mr>,
}

impl End {
    fn post_receive(&self, peer: usize, place: u64) {
        let Some(qp) = &self.qps[peer] else { return };
        let sges = [self.mr.sge((peer * DEPTH as usize + place as usize) * LARGEST, LARGEST)];
        let wr_id = RECEIVE | (peer as u64) << 8 | place;
        qp.post_recv(&RecvWr { wr_id, sges: &sges }).expect("ibv_post_recv");
    }

    fn poll(&self, sent: &mut accounts::Reader<'_>, received: &mut accounts::Reader<'_>, own: u64, pace: &mut Pace) {
        let mut out = [Wc::default(); 16];
        let count = self.cq.poll(&mut out).expect("ibv_poll_cq");
        for wc in &out[..count] {
            assert_eq!(wc.status(), Status::SUCCESS, "wr_id {:#x}", wc.wr_id());
            if wc.wr_id() < RECEIVE {
                sent.take(wc.wr_id() >> 32, wc.wr_id() & 0xffff_ffff);
                continue;
            }
            let (peer, place) = ((wc.wr_id() - RECEIVE) >> 8, wc.wr_id() & 0xff);
            let mut message = vec![0; wc.byte_len() as usize];
            self.mr.read((peer * DEPTH + place) as usize * LARGEST, &mut message);
            let (from, number) = accounts::read(&message);
            assert_eq!((from % PROCESSES as u64, from / PROCESSES as u64), (peer, own), "a message to another");
            assert_eq!(message.len(), length(number));
            received.take(peer, number);
            self.post_receive(peer as usize, place);
        }
        pace.look(count > 0, || format!("process {own}"));
    }
}

/// One of the processes.
pub fn remote(mut wire: Wire) {
    let own: usize = wire.hear();
    let fixture = Fixture::open();
    let cq = fixture.context.create_cq(1 << 12, None, 0).expect("ibv_create_cq");
    let mr = side::buffer(&fixture, PROCESSES * (DEPTH as usize + 1) * LARGEST);
    let qps: Vec<_> = (0..PROCESSES).map(|to| (to != own).then(|| side::create_qp(&fixture, &cq, 16))).collect();
    let mut places: Vec<Option<Place>> = Vec::new();
    for qp in &qps {
        places.push(qp.as_ref().map(|qp| side::place(&fixture, qp)));
    }
    // The program's pages do not count.
    mr.write(0, &vec![1; mr.len()]);
    let peers: Vec<Option<Place>> = wire.exchange(&places);
    let before = Footprint::own();
    let end = End { qps, cq, mr };
    for (peer, place) in peers.iter().enumerate() {
        let (Some(qp), Some(place)) = (&end.qps[peer], place) else { continue };
        side::up(qp, place);
        (0..DEPTH).for_each(|place| end.post_receive(peer, place));
    }
    let () = wire.exchange(&());
    let others = PROCESSES as u64 - 1;
    let (sent, received) =
        (Ledger::new("sent", PROCESSES as u64, each(SHORT)), Ledger::new("received", PROCESSES as u64, each(SHORT)));
    let (mut s, mut r) = (sent.reader(), received.reader());
    let mut pace = Pace::default();
    let own = own as u64;
    for number in 0..each(SHORT) {
        // Each process begins with the one behind it, so that not all send to one.
        for peer in (1..PROCESSES as u64).map(|step| (own + step) % PROCESSES as u64) {
            let Some(qp) = &end.qps[peer as usize] else { continue };
            // The place is free when the message before has arrived.
            while number > 0 && !sent.has(peer, number - 1) {
                end.poll(&mut s, &mut r, own, &mut pace);
            }
            let at = (PROCESSES * DEPTH as usize + peer as usize) * LARGEST;
            let mut message = vec![0; length(number)];
            accounts::fill(&mut message, own + PROCESSES as u64 * peer, number);
            end.mr.write(at, &message);
            let sges = [end.mr.sge(at, message.len())];
            side::send(qp, peer << 32 | number, &sges);
        }
    }
    while sent.count() < others * each(SHORT) {
        end.poll(&mut s, &mut r, own, &mut pace);
    }
    while received.count() < others * each(SHORT) {
        end.poll(&mut s, &mut r, own, &mut pace);
    }
    let grown = Footprint::own().since(&before);
    let () = wire.exchange(&Counts { sent: sent.count(), received: received.count(), grown });
}

#[test]
fn sixty_four_processes_all_to_all() {
    let _alone = crate::alone();
    let mut remotes: Vec<Remote> = (0..PROCESSES).map(|_| Remote::start("remote_side", "mesh", &[])).collect();
    for (at, remote) in remotes.iter_mut().enumerate() {
        remote.wire.tell(&at);
    }
    let places: Vec<Vec<Option<Place>>> = remotes.iter_mut().map(|remote| remote.wire.hear()).collect();
    for (at, remote) in remotes.iter_mut().enumerate() {
        let peers: Vec<Option<Place>> = places.iter().map(|of| of[at]).collect();
        remote.wire.tell(&peers);
    }
    for remote in &mut remotes {
        let () = remote.wire.hear();
    }
    remotes.iter_mut().for_each(|remote| remote.wire.tell(&()));
    let mut sum = Counts::default();
    for remote in &mut remotes {
        let counts: Counts = remote.wire.hear();
        sum.sent += counts.sent;
        sum.received += counts.received;
        sum.grown.bytes += counts.grown.bytes;
        sum.grown.descriptors = sum.grown.descriptors.max(counts.grown.descriptors);
    }
    remotes.iter_mut().for_each(|remote| remote.wire.tell(&()));
    let failed = remotes.iter_mut().filter_map(|remote| (!remote.ended_well()).then(|| remote.pid())).count();
    let pairs = (PROCESSES * (PROCESSES - 1) / 2) as u64;
    println!(
        "counted: {PROCESSES} processes, {pairs} pairs: {} sent, {} received; each pair needs {} KiB, a process at \
         most {} descriptors",
        sum.sent,
        sum.received,
        sum.grown.bytes / pairs / 1024,
        sum.grown.descriptors
    );
    assert_eq!(failed, 0, "of {PROCESSES} processes");
    assert_eq!((sum.sent, sum.received), (2 * pairs * each(SHORT), 2 * pairs * each(SHORT)));
    assert!(sum.grown.bytes / pairs < PAIR);
}
