//! Errors of requests that are built (`ibv_wr_post(3)`): all are posted, or none and the errno is that of the first.

use conformance::{Fixture, Joined};
use rdma::sys::*;
use rdma::{Data, Errno, QpOptions, QpType, SendOp, SendWr, Sge, Status};

use crate::pair::{CAP, End, region};
use crate::side::joined;

/// A queue pair that can have `operations` built, connected to itself.
fn end(fixture: &Fixture, qp_type: QpType, operations: u32, joined: &Joined) -> Result<End, Errno> {
    let cq = fixture.context.create_cq(64, None, 0).expect("ibv_create_cq");
    let options = QpOptions {
        qp_type,
        send_cq: Some(&cq),
        recv_cq: qp_type.receives().then_some(&cq),
        srq: None,
        xrcd: None,
        cap: CAP,
        sq_sig_all: false,
    };
    let qp = fixture.pd.create_qp_ex(&options, operations).map_err(|error| error.errno)?;
    joined.up(&qp, qp_type, qp.number(), fixture.gid);
    Ok(End { qp, cq, qp_type })
}

const NOTHING: Data<'static> = Data::Sges(&[]);
const WRITE: SendOp<'static> = SendOp::Write { addr: 0, rkey: 0 };

fn refused(end: &End, wrs: &[SendWr<'_>], errno: Errno, what: &str) {
    assert_eq!(end.qp.build(wrs).expect_err(what).errno, errno, "{what}");
    assert!(end.is_silent(), "{what}: something was posted");
    // No request of the failed section is left.
    end.qp.build(&[SendWr::new(9, WRITE, NOTHING)]).expect(what);
    assert_eq!(end.completions(1), [(9, Status::SUCCESS)], "{what}");
}

#[test]
fn operations_that_a_service_does_not_have() {
    let fixture = Fixture::open();
    let reliable = [
        IBV_QP_EX_WITH_RDMA_READ,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        IBV_QP_EX_WITH_SEND_WITH_INV,
        IBV_QP_EX_WITH_FLUSH,
        IBV_QP_EX_WITH_ATOMIC_WRITE,
    ];
    let connected = [
        IBV_QP_EX_WITH_RDMA_WRITE,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        IBV_QP_EX_WITH_BIND_MW,
        IBV_QP_EX_WITH_LOCAL_INV,
    ];
    for operation in reliable {
        assert!(end(&fixture, QpType::Rc, operation, &joined()).is_ok(), "RC {operation:#x}");
        assert_eq!(end(&fixture, QpType::Uc, operation, &joined()).err(), Some(Errno::EOPNOTSUPP), "UC {operation:#x}");
    }
    for operation in reliable.into_iter().chain(connected) {
        assert_eq!(end(&fixture, QpType::Ud, operation, &joined()).err(), Some(Errno::EOPNOTSUPP), "UD {operation:#x}");
    }
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        assert_eq!(end(&fixture, qp_type, IBV_QP_EX_WITH_TSO, &joined()).err(), Some(Errno::EOPNOTSUPP), "{qp_type:?}");
    }
}

#[test]
fn what_the_queue_pair_was_not_made_for() {
    let fixture = Fixture::open();
    let end = end(&fixture, QpType::Rc, IBV_QP_EX_WITH_RDMA_WRITE, &joined()).expect("ibv_create_qp_ex");
    let flush = SendOp::Flush { addr: 0, rkey: 0, len: 1, placement: 1, level: 0 };
    for op in [SendOp::Send, SendOp::Read { addr: 0, rkey: 0 }, flush, SendOp::LocalInv(1)] {
        let wrs = [SendWr::new(1, WRITE, NOTHING), SendWr::new(2, op, NOTHING)];
        refused(&end, &wrs, Errno::EOPNOTSUPP, &format!("{op:?}"));
    }
    // This queue pair was made without that interface.
    let plain = End::new(&fixture, QpType::Rc, None);
    let error = plain.qp.build(&[SendWr::new(1, WRITE, NOTHING)]).expect_err("no interface");
    assert_eq!(error.errno, Errno::EOPNOTSUPP);
}

#[test]
fn arguments_out_of_range() {
    let fixture = Fixture::open();
    let mr = region(&fixture, 64);
    let all = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_SEND;
    let end = end(&fixture, QpType::Rc, all, &joined()).expect("ibv_create_qp_ex");
    let good = SendWr::new(1, WRITE, NOTHING);
    let flush = |placement, level| SendOp::Flush { addr: mr.addr(), rkey: mr.rkey(), len: 64, placement, level };
    for (what, op) in [("no placement", flush(0, 0)), ("unknown placement", flush(4, 0)), ("level", flush(1, 2))] {
        refused(&end, &[good, SendWr::new(2, op, NOTHING)], Errno::EINVAL, what);
    }
    let list: Vec<Sge> = vec![mr.sge(0, 1); end.qp.cap().max_send_sge as usize + 1];
    refused(&end, &[good, SendWr::new(2, WRITE, Data::Sges(&list))], Errno::EINVAL, "too many entries");
    let bytes = vec![0; end.qp.cap().max_inline_data as usize + 1];
    refused(&end, &[good, SendWr::new(2, WRITE, Data::Inline(&[&bytes]))], Errno::EINVAL, "too much inline");
    let many = vec![good; end.qp.cap().max_send_wr as usize + 1];
    refused(&end, &many, Errno::ENOMEM, "too many requests");
    // The structures of ibv_post_send(3) have no members for it.
    let error = end.qp.post_send(&SendWr::new(1, flush(1, 0), NOTHING)).expect_err("a FLUSH that is posted");
    assert_eq!(error.errno, Errno::EINVAL);
}
