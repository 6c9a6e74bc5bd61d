use super::*;

fn service() -> Service {
    Service {
        port_space: 0x106,
        qp_type: 2,
        src: "127.0.0.1:40000".parse().unwrap(),
        dst: "[fe80::1%3]:7174".parse().unwrap(),
    }
}

fn half() -> Half {
    Half {
        qpn: 0x12_3456,
        psn: 0xab_cdef,
        responder_resources: 1,
        initiator_depth: 2,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: true,
        ece: Ece { vendor_id: 9, options: 10 },
    }
}

fn all() -> Vec<Message> {
    let bodies = [
        Body::Req { service: service(), half: half(), data: vec![1; REQ_DATA] },
        Body::Rep { half: half(), data: vec![2; REP_DATA] },
        Body::Rtu,
        Body::Rej { reason: 28, data: vec![3; REJ_DATA] },
        Body::Dreq,
        Body::Drep,
        Body::SidrReq { service: service(), data: vec![4; SIDR_REQ_DATA] },
        Body::Ask { port_space: 0x106, claim: Claim { addr: service().dst, only: true, reuse: false } },
        Body::Answer { errno: 98 },
        Body::SidrRep { status: 1, qpn: 7, qkey: 0x0123_4567, data: vec![5; SIDR_REP_DATA] },
    ];
    bodies.into_iter().map(|body| Message { from: 5, to: 6, body }).collect()
}

#[test]
fn what_is_written_is_read() {
    for message in all() {
        let bytes = emit(&message);
        assert!(bytes.len() <= MAX_BYTES);
        assert_eq!(parse(&bytes), Ok(message));
    }
}

#[test]
fn literal_bytes() {
    let message = Message { from: 1, to: 2, body: Body::Rej { reason: 8, data: b"no".to_vec() } };
    assert_eq!(emit(&message), b"sCM1\x04\x00\x08\x00\x01\x00\x00\x00\x02\x00\x00\x00no");
}

#[test]
fn cut_and_long_packets_are_refused() {
    for message in all() {
        let bytes = emit(&message);
        let data = match &message.body {
            Body::Req { data, .. } | Body::Rep { data, .. } | Body::Rej { data, .. } => data.len(),
            Body::SidrReq { data, .. } | Body::SidrRep { data, .. } => data.len(),
            _ => 0,
        };
        for n in 0..bytes.len() - data {
            assert_eq!(parse(&bytes[..n]), Err(Malformed), "{message:?} cut to {n}");
        }
        let mut long = bytes.clone();
        long.push(0);
        assert_eq!(parse(&long), Err(Malformed), "{message:?}");
    }
}

#[test]
fn every_byte_counts_or_is_checked() {
    for message in all() {
        let bytes = emit(&message);
        for i in 0..bytes.len() {
            for flip in [1u8, 0x80] {
                let mut other = bytes.clone();
                other[i] ^= flip;
                if let Ok(read) = parse(&other) {
                    assert_eq!(emit(&read), other, "byte {i} of {message:?} is ignored");
                }
            }
        }
    }
}
