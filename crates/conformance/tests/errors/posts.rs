//! Errors of the post itself (`ibv_post_send(3)`, `ibv_post_recv(3)`, `ibv_post_srq_recv(3)`): an errno, and no other
//! effect.

use conformance::{Fixture, Joined};
use rdma::{Data, Errno, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, Status};

use crate::pair::{CAP, End, QKEY, pair, region, way};

const NOBODY: u32 = 0xff_fffd;
const REMOTE: [SendOp<'static>; 6] = [
    SendOp::Write { addr: 0, rkey: 0 },
    SendOp::WriteImm { addr: 0, rkey: 0, imm: 0 },
    SendOp::Read { addr: 0, rkey: 0 },
    SendOp::CompareSwap { addr: 0, rkey: 0, compare: 0, swap: 0 },
    SendOp::FetchAdd { addr: 0, rkey: 0, add: 0 },
    SendOp::SendInv(0),
];

fn refused(end: &End, wr: &SendWr<'_>, errno: Errno, what: &str) {
    let state = end.state();
    let error = end.qp.post_send(wr).expect_err(what);
    assert_eq!(error.errno, errno, "{what}");
    assert_eq!(end.state(), state, "{what}");
    assert!(end.is_silent(), "{what}");
}

#[test]
fn a_full_send_queue_is_enomem() {
    let fixture = Fixture::open();
    let end = End::new(&fixture, QpType::Rc, None);
    end.up(&fixture, &Joined { timeout: 0, ..Joined::default() }, NOBODY);
    let wr = SendWr::new(1, SendOp::Send, Data::Sges(&[]));
    for _ in 0..end.qp.cap().max_send_wr {
        end.qp.post_send(&wr).expect("there is room");
    }
    refused(&end, &wr, Errno::ENOMEM, "one more");
}

#[test]
fn places_are_free_when_the_completion_is_polled() {
    let fixture = Fixture::open();
    let (a, b) = pair(&fixture, QpType::Rc, &Joined::default());
    let room = a.qp.cap().max_send_wr;
    let wr = SendWr::new(1, SendOp::Write { addr: 0, rkey: 0 }, Data::Sges(&[]));
    for _ in 0..room {
        a.qp.post_send(&wr).expect("there is room");
    }
    assert_eq!(a.qp.post_send(&wr).expect_err("it is full").errno, Errno::ENOMEM);
    assert_eq!(a.completions(1).len(), 1);
    a.qp.post_send(&wr).expect("one place is free");
    assert_eq!(a.qp.post_send(&wr).expect_err("it is full again").errno, Errno::ENOMEM);
    drop(b);
}

#[test]
fn full_receive_queues_are_enomem() {
    let fixture = Fixture::open();
    let end = End::new(&fixture, QpType::Rc, None);
    Joined::default().init(&end.qp, QpType::Rc);
    for _ in 0..end.qp.cap().max_recv_wr {
        end.recv(1, &[]);
    }
    assert_eq!(end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).expect_err("full").errno, Errno::ENOMEM);

    let srq = fixture.pd.create_srq(8, 2, 0).expect("ibv_create_srq");
    for _ in 0..srq.query().expect("ibv_query_srq").max_wr {
        srq.post_recv(&RecvWr { wr_id: 1, sges: &[] }).expect("there is room");
    }
    assert_eq!(srq.post_recv(&RecvWr { wr_id: 1, sges: &[] }).expect_err("full").errno, Errno::ENOMEM);
}

#[test]
fn too_many_entries_are_einval() {
    let fixture = Fixture::open();
    let (a, _b) = pair(&fixture, QpType::Rc, &Joined::default());
    let mr = region(&fixture, 64);
    let cap = a.qp.cap();
    let list = vec![mr.sge(0, 1); cap.max_send_sge.max(cap.max_recv_sge) as usize + 1];
    let sends = &list[..cap.max_send_sge as usize + 1];
    refused(&a, &SendWr::new(1, SendOp::Write { addr: 0, rkey: 0 }, Data::Sges(sends)), Errno::EINVAL, "send");
    let recvs = &list[..cap.max_recv_sge as usize + 1];
    assert_eq!(a.qp.post_recv(&RecvWr { wr_id: 1, sges: recvs }).expect_err("recv").errno, Errno::EINVAL);
    let srq = fixture.pd.create_srq(8, 2, 0).expect("ibv_create_srq");
    let max = srq.query().expect("ibv_query_srq").max_sge as usize;
    let list = vec![mr.sge(0, 1); max + 1];
    assert_eq!(srq.post_recv(&RecvWr { wr_id: 1, sges: &list }).expect_err("srq").errno, Errno::EINVAL);
}

#[test]
fn too_much_inline_is_einval() {
    let fixture = Fixture::open();
    let (a, _b) = pair(&fixture, QpType::Rc, &Joined::default());
    let bytes = vec![0; a.qp.cap().max_inline_data as usize + 1];
    let write = SendOp::Write { addr: 0, rkey: 0 };
    refused(&a, &SendWr::new(1, write, Data::Inline(&[&bytes])), Errno::EINVAL, "one byte too many");
    for op in [SendOp::Read { addr: 0, rkey: 0 }, SendOp::FetchAdd { addr: 0, rkey: 0, add: 1 }] {
        refused(&a, &SendWr::new(1, op, Data::Inline(&[&bytes[..8]])), Errno::EINVAL, "results inline");
    }
}

/// Check that a request is posted, completes with a local operation error (11.6.2), and stops the send queue
/// (10.3.1.6).
fn completes_in_error(end: &End, wr: &SendWr<'_>, what: &str) {
    const LOC_QP_OP_ERR: Status = Status(rdma::sys::IBV_WC_LOC_QP_OP_ERR);
    end.qp.post_send(wr).expect(what);
    assert_eq!(end.completions(1), [(wr.wr_id, LOC_QP_OP_ERR)], "{what}");
    assert_eq!(end.state(), QpState::Sqe, "{what}");
    end.qp.set_state(QpState::Rts).expect("SQE to RTS");
}

#[test]
fn operations_of_other_services_complete_in_error() {
    let fixture = Fixture::open();
    let (uc, _other) = pair(&fixture, QpType::Uc, &Joined::default());
    for op in &REMOTE[2..] {
        completes_in_error(&uc, &SendWr::new(1, *op, Data::Sges(&[])), &format!("UC {op:?}"));
    }
    let ud = End::new(&fixture, QpType::Ud, None);
    ud.up(&fixture, &Joined::default(), 0);
    let ah = way(&fixture, &fixture.pd);
    for op in &REMOTE {
        let mut wr = SendWr::new(1, *op, Data::Sges(&[]));
        wr.to = Some((&ah, ud.qp.number(), QKEY));
        completes_in_error(&ud, &wr, &format!("UD {op:?}"));
    }
    let foreign = way(&fixture, &fixture.context.alloc_pd().expect("ibv_alloc_pd"));
    let mut wr = SendWr::new(1, SendOp::Send, Data::Sges(&[]));
    wr.to = Some((&foreign, ud.qp.number(), QKEY));
    completes_in_error(&ud, &wr, "C10-10: an address handle of another domain");
    let target = End::new(&fixture, QpType::XrcTgt, None);
    target.up(&fixture, &Joined::default(), NOBODY);
    let error = target.qp.post_send(&SendWr::new(1, SendOp::Send, Data::Sges(&[]))).expect_err("XRC target");
    assert_eq!(error.errno, Errno::EINVAL);
    let (rc, _b) = pair(&fixture, QpType::Rc, &Joined::default());
    let mut wr = SendWr::new(1, SendOp::Send, Data::Sges(&[]));
    wr.flags |= SendFlags::IP_CSUM;
    refused(&rc, &wr, Errno::EINVAL, "a checksum of a raw packet");
}

#[test]
fn posts_in_wrong_states_are_einval() {
    let fixture = Fixture::open();
    let joined = Joined::default();
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let end = End::new(&fixture, qp_type, None);
        let ah = way(&fixture, &fixture.pd);
        let mut wr = SendWr::new(1, SendOp::Send, Data::Sges(&[]));
        wr.to = (qp_type == QpType::Ud).then_some((&*ah, NOBODY, QKEY));
        refused(&end, &wr, Errno::EINVAL, "RESET");
        let error = end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).expect_err("receive in RESET");
        assert_eq!(error.errno, Errno::EINVAL);
        joined.init(&end.qp, qp_type);
        refused(&end, &wr, Errno::EINVAL, "INIT");
        end.recv(1, &[]);
        joined.rtr(&end.qp, qp_type, NOBODY, fixture.gid).expect("INIT to RTR");
        refused(&end, &wr, Errno::EINVAL, "RTR");
        // In ERR both are accepted, and flushed (IBTA vol. 1, 10.3.1.7).
        end.qp.set_state(QpState::Err).expect("to ERR");
        end.qp.post_send(&wr).expect("a send in ERR");
        end.recv(2, &[]);
        let all: Vec<_> = end.completions(3);
        assert_eq!(all.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 1, 2]);
        assert!(all.iter().all(|(_, status)| *status == rdma::Status::FLUSHED), "{all:?}");
    }
}

#[test]
fn who_has_no_receive_queue_takes_no_receive() {
    let fixture = Fixture::open();
    let srq = fixture.pd.create_srq(8, 2, 0).expect("ibv_create_srq");
    for end in [End::new(&fixture, QpType::Rc, Some(&srq)), End::new(&fixture, QpType::XrcIni, None)] {
        Joined::default().init(&end.qp, end.qp_type);
        let error = end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).expect_err("no receive queue");
        assert_eq!(error.errno, Errno::EINVAL, "{:?}", end.qp_type);
    }
}

/// The requests before a bad one in a list are posted; the bad one is named; those behind it are not posted.
#[test]
fn a_list_is_posted_up_to_the_bad_request() {
    let fixture = Fixture::open();
    let (a, _b) = pair(&fixture, QpType::Rc, &Joined::default());
    let mr = region(&fixture, 64);
    let list = vec![mr.sge(0, 1); CAP.max_send_sge.max(a.qp.cap().max_send_sge) as usize + 1];
    let write = SendOp::Write { addr: 0, rkey: 0 };
    let good = |id| SendWr::new(id, write, Data::Sges(&[]));
    let wrs = [good(1), good(2), SendWr::new(3, write, Data::Sges(&list)), good(4)];
    let (at, error) = a.qp.post_sends(&wrs).expect_err("the third is bad");
    assert_eq!((at, error.errno), (2, Errno::EINVAL));
    assert_eq!(a.completions(2).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2]);
    assert!(a.is_silent());
}
