//! Prepared lists: changes take effect, and nothing is allocated.

use conformance::Joined;
use rdma::{Access, AhAttr, Data, Errno, QpCap, QpOptions, QpType, RecvList, RecvWr, SendFlags, SendList, SendOp};
use rdma::{SendWr, Status, Wc, WcFlags};

use crate::counting::allocations;
use crate::pair::{DEPTH, INLINE, Pair};

const ROUNDS: u64 = 200;
const LEN: usize = 4096;
/// Places in the region: a word for atomics, its old value, the written bytes, the sent bytes, the received bytes.
const WORD: usize = 0;
const BEFORE: usize = 8;
const SOURCE: usize = 64;
const TARGET: usize = 1024;
const RECEIVED: usize = 2048;

/// The next `count` completions, without an allocation.
fn poll(pair: &Pair, wcs: &mut [Wc]) {
    let mut found = 0;
    conformance::until("completions", || {
        found += pair.cq.poll(&mut wcs[found..]).expect("ibv_poll_cq");
        (found == wcs.len()).then_some(())
    });
    assert!(wcs.iter().all(|wc| wc.status() == Status::SUCCESS));
}

#[test]
fn changed_requests_do_what_they_say_and_nothing_is_allocated() {
    let pair = Pair::new();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let mr = pair.fixture.pd.reg_mr(LEN, access).expect("ibv_reg_mr");
    let (addr, rkey) = (mr.addr(), mr.rkey());
    let mut sends = SendList::new(&[
        SendWr::new(0, SendOp::Write { addr, rkey }, Data::Sges(&[mr.sge(SOURCE, 16)])),
        SendWr::new(0, SendOp::FetchAdd { addr: addr + WORD as u64, rkey, add: 0 }, Data::Sges(&[mr.sge(BEFORE, 8)])),
        SendWr::new(0, SendOp::SendImm(0), Data::Inline(&[&[0; INLINE as usize]])),
    ])
    .expect("a list");
    let mut recvs = RecvList::new(&[RecvWr { wr_id: 0, sges: &[mr.sge(RECEIVED, LEN - RECEIVED)] }]);
    let mut wcs = [Wc::default(); 4];
    let (mut seen, mut sum) = ([0; 16], 0);

    let ((), count) = allocations(|| {
        for round in 0..ROUNDS {
            let (piece, at) = (1 + round as usize % 16, round as usize % 32);
            mr.write(SOURCE + at, &[round as u8 | 1; 16][..piece]);
            mr.write(TARGET + at, &[0; 16]);
            recvs.request(0).wr_id(4 * round).sge(0, mr.sge(RECEIVED + at, 64));
            pair.to.post_recv_list(&mut recvs).expect("ibv_post_recv");
            let remote = addr + (TARGET + at) as u64;
            sends.request(0).wr_id(4 * round + 1).remote(remote, rkey).sge(0, mr.sge(SOURCE + at, piece));
            sends.request(1).wr_id(4 * round + 2).add(round);
            sends.request(2).wr_id(4 * round + 3).imm(round as u32).inline(&[round as u8; 16][..piece]);
            pair.from.post_send_list(&mut sends).expect("ibv_post_send");
            poll(&pair, &mut wcs);

            let mut ids = [0; 4];
            ids.iter_mut().zip(&wcs).for_each(|(id, wc)| *id = wc.wr_id());
            ids.sort_unstable();
            assert_eq!(ids, [0, 1, 2, 3].map(|i| 4 * round + i));
            mr.read(TARGET + at, &mut seen);
            assert_eq!(seen[..piece], [round as u8 | 1; 16][..piece], "round {round}");
            assert_eq!(seen[piece..], [0; 16][piece..], "nothing beyond the length of round {round}");
            mr.read(RECEIVED + at, &mut seen[..piece]);
            assert_eq!(seen[..piece], [round as u8; 16][..piece], "the inline data of round {round}");
            let mut before = [0; 8];
            mr.read(BEFORE, &mut before);
            assert_eq!(u64::from_ne_bytes(before), sum, "round {round}");
            sum += round;
            let received = wcs.iter().find(|wc| wc.flags().contains(WcFlags::WITH_IMM)).expect("the receive");
            assert_eq!((received.imm(), received.byte_len()), (Some(round as u32), piece as u32));
        }
    });
    assert_eq!(count, 0, "allocations of {ROUNDS} rounds");
}

#[test]
fn the_counter_counts() {
    let pair = Pair::new();
    let mr = pair.fixture.pd.reg_mr(LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("ibv_reg_mr");
    let op = SendOp::Write { addr: mr.addr(), rkey: mr.rkey() };
    let list = [mr.sge(64, 8)];
    let wrs: Vec<SendWr<'_>> = (0..5).map(|wr_id| SendWr::new(wr_id, op, Data::Sges(&list))).collect();
    for (wrs, allocates) in [(&wrs[..4], false), (&wrs[..], true)] {
        let (posted, count) = allocations(|| pair.from.post_sends(wrs));
        posted.expect("ibv_post_send");
        pair.done(wrs.len());
        assert_eq!(count > 0, allocates, "a longer list that is built with the call is allocated");
    }
}

#[test]
fn a_part_is_posted_and_the_first_refused_is_named() {
    let pair = Pair::new();
    let mr = pair.fixture.pd.reg_mr(LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("ibv_reg_mr");
    let (addr, rkey) = (mr.addr(), mr.rkey());
    let write = |wr_id| SendWr::new(wr_id, SendOp::Write { addr, rkey }, Data::Sges(&[]));
    let wrs: Vec<SendWr<'_>> = (0..u64::from(2 * DEPTH)).map(write).collect();
    let mut list = SendList::new(&wrs).expect("a list");

    pair.from.post_send_part(&mut list, 3..5).expect("ibv_post_send");
    assert_eq!(pair.done(2).iter().map(Wc::wr_id).collect::<Vec<_>>(), [3, 4]);

    // The queue has room for fewer requests than there are; the device may have made it larger.
    let room = pair.from.cap().max_send_wr as usize;
    if room < wrs.len() {
        let (at, error) = pair.from.post_send_list(&mut list).expect_err("more than the queue has");
        assert_eq!((at, error.errno), (room, Errno::ENOMEM));
        pair.done(room);
        pair.from.post_send_part(&mut list, at..wrs.len()).expect("the rest");
        pair.done(wrs.len() - room);
    }
}

#[test]
fn receives_of_a_shared_queue_are_posted_from_a_list() {
    let pair = Pair::new();
    let fixture = &pair.fixture;
    let mr = fixture.pd.reg_mr(LEN, Access::LOCAL_WRITE).expect("ibv_reg_mr");
    let srq = fixture.pd.create_srq(4, 1, 0).expect("ibv_create_srq");
    let qp = fixture.pd.create_qp(&QpOptions { srq: Some(&srq), ..options(&pair, QpType::Rc) }).expect("ibv_create_qp");
    Joined::default().up(&qp, QpType::Rc, qp.number(), fixture.gid);
    let sges = [mr.sge(64, 8)];
    let mut list = RecvList::new(&[1, 2, 3].map(|wr_id| RecvWr { wr_id, sges: &sges }));
    list.request(2).sge(0, mr.sge(128, 8));
    srq.post_recv_part(&mut list, 1..3).expect("ibv_post_srq_recv");
    mr.write(0, b"first...second..");
    for at in [0, 8] {
        qp.post_send(&SendWr::new(9, SendOp::Send, Data::Sges(&[mr.sge(at, 8)]))).expect("ibv_post_send");
    }
    let mut ids: Vec<u64> = pair.done(4).iter().map(Wc::wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [2, 3, 9, 9]);
    let mut seen = [0; 8];
    for (at, text) in [(64, b"first..."), (128, b"second..")] {
        mr.read(at, &mut seen);
        assert_eq!(&seen, text);
    }
}

/// The attributes of a queue pair beside the pair.
fn options(pair: &Pair, qp_type: QpType) -> QpOptions<'_> {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (Some(&pair.cq), Some(&pair.cq));
    QpOptions { qp_type, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: true }
}

#[test]
fn a_list_keeps_the_address_handle_that_it_names() {
    let pair = Pair::new();
    let fixture = &pair.fixture;
    let mr = fixture.pd.reg_mr(LEN, Access::LOCAL_WRITE).expect("ibv_reg_mr");
    let qp = fixture.pd.create_qp(&options(&pair, QpType::Ud)).expect("ibv_create_qp");
    qp.init(QpType::Ud, conformance::PORT, Access::empty(), 9).expect("INIT");
    qp.activate_ud(0).expect("RTS");
    let attr =
        AhAttr { dgid: fixture.gid, hop_limit: 64, is_global: true, port_num: conformance::PORT, ..AhAttr::default() };
    let handle = || fixture.pd.create_ah(&attr).expect("ibv_create_ah");
    let (first, second) = (handle(), handle());
    let sges = [mr.sge(0, 8)];
    let flags = SendFlags::SIGNALED;
    let to = Some((&*first, qp.number(), 9));
    let wr = SendWr { wr_id: 1, flags, op: SendOp::Send, data: Data::Sges(&sges), to, srqn: 0 };
    let mut list = SendList::new(&[wr]).expect("a list");
    drop(first);
    for round in 0..3 {
        // A datagram comes with 40 bytes in front (ibv_post_send(3), "grh").
        qp.post_recv(&RecvWr { wr_id: 2, sges: &[mr.sge(64, 48)] }).expect("ibv_post_recv");
        mr.write(0, &[round; 8]);
        qp.post_send_list(&mut list).expect("ibv_post_send");
        pair.done(2);
        assert_eq!(mr.load(64 + 40), round);
        list.request(0).to(&second, qp.number(), 9);
    }
}
