//! Entries of managed queues: atomics upon them, and entries of 16 scatter/gather entries.

use conformance::side::create_qp;
use conformance::{Fixture, Joined, collect};
use rdma::dv::{Count, Managed, Side, field};
use rdma::{Access, Data, QpCap, QpOptions, QpType, SendFlags, SendOp, SendWr, Status};

const LEN: usize = 4096;

/// A managed send queue that is patched by a peer, then enabled. `patch` gets the peer's request for each of `count`
/// entries; the pieces of an entry begin at multiples of 64, and lie one behind the other at the target.
fn run(
    count: u64,
    pieces: usize,
    rules: [u64; 2],
    patch: impl Fn(&rdma::dv::QueueMr, &rdma::Mr, u64, &dyn Fn(SendOp<'_>)),
) -> Vec<u8> {
    let fixture = Fixture::open();
    let pd = &fixture.pd;
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let (source, target, scratch) =
        (pd.reg_mr(LEN, all).unwrap(), pd.reg_mr(LEN, all).unwrap(), pd.reg_mr(64, all).unwrap());
    source.write(0, &(0..LEN).map(|i| (i / 64) as u8).collect::<Vec<_>>());
    let cq = fixture.context.create_cq(64, None, 0).unwrap();
    let options = QpOptions {
        qp_type: QpType::Rc,
        send_cq: Some(&cq),
        recv_cq: Some(&cq),
        srq: None,
        xrcd: None,
        cap: QpCap {
            max_send_wr: count as u32,
            max_recv_wr: 1,
            max_send_sge: pieces as u32,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        sq_sig_all: false,
    };
    let managed = Managed { send: true, patchable: rules, ..Managed::default() };
    let managed = pd.create_managed_qp(&options, &managed).unwrap();
    let peer = create_qp(&fixture, &cq, 4);
    for (from, to) in [(&managed, &peer), (&peer, &managed)] {
        Joined::default().up(from, QpType::Rc, to.number(), fixture.gid);
    }
    let entries = managed.reg_queue(all).unwrap();
    for n in 0..count {
        let list: Vec<_> = (0..pieces).map(|i| source.sge(64 * i, 4)).collect();
        let op = SendOp::Write { addr: target.addr(), rkey: target.rkey() };
        let flags = if n + 1 == count { SendFlags::SIGNALED } else { SendFlags::empty() };
        managed.post_send(&SendWr { flags, ..SendWr::new(9, op, Data::Sges(&list)) }).unwrap();
        patch(&entries, &source, n, &|op| {
            scratch.write(0, &(source.addr() + 64 * 40).to_ne_bytes());
            peer.post_send(&SendWr::new(2, op, Data::Sges(&[scratch.sge(0, 8)]))).unwrap();
            let wc = collect(&cq, 1)[0];
            assert_eq!((wc.wr_id(), wc.status()), (2, Status::SUCCESS));
        });
    }
    managed.enable(Side::Send, Count::Relative(0)).unwrap();
    let wc = collect(&cq, 1)[0];
    assert_eq!((wc.wr_id(), wc.status()), (9, Status::SUCCESS));
    let mut bytes = vec![0; 128];
    target.read(0, &mut bytes);
    bytes
}

/// A FETCH_ADD moves the place to which an entry writes.
#[test]
fn a_fetch_add_changes_an_entry() {
    let bytes = run(8, 1, [field::mask(field::ADDR) | field::mask(field::SGE_ADDR), 0], |entries, _, n, peer| {
        let add = |byte: usize, add| {
            peer(SendOp::FetchAdd { addr: entries.addr(n, byte), rkey: entries.rkey(), add });
        };
        add(field::ADDR.start, 4 * n);
        add(field::SGE_ADDR.start, 64 * (n + 1));
    });
    let expected: Vec<u8> = (1..=8).flat_map(|n| [n; 4]).chain([0; 96]).collect();
    assert_eq!(bytes, expected);
}

/// An entry of 16 scatter/gather entries has 5 times 64 bytes, and the last address can be patched.
#[test]
fn an_entry_has_16_pieces() {
    let last = 64 + 16 * 14;
    let rules = [0, field::mask(last % 64..last % 64 + 8)];
    let bytes = run(1, 16, rules, |entries, _, n, peer| {
        peer(SendOp::Write { addr: entries.addr(n, last), rkey: entries.rkey() });
    });
    let expected: Vec<u8> = (0..15).chain([40]).flat_map(|n| [n; 4]).chain([0; 64]).collect();
    assert_eq!(bytes, expected);
}
