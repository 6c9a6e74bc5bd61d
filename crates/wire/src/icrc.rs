//! Invariant CRC (IBTA vol. 1, 7.8.1; A17.3.3 for RoCEv2): the last four bytes of a packet. It covers everything that
//! routers leave as it is. It is the one field here that is little-endian.

use crate::{Error, Result, bth, ipv4, ipv6, udp};

/// Bytes of the CRC.
pub const LEN: usize = 4;

/// The longest of the headers that are masked.
const MASKED: usize = ipv6::LEN + udp::LEN + bth::LEN;

/// The CRC of a RoCEv2 packet from its IP header to its padding.
///
/// # Errors
/// [`Error::Version`] if it is neither IPv4 nor IPv6; [`Error::Truncated`] if there is no base transport header.
pub fn compute(ip: &[u8]) -> Result<[u8; LEN]> {
    // What routers change counts as all ones: bytes of the IP header (A17.3.3).
    let (udp, first, changed): (usize, u8, &[usize]) = match ip.first().map(|byte| byte >> 4) {
        // Type of service, time to live, header checksum.
        Some(4) => (ipv4::LEN, 0, &[1, 8, 10, 11]),
        // Traffic class and flow label, hop limit.
        Some(6) => (ipv6::LEN, 0x0f, &[1, 2, 3, 7]),
        Some(_) => return Err(Error::Version),
        None => return Err(Error::Truncated),
    };
    let len = udp + udp::LEN + bth::LEN;
    let (headers, rest) = ip.split_at_checked(len).ok_or(Error::Truncated)?;
    let mut room = [0; MASKED];
    let masked = room.get_mut(..len).ok_or(Error::Truncated)?;
    masked.copy_from_slice(headers);
    // UDP's checksum; the base transport header's byte of congestion bits.
    let of_transport = [udp + 6, udp + 7, udp + udp::LEN + 4];
    for at in changed.iter().chain(&of_transport) {
        masked.iter_mut().skip(*at).take(1).for_each(|byte| *byte = 0xff);
    }
    masked.iter_mut().take(1).for_each(|byte| *byte |= first);
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[0xff; 8]); // where InfiniBand has its local route header
    crc.update(masked);
    crc.update(rest);
    Ok(crc.finalize().to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::hex;

    #[test]
    fn it_is_what_adapters_compute() {
        // A congestion notification that a ConnectX-4 Lx sent, and its ICRC (from scapy's tests of RoCE).
        let cnp = hex("45c2003c 718c4000 40119161 0a001101 0a001201 000012b7 00280000 8100ffff 40000118 00000000 \
                       0000000000000000 0000000000000000");
        assert_eq!(compute(&cnp), Ok([0x82, 0xfd, 0x00, 0x2a]));
        // A SEND Only of an unreliable connection, from there, too.
        let send = hex("45010040 04784000 4011b4d5 c0a80007 c0a80007 c00012b7 002caca2 2460ffff 000000d3 00cf1710 \
                        4630818b e28935d9 0e9a9550 5401be88 5e500000");
        assert_eq!(compute(&send), Ok([0x78, 0xf3, 0x53, 0xf3]));
        // What routers change changes nothing.
        let mut routed = send;
        (routed[1], routed[8], routed[10], routed[11], routed[26]) = (0xff, 3, 1, 2, 9);
        routed[32] ^= 0x80;
        assert_eq!(compute(&routed), Ok([0x78, 0xf3, 0x53, 0xf3]));
    }

    #[test]
    fn over_ipv6_it_ignores_what_routers_change() {
        let mut ip = [0u8; MASKED + 16];
        ip[0] = 0x60;
        let before = compute(&ip);
        for at in [1, 2, 3, 7, 46, 47, 52] {
            let mut changed = ip;
            changed[at] ^= 0xff;
            assert_eq!(compute(&changed), before, "byte {at}");
        }
        for at in [4, 6, 8, 24, 40, 44, 48, 53, 60] {
            let mut changed = ip;
            changed[at] ^= 1;
            assert_ne!(compute(&changed), before, "byte {at}");
        }
    }

    #[test]
    fn what_is_no_packet_has_none() {
        assert_eq!(compute(&[]), Err(Error::Truncated));
        assert_eq!(compute(&[0x50; 80]), Err(Error::Version));
        assert_eq!(compute(&[0x45; 39]), Err(Error::Truncated));
        assert_eq!(compute(&[0x60; 59]), Err(Error::Truncated));
    }
}
