//! Sixteen threads on one queue pair and on one completion queue, in both of two processes.

use std::time::Instant;

use conformance::side::{self, Place};
use conformance::{Fixture, Pace, Remote, Wire};
use rdma::{Cq, Data, Errno, Mr, Qp, RecvWr, SendOp, SendWr, Status, Wc};

use crate::accounts::{self, HEAD, Ledger, Reader};
use crate::each;

const THREADS: u64 = 16;
/// The messages of each thread.
const SHORT: u64 = 1500;
/// The requests that a queue holds; as many receives are posted at any time.
const DEPTH: u64 = 256;
/// The places for messages that one thread has under way.
const PLACES: u64 = 8;
const LARGEST: usize = 24_000;
/// The wr_ids of receives: this and the slot.
const RECEIVE: u64 = 1 << 62;

/// The length of a message: mostly small, sometimes one that needs the bulk area, sometimes one that is copied
/// directly.
fn length(thread: u64, number: u64) -> usize {
    match (thread + number) % 64 {
        0 => LARGEST - number as usize % 100,
        1 => 6000 + number as usize % 1000,
        _ => HEAD + (number as usize * 7) % 300,
    }
}

/// The objects that the threads of a process share.
struct End<'a> {
    qp: &'a Qp,
    cq: &'a Cq,
    /// One place for each receive.
    receives: &'a Mr,
    /// `PLACES` for each thread.
    sends: &'a Mr,
    sent: &'a Ledger,
    received: &'a Ledger,
}

impl End<'_> {
    fn post_receive(&self, slot: u64) {
        let sges = [self.receives.sge(slot as usize * LARGEST, LARGEST)];
        let wr = RecvWr { wr_id: RECEIVE | slot, sges: &sges };
        self.qp.post_recv(&wr).expect("ibv_post_recv: the place has just become free");
    }

    /// Take completions; the result is how many.
    fn poll(&self, sent: &mut Reader<'_>, received: &mut Reader<'_>) -> usize {
        let mut out = [Wc::default(); 4];
        let count = self.cq.poll(&mut out).expect("ibv_poll_cq");
        let mut message = vec![0; LARGEST];
        for wc in &out[..count] {
            assert_eq!(wc.status(), Status::SUCCESS, "wr_id {:#x}", wc.wr_id());
            if wc.wr_id() < RECEIVE {
                sent.take(wc.wr_id() >> 32, wc.wr_id() & 0xffff_ffff);
                continue;
            }
            let slot = wc.wr_id() - RECEIVE;
            let message = &mut message[..wc.byte_len() as usize];
            self.receives.read(slot as usize * LARGEST, message);
            let (from, number) = accounts::read(message);
            assert_eq!(message.len(), length(from, number), "message {number} of {from}");
            received.take(from, number);
            self.post_receive(slot);
        }
        count
    }

    /// Run one of the threads: it sends its messages, and takes the completions of all threads that it finds.
    fn thread(&self, thread: u64) {
        let (mut sent, mut received) = (self.sent.reader(), self.received.reader());
        let mut pace = Pace::default();
        let mut wait = || {
            let before = (self.sent.count(), self.received.count());
            self.poll(&mut sent, &mut received);
            let (s, r) = (self.sent.count(), self.received.count());
            // Another of the sixteen threads may have found the completion.
            pace.look((s, r) != before, || format!("{s} sent, {r} received of {}", THREADS * each(SHORT)));
        };
        for number in 0..each(SHORT) {
            let len = length(thread, number);
            let at = ((thread * PLACES + number % PLACES) as usize) * LARGEST;
            // The last message in this place has been acknowledged.
            while number >= PLACES && !self.sent.has(thread, number - PLACES) {
                wait();
            }
            let mut message = vec![0; len];
            accounts::fill(&mut message, thread, number);
            self.sends.write(at, &message);
            let sges = [self.sends.sge(at, len)];
            let wr = SendWr::new(thread << 32 | number, SendOp::Send, Data::Sges(&sges));
            while let Err(error) = self.qp.post_send(&wr) {
                assert_eq!(error.errno, Errno::ENOMEM);
                wait();
            }
        }
        while !self.sent.is_complete() || !self.received.is_complete() {
            wait();
        }
    }
}

/// Play the part of either process.
fn play(wire: &mut Wire) {
    let fixture = Fixture::open();
    let cq = fixture.context.create_cq(4 * DEPTH as u32, None, 0).expect("ibv_create_cq");
    let qp = side::create_qp(&fixture, &cq, DEPTH as u32);
    let receives = side::buffer(&fixture, DEPTH as usize * LARGEST);
    let sends = side::buffer(&fixture, (THREADS * PLACES) as usize * LARGEST);
    let (sent, received) = (Ledger::new("sent", THREADS, each(SHORT)), Ledger::new("received", THREADS, each(SHORT)));
    let end = End { qp: &qp, cq: &cq, receives: &receives, sends: &sends, sent: &sent, received: &received };
    let peer: Place = wire.exchange(&side::place(&fixture, &qp));
    side::up(&qp, &peer);
    (0..DEPTH).for_each(|slot| end.post_receive(slot));
    let () = wire.exchange(&());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let end = &end;
            scope.spawn(move || end.thread(thread));
        }
    });
    let () = wire.exchange(&());
    println!(
        "counted: {THREADS} threads on one queue pair: {} sent, {} received, each once and in its sender's order, in \
         {:?}",
        sent.count(),
        received.count(),
        start.elapsed()
    );
}

pub fn remote(mut wire: Wire) {
    play(&mut wire);
}

#[test]
fn sixteen_threads_on_one_queue_pair() {
    let _alone = crate::alone();
    for single_copy in ["1", "0"] {
        let mut remote = Remote::start("remote_side", "threads", &[("SOFTRNIC_SINGLE_COPY", single_copy)]);
        play(&mut remote.wire);
        assert!(remote.ended_well());
    }
}
