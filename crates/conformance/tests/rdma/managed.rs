//! Managed queues through `rdma::dv`: a hop that passes on what it gets, as the module's example has it.

use std::sync::Arc;

use conformance::side::{create_qp, recv};

use conformance::{Fixture, Joined, collect, until};
use rdma::dv::{Count, Managed, Side, Task, field};
use rdma::{Access, Cq, Data, Errno, Qp, QpCap, QpOptions, QpType, RecvWr, SendFlags, SendOp, SendWr, Status};

const ROUNDS: u64 = 4;
const LEN: usize = 4096;

fn options<'a>(cq: &'a Arc<Cq>, recv: &'a Arc<Cq>, depth: u32) -> QpOptions<'a> {
    QpOptions {
        qp_type: QpType::Rc,
        send_cq: Some(cq),
        recv_cq: Some(recv),
        srq: None,
        xrcd: None,
        cap: QpCap { max_send_wr: depth, max_recv_wr: depth, max_send_sge: 1, max_recv_sge: 4, max_inline_data: 0 },
        sq_sig_all: false,
    }
}

fn connect(fixture: &Fixture, a: &Qp, b: &Qp) {
    for (from, to) in [(a, b), (b, a)] {
        Joined::default().up(from, QpType::Rc, to.number(), fixture.gid);
    }
}

/// Each message says where the hop is to write, and how much of which memory; nothing is posted on the hop meanwhile.
#[test]
fn a_hop_passes_on_what_it_gets() {
    let fixture = Fixture::open();
    let (context, pd) = (&fixture.context, &fixture.pd);
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let (source, target, message) =
        (pd.reg_mr(LEN, all).unwrap(), pd.reg_mr(LEN, all).unwrap(), pd.reg_mr(64, all).unwrap());
    let cq = context.create_cq(64, None, 0).unwrap();
    let first = u64::from(u32::MAX) - 7;
    let arrivals = context.create_counting_cq_from(2, true, first).unwrap();
    let sent = context.create_counting_cq(2, true).unwrap();
    let (client, sink) = (create_qp(&fixture, &cq, 16), create_qp(&fixture, &cq, 16));
    let cyclic_recv = Managed { recv: true, cyclic_recv: true, ..Managed::default() };
    let previous = pd.create_managed_qp(&options(&sent, &arrivals, ROUNDS as u32), &cyclic_recv).unwrap();
    let rules = Managed {
        send: true,
        cyclic_send: true,
        patchable: [field::mask(field::ADDR) | field::mask(field::SGE_ADDR) | field::mask(field::SGE_LENGTH), 0],
        ..Managed::default()
    };
    let next = pd.create_managed_qp(&options(&sent, &sent, 4 * ROUNDS as u32), &rules).unwrap();
    connect(&fixture, &client, &previous);
    connect(&fixture, &next, &sink);

    let entries = next.reg_queue(Access::LOCAL_WRITE).unwrap();
    for n in 0..ROUNDS {
        next.post_task(&Task::wait(&arrivals, Count::Absolute(first + n + 1)).step(ROUNDS as u32)).unwrap();
        let (op, list) = (SendOp::Write { addr: 0, rkey: target.rkey() }, [source.sge(0, 1)]);
        next.post_send(&SendWr { flags: SendFlags::empty(), ..SendWr::new(1, op, Data::Sges(&list)) }).unwrap();
        let tell = SendWr::new(2, SendOp::Send, Data::Sges(&[]));
        next.post_send(&SendWr { flags: SendFlags::empty(), ..tell }).unwrap();
        next.post_task(&Task::nop()).unwrap();
        let write = 4 * n + 1;
        let into = [entries.sge(write, field::ADDR), entries.sge(write, field::SGE_ADDR.start..field::SGE_LENGTH.end)];
        previous.post_recv(&RecvWr { wr_id: n, sges: &into }).unwrap();
    }
    assert_eq!(next.post_task(&Task::nop()).unwrap_err().errno, Errno::ENOMEM);
    let for_ever = Count::Absolute(u64::MAX >> 2);
    previous.enable(Side::Recv, for_ever).unwrap();
    next.enable(Side::Send, for_ever).unwrap();

    let bytes: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    source.write(0, &bytes);
    for n in 0..50u64 {
        let (from, to, len) = ((n * 37 % 2000) as usize, (n * 61 % 2000) as usize, 1 + (n * 13 % 900) as usize);
        recv(&sink, n, &[]);
        let text = [
            (target.addr() + to as u64).to_ne_bytes(),
            (source.addr() + from as u64).to_ne_bytes(),
            (len as u64).to_ne_bytes(),
        ]
        .concat();
        message.write(0, &text);
        client.post_send(&SendWr::new(100 + n, SendOp::Send, Data::Sges(&[message.sge(0, 20)]))).unwrap();
        let mut found = collect(&cq, 2);
        found.sort_by_key(|wc| wc.wr_id());
        assert!(found.iter().all(|wc| wc.status() == Status::SUCCESS), "{found:?}");
        assert_eq!(found.iter().map(|wc| wc.wr_id()).collect::<Vec<_>>(), [n, 100 + n]);
        let mut out = vec![0; len];
        target.read(to, &mut out);
        assert_eq!(out, bytes[from..][..len], "operation {n}");
    }
    let queue = next.queue(Side::Send).unwrap();
    assert_eq!((queue.posted, queue.count, queue.version), (4 * ROUNDS, 4 * ROUNDS as u32, rdma::dv::VERSION));
    until("the last NOP", || (next.queue(Side::Send).unwrap().begun == 200).then_some(()));
    assert_eq!((arrivals.count().unwrap(), cq.count().unwrap_err().errno), (first + 50, Errno::EINVAL));
}

/// A message that breaks the rules of an entry ends the hop's queue pair, and no other.
#[test]
fn a_patch_beside_the_rules_ends_the_queue_pair() {
    let fixture = Fixture::open();
    let pd = &fixture.pd;
    let data = pd.reg_mr(LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let cq = fixture.context.create_cq(64, None, 0).unwrap();
    let managed = pd.create_managed_qp(&options(&cq, &cq, 4), &Managed { send: true, ..Managed::default() }).unwrap();
    let peer = create_qp(&fixture, &cq, 4);
    connect(&fixture, &managed, &peer);
    let entries = managed.reg_queue(Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let op = SendOp::Write { addr: data.addr(), rkey: data.rkey() };
    managed.post_send(&SendWr::new(1, op, Data::Sges(&[data.sge(8, 8)]))).unwrap();
    // The peer patches the entry, for which it has the key.
    let patch = SendOp::Write { addr: entries.addr(0, field::ADDR.start), rkey: entries.rkey() };
    peer.post_send(&SendWr::new(2, patch, Data::Sges(&[data.sge(16, 8)]))).unwrap();
    assert_eq!(collect(&cq, 1)[0].wr_id(), 2);
    managed.enable(Side::Send, Count::Relative(0)).unwrap();
    let wc = collect(&cq, 1)[0];
    assert_eq!((wc.wr_id(), wc.status()), (1, Status(rdma::sys::IBV_WC_LOC_QP_OP_ERR)));
    let error = managed.post_task(&Task::nop());
    assert!(error.is_ok(), "it is flushed");
}
