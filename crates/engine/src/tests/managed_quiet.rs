//! What messages from and to managed queues ask of the processes at both ends.

use verbs::{Count, Opcode, SendBody, SendData, SendFlags, SendWr};

use super::managed::Bench;
use crate::{QueueRules, Side};

const REST: Count = Count::Relative { count: 0, last: true };

/// Posts a SEND of 8 bytes to the managed queue.
fn send(b: &mut Bench, flags: SendFlags) {
    let sge = [b.w.sge(0, 0, 8)];
    let (opcode, body, data) = (Opcode::Send, SendBody::Plain, SendData::Sges(&sge));
    let wr = SendWr { wr_id: 1, opcode, flags, imm_or_rkey: 0, remote_srqn: 0, body: &body, data };
    b.w.post_wr(0, b.qp, &wr).unwrap();
}

/// Makes room for so many messages at the peer.
fn receives(b: &mut Bench, count: u64) {
    for n in 0..count {
        let into = [b.w.sge(1, 0x100, 8)];
        b.w.recv(1, b.peer, &into, n).unwrap();
    }
}

/// The peer of a managed queue wakes this process for signaled requests only.
#[test]
fn unsignaled_messages_are_acknowledged_quietly() {
    let mut b = Bench::new(8, Some(QueueRules::default()), None);
    receives(&mut b, 3);
    let quiet = |b: &Bench| b.w.net.borrow().quiet;
    for (flags, so_far) in [(SendFlags::empty(), 1), (SendFlags::SIGNALED, 1), (SendFlags::empty(), 2)] {
        send(&mut b, flags);
        b.enable(Side::Send, REST).unwrap();
        assert_eq!(quiet(&b), so_far, "{flags:?}");
        let qp = b.w.nodes[0].engine.qps.get(b.qp).unwrap();
        assert!(qp.inflight.is_empty(), "the message is acknowledged");
    }
    assert_eq!(b.good(), [1]);
    // An ordinary queue's messages are acknowledged as ever.
    let into = [b.w.sge(0, 0x100, 8)];
    b.w.recv(0, b.qp, &into, 0).unwrap();
    b.arrive(b"ordinary");
    assert_eq!(quiet(&b), 2);
}

/// A circle that waits for an acknowledgement which woke no process looks for it by itself.
#[test]
fn a_circle_without_room_looks_again() {
    let cyclic = QueueRules { cyclic: true, ..QueueRules::default() };
    let mut b = Bench::new(4, Some(cyclic), None);
    receives(&mut b, 9);
    (0..4).for_each(|_| send(&mut b, SendFlags::empty()));
    let now = b.w.now;
    b.w.nodes[0].engine.enable(b.qp, Side::Send, Count::Absolute(8)).unwrap();
    b.w.nodes[0].engine.run(now);
    let qp = b.w.nodes[0].engine.qps.get(b.qp).unwrap();
    assert_eq!((qp.sq.fetched, qp.inflight.len()), (4, 4), "the circle is full");
    let looks = b.w.nodes[0].engine.next_deadline().expect("a time");
    assert!(looks <= now + 1_000_000, "long before the request counts as lost");
    b.w.run_for(1_000_000);
    assert_eq!(b.w.nodes[0].engine.qps.get(b.qp).unwrap().sq.fetched, 8);
}

/// The NIC thread stays awake for messages that queues wait for: the program does not notice them.
#[test]
fn messages_to_managed_queues_are_served() {
    let mut b = Bench::new(4, None, Some(QueueRules::default()));
    for n in 0..2 {
        let into = [b.w.sge(0, 0x100, 8)];
        b.w.recv(0, b.qp, &into, n).unwrap();
    }
    b.enable(Side::Recv, REST).unwrap();
    for served in 1..=2 {
        b.arrive(b"a patch ");
        assert_eq!(b.w.nodes[0].engine.served(), served);
    }
}
