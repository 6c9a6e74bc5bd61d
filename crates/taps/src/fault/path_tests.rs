//! Packets through [`Tapped`], on a wire that records what it gets.

use std::cell::{Cell, RefCell};

use verbs::{Psn, Qpn};
use wire::*;

use super::spec::{DeviceFault, Spec};
use super::{Faults, Order};
use crate::mock_wire::MockWire;
use crate::{Tapped, Taps};

thread_local! {
    static NOW: Cell<Nanos> = const { Cell::new(0) };
    static TOLD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

const LINK: LinkId = LinkId(7);

fn tapped(text: &str) -> Tapped<MockWire> {
    NOW.set(0);
    TOLD.take();
    let spec: Spec = text.parse().expect("a specification");
    let tell = |line: &str| TOLD.with_borrow_mut(|told| told.push(line.to_owned()));
    let faults = Faults::new(&spec, 42, || NOW.get(), tell);
    let mock_wire = MockWire { memory: vec![0xaa; 64].into(), ..MockWire::default() };
    Tapped::new(mock_wire, Some(Taps { faults, pcap: None }))
}

fn packet(op: PacketOp, psn: u32) -> Packet {
    Packet { len: 8, ..Packet::new(op, Qpn::new(0x2000), Qpn::new(0x1000), Psn::new(psn)) }
}

fn send(to: &mut Tapped<MockWire>, link: LinkId, psn: u32) {
    let spans = [Span { addr: 0, len: 4, guarded: false }, Span { addr: 8, len: 4, guarded: false }];
    let sent = to.send(link, &packet(PacketOp::Send, psn), Payload { prefix: &[], spans: &spans });
    assert_eq!(sent, Ok(()));
}

fn psns(of: &Tapped<MockWire>) -> Vec<u32> {
    of.sent.iter().map(|(_, packet, _)| packet.psn.get()).collect()
}

#[test]
fn packets_are_dropped_and_doubled() {
    let mut wire = tapped("drop:n=2;duplicate:n=4");
    (1..=5).for_each(|psn| send(&mut wire, LINK, psn));
    assert_eq!(psns(&wire), [1, 3, 4, 4, 5]);
    assert!(wire.sent.iter().all(|(_, _, data)| *data == [0xaa; 8]));
}

#[test]
fn responses_count_only_when_asked_for() {
    let mut wire = tapped("drop:n=1,op=ack");
    send(&mut wire, LINK, 1);
    assert_eq!(wire.send(LINK, &packet(PacketOp::Ack, 1), Payload::default()), Ok(()));
    assert_eq!(wire.send(LINK, &packet(PacketOp::Ack, 2), Payload::default()), Ok(()));
    assert_eq!(psns(&wire), [1, 2]);
}

#[test]
fn what_is_late_comes_with_the_data_of_then() {
    let mut wire = tapped("delay:n=1,t=5us");
    send(&mut wire, LINK, 1);
    wire.memory.borrow_mut().fill(0x55);
    send(&mut wire, LINK, 2);
    assert_eq!(wire.tap_deadline(), Some(5000));
    wire.pass(4999);
    assert_eq!(psns(&wire), [2]);
    wire.pass(5000);
    assert_eq!(psns(&wire), [2, 1]);
    assert_eq!(wire.sent[1].2, [0xaa; 8]);
    assert_eq!(wire.tap_deadline(), None);
}

#[test]
fn a_slow_adapter_keeps_the_order() {
    let mut wire = tapped("slow:t=10us");
    for psn in 1..=4 {
        send(&mut wire, LINK, psn);
        NOW.set(NOW.get() + 1000);
    }
    wire.pass(11_000);
    assert_eq!(psns(&wire), [1, 2]);
    wire.pass(20_000);
    assert_eq!(psns(&wire), [1, 2, 3, 4]);
}

#[test]
fn what_is_slow_is_told_once_and_summed_up() {
    let mut wire = tapped("slow:t=10us;drop:n=4;slow:t=1us,every=2,count=3");
    (1..=10).for_each(|psn| send(&mut wire, LINK, psn));
    wire.sum_up();
    let about = |fault: &str, n: u32| {
        format!("fault {fault} (seed 42), {n}: SEND PSN {n:#08x} from QP 0x001000 to QP 0x002000, 8 bytes")
    };
    let sum = |packets: u32| format!("fault slow (seed 42): {packets} packets in all");
    assert_eq!(TOLD.take(), [about("slow", 1), about("slow", 2), about("drop", 4), sum(10), sum(3)]);
}

#[test]
fn what_has_not_happened_is_told() {
    let mut wire = tapped("slow:t=10us;drop:n=4;drop:n=3;drop:p=0,op=ack;qp-error:after=1s;drop:n=1,after=1s");
    (1..=3).for_each(|psn| send(&mut wire, LINK, psn));
    TOLD.take();
    wire.sum_up();
    assert_eq!(
        TOLD.take(),
        [
            "fault drop:n=4 has not happened; packets that it looks at: 3",
            "fault drop:p=0,op=ack has not happened; packets that it looks at: 0",
            "fault qp-error:after=1s has not happened; the process ended before",
            "fault drop:n=1,after=1s has not happened; packets that it looks at, from then on: 0",
            "fault slow (seed 42): 3 packets in all",
        ]
    );
}

#[test]
fn what_waits_goes_out_before_the_end() {
    let mut wire = tapped("slow:t=10us;reorder:n=1,by=9;link-kill:n=6");
    assert_eq!(wire.flush(), None);
    (1..=4).for_each(|psn| send(&mut wire, LINK, psn));
    wire.room = Some(2);
    assert_eq!(wire.flush(), Some(1_010_000), "when the last one is due");
    assert_eq!(psns(&wire), [2, 3]);
    assert!(wire.tap_deadline().is_some_and(|at| at > 0), "not at once again");
    wire.room = None;
    assert_eq!(wire.flush(), None);
    assert_eq!(psns(&wire), [2, 3, 4, 1]);
    // A link on which nothing passes delivers none.
    send(&mut wire, LinkId(9), 100);
    send(&mut wire, LinkId(9), 101);
    send(&mut wire, LINK, 5);
    assert_eq!(wire.flush(), None);
    assert_eq!(psns(&wire), [2, 3, 4, 1, 5]);
}

#[test]
fn overtaken_packets_wait_for_their_own_link() {
    let mut wire = tapped("reorder:n=1,by=2");
    send(&mut wire, LINK, 1);
    send(&mut wire, LinkId(9), 100);
    send(&mut wire, LINK, 2);
    send(&mut wire, LINK, 3);
    send(&mut wire, LINK, 4);
    assert_eq!(psns(&wire), [100, 2, 3, 1, 4]);
    // With no packet to overtake it, it goes after a while.
    let mut wire = tapped("reorder:n=1");
    send(&mut wire, LINK, 1);
    wire.pass(999_999);
    assert_eq!(psns(&wire), [0u32; 0]);
    wire.pass(1_000_000);
    assert_eq!(psns(&wire), [1]);
}

#[test]
fn a_full_link_holds_back_what_is_behind() {
    let mut wire = tapped("slow:t=1us");
    (1..=3).for_each(|psn| send(&mut wire, LINK, psn));
    wire.room = Some(1);
    wire.pass(1000);
    assert_eq!(psns(&wire), [1]);
    assert!(wire.tap_deadline().is_some_and(|at| at > 1000), "not at once again");
    wire.room = None;
    wire.pass(200_000);
    assert_eq!(psns(&wire), [1, 2, 3]);
}

#[test]
fn one_bit_of_the_data_is_flipped() {
    let mut wire = tapped("corrupt:n=2");
    assert!(wire.caps(LINK).single_copy.is_none(), "data must be in the packets");
    (1..=3).for_each(|psn| send(&mut wire, LINK, psn));
    let flipped = |data: &[u8]| data.iter().map(|byte| (byte ^ 0xaa).count_ones()).sum::<u32>();
    let counts: Vec<u32> = wire.sent.iter().map(|(_, _, data)| flipped(data)).collect();
    assert_eq!(counts, [0, 1, 0]);
    assert!(wire.memory.borrow().iter().all(|byte| *byte == 0xaa), "the program's own memory stays");
    // The addresses in front of a datagram are headers.
    for seed in 0..200 {
        let spec: Spec = "corrupt:n=1".parse().expect("a specification");
        let faults = Faults::new(&spec, seed, || 0, |_| {});
        let mut wire = Tapped::new(MockWire::default(), Some(Taps { faults, pcap: None }));
        let payload = Payload { prefix: &[0xaa; 33], spans: &[] };
        assert_eq!(wire.send(LINK, &packet(PacketOp::Datagram, 1), payload), Ok(()));
        assert_eq!((flipped(&wire.sent[0].2[..32]), flipped(&wire.sent[0].2[32..])), (0, 1));
    }
}

#[test]
fn what_comes_is_dropped_doubled_and_spoiled() {
    let mut wire = tapped("drop:n=1,side=rx;duplicate:n=3,side=rx;corrupt:n=2,side=rx");
    for psn in 1..=4 {
        wire.coming.push_back((packet(PacketOp::Send, psn), vec![0x55; 8]));
    }
    let mut seen = Vec::new();
    while let Some((packet, rx)) = wire.peek(LINK) {
        assert_eq!(wire.peek(LINK).map(|(again, _)| again), Some(packet), "the same again until it is released");
        let spans = [Span { addr: 16, len: 3, guarded: false }, Span { addr: 32, len: 5, guarded: false }];
        assert_eq!(wire.rx_scatter(rx, 0, &spans), Ok(()));
        let mut fetched = [0; 8];
        wire.rx_fetch(rx, 0, &mut fetched);
        let placed = [&wire.memory.borrow()[16..19], &wire.memory.borrow()[32..37]].concat();
        assert_eq!(placed, fetched);
        let flipped = fetched.iter().map(|byte| (byte ^ 0x55).count_ones()).sum::<u32>();
        seen.push((packet.psn.get(), flipped));
        wire.release(LINK);
    }
    assert_eq!(seen, [(2, 1), (3, 0), (3, 0), (4, 0)]);
}

#[test]
fn a_dead_link_is_dark_in_both_directions_for_its_time() {
    let mut wire = tapped("link-kill:n=2,for=1us");
    (1..=3).for_each(|psn| send(&mut wire, LINK, psn));
    send(&mut wire, LinkId(9), 100);
    wire.coming.push_back((packet(PacketOp::Ack, 1), Vec::new()));
    assert_eq!(wire.peek(LINK), None);
    NOW.set(1000);
    send(&mut wire, LINK, 4);
    assert_eq!(psns(&wire), [1, 100, 4]);
}

#[test]
fn orders_go_to_the_adapter() {
    let mut wire = tapped("qp-error:n=2;device-removal:n=3;addr-change:after=1ms");
    (1..=4).for_each(|psn| send(&mut wire, LINK, psn));
    assert!(wire.has_orders());
    let removal = Order::Device(DeviceFault::Removal);
    assert_eq!(wire.take_orders(), [Order::FailQp(Qpn::new(0x1000)), removal]);
    assert_eq!(psns(&wire), [1], "nothing passes a device that is gone");
    wire.pass(1_000_000);
    assert_eq!(wire.take_orders(), [Order::Device(DeviceFault::AddrChange)]);
    assert!(!wire.has_orders());
}

#[test]
fn a_port_comes_up_again() {
    let mut wire = tapped("port-down:after=1us,for=2us");
    assert_eq!(wire.tap_deadline(), Some(1000));
    wire.pass(1000);
    assert_eq!(wire.take_orders(), [Order::Device(DeviceFault::PortDown)]);
    send(&mut wire, LINK, 1);
    assert_eq!(wire.tap_deadline(), Some(3000));
    wire.pass(3000);
    assert_eq!(wire.take_orders(), [Order::PortUp]);
    send(&mut wire, LINK, 2);
    assert_eq!(psns(&wire), [2]);
}

#[test]
fn receives_are_withheld_as_often_as_was_said() {
    let mut wire = tapped("rnr:n=2,count=3");
    let answers: Vec<bool> = (1..=6).map(|psn| wire.withholds_receive(&packet(PacketOp::Send, psn))).collect();
    assert_eq!(answers, [false, true, true, true, false, false]);
    let mut wire = tapped("rnr:n=1,for=1us");
    assert!(wire.withholds_receive(&packet(PacketOp::Send, 1)));
    assert!(wire.withholds_receive(&packet(PacketOp::Send, 1)));
    NOW.set(1000);
    assert!(!wire.withholds_receive(&packet(PacketOp::Send, 1)));
}

#[test]
fn nothing_passes_by_the_taps() {
    let mut wire = tapped("drop:n=9");
    let local = Payload { prefix: &[1], spans: &[] };
    let (src, dst, rkey) = (Qpn::new(1), Qpn::new(2), verbs::RKey(3));
    let (service, op, epoch, addr, len) = (verbs::QpType::Rc, OneSidedOp::Write, None, 0, 1);
    let (before, after, mtu, queues) = (0, 0, 1024, false);
    let request = OneSided { service, src, dst, epoch, op, rkey, addr, len, before, after, mtu, queues, local };
    assert_eq!(wire.one_sided(LINK, &request), None);
    let pd = verbs::PdId { index: 0, generation: 0 };
    let ctx = verbs::CtxId { index: 0, generation: 0 };
    let access = verbs::Access::empty();
    wire.publish(&Export::Region { key: 1, through: None, ctx, pd, access, addr: 0, length: 1, iova: 0 });
    assert_eq!(wire.exported, 0);
}

#[test]
fn what_waits_has_a_limit() {
    let mut wire = tapped("slow:t=1s");
    (0..40_000).for_each(|psn| send(&mut wire, LINK, psn));
    wire.pass(1_000_000_000);
    assert_eq!(psns(&wire).len(), 1 << 15);
}
