//! What a fault specification says. `parse.rs` reads it; the grammar is in `softrnic co_copy run`.

use std::fmt;

use verbs::Errno;
use wire::{Nanos, Packet, PacketOp};

/// Faults, and the seed of their chances.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Spec {
    /// `seed=N`; `None`: to be chosen, and told.
    pub seed: Option<u64>,
    /// In their order.
    pub rules: Vec<Rule>,
}

/// One fault: what happens, to what, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// As it was written.
    pub text: String,
    /// What happens.
    pub fault: Fault,
    /// When.
    pub when: When,
    /// To which packets.
    pub only: Only,
    /// How long a state lasts (`for=`); `None`: for ever.
    pub lasts: Option<Nanos>,
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the variants are explained in `FAULTS`
pub enum Fault {
    Drop,
    Delay(Nanos),
    Duplicate,
    /// So many packets overtake it, within this time.
    Reorder(u32, Nanos),
    Corrupt,
    Slow(Nanos),
    Rnr,
    QpError,
    LinkKill,
    /// A call fails.
    Errno(Pattern, Errno),
    Device(DeviceFault),
}

/// What happens to the device or its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the variants are explained in `FAULTS`
pub enum DeviceFault {
    Fatal,
    Removal,
    PortDown,
    GidChange,
    AddrChange,
}

/// When a rule acts. What it looks at (packets or calls) is counted from 1, beginning `after` the device was made.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct When {
    /// The n-th.
    pub n: Option<u64>,
    /// Every so-manieth.
    pub every: Option<u64>,
    /// Each with this probability.
    pub p: Option<f64>,
    /// Not before.
    pub after: Option<Nanos>,
    /// With `n`: so many in a row; else at most so many in all.
    pub count: Option<u64>,
}

/// Which packets a rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Only {
    /// What they carry; `None`: what the fault looks at by itself.
    pub op: Option<Op>,
    /// Packets that come; else those that go.
    pub received: bool,
    /// Of this queue pair of ours.
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
    /// All, with their names.
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

    /// True if a packet of this operation is one.
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
    /// True if the rule looks at this packet. `default`: what it looks at if the specification does not say.
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
    /// True if this name is meant.
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
    /// Its name in a specification.
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
            Fault::Errno(..) => "errno",
            Fault::Device(DeviceFault::Fatal) => "device-fatal",
            Fault::Device(DeviceFault::Removal) => "device-removal",
            Fault::Device(DeviceFault::PortDown) => "port-down",
            Fault::Device(DeviceFault::GidChange) => "gid-change",
            Fault::Device(DeviceFault::AddrChange) => "addr-change",
        }
    }

    /// True for what happens to the process's device, not to a packet or a call: it can come by time alone.
    pub fn is_an_incident(&self) -> bool {
        matches!(self, Fault::QpError | Fault::LinkKill | Fault::Device(_))
    }
}

/// What may follow a fault's name.
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
    /// All, with their names.
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

/// A fault, as it is described to who writes a specification.
pub struct About {
    /// Its name.
    pub name: &'static str,
    /// What may follow, beside the keys that say when.
    pub keys: &'static [Key],
    /// What it does.
    pub about: &'static str,
}

/// When: allowed for every fault.
pub const WHEN: [Key; 5] = [Key::N, Key::Every, Key::P, Key::After, Key::Count];

const PACKETS: &[Key] = &[Key::Op, Key::Side, Key::Qp];
const SENT_LATE: &[Key] = &[Key::Op, Key::Qp, Key::T];
const STATE: &[Key] = &[Key::Op, Key::Side, Key::Qp, Key::For];

/// Every fault.
pub const FAULTS: [About; 15] = [
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
