//! Facts about the TCP connections of softiw0.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::text::{bytes, clean};

/// A TCP connection of a queue pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// The number of its queue pair.
    pub qpn: u32,
    /// This side's address and port.
    pub local: String,
    /// The peer's.
    pub peer: String,
    /// True if this side has begun to end the connection.
    pub closing: bool,
    /// True if CRCs are on.
    pub crc: bool,
    /// True if the peer inserts markers.
    pub markers_in: bool,
    /// True if this side does.
    pub markers_out: bool,
    /// The most bytes of a segment that this side sends (MULPDU).
    pub mulpdu: u16,
    /// Bytes of FPDUs that were made.
    pub bytes_out: u64,
    /// Bytes of FPDUs that have come.
    pub bytes_in: u64,
    /// FPDUs that were made.
    pub fpdus_out: u64,
    /// FPDUs that have come.
    pub fpdus_in: u64,
    /// Bytes that TCP has not taken.
    pub unsent: u64,
    /// How long TCP has taken nothing, if it has no room: the peer's window is closed, or the network is gone.
    pub full_ns: Option<u64>,
}

/// A connection that an error has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// The number of its queue pair.
    pub qpn: u32,
    /// The time of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// The Terminate message that this side had to send.
    pub sent: Option<Terminate>,
    /// The Terminate message that came.
    pub received: Option<Terminate>,
    /// The end, if it was none of both.
    pub why: String,
}

/// A Terminate message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Terminate {
    /// 0: RDMAP, 1: DDP, 2: MPA or TCP.
    pub layer: u8,
    /// The type of the error, of the layer.
    pub etype: u8,
    /// The error, of the type.
    pub code: u8,
    /// Its name.
    pub name: String,
}

impl Stream {
    /// The lines of a report.
    pub(crate) fn render(&self, out: &mut String) {
        let on = |is: bool| if is { "on" } else { "off" };
        let markers = match (self.markers_in, self.markers_out) {
            (false, false) => "none",
            (true, false) => "in",
            (false, true) => "out",
            (true, true) => "both ways",
        };
        let _ = writeln!(
            out,
            "   TCP {} -> {}{}: CRC {}, markers {markers}, MULPDU {}",
            clean(&self.local),
            clean(&self.peer),
            if self.closing { ", closing" } else { "" },
            on(self.crc),
            self.mulpdu
        );
        let _ = writeln!(
            out,
            "   FPDUs: {} out ({}), {} in ({}); {} wait for TCP",
            self.fpdus_out,
            bytes(self.bytes_out),
            self.fpdus_in,
            bytes(self.bytes_in),
            bytes(self.unsent)
        );
    }
}

impl Ended {
    /// The line of a report.
    pub(crate) fn render(&self, out: &mut String, now_ns: u64) {
        let ago = now_ns.saturating_sub(self.at_ns) as f64 / 1e9;
        let _ = write!(out, "connection of QP {:#08x} ended {ago:.1} s ago:", self.qpn);
        for (what, said) in [("sent", &self.sent), ("received", &self.received)] {
            if let Some(Terminate { layer, etype, code, name }) = said {
                let _ = write!(out, " Terminate {what}: layer {layer}, type {etype}, code {code} ({})", clean(name));
            }
        }
        let _ = writeln!(out, "{}{}", if self.why.is_empty() { "" } else { " " }, clean(&self.why));
    }
}

/// Connections that are being made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starting {
    /// TCP connects.
    pub connecting: u32,
    /// MPA's reply is awaited.
    pub asking: u32,
    /// MPA's request is awaited, at a listener.
    pub waiting: u32,
    /// The program has the request, and has not answered it.
    pub asked: u32,
}

impl Starting {
    /// The line of a report; none if there are no such connections.
    pub(crate) fn render(&self, out: &mut String) {
        if *self != Starting::default() {
            let Starting { connecting, asking, waiting, asked } = self;
            let _ = writeln!(
                out,
                "connections being made: {connecting} by TCP, {asking} await the reply, {waiting} the request, {asked} \
                 the program"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let mut out = String::new();
        let stream = Stream {
            qpn: 0x11,
            local: "10.0.0.1:7174".into(),
            peer: "10.0.0.2:50000".into(),
            closing: true,
            crc: true,
            markers_out: true,
            mulpdu: 64768,
            bytes_out: 2048,
            fpdus_out: 3,
            bytes_in: 20,
            fpdus_in: 1,
            unsent: 0,
            ..Stream::default()
        };
        stream.render(&mut out);
        let terminate = Terminate { layer: 2, etype: 0, code: 2, name: "wrong CRC".into() };
        let ended = Ended { qpn: 0x11, at_ns: 1_000_000_000, sent: Some(terminate.clone()), ..Ended::default() };
        ended.render(&mut out, 3_500_000_000);
        Ended { sent: None, received: Some(terminate), ..ended.clone() }.render(&mut out, 3_500_000_000);
        Ended { sent: None, why: "it was torn".into(), ..ended }.render(&mut out, 3_500_000_000);
        Starting::default().render(&mut out);
        Starting { waiting: 2, ..Starting::default() }.render(&mut out);
        let expected = [
            "   TCP 10.0.0.1:7174 -> 10.0.0.2:50000, closing: CRC on, markers out, MULPDU 64768",
            "   FPDUs: 3 out (2.0 KiB), 1 in (20 B); 0 B wait for TCP",
            "connection of QP 0x000011 ended 2.5 s ago: Terminate sent: layer 2, type 0, code 2 (wrong CRC)",
            "connection of QP 0x000011 ended 2.5 s ago: Terminate received: layer 2, type 0, code 2 (wrong CRC)",
            "connection of QP 0x000011 ended 2.5 s ago: it was torn",
            "connections being made: 0 by TCP, 0 await the reply, 2 the request, 0 the program",
        ];
        assert_eq!(out.lines().collect::<Vec<_>>(), expected);
    }
}
