use super::*;

/// A reliable connection's way between two IPv4 addresses.
fn way() -> Way {
    let gid = |last| Gid::from_ip(std::net::Ipv4Addr::new(192, 168, 0, last).into());
    Way { source: gid(7), dest: gid(9), traffic_class: 0, hop_limit: 64, flow_label: 0, from: Qpn::new(0x55) }
}

fn packet(op: PacketOp) -> Packet {
    let mut packet = Packet::new(op, Qpn::new(0x0a0b0c), Qpn::new(0x55), Psn::new(0x123456));
    packet.flags = flag::FIRST | flag::LAST;
    (packet.remote_addr, packet.rkey, packet.dma_len) = (0x1122_3344_5566_7788, 0x99aa_bbcc, 0x0102_0304);
    packet
}

/// The headers from the base transport header on.
fn headers(service: QpType, packet: &Packet, first: bool, last: bool, len: u32) -> Vec<u8> {
    let headers = transport(service, packet, &Piece { psn: packet.psn, first, last, len });
    let bytes = headers.emit().unwrap().to_vec();
    let (parsed, rest) = transport::Repr::read(&bytes).unwrap();
    assert_eq!(parsed.emit().unwrap()[..], bytes, "{parsed}");
    assert!(rest.is_empty());
    bytes
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

#[track_caller]
fn is(actual: &[u8], expected: &str) {
    assert_eq!(actual, hex(expected), "{actual:02x?}");
}

const RC: QpType = QpType::Rc;

#[test]
fn sends() {
    let mut p = packet(PacketOp::Send);
    is(&headers(RC, &p, true, false, 256), "00 40 ffff 000a0b0c 00123456");
    is(&headers(RC, &p, false, false, 256), "01 40 ffff 000a0b0c 00123456");
    p.flags |= flag::ACK_REQ | flag::SOLICITED;
    is(&headers(RC, &p, false, false, 256), "01 40 ffff 000a0b0c 00123456");
    is(&headers(RC, &p, false, true, 1), "02 f0 ffff 000a0b0c 80123456");
    is(&headers(RC, &p, true, true, 2), "04 e0 ffff 000a0b0c 80123456");
    is(&headers(QpType::Uc, &p, true, true, 3), "24 d0 ffff 000a0b0c 80123456");
}

#[test]
fn immediate_values_and_keys_are_in_the_last_packet() {
    let mut p = packet(PacketOp::Send);
    p.flags |= flag::IMM;
    p.imm = u32::from_ne_bytes([0xde, 0xad, 0xbe, 0xef]); // network byte order, as programs give it
    is(&headers(RC, &p, true, false, 256), "00 40 ffff 000a0b0c 00123456");
    is(&headers(RC, &p, false, true, 4), "03 40 ffff 000a0b0c 00123456 deadbeef");
    is(&headers(RC, &p, true, true, 4), "05 40 ffff 000a0b0c 00123456 deadbeef");
    p.flags = flag::INV;
    p.imm = 0xdead_beef;
    is(&headers(RC, &p, false, true, 4), "16 40 ffff 000a0b0c 00123456 deadbeef");
    is(&headers(RC, &p, true, true, 4), "17 40 ffff 000a0b0c 00123456 deadbeef");
}

#[test]
fn writes() {
    let mut p = packet(PacketOp::Write);
    let reth = "1122334455667788 99aabbcc 01020304";
    is(&headers(RC, &p, true, false, 256), &format!("06 40 ffff 000a0b0c 00123456 {reth}"));
    is(&headers(RC, &p, false, false, 256), "07 40 ffff 000a0b0c 00123456");
    is(&headers(RC, &p, false, true, 4), "08 40 ffff 000a0b0c 00123456");
    is(&headers(QpType::Uc, &p, true, true, 4), &format!("2a 40 ffff 000a0b0c 00123456 {reth}"));
    p.flags |= flag::IMM;
    p.imm = u32::from_ne_bytes([1, 2, 3, 4]);
    is(&headers(RC, &p, true, true, 4), &format!("0b 40 ffff 000a0b0c 00123456 {reth} 01020304"));
    is(&headers(RC, &p, false, true, 4), "09 40 ffff 000a0b0c 00123456 01020304");
}

#[test]
fn reads_and_their_responses() {
    let reth = "1122334455667788 99aabbcc 01020304";
    let mut p = packet(PacketOp::ReadRequest);
    p.flags |= flag::ACK_REQ;
    is(&headers(RC, &p, true, true, 0), &format!("0c 40 ffff 000a0b0c 80123456 {reth}"));
    let mut p = packet(PacketOp::ReadResponse);
    (p.syndrome, p.imm) = (0x1f, 0x00ab_cdef);
    is(&headers(RC, &p, true, false, 256), "0d 40 ffff 000a0b0c 00123456 1fabcdef");
    is(&headers(RC, &p, false, false, 256), "0e 40 ffff 000a0b0c 00123456");
    is(&headers(RC, &p, false, true, 4), "0f 40 ffff 000a0b0c 00123456 1fabcdef");
    is(&headers(RC, &p, true, true, 4), "10 40 ffff 000a0b0c 00123456 1fabcdef");
}

#[test]
fn acknowledgements() {
    let mut p = packet(PacketOp::Ack);
    (p.syndrome, p.imm) = (0x60, 7);
    is(&headers(RC, &p, true, true, 0), "11 40 ffff 000a0b0c 00123456 60000007");
    is(&headers(QpType::XrcTgt, &p, true, true, 0), "b1 40 ffff 000a0b0c 00123456 60000007");
    let mut p = packet(PacketOp::AtomicAck);
    (p.syndrome, p.imm, p.swap, p.len) = (0x1f, 7, 0x0102_0304_0506_0708, 8);
    is(&headers(RC, &p, true, true, 0), "12 40 ffff 000a0b0c 00123456 1f000007 0102030405060708");
    // ATOMIC WRITE and FLUSH have no result.
    (p.swap, p.len) = (0, 0);
    is(&headers(RC, &p, true, true, 0), "10 40 ffff 000a0b0c 00123456 1f000007");
}

#[test]
fn atomics() {
    let mut p = packet(PacketOp::CompareSwap);
    (p.swap, p.compare) = (0x0102_0304_0506_0708, 0x1112_1314_1516_1718);
    let target = "1122334455667788 99aabbcc 0102030405060708";
    is(&headers(RC, &p, true, true, 0), &format!("13 40 ffff 000a0b0c 00123456 {target} 1112131415161718"));
    (p.op, p.compare) = (PacketOp::FetchAdd, 0);
    is(&headers(RC, &p, true, true, 0), &format!("14 40 ffff 000a0b0c 00123456 {target} 0000000000000000"));
    let mut p = packet(PacketOp::AtomicWrite);
    let reth = "1122334455667788 99aabbcc 00000008";
    p.swap = 7; // it is the payload
    is(&headers(RC, &p, true, true, 8), &format!("1d 40 ffff 000a0b0c 00123456 {reth}"));
}

#[test]
fn flush() {
    let mut p = packet(PacketOp::Flush);
    p.syndrome = 0x12; // persistence, of the whole region
    let reth = "1122334455667788 99aabbcc 01020304";
    is(&headers(RC, &p, true, true, 0), &format!("1c 40 ffff 000a0b0c 00123456 00000012 {reth}"));
}

#[test]
fn xrc_requests_name_their_shared_receive_queue() {
    let mut p = packet(PacketOp::Send);
    p.swap = 0x77;
    is(&headers(QpType::XrcIni, &p, true, false, 256), "a0 40 ffff 000a0b0c 00123456 00000077");
    let mut p = packet(PacketOp::Write);
    p.swap = 0x77;
    let rest = "00000077 1122334455667788 99aabbcc 01020304";
    is(&headers(QpType::XrcIni, &p, true, true, 4), &format!("aa 40 ffff 000a0b0c 00123456 {rest}"));
}

#[test]
fn datagrams() {
    let mut p = packet(PacketOp::Datagram);
    (p.rkey, p.imm) = (0x1111_1111, u32::from_ne_bytes([9, 8, 7, 6]));
    is(&headers(QpType::Ud, &p, true, true, 4), "64 40 ffff 000a0b0c 00123456 11111111 00000055");
    p.flags |= flag::IMM;
    is(&headers(QpType::Ud, &p, true, true, 4), "65 40 ffff 000a0b0c 00123456 11111111 00000055 09080706");
}

/// A frame with this payload, and its headers when it is parsed.
fn whole(way: &Way, payload: &[u8]) -> (Vec<u8>, roce::Repr) {
    let piece = Piece { psn: Psn::new(1), first: true, last: true, len: payload.len() as u32 };
    let repr = frame(way, RC, &packet(PacketOp::Send), &piece);
    let (len, at) = repr.frame_len(payload.len()).unwrap();
    let mut out = vec![0; len];
    out[at..at + payload.len()].copy_from_slice(payload);
    repr.emit(payload.len(), &mut out).unwrap();
    // Every length and checksum and the ICRC are verified here.
    let (parsed, said) = roce::Repr::read(&out).unwrap();
    assert_eq!(said, payload);
    assert_eq!((parsed.transport, parsed.source_port), (repr.transport, repr.source_port));
    (out, parsed)
}

#[test]
fn a_whole_packet_over_ipv4() {
    let (out, _) = whole(&way(), b"hello");
    let (ethernet, ip) = out.split_at(14);
    is(ethernet, "0200c0a80009 0200c0a80007 0800");
    // 20 + 8 + 12 + 8 + 4 bytes.
    is(&ip[..10], "45000034 00004000 4011");
    is(&ip[12..20], "c0a80007 c0a80009");
    assert_eq!(ip[20] & 0xc0, 0xc0, "a port of the dynamic range");
    is(&ip[22..28], "12b7 0020 0000");
    is(&ip[28..48], "0470ffff 000a0b0c 00000001 68656c6c6f 000000");
    assert_eq!(ip.len(), 52);
}

#[test]
fn a_whole_packet_over_ipv6() {
    let gid = |last| Gid::from_ip(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last).into());
    let way = Way { source: gid(1), dest: gid(2), traffic_class: 0x12, hop_limit: 0, flow_label: 0x34567, ..way() };
    let (out, _) = whole(&way, b"four");
    let (ethernet, ip) = out.split_at(14);
    is(ethernet, "020000000002 020000000001 86dd");
    is(&ip[..8], "61234567 001c 11 40");
    assert_ne!(ip[46..48], [0, 0], "IPv6 has no datagram without a checksum");
}

#[test]
fn groups_have_the_addresses_that_ip_has_for_them() {
    is(&station(&Gid::from_ip(std::net::Ipv4Addr::new(239, 129, 2, 3).into())), "01005e010203");
    is(&station(&Gid::from_ip("ff12::1:2:3".parse().unwrap())), "333300020003");
}
