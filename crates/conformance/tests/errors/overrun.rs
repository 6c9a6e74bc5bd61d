//! A completion queue that overruns: the queue and the queue pair whose completion is lost are told of
//! (IBTA vol. 1, C10-91, 11.6.3.2).

use conformance::{Bed, Joint};
use rdma::sys::{IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL};
use rdma::{Data, QpState, QpType, SendOp, SendWr, Status};

use crate::pair::{End, events};

fn pair(bed: &Bed, a: u32, b: u32) -> (End, End) {
    let (a, b) = (End::with_cq(bed, QpType::Rc, None, a), End::with_cq(bed, QpType::Rc, None, b));
    a.up(bed, &Joint::default(), b.qp.number());
    b.up(bed, &Joint::default(), a.qp.number());
    (a, b)
}

#[test]
fn at_the_sender() {
    let bed = Bed::open();
    let (a, b) = pair(&bed, 1, 16);
    let size = a.cq.cqe();
    assert!(size < a.qp.cap().max_send_wr, "a queue of {size} is too long for this test");
    for i in 0..=size {
        let wr = SendWr::new(u64::from(i), SendOp::Write { addr: 0, rkey: 0 }, Data::Sges(&[]));
        a.qp.post_send(&wr).expect("ibv_post_send");
    }
    let mut kinds = events(&bed, 2);
    kinds.sort_unstable();
    assert_eq!(kinds, [IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL]);
    a.reaches(QpState::Err);
    assert_eq!(b.state(), QpState::Rts);
    // What was there before is there still.
    assert_eq!(a.completions(size as usize)[0], (0, Status::SUCCESS));
}

#[test]
fn at_the_receiver() {
    let bed = Bed::open();
    let (a, b) = pair(&bed, 16, 1);
    let size = b.cq.cqe();
    for i in 0..=size {
        b.recv(u64::from(i), &[]);
    }
    for i in 0..=size {
        a.qp.post_send(&SendWr::new(u64::from(i), SendOp::Send, Data::Sges(&[]))).expect("ibv_post_send");
    }
    let mut kinds = events(&bed, 2);
    kinds.sort_unstable();
    assert_eq!(kinds, [IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL]);
    b.reaches(QpState::Err);
}
