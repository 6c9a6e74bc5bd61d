//! Completion channels and events of shared receive queues (`ibv_get_cq_event(3)`, `ibv_modify_srq(3)`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conformance::{Fixture, collect, until};
use rdma::sys::IBV_EVENT_SRQ_LIMIT_REACHED;
use rdma::{AsyncSource, Errno, QpCap, QpOptions, QpType, RecvWr, SendFlags};

use conformance::side::{self, LEN, RECV};

#[test]
fn a_channel_without_blocking_says_eagain() {
    let fixture = Fixture::open();
    let channel = fixture.context.create_comp_channel().expect("ibv_create_comp_channel");
    channel.set_nonblocking().expect("fcntl");
    assert_eq!(channel.event().expect_err("nothing happened").errno, Errno::EAGAIN);
    let cq = fixture.context.create_cq(16, Some(&channel), 5).expect("ibv_create_cq");
    let qp = side::create_qp(&fixture, &cq, 8);
    side::up(&qp, &side::place(&fixture, &qp));
    let mr = side::buffer(&fixture, LEN);
    // The queue is not armed: there is no event.
    side::recv(&qp, RECV, &[mr.sge(0, LEN)]);
    side::send(&qp, 1, &[mr.sge(0, LEN)]);
    collect(&cq, 2);
    assert_eq!(channel.event().expect_err("not armed").errno, Errno::EAGAIN);
    // The queue is armed: there is one event for two completions.
    cq.arm(false).expect("ibv_req_notify_cq");
    side::recv(&qp, RECV, &[mr.sge(0, LEN)]);
    side::send(&qp, 1, &[mr.sge(0, LEN)]);
    assert_eq!(until("an event", || channel.event().ok()), 5);
    collect(&cq, 2);
    assert_eq!(channel.event().expect_err("one event").errno, Errno::EAGAIN);
}

#[test]
fn only_solicited_completions() {
    let fixture = Fixture::open();
    let channel = fixture.context.create_comp_channel().expect("ibv_create_comp_channel");
    channel.set_nonblocking().expect("fcntl");
    let cq = fixture.context.create_cq(16, Some(&channel), 5).expect("ibv_create_cq");
    let qp = side::create_qp(&fixture, &cq, 8);
    side::up(&qp, &side::place(&fixture, &qp));
    let mr = side::buffer(&fixture, LEN);
    cq.arm(true).expect("ibv_req_notify_cq");
    for solicited in [false, true] {
        side::recv(&qp, RECV, &[mr.sge(0, LEN)]);
        let list = [mr.sge(0, LEN)];
        let mut wr = rdma::SendWr::new(1, rdma::SendOp::Send, rdma::Data::Sges(&list));
        wr.flags.set(SendFlags::SOLICITED, solicited);
        qp.post_send(&wr).expect("ibv_post_send");
        collect(&cq, 2);
        match solicited {
            false => assert_eq!(channel.event().expect_err("not solicited").errno, Errno::EAGAIN),
            true => assert_eq!(until("an event", || channel.event().ok()), 5),
        }
    }
}

/// `ibv_destroy_cq` waits until every event is acknowledged.
#[test]
fn destruction_waits_for_acknowledgement() {
    let fixture = Fixture::open();
    let channel = fixture.context.create_comp_channel().expect("ibv_create_comp_channel");
    let cq = fixture.context.create_cq(16, Some(&channel), 5).expect("ibv_create_cq");
    let qp = side::create_qp(&fixture, &cq, 8);
    side::up(&qp, &side::place(&fixture, &qp));
    cq.arm(false).expect("ibv_req_notify_cq");
    let mr = side::buffer(&fixture, LEN);
    side::recv(&qp, RECV, &[mr.sge(0, LEN)]);
    side::send(&qp, 1, &[mr.sge(0, LEN)]);
    let event = channel.pending_event().expect("ibv_get_cq_event");
    collect(&cq, 2);
    drop(qp);
    let destroyed = Arc::new(AtomicBool::new(false));
    let cq = Arc::into_inner(cq).expect("the last one");
    let thread = std::thread::spawn({
        let destroyed = destroyed.clone();
        move || {
            drop(cq);
            destroyed.store(true, Ordering::SeqCst);
        }
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!destroyed.load(Ordering::SeqCst), "destroyed while an event is not acknowledged");
    drop(event);
    until("the destruction", || destroyed.load(Ordering::SeqCst).then_some(()));
    thread.join().expect("the thread");
}

/// There is one event when fewer than the limit are left; then the limit is zero.
#[test]
fn the_limit_of_a_shared_receive_queue() {
    const COOKIE: u64 = 99;
    let fixture = Fixture::open();
    fixture.context.set_nonblocking().expect("fcntl");
    let cq = fixture.context.create_cq(64, None, 0).expect("ibv_create_cq");
    let srq = fixture.pd.create_srq(16, 1, COOKIE).expect("ibv_create_srq");
    let cap = QpCap { max_send_wr: 16, max_send_sge: 1, ..QpCap::default() };
    let options = QpOptions {
        qp_type: QpType::Rc,
        send_cq: Some(&cq),
        recv_cq: Some(&cq),
        srq: Some(&srq),
        xrcd: None,
        cap,
        sq_sig_all: true,
    };
    let qp = fixture.pd.create_qp(&options).expect("ibv_create_qp");
    side::up(&qp, &side::place(&fixture, &qp));
    let mr = side::buffer(&fixture, LEN);
    for wr_id in 0..8 {
        srq.post_recv(&RecvWr { wr_id: RECV + wr_id, sges: &[mr.sge(0, LEN)] }).expect("ibv_post_srq_recv");
    }
    srq.set_limit(4).expect("ibv_modify_srq");
    assert_eq!(srq.query().expect("ibv_query_srq").limit, 4);
    let event = || fixture.context.async_event().ok();
    for sent in 1..=8 {
        side::send(&qp, 1, &[mr.sge(0, LEN)]);
        collect(&cq, 2);
        match event() {
            Some(event) if sent == 5 => {
                assert_eq!((event.kind, event.source), (IBV_EVENT_SRQ_LIMIT_REACHED, AsyncSource::Srq(COOKIE)));
                assert_eq!(srq.query().expect("ibv_query_srq").limit, 0);
            }
            None if sent != 5 => {}
            other => panic!("after {sent} of 8: {other:?}"),
        }
    }
}
