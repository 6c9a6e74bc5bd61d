//! Deliberate faults, by a specification and a seed: the same seed and the same sequence of packets and calls give the
//! same faults.
//!
//! `spec.rs` has the faults, `parse.rs` reads a specification, `rule.rs` decides when a fault strikes, `path.rs`
//! applies it to packets. Calls that fail are in `calls.rs`; the C ABI asks. A fault of the device as a whole is an
//! [`Order`], which the NIC carries out.

pub mod calls;
mod errnos;
mod parse;
mod path;
#[cfg(test)]
mod path_tests;
mod rule;
pub mod spec;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use verbs::Qpn;
use wire::{LinkId, Nanos, Packet, PacketOp, packet_flags as flag};

pub use errnos::name as errno_name;
pub use parse::ParseError;
use rule::Armed;
use spec::{DeviceFault, Fault, Op, Spec};
pub(crate) use stream::FpduVerdict;

/// A fault of more than a packet, for the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Break this queue pair.
    FailQp(Qpn),
    /// Break every connected queue pair.
    FailQps,
    /// Change the device or the port.
    Device(DeviceFault),
    /// Bring the port up again.
    PortUp,
}

/// A packet that is sent later.
struct Late {
    link: LinkId,
    packet: Packet,
    data: Vec<u8>,
    /// The number of packets to the same process that let it go before its time.
    behind: Option<u32>,
}

/// The decision about a packet that is sent.
#[derive(Default)]
struct Verdict {
    lost: bool,
    again: bool,
    wait: Nanos,
    behind: Option<u32>,
    /// The number, to be reduced to the length, of the bit that is flipped.
    flip: Option<u64>,
}

impl Verdict {
    fn is_plain(&self) -> bool {
        !self.again && self.wait == 0 && self.flip.is_none()
    }
}

/// The decision about a packet that came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrival {
    Lost,
    Passes,
    /// The packet is to be given once more.
    Again,
}

/// The faults of one device.
pub struct Faults {
    seed: u64,
    clock: fn() -> Nanos,
    tell: fn(&str),
    started: Nanos,
    rules: Vec<Armed>,
    /// The late packets, by time and number.
    late: BTreeMap<(Nanos, u64), Late>,
    serial: u64,
    /// True if more packets were late than may wait.
    overflowed: bool,
    /// When to try again after a link had no room for late packets.
    retry_at: Nanos,
    /// The links on which nothing passes, and until when.
    dark: HashMap<LinkId, Nanos>,
    /// The time until which packets pass only within this process.
    cut_until: Nanos,
    port_down_until: Option<Nanos>,
    broken: bool,
    rnr_until: Nanos,
    orders: Vec<Order>,
    /// The decision about the packet that a link shows.
    arrived: HashMap<LinkId, Arrival>,
    /// The number of the bit to flip in the packet being received, and the bytes of header in front of it.
    flip: Option<(u64, u32)>,
}

/// The end of a state; `for=` that is missing means for ever.
fn until(now: Nanos, lasts: Option<Nanos>) -> Nanos {
    lasts.map_or(Nanos::MAX, |lasts| now.saturating_add(lasts))
}

/// Bytes of a datagram's payload that are addresses ([`PacketOp::Datagram`]).
fn header(op: PacketOp) -> u32 {
    if op == PacketOp::Datagram { 32 } else { 0 }
}

/// The bytes of data in a payload of `len` bytes; 0 for lists of addresses and operands.
fn data_len(packet: &Packet, len: u32) -> u32 {
    match packet.op {
        PacketOp::Send | PacketOp::Write | PacketOp::ReadResponse | PacketOp::Datagram => {
            len.saturating_sub(header(packet.op))
        }
        _ => 0,
    }
}

/// The packet, for a report.
fn describe(packet: &Packet) -> String {
    let op = match packet.op {
        PacketOp::Send => "SEND",
        PacketOp::Write => "RDMA WRITE",
        PacketOp::ReadRequest => "RDMA READ request",
        PacketOp::ReadResponse => "RDMA READ response",
        PacketOp::CompareSwap => "compare and swap",
        PacketOp::FetchAdd => "fetch and add",
        PacketOp::AtomicWrite => "atomic write",
        PacketOp::AtomicAck => "atomic acknowledge",
        PacketOp::Ack => match packet.syndrome >> 5 {
            0 => "ACK",
            1 => "RNR NAK",
            _ => "NAK",
        },
        PacketOp::Flush => "FLUSH",
        PacketOp::Datagram => "datagram",
    };
    let (psn, src, dst) = (packet.psn.get(), packet.src.get(), packet.dst.get());
    format!("{op} PSN {psn:#08x} from QP {src:#08x} to QP {dst:#08x}, {} bytes", packet.len)
}

/// Write one line to stderr, whole. The thread that moves packets calls this and holds the device's lock, so it does
/// not wait for room there (`log` of the crate `report`).
pub fn tell_on_stderr(text: &str) {
    report::log(format_args!("{text}"));
}

impl Faults {
    /// Faults that are armed from now on. `None` if no rule is about packets or the device. `tell` gets a line for each
    /// fault.
    pub fn new(spec: &Spec, seed: u64, clock: fn() -> Nanos, tell: fn(&str)) -> Option<Self> {
        let rules = spec.rules.iter().enumerate().filter(|(_, rule)| !matches!(rule.fault, Fault::Errno(..)));
        let rules: Vec<Armed> = rules.map(|(i, rule)| Armed::new(rule.clone(), i)).collect();
        (!rules.is_empty()).then(|| Faults {
            seed,
            clock,
            tell,
            started: clock(),
            rules,
            late: BTreeMap::new(),
            serial: 0,
            overflowed: false,
            retry_at: 0,
            dark: HashMap::new(),
            cut_until: 0,
            port_down_until: None,
            broken: false,
            rnr_until: 0,
            orders: Vec::new(),
            arrived: HashMap::new(),
            flip: None,
        })
    }

    pub(crate) fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    pub(crate) fn take_orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// True if data must be in the packets, because a rule is to reach them.
    fn needs_data(&self) -> bool {
        self.rules.iter().any(|armed| armed.rule.fault == Fault::Corrupt)
    }

    fn report(&self, fault: &Fault, n: u64, what: &str) {
        (self.tell)(&format!("fault {} (seed {}), {n}: {what}", fault.name(), self.seed));
    }

    /// Log how many packets were slow, of which only the first was logged, and the faults that have not happened.
    pub(crate) fn sum_up(&self) {
        self.rules.iter().filter_map(|armed| armed.idle("packets")).for_each(|line| (self.tell)(&line));
        for armed in self.rules.iter().filter(|armed| matches!(armed.rule.fault, Fault::Slow(_))) {
            let (name, struck) = (armed.rule.fault.name(), armed.struck());
            if struck > 1 {
                (self.tell)(&format!("fault {name} (seed {}): {struck} packets in all", self.seed));
            }
        }
    }

    /// Apply a fault of the device, the port, a link or a queue pair. True if the packet that brought it is lost.
    fn incident(&mut self, fault: &Fault, lasts: Option<Nanos>, hit: Option<(LinkId, Qpn)>, now: Nanos) -> bool {
        match (fault, hit) {
            (Fault::QpError, Some((_, qpn))) => self.orders.push(Order::FailQp(qpn)),
            (Fault::QpError, None) => self.orders.push(Order::FailQps),
            (Fault::LinkKill, Some((link, _))) => _ = self.dark.insert(link, until(now, lasts)),
            (Fault::LinkKill, None) => self.cut_until = until(now, lasts),
            (Fault::Device(what), _) => {
                match what {
                    DeviceFault::Fatal | DeviceFault::Removal => self.broken = true,
                    DeviceFault::PortDown => self.port_down_until = Some(until(now, lasts)),
                    DeviceFault::GidChange | DeviceFault::AddrChange => {}
                }
                self.orders.push(Order::Device(*what));
                return !matches!(what, DeviceFault::GidChange | DeviceFault::AddrChange);
            }
            _ => return false,
        }
        true
    }

    fn is_dark(&self, link: LinkId, now: Nanos) -> bool {
        self.broken
            || self.port_down_until.is_some()
            || self.dark.get(&link).is_some_and(|until| now < *until)
            || (link != LinkId::LOOPBACK && now < self.cut_until)
    }

    /// The rules that strike this packet, each with the number of the packet among those that the rule counts. `fpdu`:
    /// it stands for an FPDU on a TCP connection.
    fn struck(&self, packet: &Packet, fpdu: bool, received: bool, len: u32, now: Nanos) -> Vec<(usize, u64)> {
        let elapsed = now.saturating_sub(self.started);
        let looks = |armed: &Armed| {
            let (default, has_what_it_takes) = match armed.rule.fault {
                Fault::Rnr => return false, // it is decided where a receive is taken
                Fault::Corrupt => (Op::Any, data_len(packet, len) > 0 && (received || !packet.has(flag::BY_REF))),
                Fault::Slow(_) => (Op::Any, true),
                _ => (Op::Request, true),
            };
            let fault = &armed.rule.fault;
            if if fpdu { !fault.reaches_streams() } else { fault.is_of_streams() } {
                return false;
            }
            has_what_it_takes && armed.rule.only.covers(packet, received, default)
        };
        let rules = self.rules.iter().enumerate().filter(|(_, armed)| looks(armed));
        rules.filter_map(|(i, armed)| Some((i, armed.strikes(self.seed, elapsed)?))).collect()
    }

    /// Decide about a packet with so many bytes of payload that is sent.
    fn outgoing(&mut self, link: LinkId, packet: &Packet, len: u32) -> Verdict {
        let now = (self.clock)();
        let mut verdict = Verdict::default();
        for (i, n) in self.struck(packet, false, false, len, now) {
            let (fault, lasts) = (self.rules[i].rule.fault.clone(), self.rules[i].rule.lasts);
            // One line for each slow packet would be too many: the first is logged, and at the end their number.
            if !matches!(fault, Fault::Slow(_)) || self.rules[i].struck() == 1 {
                self.report(&fault, n, &describe(packet));
            }
            match fault {
                Fault::Drop => verdict.lost = true,
                Fault::Delay(t) | Fault::Slow(t) => verdict.wait += t.max(1),
                Fault::Duplicate => verdict.again = true,
                Fault::Reorder(by, t) => {
                    verdict.wait += t.max(1);
                    verdict.behind = Some(by);
                }
                Fault::Corrupt => verdict.flip = Some(self.rules[i].choice(self.seed, n)),
                _ => verdict.lost |= self.incident(&fault, lasts, Some((link, packet.src)), now),
            }
        }
        verdict.lost |= self.is_dark(link, now);
        verdict
    }

    /// Decide about a packet with so many bytes of payload that came.
    fn incoming(&mut self, link: LinkId, packet: &Packet, len: u32) -> Arrival {
        let now = (self.clock)();
        let mut arrival = Arrival::Passes;
        let mut lost = false;
        self.flip = None;
        for (i, n) in self.struck(packet, false, true, len, now) {
            let (fault, lasts) = (self.rules[i].rule.fault.clone(), self.rules[i].rule.lasts);
            self.report(&fault, n, &describe(packet));
            match fault {
                Fault::Drop => lost = true,
                Fault::Duplicate => arrival = Arrival::Again,
                Fault::Corrupt => self.flip = Some((self.rules[i].choice(self.seed, n), header(packet.op))),
                _ => lost |= self.incident(&fault, lasts, Some((link, packet.dst)), now),
            }
        }
        if lost || self.is_dark(link, now) { Arrival::Lost } else { arrival }
    }

    /// Decide about a message for which a reliable queue pair takes a receive: true if it must not find one.
    fn withholds_receive(&mut self, packet: &Packet) -> bool {
        let now = (self.clock)();
        if now < self.rnr_until {
            return true;
        }
        let elapsed = now.saturating_sub(self.started);
        let mut withheld = false;
        for i in 0..self.rules.len() {
            let armed = &self.rules[i];
            if armed.rule.fault == Fault::Rnr
                && armed.rule.only.covers(packet, true, Op::Request)
                && let Some(n) = armed.strikes(self.seed, elapsed)
            {
                self.report(&Fault::Rnr, n, &describe(packet));
                if let Some(lasts) = self.rules[i].rule.lasts {
                    self.rnr_until = until(now, Some(lasts));
                }
                withheld = true;
            }
        }
        withheld
    }

    /// Apply the faults that are due by time alone. [`Tapped`](crate::Tapped) sends the packets that waited.
    fn expire(&mut self, now: Nanos) {
        for i in 0..self.rules.len() {
            let armed = &self.rules[i];
            if armed.due().is_some_and(|at| self.started.saturating_add(at) <= now) {
                armed.came();
                let (fault, lasts) = (armed.rule.fault.clone(), armed.rule.lasts);
                let seconds = (now - self.started) as f64 / 1e9;
                self.report(&fault, 1, &format!("{seconds:.3} s after the device was made"));
                self.incident(&fault, lasts, None, now);
            }
        }
        if self.port_down_until.is_some_and(|until| until <= now) {
            self.port_down_until = None;
            self.orders.push(Order::PortUp);
        }
    }

    /// The time of the next fault that needs no packet.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let late = self.late.keys().next().map(|(at, _)| (*at).max(self.retry_at));
        let due = self.rules.iter().filter_map(|armed| Some(self.started.saturating_add(armed.due()?))).min();
        [late, due, self.port_down_until].into_iter().flatten().min()
    }
}
