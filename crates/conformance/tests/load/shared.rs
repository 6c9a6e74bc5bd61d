//! A shared receive queue with sixty-four senders, each a process of its own.

use std::sync::Arc;

use conformance::side::{self, Place};
use conformance::{Fixture, Joined, Remote, Wire, collect, until};
use rdma::{Data, Gid, QpAttrMask, QpCap, QpOptions, QpState, QpType, RecvWr, SendOp, SendWr, Status, Wc};

use crate::accounts::{self, HEAD, Ledger};
use crate::each;

const SENDERS: usize = 64;
/// The messages of each.
const SHORT: u64 = 100;
/// Receives posted: far fewer than messages under way, so that senders meet RNR NAKs.
const RECEIVES: usize = 48;
const LARGEST: usize = 2000;
/// The requests of one sender under way.
const DEEP: u64 = 16;

fn length(number: u64) -> usize {
    if number.is_multiple_of(16) { LARGEST } else { HEAD + (number as usize * 3) % 200 }
}

pub fn remote(mut wire: Wire) {
    let own: u64 = wire.hear();
    let fixture = Fixture::open();
    let side = side::Side::new(&fixture);
    let mr = side::buffer(&fixture, DEEP as usize * LARGEST);
    let peer: Place = wire.exchange(&side::place(&fixture, &side.qp));
    side::up(&side.qp, &peer);
    let () = wire.exchange(&());
    let mut done = 0;
    for number in 0..each(SHORT) {
        if number - done == DEEP {
            assert_eq!(collect(&side.cq, 1)[0].status(), Status::SUCCESS);
            done += 1;
        }
        let at = (number % DEEP) as usize * LARGEST;
        let mut message = vec![0; length(number)];
        accounts::fill(&mut message, own, number);
        mr.write(at, &message);
        let sges = [mr.sge(at, message.len())];
        side.qp.post_send(&SendWr::new(number, SendOp::Send, Data::Sges(&sges))).expect("ibv_post_send");
    }
    let rest = collect(&side.cq, (each(SHORT) - done) as usize);
    assert!(rest.iter().all(|wc| wc.status() == Status::SUCCESS), "{rest:?}");
    let () = wire.exchange(&());
}

#[test]
fn a_shared_receive_queue_with_sixty_four_senders() {
    let _alone = crate::alone();
    let mut remotes: Vec<Remote> = (0..SENDERS).map(|_| Remote::start("remote_side", "shared", &[])).collect();
    let fixture = Fixture::open();
    let cq = fixture.context.create_cq(1024, None, 0).expect("ibv_create_cq");
    let srq = fixture.pd.create_srq(RECEIVES as u32, 1, 0).expect("ibv_create_srq");
    let mr = side::buffer(&fixture, RECEIVES * LARGEST);
    let post = |slot: usize| {
        let sges = [mr.sge(slot * LARGEST, LARGEST)];
        srq.post_recv(&RecvWr { wr_id: slot as u64, sges: &sges }).expect("ibv_post_srq_recv");
    };
    (0..RECEIVES).for_each(post);
    let options = QpOptions {
        qp_type: QpType::Rc,
        send_cq: Some(&cq),
        recv_cq: Some(&cq),
        srq: Some(&srq),
        xrcd: None,
        cap: QpCap { max_send_wr: 1, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline_data: 0 },
        sq_sig_all: true,
    };
    let qps: Vec<Arc<rdma::Qp>> =
        remotes.iter().map(|_| fixture.pd.create_qp(&options).expect("ibv_create_qp")).collect();
    for (at, remote) in remotes.iter_mut().enumerate() {
        remote.wire.tell(&at);
        let peer: Place = remote.wire.exchange(&side::place(&fixture, &qps[at]));
        // 5 ms between the attempts of senders that find no receive: with 10 us, most packets of sixty-four senders are
        // attempts.
        let joined = Joined { rnr_timer: 18, ..Joined::default() };
        joined.up(&qps[at], QpType::Rc, peer.qpn, Gid(peer.gid));
    }
    for remote in &mut remotes {
        let () = remote.wire.exchange(&());
    }
    let received = Ledger::new("received", SENDERS as u64, each(SHORT));
    let mut reader = received.reader();
    let mut out = [Wc::default(); 16];
    while !received.is_complete() {
        let count = until("a message", || match cq.poll(&mut out).expect("ibv_poll_cq") {
            0 => None,
            count => Some(count),
        });
        for wc in &out[..count] {
            assert_eq!(wc.status(), Status::SUCCESS);
            let mut message = vec![0; wc.byte_len() as usize];
            mr.read(wc.wr_id() as usize * LARGEST, &mut message);
            let (from, number) = accounts::read(&message);
            assert_eq!(qps[from as usize].number(), wc.qp_num(), "the queue pair of another");
            assert_eq!(message.len(), length(number));
            reader.take(from, number);
            post(wc.wr_id() as usize);
        }
    }
    for remote in &mut remotes {
        let () = remote.wire.exchange(&());
    }
    println!("counted: {SENDERS} senders to one shared receive queue of {RECEIVES}: {} received", received.count());
    for qp in &qps {
        assert_eq!(qp.query(QpAttrMask::STATE).expect("ibv_query_qp").state, QpState::Rts);
    }
    assert!(remotes.iter_mut().all(Remote::ended_well));
}
