//! Taps on TCP connections of iWARP. The driver gives each connection a [`StreamTap`], shows what it sends and gets,
//! and does what faults ask of it ([`Act`]).

use std::net::SocketAddr;
use std::ops::Range;

use verbs::{Psn, Qpn};
use wire::{Nanos, Packet, PacketOp};

use crate::pcap::Conversation;
use crate::{Tapped, Wire};

/// Bytes between two markers of MPA, from beginning to beginning (RFC 5044, section 4.3), and bytes of one.
const MARKED: u64 = 512;
const WORD: usize = 4;

/// What the taps know of a TCP connection.
#[derive(Debug)]
pub struct StreamTap {
    conversation: Option<Conversation>,
    qpn: Qpn,
    /// Bytes in front of the FPDUs: MPA's reply.
    before: usize,
    markers: bool,
    /// Bytes of FPDUs so far.
    place: u64,
}

/// What the driver is to do with a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Send these bytes. With a note for the capture.
    Send(Vec<u8>, Option<&'static str>),
    /// Send nothing before this time.
    Wait(Nanos),
    /// Neither send nor read before this time.
    Stall(Nanos),
    /// Send FIN, and nothing behind it.
    HalfClose,
    /// Reset the connection.
    Reset,
}

/// An FPDU among bytes that are sent.
struct Fpdu {
    range: Range<usize>,
    /// The packet that stands for it when rules are looked up; `None`: it is not counted.
    op: Option<PacketOp>,
    /// Bytes of its header, with the length, and of its data.
    header: usize,
    data: usize,
}

impl StreamTap {
    /// Note that FPDUs begin behind so many bytes of what is sent from now on.
    pub fn operate(&mut self, qpn: Qpn, before: usize, markers: bool) {
        (self.qpn, self.before, self.markers) = (qpn, before, markers);
    }

    /// The places of words in the bytes from `at` on, past markers.
    fn words(&self, at: usize) -> impl Iterator<Item = usize> + use<> {
        let (markers, base) = (self.markers, self.place);
        let is_marker = move |at: usize| markers && (base + at as u64).is_multiple_of(MARKED);
        (at..).step_by(WORD).filter(move |at| !is_marker(*at))
    }

    /// The FPDU that starts at a place of these bytes; they are its connection's next.
    fn fpdu(&self, bytes: &[u8], at: usize) -> Option<Fpdu> {
        let first = self.words(at).next()?;
        let &[high, low, ddp, rdmap] = bytes.get(first..)?.first_chunk()?;
        let len = usize::from(u16::from_be_bytes([high, low]));
        let count = (2 + len).div_ceil(WORD) + 1; // with the CRC
        let end = self.words(at).nth(count - 1)? + WORD;
        let header = 2 + if ddp & 0x80 != 0 { 14 } else { 18 };
        let (op, carries) = match rdmap & 0x0f {
            0 => (Some(PacketOp::Write), true),
            1 => (Some(PacketOp::ReadRequest), false),
            2 => (Some(PacketOp::ReadResponse), true),
            3..=6 => (Some(PacketOp::Send), true),
            _ => (None, false),
        };
        let data = if carries { (2 + len).saturating_sub(header) } else { 0 };
        // A WRITE of no bytes says "ready to receive", or has a sleeping peer look: no request of the program.
        let op = op.filter(|op| *op != PacketOp::Write || data > 0);
        Some(Fpdu { range: at..end.min(bytes.len()), op, header, data })
    }
}

impl<W: Wire> Tapped<W> {
    /// True if TCP connections are to have taps.
    pub fn taps_streams(&self) -> bool {
        let Some(taps) = self.taps.as_ref().filter(|_| self.tapped()) else { return false };
        taps.pcap.is_some() || taps.faults.as_ref().is_some_and(crate::fault::Faults::watches_streams)
    }

    /// The tap of a TCP connection between these ends, if it is to have one: this side has connected (`active`), or has
    /// accepted, and has the first bytes.
    pub fn tap_stream(&mut self, ends: (SocketAddr, SocketAddr), active: bool) -> Option<Box<StreamTap>> {
        if !self.taps_streams() {
            return None;
        }
        let conversation = self.pcap().map(|pcap| pcap.converse(ends.0, ends.1, active));
        Some(Box::new(StreamTap { conversation, qpn: Qpn::new(0), before: 0, markers: false, place: 0 }))
    }

    /// Decide what becomes of bytes that a queue pair sends next. They begin and end with whole FPDUs.
    pub fn stream_out(&mut self, tap: &mut StreamTap, mut bytes: Vec<u8>) -> Vec<Act> {
        let Some(faults) = self.taps.as_mut().and_then(|taps| taps.faults.as_mut()) else {
            return vec![Act::Send(bytes, None)];
        };
        let mut acts = Vec::new();
        let before = std::mem::take(&mut tap.before).min(bytes.len());
        if before > 0 {
            let rest = bytes.split_off(before);
            acts.push(Act::Send(std::mem::replace(&mut bytes, rest), None));
        }
        let (mut at, mut begun) = (0, 0);
        while let Some(fpdu) = tap.fpdu(&bytes, at).filter(|fpdu| fpdu.range.end > at) {
            at = fpdu.range.end;
            let Some(op) = fpdu.op else { continue };
            let len = fpdu.data as u32;
            let packet = Packet { len, ..Packet::new(op, Qpn::new(0), tap.qpn, Psn::new(0)) };
            let verdict = faults.outgoing_fpdu(&packet, len);
            if verdict == crate::fault::FpduVerdict::default() {
                continue;
            }
            if fpdu.range.start > begun {
                acts.push(Act::Send(bytes.get(begun..fpdu.range.start).unwrap_or_default().to_vec(), None));
            }
            begun = fpdu.range.end;
            let mut shown = bytes.get(fpdu.range.clone()).unwrap_or_default().to_vec();
            let mut note = None;
            if let Some(choice) = verdict.flip {
                let (byte, bit) = ((choice % fpdu.data.max(1) as u64) as usize, 1 << (choice >> 61));
                let inside = fpdu.header + byte;
                let word = tap.words(fpdu.range.start).nth(inside / WORD).unwrap_or(usize::MAX - WORD);
                let place = (word + inside % WORD).wrapping_sub(fpdu.range.start);
                if let Some(byte) = shown.get_mut(place) {
                    *byte ^= bit;
                    note = Some("a bit was flipped on purpose");
                }
            }
            if verdict.wait > 0 {
                acts.push(Act::Wait(faults.now().saturating_add(verdict.wait)));
            }
            if verdict.stalled_until > 0 {
                acts.push(Act::Stall(verdict.stalled_until));
            }
            if verdict.half_close {
                acts.push(Act::HalfClose);
            }
            if verdict.reset {
                acts.push(Act::Reset);
            }
            acts.push(Act::Send(shown, note));
        }
        tap.place += bytes.len() as u64;
        if begun < bytes.len() {
            acts.push(Act::Send(bytes.split_off(begun), None));
        }
        acts
    }

    /// Capture bytes before they are given to TCP.
    pub fn stream_says(&mut self, tap: &mut StreamTap, bytes: &[u8], note: Option<&str>) {
        if let (Some(pcap), Some(conversation)) = (self.pcap(), &mut tap.conversation) {
            pcap.says(conversation, bytes, note);
        }
    }

    /// Capture bytes that TCP has given.
    pub fn stream_hears(&mut self, tap: &mut StreamTap, bytes: &[u8]) {
        if let (Some(pcap), Some(conversation)) = (self.pcap(), &mut tap.conversation) {
            pcap.hears(conversation, bytes);
        }
    }

    /// Capture the end of what this side sends (`outbound`), or gets: FIN, or RST.
    pub fn stream_hangs_up(&mut self, tap: &mut StreamTap, outbound: bool, reset: bool) {
        if let (Some(pcap), Some(conversation)) = (self.pcap(), &mut tap.conversation) {
            pcap.hangs_up(conversation, outbound, reset);
        }
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
