//! Faults among FPDUs.

use std::cell::Cell;

use super::*;
use crate::Taps;
use crate::fault::Faults;
use crate::fault::spec::Spec;
use crate::mock_wire::MockWire;

thread_local! {
    static NOW: Cell<Nanos> = const { Cell::new(0) };
}

fn tapped(text: &str) -> (Tapped<MockWire>, StreamTap) {
    NOW.set(1000);
    let spec: Spec = text.parse().expect("a specification");
    let faults = Faults::new(&spec, 42, || NOW.get(), |_| {});
    let mut wire = Tapped::new(MockWire::default(), Some(Taps { faults, pcap: None }));
    let ends = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    let tap = wire.tap_stream(ends, true).expect("faults of streams");
    (wire, *tap)
}

const WRITE: u8 = 0x40;
const SEND: u8 = 0x43;
const TERMINATE: u8 = 0x47;

/// An FPDU without a CRC worth the name, with data of this byte; markers are inserted as the place asks for.
fn fpdu(op: u8, data: usize, byte: u8, place: u64, markers: bool) -> Vec<u8> {
    let header = if op == WRITE { 14 } else { 18 };
    let len = header + data;
    let mut plain = vec![(len >> 8) as u8, len as u8, if op == WRITE { 0xc1 } else { 0x41 }, op];
    plain.resize(2 + header, 0);
    plain.resize(2 + len, byte);
    plain.resize(plain.len().next_multiple_of(4), 0);
    plain.extend([0xcc; 4]);
    let mut out = Vec::new();
    for word in plain.chunks(4) {
        if markers && (place + out.len() as u64).is_multiple_of(512) {
            out.extend([0, 0, 0xee, 0xee]);
        }
        out.extend_from_slice(word);
    }
    out
}

fn sends(acts: &[Act]) -> Vec<u8> {
    acts.iter().flat_map(|act| if let Act::Send(bytes, _) = act { bytes.clone() } else { Vec::new() }).collect()
}

#[test]
fn without_a_strike_bytes_pass_as_they_are() {
    let (mut wire, mut tap) = tapped("reset:n=9");
    let bytes = [fpdu(SEND, 100, 1, 0, false), fpdu(WRITE, 9, 2, 0, false), b"\0\x09rest".to_vec()].concat();
    assert_eq!(wire.stream_out(&mut tap, bytes.clone()), [Act::Send(bytes, None)]);
}

#[test]
fn requests_with_data_are_counted() {
    let (mut wire, mut tap) = tapped("reset:n=2");
    tap.operate(Qpn::new(7), 5, false);
    // The reply, "ready to receive", a Terminate message: none of them counts.
    let before = [vec![9; 5], fpdu(WRITE, 0, 0, 0, false), fpdu(TERMINATE, 4, 0, 0, false)].concat();
    let first = fpdu(SEND, 0, 0, 0, false);
    let (second, third) = (fpdu(WRITE, 50, 1, 0, false), fpdu(SEND, 3, 2, 0, false));
    let acts = wire.stream_out(&mut tap, [before.clone(), first.clone(), second.clone(), third.clone()].concat());
    assert_eq!(acts[0], Act::Send(vec![9; 5], None));
    assert_eq!(acts[1], Act::Send([&before[5..], &first].concat(), None));
    assert_eq!(acts[2..], [Act::Reset, Act::Send(second, None), Act::Send(third, None)]);
}

#[test]
fn the_bit_that_is_flipped_is_one_of_the_data() {
    for markers in [false, true] {
        for size in [1, 3, 100, 513, 5000] {
            let (mut wire, mut tap) = tapped("corrupt:every=1");
            tap.operate(Qpn::new(7), 0, markers);
            let mut place = 0;
            for n in 0..50 {
                let op = if n % 2 == 0 { SEND } else { WRITE };
                let bytes = fpdu(op, size, 0x55, place, markers);
                place += bytes.len() as u64;
                let acts = wire.stream_out(&mut tap, bytes.clone());
                let changed = sends(&acts);
                let differ: Vec<_> = bytes.iter().zip(&changed).filter(|(a, b)| a != b).collect();
                assert_eq!(changed.len(), bytes.len());
                assert!(matches!(differ[..], [(0x55, b)] if (b ^ 0x55).is_power_of_two()), "{differ:?}");
            }
        }
    }
}

#[test]
fn times_and_states_stand_in_front_of_the_fpdu() {
    let one = fpdu(SEND, 8, 1, 0, false);
    for (text, act) in [
        ("delay:n=2,t=5us", Act::Wait(6000)),
        ("slow:t=5us,count=1,after=0ns", Act::Wait(6000)),
        ("stall:n=2", Act::Stall(Nanos::MAX)),
        ("stall:n=2,for=1us", Act::Stall(2000)),
        ("half-close:n=2", Act::HalfClose),
    ] {
        let (mut wire, mut tap) = tapped(text);
        let first = if text.starts_with("slow") { Vec::new() } else { one.clone() };
        let acts = wire.stream_out(&mut tap, [first.clone(), one.clone()].concat());
        let rest = acts.iter().skip(usize::from(!first.is_empty())).cloned().collect::<Vec<_>>();
        assert_eq!(rest, [act, Act::Send(one.clone(), None)], "{text}");
    }
}

#[test]
fn faults_of_packets_leave_streams_alone() {
    let (mut wire, mut tap) = tapped("drop:every=1;duplicate:every=1;reorder:every=1;link-kill:n=1");
    let one = fpdu(SEND, 8, 1, 0, false);
    assert_eq!(wire.stream_out(&mut tap, one.clone()), [Act::Send(one, None)]);
}
