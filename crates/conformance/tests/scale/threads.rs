//! Many threads on the same objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use conformance::{Fixture, PATIENCE};
use rdma::{Cq, Errno, Qp, Status, Wc};

use conformance::side::{self, LEN, RECV};

const THREADS: u64 = 8;
const EACH: u64 = 2_000;

/// Connect two queue pairs of this process.
fn join(fixture: &Fixture, a: &Qp, b: &Qp) {
    side::up(a, &side::place(fixture, b));
    side::up(b, &side::place(fixture, a));
}

/// Let all threads post on the queue pairs in turn, and poll the shared queue until everything has completed.
fn hammer(fixture: &Fixture, cq: &Arc<Cq>, pairs: &[(Arc<Qp>, Arc<Qp>)]) {
    let mr = side::buffer(fixture, LEN);
    let total = THREADS * EACH;
    let (sent, received, wrong) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (mr, sent, received, wrong) = (&mr, &sent, &received, &wrong);
            scope.spawn(move || {
                let mut out = [Wc::default(); 8];
                let mut poll = || {
                    let count = cq.poll(&mut out).expect("ibv_poll_cq");
                    for wc in &out[..count] {
                        wrong.fetch_add(u64::from(wc.status() != Status::SUCCESS), Ordering::Relaxed);
                        let of = if wc.wr_id() >= RECV { received } else { sent };
                        of.fetch_add(1, Ordering::Relaxed);
                    }
                    count
                };
                for i in 0..EACH {
                    let (a, b) = &pairs[((thread + i) % pairs.len() as u64) as usize];
                    let list = [mr.sge(0, LEN)];
                    loop {
                        match b.post_recv(&rdma::RecvWr { wr_id: RECV, sges: &list }) {
                            Ok(()) => break,
                            Err(error) => assert_eq!(error.errno, Errno::ENOMEM),
                        }
                        poll();
                    }
                    loop {
                        let wr = rdma::SendWr::new(1, rdma::SendOp::Send, rdma::Data::Sges(&list));
                        match a.post_send(&wr) {
                            Ok(()) => break,
                            Err(error) => assert_eq!(error.errno, Errno::ENOMEM),
                        }
                        poll();
                    }
                }
                while sent.load(Ordering::Relaxed) < total || received.load(Ordering::Relaxed) < total {
                    if poll() == 0 {
                        std::thread::yield_now();
                    }
                    assert!(start.elapsed() < PATIENCE, "{sent:?} sent, {received:?} received of {total}");
                }
            });
        }
    });
    assert_eq!(wrong.into_inner(), 0);
    assert_eq!((sent.into_inner(), received.into_inner()), (total, total));
}

#[test]
fn one_queue_pair_and_one_queue() {
    let fixture = Fixture::open();
    let cq = fixture.context.create_cq(4096, None, 0).expect("ibv_create_cq");
    let pair = (side::create_qp(&fixture, &cq, 64), side::create_qp(&fixture, &cq, 64));
    join(&fixture, &pair.0, &pair.1);
    hammer(&fixture, &cq, &[pair]);
}

#[test]
fn many_queue_pairs_and_one_queue() {
    let fixture = Fixture::open();
    let cq = fixture.context.create_cq(4096, None, 0).expect("ibv_create_cq");
    let pairs: Vec<_> = (0..THREADS)
        .map(|_| {
            let pair = (side::create_qp(&fixture, &cq, 32), side::create_qp(&fixture, &cq, 32));
            join(&fixture, &pair.0, &pair.1);
            pair
        })
        .collect();
    hammer(&fixture, &cq, &pairs);
}

#[test]
fn a_queue_is_resized_under_load() {
    let fixture = Fixture::open();
    let cq = fixture.context.create_cq(1024, None, 0).expect("ibv_create_cq");
    let pair = (side::create_qp(&fixture, &cq, 64), side::create_qp(&fixture, &cq, 64));
    join(&fixture, &pair.0, &pair.1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let resizer = scope.spawn(|| {
            let mut resized = 0u32;
            while !stop.load(Ordering::Relaxed) {
                let size = if resized.is_multiple_of(2) { 300 } else { 2000 };
                // At most 64 sends and 64 receives can wait: both sizes are enough.
                cq.resize(size).expect("ibv_resize_cq");
                assert!(cq.cqe() >= size);
                resized += 1;
                std::thread::sleep(Duration::from_micros(100));
            }
            resized
        });
        hammer(&fixture, &cq, &[pair]);
        stop.store(true, Ordering::Relaxed);
        assert!(resizer.join().expect("the resizer") > 1);
    });
}

#[test]
fn a_queue_does_not_shrink_below_what_waits() {
    let fixture = Fixture::open();
    let cq = fixture.context.create_cq(64, None, 0).expect("ibv_create_cq");
    let pair = (side::create_qp(&fixture, &cq, 16), side::create_qp(&fixture, &cq, 16));
    join(&fixture, &pair.0, &pair.1);
    let mr = side::buffer(&fixture, LEN);
    for _ in 0..8 {
        side::recv(&pair.1, RECV, &[mr.sge(0, LEN)]);
        side::send(&pair.0, 1, &[mr.sge(0, LEN)]);
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(cq.resize(2).expect_err("16 wait").errno, Errno::EINVAL);
    conformance::collect(&cq, 16);
    cq.resize(2).expect("none waits");
}
