//! A thousand connected queue pairs between two processes, all of which carry data, and their costs.

use std::sync::Arc;
use std::time::Instant;

use conformance::side::{self, Place};
use conformance::{Fixture, Footprint, Pace, Remote, Wire};
use rdma::{Cq, Mr, Qp, RecvWr, Status, Wc};

use crate::accounts::{self, HEAD, Ledger};
use crate::each;

const QPS: usize = 1000;
/// The number of requests that each queue holds: the default of perftest's and many other programs' send queues.
const DEPTH: u32 = 128;
/// The messages of each queue pair: more than its queues hold, so that every entry has been used.
const SHORT: u64 = 150;
/// The messages of each queue pair under way.
const BATCH: u64 = 10;
const LEN: usize = 64;
const MIB: u64 = 1 << 20;
/// The bound for both processes: queue pairs, windows, and the library's other memory.
const BOUND: u64 = 64 * MIB;
const RECEIVE: u64 = 1 << 62;

struct End {
    qps: Vec<Arc<Qp>>,
    cq: Arc<Cq>,
    /// A place for the messages that each queue pair sends, and `BATCH` for those that it receives.
    mr: Arc<Mr>,
}

const PLACES: usize = 1 + BATCH as usize;

impl End {
    fn post_receive(&self, at: usize, place: u64) {
        let sges = [self.mr.sge((at * PLACES + 1 + place as usize) * LEN, LEN)];
        let wr_id = RECEIVE | (at as u64) << 8 | place;
        self.qps[at].post_recv(&RecvWr { wr_id, sges: &sges }).expect("ibv_post_recv");
    }

    /// Exchange `BATCH` messages on each, in both directions.
    fn batch(&self, number: u64, sent: &Ledger, received: &Ledger) {
        let (mut s, mut r) = (sent.reader(), received.reader());
        let mut pace = Pace::default();
        for number in number..number + BATCH {
            for (at, qp) in self.qps.iter().enumerate() {
                // The place is free when the message before has arrived.
                while number > 0 && !sent.has(at as u64, number - 1) {
                    self.poll(&mut s, &mut r, &mut pace);
                }
                let mut message = [0; LEN];
                accounts::fill(&mut message[..length(number)], at as u64, number);
                self.mr.write(at * PLACES * LEN, &message);
                let sges = [self.mr.sge(at * PLACES * LEN, length(number))];
                side::send(qp, (at as u64) << 32 | number, &sges);
            }
        }
        while sent.count() < QPS as u64 * (number + BATCH) {
            self.poll(&mut s, &mut r, &mut pace);
        }
        while received.count() < QPS as u64 * (number + BATCH) {
            self.poll(&mut s, &mut r, &mut pace);
        }
    }

    fn poll(&self, sent: &mut accounts::Reader<'_>, received: &mut accounts::Reader<'_>, pace: &mut Pace) {
        let mut out = [Wc::default(); 16];
        let count = self.cq.poll(&mut out).expect("ibv_poll_cq");
        for wc in &out[..count] {
            assert_eq!(wc.status(), Status::SUCCESS, "wr_id {:#x}", wc.wr_id());
            if wc.wr_id() < RECEIVE {
                sent.take(wc.wr_id() >> 32, wc.wr_id() & 0xffff_ffff);
                continue;
            }
            let (at, place) = ((wc.wr_id() - RECEIVE) >> 8, wc.wr_id() & 0xff);
            let mut message = vec![0; wc.byte_len() as usize];
            self.mr.read((at as usize * PLACES + 1 + place as usize) * LEN, &mut message);
            let (from, number) = accounts::read(&message);
            // Queue pairs are joined in the order of their making.
            assert_eq!((from, message.len()), (at, length(number)), "on the queue pair of another");
            received.take(from, number);
            self.post_receive(at as usize, place);
        }
        pace.look(count > 0, || "a message".to_owned());
    }
}

fn length(number: u64) -> usize {
    HEAD + (number as usize * 5) % (LEN - HEAD + 1)
}

/// Play the part of either process; the result is the growth since the device was opened, and since the first queue
/// pair.
fn play(wire: &mut Wire) -> Footprint {
    let fixture = Fixture::open();
    let cq = fixture.context.create_cq(2 * QPS as u32 * BATCH as u32, None, 0).expect("ibv_create_cq");
    let mr = side::buffer(&fixture, QPS * PLACES * LEN);
    mr.write(0, &vec![1; QPS * PLACES * LEN]); // the program's own pages do not count
    let (sent, received) =
        (Ledger::new("sent", QPS as u64, each(SHORT)), Ledger::new("received", QPS as u64, each(SHORT)));
    let before = Footprint::own();
    let () = wire.exchange(&());
    let qps: Vec<Arc<Qp>> = (0..QPS).map(|_| side::create_qp(&fixture, &cq, DEPTH)).collect();
    let ours: Vec<Place> = qps.iter().map(|qp| side::place(&fixture, qp)).collect();
    let theirs: Vec<Place> = wire.exchange(&ours);
    let end = End { qps, cq, mr };
    for (at, peer) in theirs.iter().enumerate() {
        side::up(&end.qps[at], peer);
        (0..BATCH).for_each(|place| end.post_receive(at, place));
    }
    let () = wire.exchange(&());
    let idle = Footprint::own().since(&before);
    let start = Instant::now();
    for number in (0..each(SHORT)).step_by(BATCH as usize) {
        end.batch(number, &sent, &received);
        let () = wire.exchange(&());
    }
    let took = start.elapsed();
    let grown = Footprint::own().since(&before);
    println!(
        "counted: {QPS} queue pairs: {} sent, {} received in {took:?}; {idle} before the first message, {grown} \
         behind the last",
        sent.count(),
        received.count(),
    );
    assert!(sent.is_complete() && received.is_complete());
    let () = wire.exchange(&());
    grown
}

pub fn remote(mut wire: Wire) {
    let grown = play(&mut wire);
    wire.tell(&grown);
}

#[test]
fn a_thousand_queue_pairs_carry_data_and_are_small() {
    let _alone = crate::alone();
    let mut remote = Remote::start("remote_side", "thousand", &[]);
    let near = play(&mut remote.wire);
    let there: Footprint = remote.wire.hear();
    let bytes = near.bytes + there.bytes;
    println!(
        "counted: {QPS} queue pairs of depth {DEPTH} between two processes need {} KiB in all, each {} bytes on each \
         side",
        bytes / 1024,
        bytes / (2 * QPS as u64),
    );
    assert!(bytes < BOUND, "{bytes} bytes");
    assert!(remote.ended_well());
}
