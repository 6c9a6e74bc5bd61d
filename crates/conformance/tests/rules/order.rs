//! The order of requests, the bytes that a post copies, and the number of retries (IBTA vol. 1, 9.5, 9.7.5.2.8,
//! 10.3.1.5, 10.8.3.3).

use std::time::{Duration, Instant};

use conformance::{Fixture, Joined, until};
use rdma::sys::IBV_EVENT_SQ_DRAINED;
use rdma::{Data, QpAttr, QpAttrMask, QpState, QpType, SendFlags, SendOp, SendWr, Status};

use crate::pair::{events, pair, region};

const OK: Status = Status::SUCCESS;
const SMALL: usize = 64;
const LARGE: usize = 200_000;

/// A fenced request begins when earlier READs have ended, so that it sends the bytes that they brought (10.8.3.3).
#[test]
fn a_fenced_write_sends_what_was_read() {
    let fixture = Fixture::open();
    for len in [SMALL, LARGE] {
        let (a, _b) = pair(&fixture, QpType::Rc, &Joined::default());
        let [source, between, target] = [(); 3].map(|()| region(&fixture, len));
        source.write(0, &vec![0xa5; len]);
        let list = [between.sge(0, len)];
        let read = SendOp::Read { addr: source.addr(), rkey: source.rkey() };
        let write = SendOp::Write { addr: target.addr(), rkey: target.rkey() };
        let mut wrs = [SendWr::new(1, read, Data::Sges(&list)), SendWr::new(2, write, Data::Sges(&list))];
        wrs[1].flags |= SendFlags::FENCE;
        a.qp.post_sends(&wrs).expect("ibv_post_send");
        assert_eq!(a.completions(2), [(1, OK), (2, OK)]);
        let mut found = vec![0; len];
        target.read(0, &mut found);
        assert!(found == vec![0xa5; len], "{len} bytes");
    }
}

/// Inline data are the program's again when the post returns (`ibv_post_send(3)`). In SQD nothing is sent yet.
#[test]
fn inline_data_are_copied_by_the_post() {
    let fixture = Fixture::open();
    let (a, b) = pair(&fixture, QpType::Rc, &Joined::default());
    let target = region(&fixture, SMALL);
    let mut bytes = [0xa5; SMALL];
    a.qp.set_state(QpState::Sqd).expect("RTS to SQD");
    let write = SendOp::Write { addr: target.addr(), rkey: target.rkey() };
    a.qp.post_send(&SendWr::new(1, write, Data::Inline(&[&bytes]))).expect("ibv_post_send");
    bytes.fill(0);
    std::hint::black_box(&bytes);
    assert!(a.is_silent(), "sent in SQD");
    a.qp.set_state(QpState::Rts).expect("SQD to RTS");
    assert_eq!(a.completions(1), [(1, OK)]);
    let mut found = [0; SMALL];
    target.read(0, &mut found);
    assert_eq!(found, [0xa5; SMALL]);
    drop(b);
}

/// The end of draining is an event (10.3.1.5, 11.6.3.1).
#[test]
fn the_end_of_draining_is_told() {
    let fixture = Fixture::open();
    let (a, _b) = pair(&fixture, QpType::Rc, &Joined::default());
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    a.qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY).expect("RTS to SQD");
    assert_eq!(events(&fixture, 1), [IBV_EVENT_SQ_DRAINED]);
}

/// No more READs and atomics are outstanding than were agreed on, however many are posted (9.4.4).
#[test]
fn reads_wait_for_their_turn() {
    let fixture = Fixture::open();
    for len in [SMALL, LARGE] {
        let (a, b) = pair(&fixture, QpType::Rc, &Joined { reads: 1, dest_reads: 1, ..Joined::default() });
        let (here, there) = (region(&fixture, len), region(&fixture, len));
        let (addr, rkey) = (there.addr(), there.rkey());
        let list = [here.sge(0, len)];
        let word = [here.sge(0, 8)];
        let wrs: Vec<SendWr<'_>> = (0..8)
            .map(|id| match id % 2 {
                0 => SendWr::new(id, SendOp::Read { addr, rkey }, Data::Sges(&list)),
                _ => SendWr::new(id, SendOp::FetchAdd { addr, rkey, add: 1 }, Data::Sges(&word)),
            })
            .collect();
        a.qp.post_sends(&wrs).expect("ibv_post_send");
        assert!(a.completions(8).iter().all(|(_, status)| *status == OK), "{len} bytes");
        assert_eq!(there.word(0).load(std::sync::atomic::Ordering::Relaxed), 4);
        drop(b);
    }
}

/// There are as many retries as `rnr_retry` says, and between them as long as the target's `min_rnr_timer` says
/// (9.7.5.2.8).
#[test]
fn as_many_tries_as_agreed() {
    let fixture = Fixture::open();
    for tries in [0, 1, 3] {
        // Index 20 is 10.24 ms.
        let (a, b) = pair(&fixture, QpType::Rc, &Joined { rnr_retries: tries, rnr_timer: 20, ..Joined::default() });
        let start = Instant::now();
        a.qp.post_send(&SendWr::new(1, SendOp::Send, Data::Sges(&[]))).expect("ibv_post_send");
        assert_eq!(a.completions(1), [(1, Status::RNR_RETRIES)]);
        let took = start.elapsed();
        assert!(took >= Duration::from_micros(10_240) * u32::from(tries), "{tries} tries took {took:?}");
        assert_eq!(b.state(), QpState::Rts);
    }
}

/// An `rnr_retry` of 7 is for ever (9.7.5.2.8).
#[test]
fn a_late_receive_is_found() {
    let fixture = Fixture::open();
    let (a, b) = pair(&fixture, QpType::Rc, &Joined { rnr_timer: 10, ..Joined::default() });
    a.qp.post_send(&SendWr::new(1, SendOp::Send, Data::Sges(&[]))).expect("ibv_post_send");
    assert!(a.is_silent(), "without a receive");
    b.recv(100, &[]);
    assert_eq!((a.completions(1), b.completions(1)), (vec![(1, OK)], vec![(100, OK)]));
}

/// A request that is not signaled completes silently; with `sq_sig_all` there are no such requests (10.8.2).
#[test]
fn only_signaled_requests_complete() {
    let fixture = Fixture::open();
    let (a, _b) = pair(&fixture, QpType::Rc, &Joined::default());
    let target = region(&fixture, 8);
    let list = [target.sge(0, 8)];
    let (addr, rkey) = (target.addr(), target.rkey());
    let mut wrs = [1, 2, 3].map(|id| SendWr::new(id, SendOp::Write { addr, rkey }, Data::Sges(&list)));
    wrs[0].flags = SendFlags::empty();
    wrs[2].flags = SendFlags::empty();
    a.qp.post_sends(&wrs).expect("ibv_post_send");
    assert_eq!(a.completions(1), [(2, OK)]);
    assert!(a.is_silent());
}

/// RESET forgets everything, and the queue pair is as new (10.3.1).
#[test]
fn a_queue_pair_is_used_again_after_reset() {
    let fixture = Fixture::open();
    let (a, b) = pair(&fixture, QpType::Rc, &Joined::default());
    for round in 0..2 {
        b.recv(100, &[]);
        a.recv(7, &[]);
        a.qp.post_send(&SendWr::new(round, SendOp::Send, Data::Sges(&[]))).expect("ibv_post_send");
        assert_eq!((a.completions(1), b.completions(1)), (vec![(round, OK)], vec![(100, OK)]));
        for (end, peer) in [(&a, &b), (&b, &a)] {
            end.qp.set_state(QpState::Reset).expect("to RESET");
            end.up(&fixture, &Joined::default(), peer.qp.number());
        }
        until("nothing", || a.is_silent().then_some(()));
    }
}
