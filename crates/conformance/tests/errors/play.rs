//! Plays one case: both sides, in two processes or as two threads of one.
//!
//! The initiator posts four requests: a good SEND, the one in question, and two more that must not be executed if it fails.
//! Its receives stand on the same completion queue, so that the order of all flushed requests shows.

use std::sync::Arc;
use std::time::Duration;

use conformance::{Bed, Joint, Wire, until};
use rdma::{
    Access, Cq, Data, Mr, Mw, MwKind, Qp, QpAttrMask, QpCap, QpOptions, QpState, QpType, RecvWr, SendFlags, SendOp,
    SendWr, Sge, Srq, Status, Wc,
};
use rdma::{Bind, Gid};
use serde::{Deserialize, Serialize};

use crate::table::{Case, Fault, Kind, Op, Seen, cases};

/// A way that data take.
pub struct Path {
    pub name: &'static str,
    /// The target is another process.
    pub far: bool,
    /// Straight copies between the processes are allowed.
    pub straight: bool,
    /// Bytes of the message in question.
    pub len: usize,
    /// The data are in the request.
    pub inline: bool,
}

/// Asks the target to play a case.
#[derive(Serialize, Deserialize)]
pub struct Order {
    pub case: usize,
    pub len: usize,
}

/// Where an end is.
#[derive(Serialize, Deserialize)]
struct Place {
    qpn: u32,
    gid: [u8; 16],
    srqn: u32,
}

/// What the target says after it is connected.
#[derive(Serialize, Deserialize)]
struct Offer {
    addr: u64,
    rkey: u32,
}

/// What became of a side.
#[derive(Serialize, Deserialize, PartialEq, Eq, Debug, Default)]
pub struct Fate {
    /// `wr_id` and status, in order.
    completions: Vec<(u64, u32)>,
    state: u32,
    /// Kinds of events, in order.
    events: Vec<u32>,
}

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);
const SRQ_COOKIE: u64 = 77;

/// One side's objects. The order of the fields is that of their destruction.
struct Side {
    qp: Arc<Qp>,
    srq: Option<Arc<Srq>>,
    cq: Arc<Cq>,
    qp_type: QpType,
    joint: Joint,
}

impl Side {
    fn new(bed: &Bed, kind: Kind, target: bool, joint: Joint) -> Side {
        let cq = bed.context.create_cq(64, None, 0).expect("ibv_create_cq");
        let qp_type = match (kind, target) {
            (Kind::Xrc, false) => QpType::XrcIni,
            (Kind::Xrc, true) => QpType::XrcTgt,
            _ => QpType::Rc,
        };
        let xrcd = (qp_type == QpType::XrcTgt).then(|| bed.context.open_xrcd().expect("ibv_open_xrcd"));
        let srq = match (kind, target) {
            (Kind::RcSrq, true) => Some(bed.pd.create_srq(16, 4, SRQ_COOKIE).expect("ibv_create_srq")),
            (Kind::Xrc, true) => {
                let xrcd = xrcd.as_ref().expect("made above");
                Some(bed.pd.create_xrc_srq(16, 4, xrcd, &cq).expect("ibv_create_srq_ex"))
            }
            _ => None,
        };
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 32, max_recv_sge: 4, max_inline_data: 64 };
        let options = QpOptions {
            qp_type,
            send_cq: qp_type.sends().then_some(&cq),
            recv_cq: qp_type.receives().then_some(&cq),
            srq: srq.as_ref().filter(|_| qp_type == QpType::Rc),
            xrcd: xrcd.as_ref(),
            cap,
            sq_sig_all: false,
        };
        let qp = bed.pd.create_qp(&options).unwrap_or_else(|error| panic!("{qp_type:?}: {error}"));
        joint.init(&qp, qp_type);
        Side { qp, srq, cq, qp_type, joint }
    }

    fn place(&self, bed: &Bed) -> Place {
        let srqn = match (&self.srq, self.qp_type) {
            (Some(srq), QpType::XrcTgt) => srq.number().expect("ibv_get_srq_num"),
            _ => 0,
        };
        Place { qpn: self.qp.number(), gid: bed.gid.0, srqn }
    }

    fn connect(&self, peer: &Place) {
        self.joint.rtr(&self.qp, self.qp_type, peer.qpn, Gid(peer.gid)).expect("INIT to RTR");
        self.joint.rts(&self.qp, self.qp_type, peer.qpn, Gid(peer.gid)).expect("RTR to RTS");
    }

    fn post_recv(&self, wr_id: u64, sges: &[Sge]) {
        let wr = RecvWr { wr_id, sges };
        match &self.srq {
            Some(srq) => srq.post_recv(&wr).expect("ibv_post_srq_recv"),
            None => self.qp.post_recv(&wr).expect("ibv_post_recv"),
        }
    }

    /// What became of it, as soon as it is what it should be; or, if that does not come about, whatever it is.
    fn fate(&self, bed: &Bed, wanted: &Fate) -> Fate {
        let mut fate = Fate::default();
        let mut look = || {
            let mut out = [Wc::default(); 16];
            let count = self.cq.poll(&mut out).expect("ibv_poll_cq");
            fate.completions.extend(out[..count].iter().map(|wc| (wc.wr_id(), wc.status().0)));
            while let Ok(event) = bed.context.async_event() {
                fate.events.push(event.kind);
            }
            fate.state = self.qp.query(QpAttrMask::STATE).expect("ibv_query_qp").state as u32;
            fate == *wanted
        };
        let mut patience = 3000;
        while !look() && patience > 0 {
            patience -= 1;
            std::thread::sleep(Duration::from_millis(if patience > 2000 { 0 } else { 1 }));
        }
        // What comes too much comes soon.
        std::thread::yield_now();
        look();
        fate
    }
}

/// Two entries for `len` bytes from `offset` on: lists have to be walked.
fn halves(mr: &Mr, offset: usize, len: usize) -> [Sge; 2] {
    let half = len / 2;
    [mr.sge(offset, half), mr.sge(offset + half, len - half)]
}

/// Faults of the initiator's list.
const LOCAL: [Fault; 6] = [
    Fault::LocalKey,
    Fault::LocalDomain,
    Fault::LocalBounds,
    Fault::LocalDeregistered,
    Fault::LocalReadOnly,
    Fault::LocalShort,
];
/// Faults of the target's receive.
const RECEIVE: [Fault; 6] = [
    Fault::RecvKey,
    Fault::RecvDomain,
    Fault::RecvBounds,
    Fault::RecvDeregistered,
    Fault::RecvReadOnly,
    Fault::RecvShort,
];

/// Makes the second entry of a list wrong, if the fault is one of ours. What it gives must live until the list has
/// been used.
fn spoil(bed: &Bed, list: &mut [Sge; 2], fault: Fault, ours: &[Fault]) -> Option<Arc<Mr>> {
    if !ours.contains(&fault) {
        return None;
    }
    let len = list[1].length();
    let entry = |mr: &Mr| Sge::raw(mr.addr(), len, mr.lkey());
    let register = |len: u32, access| bed.pd.reg_mr(len as usize, access).expect("ibv_reg_mr");
    let mr = match fault {
        Fault::LocalKey | Fault::RecvKey => {
            let mr = register(len, ALL);
            list[1] = Sge::raw(mr.addr(), len, mr.lkey() ^ 1);
            return Some(mr);
        }
        Fault::LocalDomain | Fault::RecvDomain => {
            let other = bed.context.alloc_pd().expect("ibv_alloc_pd");
            other.reg_mr(len as usize, ALL).expect("ibv_reg_mr")
        }
        Fault::LocalBounds | Fault::RecvBounds => register(len - 1, ALL),
        Fault::LocalReadOnly | Fault::RecvReadOnly => register(len, Access::REMOTE_READ),
        Fault::LocalDeregistered | Fault::RecvDeregistered => register(len, ALL),
        Fault::RecvShort | Fault::LocalShort => {
            // The entry stays right, and is one byte shorter.
            let mr = register(len, ALL);
            list[1] = Sge::raw(mr.addr(), len - 1, mr.lkey());
            return Some(mr);
        }
        _ => return None,
    };
    list[1] = entry(&mr);
    Some(mr)
}

fn needs_receive(op: Op) -> bool {
    matches!(op, Op::Send | Op::SendImm | Op::SendInv | Op::WriteImm)
}

// ---- the initiator ----

/// Plays the initiator; says what was wrong.
pub fn initiator(bed: &Bed, case: &Case, path: &Path, wire: &mut Wire) -> Vec<String> {
    bed.context.set_nonblocking().expect("fcntl");
    // A target that is out of receives is asked twice, at intervals of 10 us.
    let mut joint = Joint { rnr_retries: 1, ..Joint::default() };
    if case.ours == Status::RETRIES {
        joint.timeout = 14; // eight times 67 ms
    }
    let side = Side::new(bed, case.kind, false, joint);
    let place: Place = wire.exchange(&side.place(bed));
    side.connect(&place);
    let data = bed.pd.reg_mr(path.len + 64, ALL).expect("ibv_reg_mr");
    if side.qp_type == QpType::Rc {
        side.post_recv(200, &[data.sge(0, 8)]);
        side.post_recv(201, &[data.sge(0, 8)]);
    }
    let offer: Offer = wire.exchange(&());
    post(bed, &side, case, path, &data, &offer, place.srqn);

    let wanted = wanted_ours(case);
    let fate = side.fate(bed, &wanted);
    let theirs: Fate = wire.exchange(&());
    let mut wrong = Vec::new();
    if fate != wanted {
        wrong.push(format!("initiator: {}; expected {}", told(&fate), told(&wanted)));
    }
    let wanted = wanted_theirs(case);
    if theirs != wanted {
        wrong.push(format!("target: {}; expected {}", told(&theirs), told(&wanted)));
    }
    wrong
}

fn post(bed: &Bed, side: &Side, case: &Case, path: &Path, data: &Mr, offer: &Offer, srqn: u32) {
    let len = if case.op.is_atomic() { 8 } else { path.len };
    let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
    let mut list = halves(data, 0, len);
    let mut long = Vec::new();
    let keep = spoil(bed, &mut list, case.fault, &LOCAL);
    let keep = keep.filter(|_| case.fault != Fault::LocalDeregistered);
    if case.fault == Fault::TooLong {
        // 1 GiB and one byte, in pieces of one region.
        let mr = bed.pd.reg_mr(64 << 20, ALL).expect("ibv_reg_mr");
        long = vec![mr.sge(0, 64 << 20); 16];
        long.push(mr.sge(0, 1));
    }
    let sges: &[Sge] = if long.is_empty() { &list } else { &long };
    let Offer { addr, rkey } = *offer;
    let op = match case.op {
        Op::Send => SendOp::Send,
        Op::SendImm => SendOp::SendImm(1),
        Op::SendInv => SendOp::SendInv(rkey),
        Op::Write => SendOp::Write { addr, rkey },
        Op::WriteImm => SendOp::WriteImm { addr, rkey, imm: 1 },
        Op::Read => SendOp::Read { addr, rkey },
        Op::CompareSwap => SendOp::CompareSwap { addr, rkey, compare: 0, swap: 1 },
        Op::FetchAdd => SendOp::FetchAdd { addr, rkey, add: 1 },
    };
    let good = [data.sge(0, 8)];
    let pieces = [&bytes[..len / 2], &bytes[len / 2..]];
    let question = if path.inline { Data::Inline(&pieces) } else { Data::Sges(sges) };
    let wr = |wr_id, op, data, signaled: bool| {
        let mut wr = SendWr::new(wr_id, op, data);
        wr.flags.set(SendFlags::SIGNALED, signaled);
        wr.srqn = srqn;
        wr
    };
    let wrs = [
        wr(1, SendOp::Send, Data::Sges(&good), true),
        wr(2, op, question, true),
        // Not signaled: completes only if it is flushed.
        wr(3, SendOp::Write { addr: 0, rkey: 0 }, Data::Sges(&[]), false),
        wr(4, SendOp::Write { addr: 0, rkey: 0 }, Data::Sges(&[]), true),
    ];
    // At once: what is posted after the failure is flushed after the receives.
    side.qp.post_sends(&wrs).expect("ibv_post_send");
    drop(keep);
}

const FLUSHED: u32 = Status::FLUSHED.0;

fn wanted_ours(case: &Case) -> Fate {
    if case.fault == Fault::None {
        return Fate { completions: vec![(1, 0), (2, 0), (4, 0)], state: QpState::Rts as u32, events: vec![] };
    }
    let mut completions = vec![(1, 0), (2, case.ours.0), (3, FLUSHED), (4, FLUSHED)];
    if case.kind != Kind::Xrc {
        completions.extend([(200, FLUSHED), (201, FLUSHED)]);
    }
    Fate { completions, state: QpState::Err as u32, events: vec![] }
}

// ---- the target ----

/// Plays the target as often as it is asked to.
pub fn serve(bed: &Bed, mut wire: Wire) {
    bed.context.set_nonblocking().expect("fcntl");
    let cases = cases();
    while let Some(order) = wire.hear::<Option<Order>>() {
        target(bed, &cases[order.case], order.len, &mut wire);
    }
}

fn target(bed: &Bed, case: &Case, len: usize, wire: &mut Wire) {
    let len = if case.op.is_atomic() { 8 } else { len };
    let mut joint = Joint::default();
    if case.fault == Fault::QpRight {
        joint.access &= !case.op.right().bits();
    }
    if case.fault == Fault::NoReads {
        joint.dest_reads = 0;
    }
    let side = Side::new(bed, case.kind, true, joint);
    let place: Place = wire.exchange(&side.place(bed));

    // The first receive is for the SEND in front.
    let room = bed.pd.reg_mr(len + 64, ALL).expect("ibv_reg_mr");
    side.post_recv(100, &[room.sge(0, 8)]);
    let mut list = halves(&room, 0, len);
    let keep = spoil(bed, &mut list, case.fault, &RECEIVE);
    if case.fault != Fault::RecvNone {
        side.post_recv(101, &list);
        side.post_recv(102, &[room.sge(0, 8)]);
    }
    let keep = keep.filter(|_| case.fault != Fault::RecvDeregistered);

    side.connect(&place);
    let grant = Grant::new(bed, &side, case, len);
    let () = wire.exchange(&grant.offer);
    let () = wire.hear();
    let wanted = wanted_theirs(case);
    wire.tell(&side.fate(bed, &wanted));
    drop((side, grant, keep));
}

fn wanted_theirs(case: &Case) -> Fate {
    let takes = needs_receive(case.op);
    let mut fate = Fate { completions: vec![(100, 0)], state: QpState::Err as u32, events: vec![] };
    // Those of a shared queue stay there.
    let flush = |fate: &mut Fate, ids: &[u64]| {
        if case.kind == Kind::Rc {
            fate.completions.extend(ids.iter().map(|id| (*id, FLUSHED)));
        }
    };
    match case.theirs {
        Seen::Quiet => fate.state = QpState::Rts as u32,
        Seen::Success => {
            fate.state = QpState::Rts as u32;
            if takes {
                fate.completions.push((101, 0));
            }
        }
        Seen::Recv(status) => {
            fate.completions.push((101, status.0));
            flush(&mut fate, &[102]);
        }
        Seen::Event(kind) => {
            fate.events.push(kind);
            flush(&mut fate, &[101, 102]);
        }
    }
    if fate.state == QpState::Err as u32 && case.kind == Kind::RcSrq {
        fate.events.push(rdma::sys::IBV_EVENT_QP_LAST_WQE_REACHED);
    }
    fate
}

/// What the initiator may use, or is told that it may.
struct Grant {
    offer: Offer,
    _window: Option<(Arc<Qp>, Arc<Mw>)>,
    _mw: Option<Arc<Mw>>,
    _mr: Option<Arc<Mr>>,
}

impl Grant {
    fn new(bed: &Bed, side: &Side, case: &Case, len: usize) -> Grant {
        let mut access = ALL;
        if case.fault == Fault::RegionRight {
            access.remove(case.op.right());
        }
        let pd = match case.fault {
            Fault::Domain => bed.context.alloc_pd().expect("ibv_alloc_pd"),
            _ => bed.pd.clone(),
        };
        let mr = pd.reg_mr(len, access).expect("ibv_reg_mr");
        let mut grant =
            Grant { offer: Offer { addr: mr.addr(), rkey: mr.rkey() }, _window: None, _mw: None, _mr: None };
        let step = if case.op.is_atomic() { 8 } else { 1 };
        match case.fault {
            Fault::Key => grant.offer.rkey ^= 1,
            // A region is no window, and its key cannot be invalidated from afar.
            Fault::InvalidateKey => {}
            Fault::Beyond => grant.offer.addr += step,
            Fault::Before => grant.offer.addr -= step,
            Fault::Misaligned => grant.offer.addr += 4,
            Fault::Deregistered => {
                return grant; // the region goes with this function
            }
            Fault::WindowInvalidated | Fault::WindowBeyond | Fault::WindowRight => {
                let rights = if case.fault == Fault::WindowRight { case.op.right() } else { Access::empty() };
                let less = if case.fault == Fault::WindowBeyond { 1 } else { 0 };
                let mw = bind(&side.qp, &side.cq, &pd, &mr, len - less, REMOTE - rights);
                grant.offer.rkey = window_key(&mw);
                if case.fault == Fault::WindowInvalidated {
                    finish(&side.qp, &side.cq, SendOp::LocalInv(grant.offer.rkey));
                }
                grant._mw = Some(mw);
            }
            Fault::WindowOfAnotherQp => {
                let other = Side::new(bed, Kind::Rc, false, Joint::default());
                other.connect(&other.place(bed));
                let mw = bind(&other.qp, &other.cq, &pd, &mr, len, REMOTE);
                grant.offer.rkey = window_key(&mw);
                grant._window = Some((other.qp.clone(), mw));
            }
            _ => {}
        }
        grant._mr = Some(mr);
        grant
    }
}

const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// The key that a window is bound with: its own, with the next low byte.
fn window_key(mw: &Mw) -> u32 {
    mw.rkey() & !0xff | mw.rkey().wrapping_add(1) & 0xff
}

fn bind(qp: &Qp, cq: &Cq, pd: &Arc<rdma::Pd>, mr: &Mr, len: usize, access: Access) -> Arc<Mw> {
    let mw = pd.alloc_mw(MwKind::Type2).expect("ibv_alloc_mw");
    let bind = Bind { mw: &mw, rkey: window_key(&mw), mr, offset: 0, len: len as u64, access };
    finish(qp, cq, SendOp::BindMw(bind));
    mw
}

/// Posts a request that ends here, and waits for its end. Only used before the initiator begins.
fn finish(qp: &Qp, cq: &Cq, op: SendOp<'_>) {
    qp.post_send(&SendWr::new(300, op, Data::Sges(&[]))).expect("ibv_post_send");
    let wc = until("the end of a local request", || {
        let mut out = [Wc::default()];
        (cq.poll(&mut out).expect("ibv_poll_cq") == 1).then_some(out[0])
    });
    assert_eq!((wc.wr_id(), wc.status()), (300, Status::SUCCESS));
}

// ---- text ----

fn told(fate: &Fate) -> String {
    let completions: Vec<String> =
        fate.completions.iter().map(|(id, status)| format!("{id} {}", Status(*status))).collect();
    let state = QpState::from_raw(fate.state);
    format!("[{}] {state:?} events {:?}", completions.join(", "), fate.events)
}
