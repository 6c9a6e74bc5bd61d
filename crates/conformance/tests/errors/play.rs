//! One case, played by both sides, in two processes, as two threads of one, or as one queue pair that is connected to
//! itself.
//!
//! The initiator posts four requests: a good SEND, the one in question, and two more that must not be executed if it
//! fails. Its receives use the same completion queue, so that the order of all flushed requests shows.

use conformance::{Fixture, Joined, Wire, until};
use rdma::{Data, QpState, QpType, SendFlags, SendOp, SendWr, Status};
use serde::{Deserialize, Serialize};

use crate::Path;
use crate::fate::Fate;
use crate::faults::{Grant, LOCAL, Local, Offer, RECEIVE, halves, spoil};
use crate::pair::way;
use crate::side::{ALL, Place, Side, joined, qkey};
use crate::table::{Case, Fault, Kind, Op, Seen, cases};

/// The order to the target to play a case.
#[derive(Serialize, Deserialize)]
pub struct Order {
    pub case: usize,
    pub len: usize,
}

/// The greatest number of bytes of a datagram, for the MTU of `joined()`.
const DATAGRAM: usize = 4096;
/// The bytes of the GRH, in front of a datagram's data.
const GRH: usize = 40;
/// A number that no queue pair and no shared receive queue has.
const NOBODY: u32 = 0xff_fff0;

/// The bytes of the message in question.
fn length(case: &Case, len: usize) -> usize {
    match case.kind {
        _ if case.op.is_word() => 8,
        Kind::Ud => len.min(DATAGRAM),
        _ => len,
    }
}

/// The bytes of its receive.
fn room(case: &Case, len: usize) -> usize {
    if case.kind == Kind::Ud { len + GRH } else { len }
}

fn initiator_joined(case: &Case) -> Joined {
    // A target without a receive is asked twice, at intervals of 10 us.
    let mut joined = Joined { rnr_retries: 1, ..joined() };
    if case.fault == Fault::NoReadsHere {
        joined.reads = 0;
    }
    // A target that does not answer is asked eight times, at intervals of 67 ms.
    if case.ours == Status::RETRIES { Joined { timeout: 14, ..joined } } else { joined }
}

fn target_joined(case: &Case, mut joined: Joined) -> Joined {
    if case.fault == Fault::QpRight {
        joined.access &= !case.op.right().bits();
    }
    if case.fault == Fault::NoReads {
        joined.dest_reads = 0;
    }
    joined
}

/// Play the initiator; the result is a list of differences.
pub fn initiator(fixture: &Fixture, case: &Case, path: &Path, wire: &mut Wire) -> Vec<String> {
    fixture.context.set_nonblocking().expect("fcntl");
    let side = Side::new(fixture, case.kind, false, initiator_joined(case));
    let place: Place = wire.exchange(&side.place(fixture));
    side.connect(&place);
    let data = fixture.pd.reg_mr(path.len + 64, ALL).expect("ibv_reg_mr");
    if side.qp_type != QpType::XrcIni {
        side.post_recv(200, &[data.sge(0, 8)]);
        side.post_recv(201, &[data.sge(0, 8)]);
    }
    let offer: Offer = wire.exchange(&());
    let question = Question { fixture, side: &side, case, path, place: &place, offer: &offer, data: &data };
    let before = if path.settled { question.front(1) } else { vec![] };
    let posted = question.post(!path.settled);

    let wanted = Fate::of_initiator(case);
    let fate = side.fate(fixture, before, &wanted, false, None);
    let theirs: Fate = wire.exchange(&());
    drop(posted);
    let mut wrong = differs("initiator", &fate, &wanted);
    wrong.extend(differs("target", &theirs, &Fate::of_target(case)));
    wrong
}

/// True if one queue pair can play both sides, with a certain outcome.
pub fn can_be_alone(case: &Case, path: &Path) -> bool {
    match case.kind {
        // An XRC initiator and an XRC target are never one queue pair.
        Kind::Xrc => false,
        // A long message may still be being sent when its receive fails, or may not.
        Kind::Uc => path.len <= DATAGRAM || !matches!(case.theirs, Seen::Recv(_)),
        _ => true,
    }
}

/// Play both sides on one queue pair; the result is a list of differences.
pub fn alone(fixture: &Fixture, case: &Case, path: &Path) -> Vec<String> {
    fixture.context.set_nonblocking().expect("fcntl");
    let len = length(case, path.len);
    let side = Side::new(fixture, case.kind, true, target_joined(case, initiator_joined(case)));
    let receives = Receives::post(fixture, &side, case, len);
    let place = side.place(fixture);
    side.connect(&place);
    let grant = Grant::new(fixture, &side, case, len);
    let data = fixture.pd.reg_mr(path.len + 64, ALL).expect("ibv_reg_mr");
    let question = Question { fixture, side: &side, case, path, place: &place, offer: &grant.offer, data: &data };
    question.front(2);
    let posted = question.post(false);

    let (wanted, certain) = Fate::of_both(case);
    let fate = side.fate(fixture, vec![], &wanted, !certain, grant.watched(case));
    drop((posted, receives));
    differs("both", &fate, &wanted)
}

fn differs(who: &str, fate: &Fate, wanted: &Fate) -> Vec<String> {
    if fate == wanted { vec![] } else { vec![format!("{who}: {}; expected {}", fate.told(), wanted.told())] }
}

// ---- the initiator ----

/// The request in question, and those around it.
struct Question<'a> {
    fixture: &'a Fixture,
    side: &'a Side,
    case: &'a Case,
    path: &'a Path,
    place: &'a Place,
    offer: &'a Offer,
    data: &'a rdma::Mr,
}

/// The objects that must live until the requests are complete.
struct Posted {
    _mr: Option<std::sync::Arc<rdma::Mr>>,
    _ah: Option<std::sync::Arc<rdma::Ah>>,
    _local: Option<Local>,
}

impl Question<'_> {
    fn wr<'b>(&self, wr_id: u64, op: SendOp<'b>, data: Data<'b>, signaled: bool) -> SendWr<'b> {
        let mut wr = SendWr::new(wr_id, op, data);
        wr.flags.set(SendFlags::SIGNALED, signaled);
        wr.srqn = match self.case.fault {
            Fault::SrqNobody if wr_id == 2 => NOBODY,
            Fault::SrqDomain if wr_id == 2 => self.place.foreign,
            _ => self.place.srqn,
        };
        wr
    }

    fn op<'b>(&self, local: Option<&'b Local>, len: usize) -> SendOp<'b> {
        use rdma::sys::{IBV_FLUSH_GLOBAL, IBV_FLUSH_MR, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE};
        let Offer { addr, rkey } = *self.offer;
        let placement = if self.case.fault == Fault::Placement { IBV_FLUSH_PERSISTENT } else { IBV_FLUSH_GLOBAL };
        let placement = placement as u8;
        match self.case.op {
            Op::Send => SendOp::Send,
            Op::SendImm => SendOp::SendImm(1),
            Op::SendInv => SendOp::SendInv(rkey),
            Op::Write => SendOp::Write { addr, rkey },
            Op::WriteImm => SendOp::WriteImm { addr, rkey, imm: 1 },
            Op::Read => SendOp::Read { addr, rkey },
            Op::CompareSwap => SendOp::CompareSwap { addr, rkey, compare: 0, swap: 1 },
            Op::FetchAdd => SendOp::FetchAdd { addr, rkey, add: 1 },
            Op::AtomicWrite => SendOp::AtomicWrite { addr, rkey },
            Op::Flush => SendOp::Flush { addr, rkey, len, placement, level: IBV_FLUSH_RANGE as u8 },
            // The address and the length do not count.
            Op::FlushRegion => SendOp::Flush { addr: 1, rkey, len: usize::MAX, placement, level: IBV_FLUSH_MR as u8 },
            Op::BindOne | Op::BindTwo => SendOp::BindMw(local.expect("a window").bind()),
            Op::LocalInv => SendOp::LocalInv(local.expect("a window").key),
        }
    }

    /// Post the first request, and wait for so many completions.
    fn front(&self, count: usize) -> Vec<(u64, u32)> {
        let good = [self.data.sge(0, 8)];
        let ah = way(self.fixture, &self.fixture.pd);
        let mut wr = self.wr(1, SendOp::Send, Data::Sges(&good), true);
        wr.to = (self.case.kind == Kind::Ud).then_some((&*ah, self.place.qpn, qkey(false)));
        self.side.qp.post_send(&wr).expect("ibv_post_send");
        let mut front = Vec::new();
        until("the SEND in front", || {
            front.extend(self.side.poll());
            (front.len() == count).then_some(())
        });
        front
    }

    /// Post the four requests, or the last three.
    fn post(&self, first: bool) -> Posted {
        let Question { fixture, side, case, path, .. } = *self;
        let len = length(case, path.len);
        let bytes = vec![0xa5; len];
        self.data.write(0, &bytes);
        let mut list = halves(self.data, 0, len);
        let mut long = Vec::new();
        let mut keep = spoil(fixture, &mut list, case.fault, &LOCAL);
        if case.fault == Fault::TooLong {
            let (piece, count) = if case.kind == Kind::Ud { (DATAGRAM, 1) } else { (64 << 20, 16) };
            // The data are pieces of one region, and one byte.
            let mr = fixture.pd.reg_mr(piece, ALL).expect("ibv_reg_mr");
            long = vec![mr.sge(0, piece); count];
            long.push(mr.sge(0, 1));
            keep = Some(mr);
        }
        let here = matches!(case.op, Op::BindOne | Op::BindTwo | Op::LocalInv);
        let local = here.then(|| Local::new(fixture, side, case));
        let sges = match &long[..] {
            _ if here || case.op.is_flush() => &[],
            [] => &list[..],
            long => long,
        };
        let pieces = [&bytes[..len / 2], &bytes[len / 2..]];
        let question = if path.inline { Data::Inline(&pieces) } else { Data::Sges(sges) };
        let good = [self.data.sge(0, 8)];
        let (third, fourth) = match case.kind {
            Kind::Ud => (SendOp::Send, SendOp::Send),
            // The target's completions show by this that it has got all requests.
            Kind::Uc => (SendOp::Write { addr: 0, rkey: 0 }, SendOp::WriteImm { addr: 0, rkey: 0, imm: 4 }),
            _ => (SendOp::Write { addr: 0, rkey: 0 }, SendOp::Write { addr: 0, rkey: 0 }),
        };
        let ah = (case.kind == Kind::Ud).then(|| way(fixture, &fixture.pd));
        let mut wrs = [
            self.wr(1, SendOp::Send, Data::Sges(&good), true),
            self.wr(2, self.op(local.as_ref(), len), question, true),
            // This request is not signaled: it completes only if it is flushed.
            self.wr(3, third, Data::Sges(&[]), false),
            self.wr(4, fourth, Data::Sges(&[]), true),
        ];
        for wr in &mut wrs {
            let wrong = |fault| wr.wr_id == 2 && case.fault == fault;
            let qpn = if wrong(Fault::Nobody) { NOBODY } else { self.place.qpn };
            wr.to = ah.as_deref().map(|ah| (ah, qpn, qkey(wrong(Fault::WrongQkey))));
        }
        let wrs = if first { &wrs[..] } else { &wrs[1..] };
        // All are posted at once: a request that is posted after the failure is flushed after the receives.
        if case.op == Op::BindOne {
            self.post_one_by_one(wrs, local.as_ref().expect("a window"));
        } else if case.op.is_flush() || (case.op == Op::AtomicWrite && path.inline) {
            side.qp.build(wrs).expect("ibv_wr_complete");
        } else {
            side.qp.post_sends(wrs).expect("ibv_post_send");
        }
        Posted { _mr: keep, _ah: ah, _local: local }
    }

    /// Post the requests one by one: `ibv_bind_mw(3)` is no member of a list. In SQD requests are accepted, and wait
    /// (10.3.1.5).
    fn post_one_by_one(&self, wrs: &[SendWr<'_>], local: &Local) {
        let qp = &self.side.qp;
        qp.set_state(QpState::Sqd).expect("RTS to SQD");
        for wr in wrs {
            match wr.op {
                SendOp::BindMw(_) => qp.bind_mw(wr.wr_id, wr.flags, &local.bind()).expect("ibv_bind_mw"),
                _ => qp.post_send(wr).expect("ibv_post_send"),
            }
        }
        qp.set_state(QpState::Rts).expect("SQD to RTS");
    }
}

// ---- the target ----

/// Play the target as often as the initiator asks.
pub fn serve(fixture: &Fixture, mut wire: Wire) {
    fixture.context.set_nonblocking().expect("fcntl");
    let cases = cases();
    while let Some(order) = wire.hear::<Option<Order>>() {
        target(fixture, &cases[order.case], order.len, &mut wire);
    }
}

fn target(fixture: &Fixture, case: &Case, len: usize, wire: &mut Wire) {
    let len = length(case, len);
    let side = Side::new(fixture, case.kind, true, target_joined(case, joined()));
    let place: Place = wire.exchange(&side.place(fixture));
    let receives = Receives::post(fixture, &side, case, len);
    side.connect(&place);
    let grant = Grant::new(fixture, &side, case, len);
    let () = wire.exchange(&grant.offer);
    let () = wire.hear();
    let wanted = Fate::of_target(case);
    wire.tell(&side.fate(fixture, vec![], &wanted, false, grant.watched(case)));
    drop((side, grant, receives));
}

/// The memory that the receives' lists name.
struct Receives {
    _room: std::sync::Arc<rdma::Mr>,
    _spoilt: Option<std::sync::Arc<rdma::Mr>>,
}

impl Receives {
    /// Post the receives: the first is for the SEND in front, the next for the message in question.
    fn post(fixture: &Fixture, side: &Side, case: &Case, len: usize) -> Receives {
        let mr = fixture.pd.reg_mr(len + 2 * GRH, ALL).expect("ibv_reg_mr");
        side.post_recv(100, &[mr.sge(0, room(case, 8))]);
        let mut list = halves(&mr, 0, room(case, len));
        let spoilt = spoil(fixture, &mut list, case.fault, &RECEIVE);
        if case.fault != Fault::RecvNone {
            side.post_recv(101, &list);
            side.post_recv(102, &[mr.sge(0, room(case, 8))]);
            side.post_recv(103, &[mr.sge(0, room(case, 8))]);
        }
        Receives { _room: mr, _spoilt: spoilt }
    }
}
