//! UC and UD: an error here stops the send queue alone (IBTA vol. 1, 10.3.1.6); a message with an error there is lost
//! silently (9.8.2, 9.8.3).

use conformance::{Fixture, Joined};
use rdma::{Access, Data, QpState, QpType, SendOp, SendWr, Status};

use crate::pair::{End, QKEY, pair, region, way};

const SMALL: usize = 64;
const LARGE: usize = 100_000;

#[test]
fn a_local_error_leads_to_sqe_and_back() {
    let fixture = Fixture::open();
    for qp_type in [QpType::Uc, QpType::Ud] {
        let (a, b) = match qp_type {
            QpType::Uc => pair(&fixture, qp_type, &Joined::default()),
            _ => {
                let ends = (End::new(&fixture, qp_type, None), End::new(&fixture, qp_type, None));
                ends.0.up(&fixture, &Joined::default(), 0);
                ends.1.up(&fixture, &Joined::default(), 0);
                ends
            }
        };
        let mr = region(&fixture, 256);
        let ah = way(&fixture, &fixture.pd);
        let (good, bad) = ([mr.sge(0, 8)], [rdma::Sge::raw(mr.addr(), 257, mr.lkey())]);
        let wr = |id, list, to: &End| {
            let mut wr = SendWr::new(id, SendOp::Send, Data::Sges(list));
            wr.to = (qp_type == QpType::Ud).then_some((&*ah, to.qp.number(), QKEY));
            wr
        };
        a.recv(200, &[mr.sge(0, 128)]);
        b.recv(100, &[mr.sge(0, 128)]);
        b.recv(101, &[mr.sge(0, 128)]);
        let wrs = [wr(1, &good, &b), wr(2, &bad, &b), wr(3, &good, &b), wr(4, &good, &b)];
        a.qp.post_sends(&wrs).expect("ibv_post_send");
        let (ok, prot, flushed) = (Status::SUCCESS, Status::LOCAL_PROTECTION, Status::FLUSHED);
        assert_eq!(a.completions(4), [(1, ok), (2, prot), (3, flushed), (4, flushed)], "{qp_type:?}");
        assert_eq!(a.state(), QpState::Sqe, "{qp_type:?}");
        assert_eq!(b.completions(1), [(100, ok)]);
        // A request that is posted in SQE is flushed; receives go on.
        a.qp.post_send(&wr(5, &good, &b)).expect("a send in SQE");
        assert_eq!(a.completions(1), [(5, flushed)]);
        b.qp.post_send(&wr(6, &good, &a)).expect("ibv_post_send");
        assert_eq!(a.completions(1), [(200, ok)], "{qp_type:?}: a receive in SQE");
        a.qp.set_state(QpState::Rts).expect("SQE to RTS");
        a.qp.post_send(&wr(7, &good, &b)).expect("ibv_post_send");
        assert_eq!(a.completions(1), [(7, ok)]);
        assert_eq!(b.completions(2), [(6, ok), (101, ok)], "{qp_type:?}: after SQE");
    }
}

#[test]
fn uc_access_errors_are_silent() {
    let fixture = Fixture::open();
    for len in [SMALL, LARGE] {
        let joined = Joined::default();
        let (a, b) = pair(&fixture, QpType::Uc, &joined);
        let source = region(&fixture, len);
        let target = region(&fixture, len);
        let readonly = fixture.pd.reg_mr(len, Access::REMOTE_READ).expect("ibv_reg_mr");
        let foreign = fixture.context.alloc_pd().expect("ibv_alloc_pd");
        let foreign = foreign.reg_mr(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("ibv_reg_mr");
        let places = [
            (target.addr(), target.rkey() ^ 1),
            (target.addr() + 1, target.rkey()),
            (target.addr() - 1, target.rkey()),
            (readonly.addr(), readonly.rkey()),
            (foreign.addr(), foreign.rkey()),
        ];
        for (at, (addr, rkey)) in places.into_iter().enumerate() {
            let list = [source.sge(0, len)];
            source.write(0, &vec![0xaa; len]);
            a.qp.post_send(&SendWr::new(1, SendOp::Write { addr, rkey }, Data::Sges(&list))).expect("ibv_post_send");
            // The next message is whole again.
            b.recv(100, &[target.sge(0, 8)]);
            a.qp.post_send(&SendWr::new(2, SendOp::Send, Data::Sges(&[source.sge(0, 8)]))).expect("ibv_post_send");
            let ok = Status::SUCCESS;
            assert_eq!(a.completions(2), [(1, ok), (2, ok)], "{len} bytes, place {at}");
            assert_eq!(b.completions(1), [(100, ok)], "{len} bytes, place {at}");
            assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Rts));
            let mut now = vec![0; len];
            for mr in [&readonly, &foreign] {
                mr.read(0, &mut now);
                assert!(now.iter().all(|byte| *byte == 0), "{len} bytes, place {at}: written nevertheless");
            }
        }
        fixture.context.set_nonblocking().expect("fcntl");
        assert!(fixture.context.async_event().is_err(), "an event");
    }
}

#[test]
fn a_receive_that_is_too_short_fails_there() {
    let fixture = Fixture::open();
    for len in [SMALL, LARGE] {
        let (a, b) = pair(&fixture, QpType::Uc, &Joined::default());
        let mr = region(&fixture, len);
        b.recv(100, &[mr.sge(0, len - 1)]);
        b.recv(101, &[mr.sge(0, len)]);
        a.qp.post_send(&SendWr::new(1, SendOp::Send, Data::Sges(&[mr.sge(0, len)]))).expect("ibv_post_send");
        assert_eq!(a.completions(1), [(1, Status::SUCCESS)]);
        assert_eq!(b.completions(2), [(100, Status::LOCAL_LENGTH), (101, Status::FLUSHED)]);
        assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Err));
    }
}

#[test]
fn datagrams() {
    let fixture = Fixture::open();
    let (a, b) = (End::new(&fixture, QpType::Ud, None), End::new(&fixture, QpType::Ud, None));
    a.up(&fixture, &Joined::default(), 0);
    b.up(&fixture, &Joined::default(), 0);
    let ah = way(&fixture, &fixture.pd);
    let mr = region(&fixture, 8192);
    let send = |id, len, qpn, qkey| {
        let list = [mr.sge(0, len)];
        let mut wr = SendWr::new(id, SendOp::Send, Data::Sges(&list));
        wr.to = Some((&*ah, qpn, qkey));
        a.qp.post_send(&wr).expect("ibv_post_send");
    };
    let ok = Status::SUCCESS;
    // A message with the wrong key, and one to a number of no queue pair, are lost (9.6.1.4).
    b.recv(100, &[mr.sge(0, 4096 + 40)]);
    send(1, 8, b.qp.number(), QKEY + 1);
    send(2, 8, 0xff_fff0, QKEY);
    assert_eq!(a.completions(2), [(1, ok), (2, ok)]);
    assert!(b.is_silent());
    // A datagram is one packet.
    send(3, 4096, b.qp.number(), QKEY);
    assert_eq!((a.completions(1), b.completions(1)), (vec![(3, ok)], vec![(100, ok)]));
    send(4, 4097, b.qp.number(), QKEY);
    assert_eq!(a.completions(1), [(4, Status::LOCAL_LENGTH)]);
    assert_eq!(a.state(), QpState::Sqe);
    a.qp.set_state(QpState::Rts).expect("SQE to RTS");
    // The 40 bytes of the GRH count.
    b.recv(101, &[mr.sge(0, 47)]);
    b.recv(102, &[mr.sge(0, 48)]);
    send(5, 8, b.qp.number(), QKEY);
    assert_eq!(a.completions(1), [(5, ok)]);
    assert!(b.is_silent(), "9.9.3, class D: dropped");
    assert_eq!(b.state(), QpState::Rts);
    send(6, 7, b.qp.number(), QKEY);
    assert_eq!((a.completions(1), b.completions(1)), (vec![(6, ok)], vec![(101, ok)]), "the receive is there still");
    send(7, 8, b.qp.number(), QKEY);
    assert_eq!((a.completions(1), b.completions(1)), (vec![(7, ok)], vec![(102, ok)]));
}
