use std::net::Ipv4Addr;

use wire::mad::cm::Message as Said;

use super::*;
use crate::conn::reason;
use crate::event::Ece;
use crate::manager::port_space;

fn ends(asked: bool) -> Ends {
    let gid = |last| Gid::from_ip(Ipv4Addr::new(10, 0, 0, last).into());
    Ends { source: gid(1), dest: gid(2), guid: 0x1122_3344_5566_7788, remote_qpn: 0x777, service: 0, asked }
}

fn service() -> Service {
    Service {
        port_space: port_space::TCP,
        qp_type: 2,
        src: "10.0.0.1:4660".parse().unwrap(),
        dst: "10.0.0.2:18515".parse().unwrap(),
    }
}

fn half() -> Half {
    Half {
        qpn: 0xabcdef,
        psn: 0x123456,
        responder_resources: 16,
        initiator_depth: 4,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: true,
        ece: Ece { vendor_id: 0x02_c903, options: 0x1c },
    }
}

/// The bytes from `at` on, counted as the tables of chapter 12 count them.
fn at(mad: &[u8; BYTES], at: usize, n: usize) -> &[u8] {
    &mad[24 + at..24 + at + n]
}

#[test]
fn a_request_is_that_of_table_106_with_the_addresses_of_annex_a11() {
    let body = Body::Req { service: service(), half: half(), data: b"hello".to_vec() };
    let mad = emit(&Message { from: 0x0a0b_0c0d, to: 0, body }, &ends(true)).unwrap();
    assert_eq!(mad[..4], [1, 7, 2, 3]);
    assert_eq!(mad[8..18], [0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d, 0, 0x10]);
    assert_eq!(mad[20..24], [0, 0, 0, 0x1c]);
    assert_eq!(at(&mad, 4, 4), [0, 2, 0xc9, 3]);
    assert_eq!(at(&mad, 0, 4), [0x0a, 0x0b, 0x0c, 0x0d]);
    assert_eq!(at(&mad, 8, 8), [0, 0, 0, 0, 1, 6, 0x48, 0x53]);
    assert_eq!(at(&mad, 32, 4), [0xab, 0xcd, 0xef, 16]);
    assert_eq!(at(&mad, 39, 1), [4]);
    assert_eq!(at(&mad, 43, 5), [20 << 3 | 1, 0x12, 0x34, 0x56, 20 << 3 | 7]);
    assert_eq!(at(&mad, 48, 4), [0xff, 0xff, 5 << 4 | 6, 15 << 4 | 1 << 3]);
    assert_eq!(at(&mad, 52, 4), [0xff; 4]);
    assert_eq!(at(&mad, 56, 32), [ends(true).source.0, ends(true).dest.0].concat());
    assert_eq!(at(&mad, 95, 1), [18 << 3]);
    assert_eq!(at(&mad, 140, 4), [0, 0x40, 0x12, 0x34]);
    assert_eq!(at(&mad, 156, 4), [10, 0, 0, 1]);
    assert_eq!(at(&mad, 172, 4), [10, 0, 0, 2]);
    assert_eq!(at(&mad, 176, 6), *b"hello\0");
}

#[test]
fn the_transport_is_that_of_the_queue_pair() {
    for (qp_type, service_type, extended) in [(2, 0, 0), (3, 1, 0), (9, 3, 1)] {
        let service = Service { qp_type, ..service() };
        let body = Body::Req { service, half: Half::default(), data: Vec::new() };
        let mad = emit(&Message { from: 1, to: 0, body }, &ends(true)).unwrap();
        assert_eq!(at(&mad, 43, 1), [20 << 3 | service_type << 1], "{qp_type}");
        assert_eq!(at(&mad, 51, 1), [15 << 4 | extended], "{qp_type}");
    }
}

#[test]
fn what_belongs_together_has_one_transaction() {
    let id = |body, from, to, asked| emit(&Message { from, to, body }, &ends(asked)).unwrap()[8..16].to_vec();
    let request = id(Body::Req { service: service(), half: half(), data: Vec::new() }, 5, 0, true);
    assert_eq!(request, id(Body::Rep { half: half(), data: Vec::new() }, 9, 5, false));
    assert_eq!(request, id(Body::Rtu, 5, 9, true));
    assert_eq!(request, id(Body::Rej { reason: reason::CONSUMER, data: Vec::new() }, 9, 5, false));
    let end = id(Body::Dreq, 9, 5, false);
    assert_ne!(request, end);
    assert_eq!(end, id(Body::Drep, 5, 9, true));
}

#[test]
fn answers_are_those_of_their_tables() {
    let mad = |body, asked| emit(&Message { from: 9, to: 5, body }, &ends(asked)).unwrap();
    let reply = mad(Body::Rep { half: half(), data: b"yes".to_vec() }, false);
    assert_eq!(reply[16..18], [0, 0x13]);
    assert_eq!(at(&reply, 0, 8), [0, 0, 0, 9, 0, 0, 0, 5]);
    assert_eq!(at(&reply, 12, 3), [0xab, 0xcd, 0xef]);
    assert_eq!(at(&reply, 20, 3), [0x12, 0x34, 0x56]);
    assert_eq!([reply[24 + 15], reply[24 + 19], reply[24 + 23], reply[23]], [2, 0xc9, 3, 0x1c]);
    assert_eq!(at(&reply, 24, 4), [16, 4, 1, 6 << 5 | 1 << 4]);
    assert_eq!(at(&reply, 36, 3), *b"yes");
    let no = mad(Body::Rej { reason: 28, data: b"no".to_vec() }, false);
    assert_eq!(at(&no, 8, 4), [0, 0, 0, 28]);
    assert_eq!(at(&no, 84, 2), *b"no");
    let no = mad(Body::Rej { reason: 28, data: Vec::new() }, true);
    assert_eq!(at(&no, 8, 1), [1 << 6], "a REP is refused");
    assert_eq!(at(&mad(Body::Dreq, true), 8, 3), [0, 7, 0x77]);
    let here = mad(Body::SidrRep { status: 0, qpn: 0xabcdef, qkey: 0x0123_4567, data: b"d".to_vec() }, false);
    assert_eq!(at(&here, 0, 12), [0, 0, 0, 5, 0, 0, 0, 0, 0xab, 0xcd, 0xef, 0]);
    assert_eq!(at(&here, 20, 4), [1, 0x23, 0x45, 0x67]);
    assert_eq!(at(&here, 96, 1), *b"d");
}

#[test]
fn the_longest_private_data_fit() {
    let cases = [
        (Body::Req { service: service(), half: half(), data: vec![7; crate::message::REQ_DATA] }, 232),
        (Body::Rep { half: half(), data: vec![7; crate::message::REP_DATA] }, 232),
        (Body::Rej { reason: 28, data: vec![7; crate::message::REJ_DATA] }, 232),
        (Body::SidrReq { service: service(), data: vec![7; crate::message::SIDR_REQ_DATA] }, 232),
        (Body::SidrRep { status: 0, qpn: 1, qkey: 2, data: vec![7; crate::message::SIDR_REP_DATA] }, 232),
    ];
    for (body, end) in cases {
        let mad = emit(&Message { from: 1, to: 2, body: body.clone() }, &ends(false)).unwrap();
        assert_eq!(mad[24 + end - 1], 7, "{body:?}");
    }
}

#[test]
fn what_is_emitted_is_understood() {
    let said = |body, asked| {
        let mad = emit(&Message { from: 9, to: 5, body }, &ends(asked)).unwrap();
        let datagram = Datagram::read(&mad).unwrap();
        assert_eq!(datagram.emit(), Ok(mad), "{datagram}");
        format!("{datagram}")
    };
    let line = said(Body::Req { service: service(), half: half(), data: b"hello".to_vec() }, true);
    assert_eq!(line, "REQ 0x9 service=0x1064853 qpn=0xabcdef psn=0x123456 transaction=0x9");
    let line = said(Body::Rep { half: half(), data: Vec::new() }, false);
    assert_eq!(line, "REP 0x9 > 0x5 qpn=0xabcdef psn=0x123456 transaction=0x5");
    assert_eq!(said(Body::Rtu, true), "RTU 0x9 > 0x5 transaction=0x9");
    assert_eq!(said(Body::Dreq, true), "DREQ 0x9 > 0x5 qpn=0x777 transaction=0x100000009");
    assert_eq!(said(Body::Drep, true), "DREP 0x9 > 0x5 transaction=0x100000005");
    assert_eq!(said(Body::Rej { reason: 28, data: Vec::new() }, false), "REJ 0x9 > 0x5 of=0 reason=28 transaction=0x5");
    let line = said(Body::SidrRep { status: 0, qpn: 3, qkey: 4, data: Vec::new() }, false);
    assert_eq!(line, "SIDR REP 0x5 status=0 qpn=0x3 qkey=0x4 transaction=0x5");
    // Both requests of IP carry the addresses in front of the private data.
    for body in [
        Body::Req { service: service(), half: half(), data: b"hello".to_vec() },
        Body::SidrReq { service: service(), data: b"hello".to_vec() },
    ] {
        let mad = emit(&Message { from: 9, to: 0, body }, &ends(true)).unwrap();
        let private_data = match Datagram::read(&mad).unwrap().message {
            Said::Req(request) => request.private_data,
            Said::SidrReq(request) => request.private_data,
            other => panic!("{other}"),
        };
        let (addresses, data) = ip_addressing::Repr::read(private_data).unwrap();
        assert_eq!(addresses.to_string(), "10.0.0.1 port 4660 > 10.0.0.2");
        assert_eq!(data[..6], *b"hello\0");
    }
}

#[test]
fn what_the_specification_does_not_have_is_not_said() {
    assert_eq!(emit(&Message { from: 1, to: 2, body: Body::Answer { errno: 0 } }, &ends(true)), None);
}
