//! Faults of TCP connections: what strikes an FPDU.

use wire::{Nanos, Packet};

use super::spec::Fault;
use super::{Faults, Order, describe, until};

/// The decision about an FPDU that is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FpduVerdict {
    /// The number, to be reduced to the length, of the bit of the data that is flipped.
    pub flip: Option<u64>,
    /// The FPDU, and all behind it, go out so much later.
    pub wait: Nanos,
    /// Nothing moves before this time; 0: all does.
    pub stalled_until: Nanos,
    pub reset: bool,
    pub half_close: bool,
}

impl Faults {
    /// True if a rule is for TCP connections, or may hold them up.
    pub(crate) fn watches_streams(&self) -> bool {
        self.rules.iter().any(|armed| armed.rule.fault.reaches_streams() || armed.rule.fault.is_an_incident())
    }

    /// Decide about an FPDU with so many bytes of data that is sent; `packet` stands for it.
    pub(crate) fn outgoing_fpdu(&mut self, packet: &Packet, len: u32) -> FpduVerdict {
        let now = (self.clock)();
        let mut verdict = FpduVerdict::default();
        for (i, n) in self.struck(packet, true, false, len, now) {
            let (fault, lasts) = (self.rules[i].rule.fault.clone(), self.rules[i].rule.lasts);
            if !matches!(fault, Fault::Slow(_)) || self.rules[i].struck() == 1 {
                self.report(&fault, n, &describe_fpdu(packet));
            }
            match fault {
                Fault::Corrupt => verdict.flip = Some(self.rules[i].choice(self.seed, n)),
                Fault::Delay(t) | Fault::Slow(t) => verdict.wait += t.max(1),
                Fault::Stall => verdict.stalled_until = until(now, lasts),
                Fault::Reset => verdict.reset = true,
                Fault::HalfClose => verdict.half_close = true,
                Fault::QpError => self.orders.push(Order::FailQp(packet.src)),
                _ => {}
            }
        }
        let dark = if self.broken { Some(Nanos::MAX) } else { self.port_down_until };
        verdict.stalled_until = verdict.stalled_until.max(dark.unwrap_or(0));
        verdict
    }

    /// The time.
    pub(crate) fn now(&self) -> Nanos {
        (self.clock)()
    }
}

/// The FPDU, for a report.
fn describe_fpdu(packet: &Packet) -> String {
    let text = describe(packet);
    let op = text.split(" PSN").next().unwrap_or_default();
    format!("{op} FPDU of QP {:#08x}, {} bytes", packet.src.get(), packet.len)
}
