//! Any bytes as each of the headers: no parser panics, and a parsed header means the same when it is emitted and read
//! again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::*;

/// Read a header, and read again the bytes that it is emitted as.
macro_rules! again {
    ($input:expr, $($header:path),* $(,)?) => {$({
        use $header as header;
        if let Ok((value, _)) = header::Repr::read($input) {
            assert_eq!(header::Repr::read(&value.emit()), Ok((value, &[][..])), "{value}");
        }
    })*};
}

fuzz_target!(|input: &[u8]| {
    headers(input);
    // A short input reaches long headers, too.
    let mut long = [0; mad::DATAGRAM_LEN];
    let len = input.len().min(long.len());
    long[..len].copy_from_slice(&input[..len]);
    headers(&long);
    let _ = mad::cm::Datagram::read(&long);
    frame(input);
});

fn headers(input: &[u8]) {
    again!(
        input,
        bth,
        reth,
        aeth,
        atomic_eth,
        atomic_ack_eth,
        imm_dt,
        ieth,
        deth,
        xrceth,
        feth,
        grh,
        ethernet,
        ipv4,
        ipv6,
        udp,
        tcp,
        mad,
        mad::cm::path,
        mad::cm::ip_addressing,
        mpa::start,
        mpa::enhanced,
        mpa::marker,
        mpa::fpdu,
        ddp::tagged,
        ddp::untagged,
        rdmap::control,
        rdmap::read_request,
        rdmap::atomic_request,
        rdmap::atomic_response,
        rdmap::immediate,
        rdmap::terminate,
    );
    if let Ok((value, _)) = transport::Repr::read(input) {
        let bytes = value.emit().expect("every header that the opcode has");
        assert_eq!(transport::Repr::read(&bytes), Ok((value, &[][..])), "{value}");
    }
    let _ = roce::Repr::read(input);
    let _ = icrc::compute(input);
    for attribute in 0x10..=0x1a {
        if let Ok(message) = mad::cm::Message::read(attribute, input) {
            let bytes = message.emit().expect("data of the length of their fields");
            assert_eq!(mad::cm::Message::read(attribute, &bytes), Ok(message), "{message}");
        }
    }
    let _ = mad::cm::Datagram::read(input);
    if let Ok(payload) = rdmap::terminate::Payload::read(input) {
        assert_eq!(rdmap::terminate::Payload::read(&payload.emit()), Ok(payload));
    }
    let unchecked = mpa::fpdu::read(input, false);
    if mpa::fpdu::read(input, true).is_ok() {
        assert_eq!(mpa::fpdu::read(input, true), unchecked);
    }
}

/// A frame with correct checksums: the first bytes choose the headers, the rest is the payload.
fn frame(input: &[u8]) {
    let Some((chosen, rest)) = input.split_first_chunk::<40>() else { return };
    let Ok((transport, payload)) = transport::Repr::read(rest) else { return };
    let ethernet = ethernet::Repr { dest: [2; 6], source: [2; 6], ethertype: 0 };
    let ip = if chosen[0] & 1 == 0 {
        roce::Ip::V4(ipv4::Repr {
            type_of_service: chosen[1],
            payload_len: 0,
            identification: u16::from_be_bytes([chosen[2], chosen[3]]),
            dont_fragment: chosen[0] & 2 != 0,
            time_to_live: chosen[4],
            protocol: udp::PROTOCOL,
            source: [chosen[8], chosen[9], chosen[10], chosen[11]].into(),
            dest: [chosen[12], chosen[13], chosen[14], chosen[15]].into(),
        })
    } else {
        let address = |at: usize| <[u8; 16]>::try_from(&chosen[at..at + 16]).expect("sixteen bytes").into();
        roce::Ip::V6(ipv6::Repr {
            traffic_class: chosen[1],
            flow_label: u32::from_be_bytes([0, chosen[2] & 0x0f, chosen[3], chosen[4]]),
            payload_len: 0,
            next_header: udp::PROTOCOL,
            hop_limit: chosen[5],
            source: address(8),
            dest: address(24),
        })
    };
    let repr = roce::Repr { ethernet, ip, source_port: u16::from_be_bytes([chosen[6], chosen[7]]), transport };
    let (len, at) = repr.frame_len(payload.len()).expect("a short payload");
    let mut bytes = vec![0; len];
    bytes[at..at + payload.len()].copy_from_slice(payload);
    if repr.emit(payload.len(), &mut bytes).is_ok() {
        let (said, data) = roce::Repr::read(&bytes).expect("what was emitted");
        assert_eq!((data, said.source_port), (payload, repr.source_port), "{said}");
    }
}
