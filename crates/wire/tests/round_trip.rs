//! Round trips of headers. A value drawn from a seed is emitted, and parsed as the same value. A value that is parsed
//! from any bytes at all is emitted as bytes of the same meaning.

use verbs::{Gid, Psn, Qpn, RKey};
use wire::opcode::{Opcode, Operation, Service};
use wire::*;

/// SplitMix64.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A value of this many bits; every fourth one is at an end of its range.
    fn bits(&mut self, bits: u32) -> u64 {
        let most = u64::MAX >> (64 - bits);
        match self.next() % 8 {
            0 => 0,
            1 => most,
            _ => self.next() & most,
        }
    }

    fn flag(&mut self) -> bool {
        self.bits(1) == 1
    }

    fn u8(&mut self, bits: u32) -> u8 {
        self.bits(bits) as u8
    }

    fn u16(&mut self) -> u16 {
        self.bits(16) as u16
    }

    fn u32(&mut self, bits: u32) -> u32 {
        self.bits(bits) as u32
    }

    fn gid(&mut self) -> Gid {
        Gid(self.array())
    }

    fn key(&mut self) -> RKey {
        RKey(self.u32(32))
    }

    fn qpn(&mut self) -> Qpn {
        Qpn::new(self.u32(24))
    }

    fn psn(&mut self) -> Psn {
        Psn::new(self.u32(24))
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        [(); N].map(|()| self.next() as u8)
    }

    fn opcode(&mut self) -> Opcode {
        loop {
            if let Ok(opcode) = Opcode::parse(self.next() as u8) {
                return opcode;
            }
        }
    }
}

const ROUNDS: u64 = if cfg!(miri) { 4 } else { 300 };

/// Tests of each header. A value of the draw is emitted and read. Any bytes at all are read, and their meaning is
/// emitted and read.
macro_rules! round_trips {
    ($($name:ident: $header:path, $value:expr;)*) => {$(
        #[test]
        fn $name() {
            use $header as header;
            let draw: fn(&mut Draw) -> header::Repr = $value;
            for seed in 0..ROUNDS {
                let mut random = Draw(seed);
                let value = draw(&mut random);
                assert_eq!(header::Repr::read(&value.emit()), Ok((value, &[][..])), "seed {seed}");
                let any: [u8; header::LEN] = random.array();
                if let Ok((value, _)) = header::Repr::read(&any) {
                    assert_eq!(header::Repr::read(&value.emit()), Ok((value, &[][..])), "seed {seed}: {value}");
                }
            }
        }
    )*};
}

round_trips! {
    bth_header: bth, |d| bth::Repr {
        opcode: d.opcode(), solicited: d.flag(), migrated: d.flag(), pad: d.u8(2), pkey: d.u16(), fecn: d.flag(),
        becn: d.flag(), dest: d.qpn(), ack_req: d.flag(), psn: d.psn(),
    };
    reth_header: reth, |d| reth::Repr { remote_addr: d.bits(64), rkey: d.key(), dma_len: d.u32(32) };
    aeth_header: aeth, |d| aeth::Repr { syndrome: d.u8(8), msn: d.u32(24) };
    atomic_eth_header: atomic_eth, |d| atomic_eth::Repr {
        remote_addr: d.bits(64), rkey: d.key(), swap_add: d.bits(64), compare: d.bits(64),
    };
    atomic_ack_eth_header: atomic_ack_eth, |d| atomic_ack_eth::Repr { original: d.bits(64) };
    imm_dt_header: imm_dt, |d| imm_dt::Repr { data: d.array() };
    ieth_header: ieth, |d| ieth::Repr { rkey: d.key() };
    deth_header: deth, |d| deth::Repr { qkey: d.u32(32), source: d.qpn() };
    xrceth_header: xrceth, |d| xrceth::Repr { srqn: d.u32(24) };
    feth_header: feth, |d| feth::Repr { placement: d.u8(4), selectivity: d.u8(2) };
    ethernet_header: ethernet, |d| ethernet::Repr { dest: d.array(), source: d.array(), ethertype: d.u16() };
    ipv4_header: ipv4, |d| ipv4::Repr {
        type_of_service: d.u8(8), payload_len: d.u16().min(65515), identification: d.u16(), dont_fragment: d.flag(),
        time_to_live: d.u8(8), protocol: d.u8(8), source: d.u32(32).into(), dest: d.u32(32).into(),
    };
    ipv6_header: ipv6, |d| ipv6::Repr {
        traffic_class: d.u8(8), flow_label: d.u32(20), payload_len: d.u16(), next_header: d.u8(8), hop_limit: d.u8(8),
        source: d.array::<16>().into(), dest: d.array::<16>().into(),
    };
    grh_header: grh, |d| grh::Repr {
        traffic_class: d.u8(8), flow_label: d.u32(20), payload_len: d.u16(), next_header: d.u8(8), hop_limit: d.u8(8),
        source: d.gid(), dest: d.gid(),
    };
    udp_header: udp, |d| udp::Repr {
        source: d.u16(), dest: d.u16(), payload_len: d.u16().min(65527), checksum: d.u16(),
    };
    mad_header: mad, |d| mad::Repr {
        class: d.u8(8), class_version: d.u8(8), method: d.u8(8), status: d.u16(), class_specific: d.u16(),
        transaction: d.bits(64), attribute: d.u16(), modifier: d.u32(32),
    };
    path_of_a_req: mad::cm::path, |d| mad::cm::path::Repr {
        local_lid: d.u16(), remote_lid: d.u16(), local_gid: d.gid(), remote_gid: d.gid(), flow_label: d.u32(20),
        rate: d.u8(6), traffic_class: d.u8(8), hop_limit: d.u8(8), service_level: d.u8(4), subnet_local: d.flag(),
        ack_timeout: d.u8(5),
    };
    ip_addressing_header: mad::cm::ip_addressing, |d| if d.flag() {
        let (source, dest) = (d.array::<4>().into(), d.array::<4>().into());
        mad::cm::ip_addressing::Repr { source_port: d.u16(), source, dest }
    } else {
        let (source, dest) = (d.array::<16>().into(), d.array::<16>().into());
        mad::cm::ip_addressing::Repr { source_port: d.u16(), source, dest }
    };
    mpa_start: mpa::start, |d| {
        let (reply, enhanced) = (d.flag(), d.flag());
        mpa::start::Repr {
            reply, markers: d.flag(), crc: d.flag(), rejected: reply && d.flag(), enhanced,
            revision: if enhanced { 2 } else { 1 }, private_data_len: 4 + d.u16() % 509,
        }
    };
    mpa_enhanced: mpa::enhanced, |d| mpa::enhanced::Repr {
        peer_to_peer: d.flag(), ready_by_send: d.flag(), ird: d.bits(14) as u16, ready_by_write: d.flag(),
        ready_by_read: d.flag(), ord: d.bits(14) as u16,
    };
    mpa_marker: mpa::marker, |d| mpa::marker::Repr { distance: d.u16() & !3 };
    mpa_fpdu: mpa::fpdu, |d| mpa::fpdu::Repr { segment_len: d.u16() };
    ddp_tagged: ddp::tagged, |d| ddp::tagged::Repr {
        last: d.flag(), upper: d.u8(8), stag: d.key(), offset: d.bits(64),
    };
    ddp_untagged: ddp::untagged, |d| ddp::untagged::Repr {
        last: d.flag(), upper: d.u8(8), invalidate: d.u32(32), queue: d.u32(32), message: d.u32(32), offset: d.u32(32),
    };
    rdmap_read_request: rdmap::read_request, |d| rdmap::read_request::Repr {
        sink_stag: d.key(), sink_offset: d.bits(64), size: d.u32(32), source_stag: d.key(), source_offset: d.bits(64),
    };
    rdmap_atomic_request: rdmap::atomic_request, |d| {
        use rdmap::atomic_request::Operation;
        let operation = if d.flag() { Operation::FetchAdd } else { Operation::CompareSwap };
        rdmap::atomic_request::Repr {
            operation, request_id: d.u32(32), stag: d.key(), offset: d.bits(64), swap_add: d.bits(64),
            swap_add_mask: d.bits(64), compare: d.bits(64), compare_mask: d.bits(64),
        }
    };
    rdmap_atomic_response: rdmap::atomic_response, |d| rdmap::atomic_response::Repr {
        request_id: d.u32(32), original: d.bits(64),
    };
    rdmap_immediate: rdmap::immediate, |d| rdmap::immediate::Repr { data: d.array() };
}

/// Every message of communication management, of any bytes: what it means is emitted and read.
#[test]
fn messages_of_communication_management() {
    for (seed, attribute) in (0..ROUNDS).flat_map(|seed| (0x10..=0x1a).map(move |attribute| (seed, attribute))) {
        let body: [u8; mad::cm::LEN] = Draw(seed).array();
        let message = mad::cm::Message::read(attribute, &body).unwrap();
        let datagram = mad::cm::Datagram { transaction: seed, modifier: 0, message };
        let bytes = datagram.emit().unwrap();
        assert_eq!(mad::cm::Datagram::read(&bytes), Ok(datagram), "seed {seed} attribute {attribute:#x}");
    }
}

/// Whole frames over both versions of IP, with payloads of every remainder of four.
#[test]
fn frames() {
    for seed in 0..ROUNDS {
        let draw = &mut Draw(seed);
        let opcode = draw.opcode();
        let headers: [u8; 64] = draw.array();
        let bth = bth::Repr {
            opcode,
            solicited: draw.flag(),
            migrated: draw.flag(),
            pad: 0,
            pkey: draw.u16(),
            fecn: draw.flag(),
            becn: draw.flag(),
            dest: draw.qpn(),
            ack_req: draw.flag(),
            psn: draw.psn(),
        };
        let mut sequence = bth.emit().to_vec();
        sequence.extend_from_slice(&headers);
        let (transport, _) = transport::Repr::read(&sequence).unwrap();
        let (source, dest) = (draw.array::<16>(), draw.array::<16>());
        let (v4_source, v4_dest) = (draw.array::<4>(), draw.array::<4>());
        let ip = if draw.flag() {
            roce::Ip::V4(ipv4::Repr {
                type_of_service: draw.u8(8),
                payload_len: 0,
                identification: draw.u16(),
                dont_fragment: draw.flag(),
                time_to_live: draw.u8(8),
                protocol: udp::PROTOCOL,
                source: v4_source.into(),
                dest: v4_dest.into(),
            })
        } else {
            roce::Ip::V6(ipv6::Repr {
                traffic_class: draw.u8(8),
                flow_label: draw.u32(20),
                payload_len: 0,
                next_header: udp::PROTOCOL,
                hop_limit: draw.u8(8),
                source: source.into(),
                dest: dest.into(),
            })
        };
        let ethernet = ethernet::Repr { dest: draw.array(), source: draw.array(), ethertype: 0 };
        let repr = roce::Repr { ethernet, ip, source_port: draw.u16(), transport };
        let payload: Vec<u8> = (0..draw.next() % 70).map(|byte| byte as u8).collect();
        let (len, at) = repr.frame_len(payload.len()).unwrap();
        let mut frame = vec![0xaa; len];
        frame[at..at + payload.len()].copy_from_slice(&payload);
        repr.emit(payload.len(), &mut frame).unwrap();
        let (said, data) = roce::Repr::read(&frame).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(data, payload, "seed {seed}");
        assert_eq!(said.transport.bth.pad as usize, payload.len().wrapping_neg() & 3);
        let pad = said.transport.bth.pad;
        let expected = transport::Repr { bth: bth::Repr { pad, ..transport.bth }, ..transport };
        assert_eq!((said.transport, said.source_port), (expected, repr.source_port), "seed {seed}");
    }
}

/// IP cannot carry what is longer than its length field.
#[test]
fn frames_that_are_too_long_are_not_emitted() {
    let bth = bth::Repr {
        opcode: Opcode::Transport(Service::Rc, Operation::SendOnly),
        solicited: false,
        migrated: false,
        pad: 0,
        pkey: 0,
        fecn: false,
        becn: false,
        dest: Qpn::new(2),
        ack_req: false,
        psn: Psn::new(0),
    };
    let ip = roce::Ip::V4(ipv4::Repr {
        type_of_service: 0,
        payload_len: 0,
        identification: 0,
        dont_fragment: true,
        time_to_live: 64,
        protocol: udp::PROTOCOL,
        source: [10, 0, 0, 1].into(),
        dest: [10, 0, 0, 2].into(),
    });
    let ethernet = ethernet::Repr { dest: [2; 6], source: [2; 6], ethertype: 0 };
    let repr = roce::Repr { ethernet, ip, source_port: 1, transport: transport::Repr::new(bth) };
    // 65535 less the headers of IP (20), UDP (8), BTH (12) and the ICRC (4), in whole words.
    for (payload, expected) in [(65488, Ok(())), (65492, Err(Error::Length)), (1 << 20, Err(Error::Length))] {
        let (len, _) = repr.frame_len(payload).unwrap();
        assert_eq!(repr.emit(payload, &mut vec![0; len]), expected, "{payload} bytes");
    }
    assert_eq!(repr.frame_len(usize::MAX - 50), Err(Error::Length));
}
