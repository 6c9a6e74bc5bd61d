//! A completion queue that overruns: there are events for the queue and for the queue pair whose completion is lost
//! (IBTA vol. 1, C10-91, 11.6.3.2).

use conformance::{Fixture, Wire};
use rdma::sys::{IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL};
use rdma::{Data, Gid, QpState, QpType, SendOp, SendWr, Status};
use serde::{Deserialize, Serialize};

use crate::pair::{End, events, region};
use crate::side::joined;
use crate::{APART, Ends, LARGE, NEAR, SMALL, with_peer};

/// The order to the peer.
#[derive(Serialize, Deserialize)]
struct Order {
    qpn: u32,
    gid: [u8; 16],
    /// Entries of its completion queue.
    cqe: u32,
}

/// The place of the peer.
#[derive(Serialize, Deserialize)]
struct Place {
    qpn: u32,
    cqe: u32,
    addr: u64,
    rkey: u32,
}

/// The peer, whose queue may be the one that overruns.
pub fn remote(mut wire: Wire) {
    let fixture = Fixture::open();
    while let Some(order) = wire.hear::<Option<Order>>() {
        let mr = region(&fixture, LARGE);
        let end = End::with_cq(&fixture, QpType::Rc, None, order.cqe);
        joined().up(&end.qp, QpType::Rc, order.qpn, Gid(order.gid));
        for i in 0..end.qp.cap().max_recv_wr {
            end.recv(u64::from(i), &[mr.sge(0, LARGE)]);
        }
        wire.tell(&Place { qpn: end.qp.number(), cqe: end.cq.cqe(), addr: mr.addr(), rkey: mr.rkey() });
        let overruns: bool = wire.hear();
        if overruns {
            assert_overrun(&fixture, &end);
            // The completions from before are still there.
            assert_eq!(end.completions(end.cq.cqe() as usize)[0], (0, Status::SUCCESS));
        } else {
            assert_eq!(end.state(), QpState::Rts);
        }
        wire.tell(&());
    }
}

fn assert_overrun(fixture: &Fixture, end: &End) {
    let mut kinds = events(fixture, 2);
    kinds.sort_unstable();
    assert_eq!(kinds, [IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL]);
    end.reaches(QpState::Err);
}

const ROUNDS: [(Ends, usize); 5] =
    [(NEAR, SMALL), (NEAR, LARGE), (APART, LARGE), (Ends::Threads, SMALL), (Ends::Threads, LARGE)];

fn connected(fixture: &Fixture, wire: &mut Wire, ours: u32, theirs: u32) -> (End, Place) {
    let end = End::with_cq(fixture, QpType::Rc, None, ours);
    let order = Order { qpn: end.qp.number(), gid: fixture.gid.0, cqe: theirs };
    let place: Place = wire.exchange(&Some(order));
    joined().up(&end.qp, QpType::Rc, place.qpn, fixture.gid);
    (end, place)
}

#[test]
fn at_the_sender() {
    for (ends, len) in ROUNDS {
        with_peer(ends, "overrun", |wire| {
            let fixture = Fixture::open();
            let mr = region(&fixture, len);
            let (end, Place { addr, rkey, .. }) = connected(&fixture, wire, 1, 64);
            let size = end.cq.cqe();
            assert!(size < end.qp.cap().max_send_wr, "a queue of {size} is too long for this test");
            for i in 0..=size {
                let list = [mr.sge(0, len)];
                let wr = SendWr::new(u64::from(i), SendOp::Write { addr, rkey }, Data::Sges(&list));
                end.qp.post_send(&wr).expect("ibv_post_send");
            }
            assert_overrun(&fixture, &end);
            assert_eq!(end.completions(size as usize)[0], (0, Status::SUCCESS));
            let () = wire.exchange(&false);
            wire.tell(&None::<Order>);
        });
    }
}

#[test]
fn at_the_receiver() {
    for (ends, len) in ROUNDS {
        for immediate in [false, true] {
            with_peer(ends, "overrun", |wire| {
                let fixture = Fixture::open();
                let mr = region(&fixture, len);
                let (end, Place { addr, rkey, cqe, .. }) = connected(&fixture, wire, 64, 1);
                assert!(cqe < end.qp.cap().max_send_wr, "a queue of {cqe} is too long for this test");
                for i in 0..=cqe {
                    let list = [mr.sge(0, len)];
                    let write = SendOp::WriteImm { addr, rkey, imm: i };
                    let op = if immediate { write } else { SendOp::Send };
                    end.qp.post_send(&SendWr::new(u64::from(i), op, Data::Sges(&list))).expect("ibv_post_send");
                }
                let () = wire.exchange(&true);
                assert_eq!(end.completions(cqe as usize)[0], (0, Status::SUCCESS));
                wire.tell(&None::<Order>);
            });
        }
    }
}
