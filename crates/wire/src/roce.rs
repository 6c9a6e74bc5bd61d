//! A RoCEv2 frame (IBTA annex A17): Ethernet, IP, UDP, transport headers, payload, padding, ICRC.

use core::fmt;

use crate::checksum::Sum;
use crate::{Error, Result, ethernet, icrc, ipv4, ipv6, transport, udp};

/// The destination port of UDP (A17.3.1.1).
pub const PORT: u16 = 4791;

/// The IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Ip {
    V4(ipv4::Repr),
    V6(ipv6::Repr),
}

/// The headers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The Ethernet header. `emit` takes its type from `ip`.
    pub ethernet: ethernet::Repr,
    /// The IP header. `emit` takes its payload length from the frame.
    pub ip: Ip,
    /// The source port of UDP: one for all packets of a flow (A17.3.1.1).
    pub source_port: u16,
    /// The transport headers. The pad count is that of the payload when they are emitted.
    pub transport: transport::Repr,
}

impl Ip {
    /// Bytes of the header.
    pub const fn len(&self) -> usize {
        match self {
            Ip::V4(_) => ipv4::LEN,
            Ip::V6(_) => ipv6::LEN,
        }
    }

    /// False always: the bytes are a header.
    pub const fn is_empty(&self) -> bool {
        false
    }

    fn pseudo_header(&self, len: u16) -> Sum {
        match self {
            Ip::V4(ip) => ip.pseudo_header(len),
            Ip::V6(ip) => ip.pseudo_header(len),
        }
    }
}

/// The parts of a frame, for the sender to put the payload in place.
struct Layout {
    payload: usize,
    pad: usize,
    frame: usize,
}

impl Repr {
    fn layout(&self, payload_len: usize) -> Result<(transport::Bytes, Layout)> {
        let mut headers = self.transport;
        let pad = payload_len.wrapping_neg() & 3;
        headers.bth.pad = pad as u8;
        let headers = headers.emit()?;
        let payload = ethernet::LEN + self.ip.len() + udp::LEN + headers.len();
        let frame = payload.checked_add(payload_len).and_then(|end| end.checked_add(pad + icrc::LEN));
        Ok((headers, Layout { payload, pad, frame: frame.ok_or(Error::Length)? }))
    }

    /// Bytes of the frame with this payload, and where in it the payload starts.
    ///
    /// # Errors
    /// Those of the transport headers.
    pub fn frame_len(&self, payload_len: usize) -> Result<(usize, usize)> {
        let (_, layout) = self.layout(payload_len)?;
        Ok((layout.frame, layout.payload))
    }

    /// Completes a frame of [`Repr::frame_len`] bytes whose payload is in place: headers, padding, checksums, ICRC.
    ///
    /// # Errors
    /// Those of the transport headers; [`Error::Length`] if `frame` has another length, or is longer than IP allows.
    pub fn emit(&self, payload_len: usize, frame: &mut [u8]) -> Result<()> {
        let (transport, layout) = self.layout(payload_len)?;
        if frame.len() != layout.frame {
            return Err(Error::Length);
        }
        let udp_at = ethernet::LEN + self.ip.len();
        let udp_len = u16::try_from(frame.len() - udp_at).map_err(|_| Error::Length)?;
        let (ethertype, ip_len) = match self.ip {
            Ip::V4(_) => (ethernet::IPV4, ipv4::LEN),
            Ip::V6(_) => (ethernet::IPV6, 0),
        };
        if usize::from(udp_len) + ip_len > usize::from(u16::MAX) {
            return Err(Error::Length);
        }
        let (headers, rest) = frame.split_at_mut_checked(layout.payload).ok_or(Error::Length)?;
        let mut at = 0;
        let mut put = |header: &[u8]| -> Result<()> {
            headers.get_mut(at..at + header.len()).ok_or(Error::Length)?.copy_from_slice(header);
            at += header.len();
            Ok(())
        };
        put(&ethernet::Repr { ethertype, ..self.ethernet }.emit())?;
        match self.ip {
            Ip::V4(ip) => put(&ipv4::Repr { payload_len: udp_len, ..ip }.emit())?,
            Ip::V6(ip) => put(&ipv6::Repr { payload_len: udp_len, ..ip }.emit())?,
        }
        let mut udp =
            udp::Repr { source: self.source_port, dest: PORT, payload_len: udp_len - udp::LEN as u16, checksum: 0 };
        put(&udp.emit())?;
        put(&transport)?;
        let (padding, _) = rest.get_mut(payload_len..).unwrap_or_default().split_at_mut(layout.pad);
        padding.fill(0);
        let end = frame.len() - icrc::LEN;
        let crc = icrc::compute(frame.get(ethernet::LEN..end).unwrap_or_default())?;
        frame.get_mut(end..).ok_or(Error::Length)?.copy_from_slice(&crc);
        // A17.3.1: no checksum over IPv4. IPv6 knows no datagram without one, and sends 0 as all ones (RFC 8200, 8.1).
        if matches!(self.ip, Ip::V6(_)) {
            let sum = self.ip.pseudo_header(udp_len).bytes(frame.get(udp_at..).unwrap_or_default());
            udp.checksum = match sum.finish() {
                0 => 0xffff,
                checksum => checksum,
            };
            let place = frame.get_mut(udp_at..udp_at + udp::LEN).ok_or(Error::Length)?;
            place.copy_from_slice(&udp.emit());
        }
        Ok(())
    }

    /// The headers of a frame and its payload. Every length and checksum and the ICRC are verified.
    ///
    /// # Errors
    /// Those of the headers; [`Error::Value`] for another protocol or port, [`Error::Length`], [`Error::Checksum`].
    pub fn read(frame: &[u8]) -> Result<(Repr, &[u8])> {
        let (ethernet, packet) = ethernet::Repr::read(frame)?;
        let (ip, protocol, len, rest) = match ethernet.ethertype {
            ethernet::IPV4 => {
                let (ip, rest) = ipv4::Repr::read(packet)?;
                (Ip::V4(ip), ip.protocol, ip.payload_len, rest)
            }
            ethernet::IPV6 => {
                let (ip, rest) = ipv6::Repr::read(packet)?;
                (Ip::V6(ip), ip.next_header, ip.payload_len, rest)
            }
            _ => return Err(Error::Value("EtherType")),
        };
        if protocol != udp::PROTOCOL {
            return Err(Error::Value("IP protocol"));
        }
        // Ethernet pads short frames: what lies behind the IP packet does not belong to it.
        let datagram = rest.get(..usize::from(len)).ok_or(Error::Length)?;
        let packet = packet.get(..ip.len() + datagram.len()).ok_or(Error::Length)?;
        let (udp, rest) = udp::Repr::read(datagram)?;
        if udp.dest != PORT {
            return Err(Error::Value("UDP port"));
        }
        if usize::from(udp.payload_len) != rest.len() {
            return Err(Error::Length);
        }
        let unchecked = udp.checksum == 0;
        let wrong = !unchecked && ip.pseudo_header(len).bytes(datagram).finish() != 0;
        if wrong || unchecked && matches!(ip, Ip::V6(_)) {
            return Err(Error::Checksum);
        }
        let (rest, crc) = rest.split_last_chunk::<{ icrc::LEN }>().ok_or(Error::Truncated)?;
        let covered = packet.get(..packet.len() - icrc::LEN).ok_or(Error::Truncated)?;
        if icrc::compute(covered)? != *crc {
            return Err(Error::Checksum);
        }
        let (transport, padded) = transport::Repr::read(rest)?;
        let payload = padded.len().checked_sub(usize::from(transport.bth.pad)).ok_or(Error::Length)?;
        // 9.2.3: payload and padding are a multiple of four bytes.
        if padded.len() % 4 != 0 {
            return Err(Error::Length);
        }
        let repr = Repr { ethernet, ip, source_port: udp.source, transport };
        Ok((repr, padded.get(..payload).unwrap_or_default()))
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ip {
            Ip::V4(ip) => write!(f, "{} > {}", ip.source, ip.dest)?,
            Ip::V6(ip) => write!(f, "{} > {}", ip.source, ip.dest)?,
        }
        write!(f, " {}", self.transport)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::header::hex;

    /// A SEND Only of an unreliable connection with its ICRC (from scapy's tests of RoCE).
    fn captured() -> Vec<u8> {
        hex("0200c0a80007 0200c0a80007 0800 45010040 04784000 4011b4d5 c0a80007 c0a80007 c00012b7 002caca2 \
             2460ffff 000000d3 00cf1710 4630818b e28935d9 0e9a9550 5401be88 5e500000 78f353f3")
    }

    #[test]
    fn a_captured_frame_is_understood() {
        let frame = captured();
        let (repr, payload) = Repr::read(&frame).unwrap();
        // The pad count is 2; 20 bytes of payload and padding follow the transport header.
        assert_eq!(repr.transport.bth.pad, 2);
        assert_eq!(payload, hex("4630818b e28935d9 0e9a9550 5401be88 5e50"));
        let line = "192.168.0.7 > 192.168.0.7 Uc SendOnly dest=0xd3 psn=0xcf1710 pad=2 M";
        assert_eq!(std::format!("{repr}"), line);
        // It is emitted as it was captured, but for UDP's checksum, which we do not use over IPv4.
        let (len, at) = repr.frame_len(payload.len()).unwrap();
        let mut again = std::vec![0xaa; len];
        again[at..at + payload.len()].copy_from_slice(payload);
        repr.emit(payload.len(), &mut again).unwrap();
        let mut expected = frame.clone();
        expected[40..42].fill(0);
        assert_eq!(again, expected);
    }

    #[test]
    fn padding_of_ethernet_does_not_belong_to_it() {
        let mut frame = captured();
        frame.extend_from_slice(&[0xee; 7]);
        assert_eq!(Repr::read(&frame), Repr::read(&captured()));
    }

    #[test]
    fn every_changed_bit_that_is_covered_is_seen() {
        let frame = captured();
        for (byte, bit) in (ethernet::LEN..frame.len()).flat_map(|byte| (0..8).map(move |bit| (byte, bit))) {
            let mut changed = frame.clone();
            changed[byte] ^= 1 << bit;
            assert!(Repr::read(&changed).is_err(), "bit {bit} of byte {byte}");
        }
        for short in 0..frame.len() {
            assert!(Repr::read(&frame[..short]).is_err(), "{short} bytes");
        }
    }
}
