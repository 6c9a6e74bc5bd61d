//! Path MTUs that differ (IBTA vol. 1, 9.7.4.1.6, 9.7.5.1.6): rules about packets on a wire that are visible here, too.

use conformance::{Fixture, Joined};
use rdma::{Data, QpState, QpType, SendOp, SendWr, Status};

use crate::pair::{End, region};

const LEN: usize = 40_000;
/// `enum ibv_mtu`
const MTU_1024: u8 = 3;
const MTU_4096: u8 = 5;

#[test]
fn packets_of_another_length_are_refused() {
    let fixture = Fixture::open();
    let mr = region(&fixture, LEN);
    let (ok, invalid, response) =
        (Status::SUCCESS, Status::REMOTE_INVALID_REQUEST, Status(rdma::sys::IBV_WC_BAD_RESP_ERR));
    let remote = |read| match read {
        true => SendOp::Read { addr: mr.addr(), rkey: mr.rkey() },
        false => SendOp::Write { addr: mr.addr(), rkey: mr.rkey() },
    };
    for (ours, theirs) in [(MTU_4096, MTU_1024), (MTU_1024, MTU_4096)] {
        for (op, refused) in [(SendOp::Send, invalid), (remote(false), invalid), (remote(true), response)] {
            for (len, wanted) in [(1024, ok), (1025, refused), (LEN, refused)] {
                let (a, b) = (End::new(&fixture, QpType::Rc, None), End::new(&fixture, QpType::Rc, None));
                a.up(&fixture, &Joined { mtu: ours, ..Joined::default() }, b.qp.number());
                b.up(&fixture, &Joined { mtu: theirs, ..Joined::default() }, a.qp.number());
                b.recv(100, &[mr.sge(0, LEN)]);
                a.qp.post_send(&SendWr::new(1, op, Data::Sges(&[mr.sge(0, len)]))).expect("ibv_post_send");
                assert_eq!(a.completions(1), [(1, wanted)], "{ours} {theirs} {op:?} {len}");
                let state = if wanted == ok { QpState::Rts } else { QpState::Err };
                assert_eq!(a.state(), state, "{ours} {theirs} {op:?} {len}");
            }
        }
    }
}
