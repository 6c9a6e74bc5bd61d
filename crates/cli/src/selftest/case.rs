//! A case: one operation, one size, one shape, and the expected result.

use rdma::{SendFlags, SendOp, Status, Wc, sys};

use super::pattern;
use super::remote::{Pair, Place};
use super::shape::{GAP, Piece, Shape, span};
use super::side::{Answer, BASE, Received, Service, Stretch, Task, WORD, compare};

/// The operation that a case tests: a column of the report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Operation {
    /// SEND.
    Send,
    /// SEND with an immediate value.
    SendImm,
    /// SEND with invalidate.
    SendInv,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with an immediate value.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// An access through a bound window.
    Bind,
    /// An unbound or invalidated window gives no access.
    Invalidate,
    /// A request that must be refused.
    Refuse,
}

impl Operation {
    /// All operations, in the report's order.
    pub const ALL: [Operation; 11] = [
        Operation::Send,
        Operation::SendImm,
        Operation::SendInv,
        Operation::Write,
        Operation::WriteImm,
        Operation::Read,
        Operation::CompareSwap,
        Operation::FetchAdd,
        Operation::Bind,
        Operation::Invalidate,
        Operation::Refuse,
    ];

    /// The name of the operation.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Send => "SEND",
            Operation::SendImm => "SEND_IMM",
            Operation::SendInv => "SEND_INV",
            Operation::Write => "WRITE",
            Operation::WriteImm => "WRITE_IMM",
            Operation::Read => "READ",
            Operation::CompareSwap => "CAS",
            Operation::FetchAdd => "FAA",
            Operation::Bind => "BIND_MW",
            Operation::Invalidate => "INV",
            Operation::Refuse => "refused",
        }
    }
}

/// One case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// The operation.
    pub operation: Operation,
    /// The bytes of the message; for windows and refusals, the number of the variant.
    pub len: usize,
    /// The shape of the message on the near side.
    pub near: Shape,
    /// The shape on the far side, where that can be chosen.
    pub remote: Shape,
    /// True for inline data.
    pub inline: bool,
    /// The number of the case; small things vary with it.
    pub number: u64,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.operation {
            Operation::Bind | Operation::Invalidate => {
                return write!(f, "{}, type {} window", self.operation.name(), self.len);
            }
            Operation::Refuse => return write!(f, "refusal of {}", super::refuse::NAMES[self.len]),
            _ => {}
        }
        write!(f, "{} of {} bytes, {} entries", self.operation.name(), self.len, self.near.entries())?;
        if matches!(self.operation, Operation::Send | Operation::SendImm | Operation::SendInv) {
            write!(f, " into {}", self.remote.entries())?;
        }
        if self.inline { f.write_str(", inline") } else { Ok(()) }
    }
}

/// The bytes of the header in front of a datagram.
const GRH: usize = 40;

/// The difference between the seed of the message's pattern and that of the bytes around it.
const AROUND: u64 = 1 << 20;

impl Case {
    /// The seed of the message's pattern.
    pub fn seed(&self) -> u64 {
        self.number & 0xf_ffff
    }

    /// A value that differs from case to case.
    fn value(&self) -> u32 {
        (self.number as u32).wrapping_mul(0x0101_6b35) | 1
    }

    /// True if the far process polls while the near one does; otherwise it sleeps until the near one is done.
    fn overlap(&self) -> bool {
        self.number.is_multiple_of(2)
    }

    /// Run the case.
    pub fn run(&self, pair: &mut Pair<'_>) -> Result<(), String> {
        match self.operation {
            Operation::Send | Operation::SendImm => self.send(pair, None),
            Operation::SendInv => {
                let Answer::Key(rkey) = pair.call(Task::Bind { kind: 2, offset: BASE, len: 4096 })? else {
                    return Err("no key".into());
                };
                self.send(pair, Some(rkey))
            }
            Operation::Write | Operation::WriteImm => {
                let rkey = pair.peer.rkey;
                self.write(pair, rkey)
            }
            Operation::Read => {
                let rkey = pair.peer.rkey;
                self.read(pair, rkey)
            }
            Operation::CompareSwap | Operation::FetchAdd => self.atomic(pair),
            Operation::Bind => self.through_window(pair),
            Operation::Invalidate => super::refuse::invalidated(self, pair),
            Operation::Refuse => super::refuse::refused(self, pair),
        }
    }

    /// Write the message into the near memory.
    pub fn compose(&self, pair: &Pair<'_>) -> Vec<Piece> {
        if self.len == 0 && self.near == Shape::One {
            return Vec::new();
        }
        let pieces = self.near.lay_out(self.len, BASE);
        let mut start = 0;
        for (offset, len) in &pieces {
            pattern::fill(&pair.near.local, *offset, *len, self.seed(), start);
            start += len;
        }
        pieces
    }

    fn send(&self, pair: &mut Pair<'_>, invalidate: Option<u32>) -> Result<(), String> {
        let header = if pair.service() == Service::Ud { GRH } else { 0 };
        // Every other receive has spare room, which must stay as it is.
        let spare = if self.overlap() { 17 } else { 0 };
        let room = header + self.len + spare;
        let pieces = if room == 0 { Vec::new() } else { self.remote.lay_out(room, BASE) };
        pair.fill(BASE - GAP, span(room, self.remote.entries()) + GAP, self.seed() + AROUND)?;
        pair.receive(self.number, pieces.clone())?;
        let ours = self.compose(pair);
        let (op, opcode) = match (self.operation, invalidate) {
            (_, Some(rkey)) => (SendOp::SendInv(rkey), sys::IBV_WC_SEND),
            (Operation::SendImm, _) => (SendOp::SendImm(self.value()), sys::IBV_WC_SEND),
            _ => (SendOp::Send, sys::IBV_WC_SEND),
        };
        let received = self.exchange(pair, op, &ours, opcode)?;
        self.check_received(pair, &received, sys::IBV_WC_RECV, header + self.len)?;
        let expected = (self.operation == Operation::SendImm).then(|| self.value());
        same("immediate value", received.imm, expected)?;
        same("invalidated key", received.invalidated, invalidate)?;
        same("GRH flag", received.grh, header > 0)?;
        // The stretches to compare: the message, piece by piece, and the bytes between and behind.
        let mut stretches = Vec::new();
        let (mut at, mut covered) = (0, BASE - GAP);
        for (offset, len) in &pieces {
            stretches.push(self.around(covered, offset - covered));
            let (from, to) = (at.max(header), (at + len).min(header + self.len));
            if from < to {
                let offset = offset + (from - at);
                stretches.push(Stretch { offset, len: to - from, seed: self.seed(), start: from - header });
            }
            let used = (header + self.len).clamp(at, at + len) - at;
            stretches.push(self.around(offset + used, len - used));
            at += len;
            covered = offset + len;
        }
        stretches.push(self.around(covered, GAP));
        self.check_remote(pair, stretches)
    }

    /// Post, wait for the completion, and take the far receive.
    fn exchange(&self, pair: &mut Pair<'_>, op: SendOp<'_>, pieces: &[Piece], opcode: u32) -> Result<Received, String> {
        let solicited = self.number % 3 == 1;
        let flags = if solicited { SendFlags::SOLICITED } else { SendFlags::empty() };
        let take = Task::Take { solicited };
        if self.overlap() {
            pair.begin(take.clone())?;
        }
        let sent =
            pair.near.post(self.number, op, flags, pieces, self.inline).and_then(|()| self.check_sent(pair, opcode));
        // The far side's answer must be taken, whatever happened here.
        let answer = if self.overlap() {
            pair.end()
        } else {
            sent.clone()?;
            pair.call(take)
        };
        sent?;
        match answer.map_err(|error| format!("the receiver: {error}"))? {
            Answer::Received(received) => Ok(received),
            other => Err(format!("an answer out of place: {other:?}")),
        }
    }

    /// Check the completion of the near side.
    pub fn check_sent(&self, pair: &Pair<'_>, opcode: u32) -> Result<(), String> {
        let wc: Wc = pair.near.sent()?;
        same("status of the request", wc.status(), Status::SUCCESS)?;
        same("wr_id of the request", wc.wr_id(), self.number)?;
        same("opcode of the completion", wc.opcode(), opcode)
    }

    fn check_received(&self, pair: &Pair<'_>, received: &Received, opcode: u32, len: usize) -> Result<(), String> {
        same("status of the receive", Status(received.status), Status::SUCCESS)?;
        same("wr_id of the receive", received.wr_id, self.number)?;
        same("opcode of the receive", received.opcode, opcode)?;
        same("byte_len of the receive", received.byte_len as usize, len)?;
        same("qp_num of the receive", received.qp_num, pair.peer.qpn)?;
        if pair.service() == Service::Ud {
            same("src_qp of the receive", received.src_qp, pair.near.endpoint()?.sender_qpn)?;
        }
        Ok(())
    }

    /// A stretch that no operation should have changed.
    fn around(&self, offset: usize, len: usize) -> Stretch {
        Stretch { offset, len, seed: self.seed() + AROUND, start: offset - (BASE - GAP) }
    }

    /// Compare the far memory.
    fn check_remote(&self, pair: &mut Pair<'_>, stretches: Vec<Stretch>) -> Result<(), String> {
        match pair.call(Task::Compare(stretches.clone()))? {
            Answer::Difference(found) => self.describe(&stretches, found),
            other => Err(format!("an answer out of place: {other:?}")),
        }
    }

    fn describe(&self, stretches: &[Stretch], found: Option<(usize, usize, u8, u8)>) -> Result<(), String> {
        let Some((which, at, expected, found)) = found else { return Ok(()) };
        let Stretch { seed, start, .. } = stretches[which];
        let where_ = match seed == self.seed() {
            true => format!("offset {} of the message", start + at),
            // The background counts from GAP bytes before the message.
            false => format!("{} bytes from the start, outside the message", (start + at) as i64 - GAP as i64),
        };
        Err(format!("{where_}: {expected:#04x} expected, {found:#04x} found"))
    }

    /// The place in the far region of one-sided operations, which is not always aligned.
    fn remote_offset(&self) -> usize {
        BASE + (self.number % 7) as usize
    }

    /// The stretches of the message and the surroundings of a one-sided operation.
    fn one_sided(&self) -> Vec<Stretch> {
        let offset = self.remote_offset();
        vec![
            self.around(BASE - GAP, offset - (BASE - GAP)),
            Stretch { offset, len: self.len, seed: self.seed(), start: 0 },
            self.around(offset + self.len, GAP),
        ]
    }

    fn write(&self, pair: &mut Pair<'_>, rkey: u32) -> Result<(), String> {
        let offset = self.remote_offset();
        pair.fill(BASE - GAP, offset + self.len + GAP - (BASE - GAP), self.seed() + AROUND)?;
        let ours = self.compose(pair);
        let addr = pair.peer.addr + offset as u64;
        if self.operation == Operation::WriteImm {
            let imm = self.value();
            pair.receive(self.number, Vec::new())?;
            let op = SendOp::WriteImm { addr, rkey, imm };
            let received = self.exchange(pair, op, &ours, sys::IBV_WC_RDMA_WRITE)?;
            self.check_received(pair, &received, sys::IBV_WC_RECV_RDMA_WITH_IMM, self.len)?;
            same("immediate value", received.imm, Some(imm))?;
        } else {
            let op = SendOp::Write { addr, rkey };
            pair.near.post(self.number, op, SendFlags::empty(), &ours, self.inline)?;
            self.check_sent(pair, sys::IBV_WC_RDMA_WRITE)?;
            if pair.service() == Service::Uc {
                // The message is not acknowledged: the one behind it shows that it has arrived.
                pair.receive(self.number, Vec::new())?;
                let marker = Case { inline: false, ..*self };
                marker.exchange(pair, SendOp::Send, &[], sys::IBV_WC_SEND)?;
            }
        }
        self.check_remote(pair, self.one_sided())
    }

    fn read(&self, pair: &mut Pair<'_>, rkey: u32) -> Result<(), String> {
        let offset = self.remote_offset();
        pair.fill(offset, self.len, self.seed())?;
        let pieces =
            if self.len == 0 && self.near == Shape::One { Vec::new() } else { self.near.lay_out(self.len, BASE) };
        let whole = span(self.len, self.near.entries()) + GAP;
        pattern::fill(&pair.near.local, BASE - GAP, whole, self.seed() + AROUND, 0);
        let op = SendOp::Read { addr: pair.peer.addr + offset as u64, rkey };
        pair.near.post(self.number, op, SendFlags::empty(), &pieces, false)?;
        self.check_sent(pair, sys::IBV_WC_RDMA_READ)?;
        let mut stretches = Vec::new();
        let (mut start, mut covered) = (0, BASE - GAP);
        for (offset, len) in pieces {
            stretches.push(self.around(covered, offset - covered));
            stretches.push(Stretch { offset, len, seed: self.seed(), start });
            start += len;
            covered = offset + len;
        }
        stretches.push(self.around(covered, GAP));
        self.describe(&stretches, compare(&pair.near.local, &stretches))
    }

    fn atomic(&self, pair: &mut Pair<'_>) -> Result<(), String> {
        let before = u64::from(self.value()) << 17 | self.number;
        let operand = u64::MAX - u64::from(self.value());
        let addr = pair.peer.addr + WORD as u64;
        let rkey = pair.peer.rkey;
        let (op, after, opcode) = match self.operation {
            Operation::FetchAdd => {
                (SendOp::FetchAdd { addr, rkey, add: operand }, before.wrapping_add(operand), sys::IBV_WC_FETCH_ADD)
            }
            // Every other one must find another value, and leave it.
            _ => {
                let equal = self.overlap();
                let compare = if equal { before } else { before ^ (1 << 63) };
                let op = SendOp::CompareSwap { addr, rkey, compare, swap: operand };
                (op, if equal { operand } else { before }, sys::IBV_WC_COMP_SWAP)
            }
        };
        pair.tell(Task::Store(before))?;
        let pieces = self.near.lay_out(8, BASE);
        pattern::fill(&pair.near.local, BASE - GAP, span(8, 3) + GAP, self.seed() + AROUND, 0);
        pair.near.post(self.number, op, SendFlags::empty(), &pieces, false)?;
        self.check_sent(pair, opcode)?;
        let mut result = Vec::new();
        let mut covered = BASE - GAP;
        let mut surroundings = Vec::new();
        for (offset, len) in pieces {
            let mut bytes = vec![0; len];
            pair.near.local.read(offset, &mut bytes);
            result.extend(bytes);
            surroundings.push(self.around(covered, offset - covered));
            covered = offset + len;
        }
        surroundings.push(self.around(covered, GAP));
        same("value returned", u64::from_ne_bytes(result.try_into().expect("eight bytes")), before)?;
        let Answer::Word(found) = pair.call(Task::Load)? else { return Err("no word".into()) };
        same("value stored", found, after)?;
        self.describe(&surroundings, compare(&pair.near.local, &surroundings))
    }

    fn through_window(&self, pair: &mut Pair<'_>) -> Result<(), String> {
        let kind = self.len as u8;
        let case = Case { len: 5000, ..*self };
        let (offset, len) = (case.remote_offset(), case.len);
        let Answer::Key(rkey) = pair.call(Task::Bind { kind, offset, len })? else { return Err("no key".into()) };
        Case { operation: Operation::Write, ..case }.write(pair, rkey)?;
        Case { operation: Operation::Read, ..case }.read(pair, rkey)
    }
}

/// Check that two values are equal.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what}: {expected:?} expected, {found:?} found")),
    }
}

/// True if this operation exists for this service (`ibv_post_send(3)`), and both sides can do their part.
pub fn exists(operation: Operation, service: Service, place: Place) -> bool {
    match service {
        Service::Rc => true,
        Service::Uc => {
            matches!(operation, Operation::Send | Operation::SendImm | Operation::Write | Operation::WriteImm)
        }
        Service::Ud => matches!(operation, Operation::Send | Operation::SendImm),
        // The sender and the receiver are two queue pairs, so neither can be connected to itself; the receiver cannot
        // bind.
        Service::Xrc => {
            place != Place::Itself
                && !matches!(
                    operation,
                    Operation::SendInv | Operation::Bind | Operation::Invalidate | Operation::Refuse
                )
        }
    }
}
