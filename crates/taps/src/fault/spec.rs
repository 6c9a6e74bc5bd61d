//! Fault specifications. `parse.rs` reads them; the grammar is in `softrnic help run`.

use std::fmt;

use verbs::Errno;
use wire::{Nanos, Packet, PacketOp};

/// The faults, and the seed of their chances.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Spec {
    /// `seed=N`; `None`: the process chooses one, and logs it.
    pub seed: Option<u64>,
    /// The rules, in their order.
    pub rules: Vec<Rule>,
}

/// One fault: its kind, its object, and its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The rule as it was written.
    pub text: String,
    /// The kind of fault.
    pub fault: Fault,
    /// When it strikes.
    pub when: When,
    /// The packets that it can strike.
    pub only: Only,
    /// How long a state lasts (`for=`); `None`: for ever.
    pub lasts: Option<Nanos>,
}

/// The kinds of faults.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the variants are explained in `FAULTS`
pub enum Fault {
    Drop,
    Delay(Nanos),
    Duplicate,
    /// So many packets overtake the packet, within this time.
    Reorder(u32, Nanos),
    Corrupt,
    Slow(Nanos),
    Rnr,
    QpError,
    LinkKill,
    /// The TCP connection is reset.
    Reset,
    /// The TCP connection moves nothing for a while.
    Stall,
    /// The TCP connection ends in one direction.
    HalfClose,
    /// A call fails.
    Errno(Pattern, Errno),
    Device(DeviceFault),
}

/// Faults of the device or its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the variants are explained in `FAULTS`
pub enum DeviceFault {
    Fatal,
    Removal,
    PortDown,
    GidChange,
    AddrChange,
}

/// The time at which a rule acts. The things that it counts (packets or calls) are numbered from 1, beginning `after`
/// the device was made.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct When {
    /// The number of the one that it strikes.
    pub n: Option<u64>,
    /// The distance between two that it strikes.
    pub every: Option<u64>,
    /// The probability with which it strikes each.
    pub p: Option<f64>,
    /// The time before which it does not count.
    pub after: Option<Nanos>,
    /// With `n`: so many in a row; else at most so many in all.
    pub count: Option<u64>,
}

/// The packets that a rule counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Only {
    /// The kind of packets; `None`: the kind that the fault counts by itself.
    pub op: Option<Op>,
    /// True for packets that come, false for those that are sent.
    pub received: bool,
    /// The number of the local queue pair.
    pub qp: Option<u32>,
}

/// Kinds of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the specification's
pub enum Op {
    Any,
    Request,
    Response,
    Send,
    Write,
    Read,
    Atomic,
    Flush,
    Datagram,
    Ack,
    ReadResponse,
}

impl Op {
    /// All kinds, with their names.
    pub const ALL: [(&'static str, Op); 11] = [
        ("any", Op::Any),
        ("request", Op::Request),
        ("response", Op::Response),
        ("send", Op::Send),
        ("write", Op::Write),
        ("read", Op::Read),
        ("atomic", Op::Atomic),
        ("flush", Op::Flush),
        ("datagram", Op::Datagram),
        ("ack", Op::Ack),
        ("read-response", Op::ReadResponse),
    ];

    /// True if a packet of this operation is of this kind.
    pub fn covers(self, op: PacketOp) -> bool {
        match self {
            Op::Any => true,
            Op::Request => !op.is_response(),
            Op::Response => op.is_response(),
            Op::Send => op == PacketOp::Send,
            Op::Write => op == PacketOp::Write,
            Op::Read => op == PacketOp::ReadRequest,
            Op::Atomic => matches!(op, PacketOp::CompareSwap | PacketOp::FetchAdd | PacketOp::AtomicWrite),
            Op::Flush => op == PacketOp::Flush,
            Op::Datagram => op == PacketOp::Datagram,
            Op::Ack => op == PacketOp::Ack,
            Op::ReadResponse => op == PacketOp::ReadResponse,
        }
    }
}

impl Only {
    /// True if the rule counts this packet. `default`: the kind that it counts if the specification does not say.
    pub fn covers(&self, packet: &Packet, received: bool, default: Op) -> bool {
        let ours = if received { packet.dst } else { packet.src };
        self.received == received
            && self.op.unwrap_or(default).covers(packet.op)
            && self.qp.is_none_or(|qp| qp == ours.get())
    }
}

/// Names of calls: exact, or with `*` for any characters at the beginning, at the end or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(pub String);

impl Pattern {
    /// True if the pattern covers this name.
    pub fn covers(&self, name: &str) -> bool {
        let (text, open) = match self.0.strip_prefix('*') {
            Some(rest) => (rest, true),
            None => (self.0.as_str(), false),
        };
        match (open, text.strip_suffix('*')) {
            (false, None) => name == text,
            (false, Some(start)) => name.starts_with(start),
            (true, None) => name.ends_with(text),
            (true, Some(middle)) => name.contains(middle),
        }
    }
}

impl Fault {
    /// The fault's name in a specification.
    pub fn name(&self) -> &'static str {
        match self {
            Fault::Drop => "drop",
            Fault::Delay(_) => "delay",
            Fault::Duplicate => "duplicate",
            Fault::Reorder(..) => "reorder",
            Fault::Corrupt => "corrupt",
            Fault::Slow(_) => "slow",
            Fault::Rnr => "rnr",
            Fault::QpError => "qp-error",
            Fault::LinkKill => "link-kill",
            Fault::Reset => "reset",
            Fault::Stall => "stall",
            Fault::HalfClose => "half-close",
            Fault::Errno(..) => "errno",
            Fault::Device(DeviceFault::Fatal) => "device-fatal",
            Fault::Device(DeviceFault::Removal) => "device-removal",
            Fault::Device(DeviceFault::PortDown) => "port-down",
            Fault::Device(DeviceFault::GidChange) => "gid-change",
            Fault::Device(DeviceFault::AddrChange) => "addr-change",
        }
    }

    /// True for faults of a TCP connection.
    pub fn is_of_streams(&self) -> bool {
        matches!(self, Fault::Reset | Fault::Stall | Fault::HalfClose)
    }

    /// True if the fault can strike FPDUs on TCP: TCP repairs the others, and has no receives.
    pub fn reaches_streams(&self) -> bool {
        let of_bytes = matches!(self, Fault::Corrupt | Fault::Delay(_) | Fault::Slow(_) | Fault::QpError);
        of_bytes || self.is_of_streams()
    }

    /// True for faults of the process's device, not of a packet or a call: they can come by time alone.
    pub fn is_an_incident(&self) -> bool {
        matches!(self, Fault::QpError | Fault::LinkKill | Fault::Device(_))
    }
}

/// The keys that may follow a fault's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the specification's
pub enum Key {
    N,
    Every,
    P,
    After,
    Count,
    Op,
    Side,
    Qp,
    T,
    By,
    For,
    Call,
    Errno,
}

impl Key {
    /// All keys, with their names.
    pub const ALL: [(&'static str, Key); 13] = [
        ("n", Key::N),
        ("every", Key::Every),
        ("p", Key::P),
        ("after", Key::After),
        ("count", Key::Count),
        ("op", Key::Op),
        ("side", Key::Side),
        ("qp", Key::Qp),
        ("t", Key::T),
        ("by", Key::By),
        ("for", Key::For),
        ("call", Key::Call),
        ("errno", Key::Errno),
    ];
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Key::ALL.iter().find(|(_, key)| key == self).map_or("", |(name, _)| name))
    }
}

/// The description of a fault, for the authors of specifications.
pub struct About {
    /// The name of the fault.
    pub name: &'static str,
    /// The keys that may follow, beside those that say when.
    pub keys: &'static [Key],
    /// The effect of the fault.
    pub about: &'static str,
}

/// The keys that say when, which every fault may have.
pub const WHEN: [Key; 5] = [Key::N, Key::Every, Key::P, Key::After, Key::Count];

const PACKETS: &[Key] = &[Key::Op, Key::Side, Key::Qp];
const SENT: &[Key] = &[Key::Op, Key::Qp];
const SENT_LATE: &[Key] = &[Key::Op, Key::Qp, Key::T];
const STATE: &[Key] = &[Key::Op, Key::Side, Key::Qp, Key::For];

/// Every fault.
pub const FAULTS: [About; 18] = [
    About { name: "drop", keys: PACKETS, about: "the packet is lost" },
    About { name: "delay", keys: SENT_LATE, about: "the packet goes out t later; what is sent meanwhile overtakes it" },
    About { name: "duplicate", keys: PACKETS, about: "the packet comes twice" },
    About {
        name: "reorder",
        keys: &[Key::Op, Key::Qp, Key::By, Key::T],
        about: "the packet goes out behind the next by=1 packets to the same process, or after t=1ms",
    },
    About {
        name: "corrupt",
        keys: PACKETS,
        about: "one bit of the packet's data is flipped, its headers stay; on a wire without a checksum the program \
            gets the wrong data. Counts packets with data only",
    },
    About { name: "slow", keys: SENT_LATE, about: "every packet goes out t later, in order" },
    About {
        name: "rnr",
        keys: &[Key::Op, Key::Qp, Key::For],
        about: "a message that comes for a reliable queue pair finds no receive posted (RNR NAK); its repetitions \
            count anew",
    },
    About {
        name: "qp-error",
        keys: PACKETS,
        about: "the packet is lost and its queue pair breaks (IBV_EVENT_QP_FATAL); by after alone: every connected \
            queue pair",
    },
    About {
        name: "link-kill",
        keys: STATE,
        about: "nothing passes any more between this process and the one that the packet is for; by after alone: any \
            other",
    },
    About { name: "reset", keys: SENT, about: "softiw0: the TCP connection is reset (RST) in place of the FPDU" },
    About {
        name: "stall",
        keys: &[Key::Op, Key::Qp, Key::For],
        about: "softiw0: from the FPDU on the TCP connection is neither written nor read, until for is over",
    },
    About {
        name: "half-close",
        keys: SENT,
        about: "softiw0: this side's direction of the TCP connection ends (FIN) in place of the FPDU; the peer's \
            is read on",
    },
    About {
        name: "errno",
        keys: &[Key::Call, Key::Errno],
        about: "a call fails with this errno, and does nothing; ibv_post_send is every posting of send requests, by \
            ibv_wr_complete too",
    },
    About {
        name: "device-fatal",
        keys: PACKETS,
        about: "the device breaks: IBV_EVENT_DEVICE_FATAL, everything posted is flushed, and verbs fail with EIO, but \
            not ibv_query_gid and those that give back, post, poll, arm or get events",
    },
    About {
        name: "device-removal",
        keys: PACKETS,
        about: "the device is taken away: as device-fatal, and RDMA_CM_EVENT_DEVICE_REMOVAL for every rdma_cm_id on it",
    },
    About {
        name: "port-down",
        keys: STATE,
        about: "IBV_EVENT_PORT_ERR, and nothing passes; at its end IBV_EVENT_PORT_ACTIVE",
    },
    About { name: "gid-change", keys: PACKETS, about: "IBV_EVENT_GID_CHANGE; the addresses stay" },
    About {
        name: "addr-change",
        keys: PACKETS,
        about: "RDMA_CM_EVENT_ADDR_CHANGE for every rdma_cm_id with an interface's address, as when a bond fails over",
    },
];
