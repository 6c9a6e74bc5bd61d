//! The making of faults: lists that are wrong, windows that cannot be bound, grants that do not hold.

use std::sync::Arc;

use conformance::Fixture;
use rdma::{Access, Bind, Mr, Mw, MwKind, Pd, SendFlags, SendOp, Sge};
use serde::{Deserialize, Serialize};

use crate::side::{ALL, REMOTE, Side};
use crate::table::{Case, Fault, Op};

/// The message of the target after it is connected.
#[derive(Serialize, Deserialize)]
pub struct Offer {
    pub addr: u64,
    pub rkey: u32,
}

/// Faults of the initiator's list.
pub const LOCAL: [Fault; 7] = [
    Fault::LocalKey,
    Fault::LocalDomain,
    Fault::LocalBounds,
    Fault::LocalDeregistered,
    Fault::LocalReadOnly,
    Fault::LocalShort,
    Fault::LocalLong,
];
/// Faults of the target's receive.
pub const RECEIVE: [Fault; 6] = [
    Fault::RecvKey,
    Fault::RecvDomain,
    Fault::RecvBounds,
    Fault::RecvDeregistered,
    Fault::RecvReadOnly,
    Fault::RecvShort,
];

/// Two entries for `len` bytes from `offset` on: lists have to be walked.
pub fn halves(mr: &Mr, offset: usize, len: usize) -> [Sge; 2] {
    let half = len / 2;
    [mr.sge(offset, half), mr.sge(offset + half, len - half)]
}

fn register(pd: &Arc<Pd>, len: usize, access: Access) -> Arc<Mr> {
    pd.reg_mr(len, access).expect("ibv_reg_mr")
}

/// Make the second entry of a list wrong, if the fault is one of `ours`. The result must live until the list has been
/// used.
pub fn spoil(fixture: &Fixture, list: &mut [Sge; 2], fault: Fault, ours: &[Fault]) -> Option<Arc<Mr>> {
    if !ours.contains(&fault) {
        return None;
    }
    let len = list[1].length();
    let size = len as usize;
    let mr = match fault {
        Fault::LocalDomain | Fault::RecvDomain => {
            register(&fixture.context.alloc_pd().expect("ibv_alloc_pd"), size, ALL)
        }
        Fault::LocalBounds | Fault::RecvBounds => register(&fixture.pd, size - 1, ALL),
        Fault::LocalReadOnly | Fault::RecvReadOnly => register(&fixture.pd, size, Access::REMOTE_READ),
        Fault::LocalLong => register(&fixture.pd, size + 1, ALL),
        _ => register(&fixture.pd, size, ALL),
    };
    list[1] = match fault {
        Fault::LocalKey | Fault::RecvKey => Sge::raw(mr.addr(), len, mr.lkey() ^ 1),
        // The entry stays right, and is one byte shorter or longer.
        Fault::RecvShort | Fault::LocalShort => Sge::raw(mr.addr(), len - 1, mr.lkey()),
        Fault::LocalLong => Sge::raw(mr.addr(), len + 1, mr.lkey()),
        _ => Sge::raw(mr.addr(), len, mr.lkey()),
    };
    (!matches!(fault, Fault::LocalDeregistered | Fault::RecvDeregistered)).then_some(mr)
}

// ---- windows ----

/// The key that a window of type 2 is bound with: its own, with the next low byte.
fn next_key(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

/// Bind a window of either type to `bind.mr` on `side`, and wait for it.
fn bind(side: &Side, kind: MwKind, bind: &Bind<'_>) -> u32 {
    match kind {
        MwKind::Type1 => {
            side.qp.bind_mw(300, SendFlags::SIGNALED, bind).expect("ibv_bind_mw");
            side.finished();
            bind.mw.rkey()
        }
        MwKind::Type2 => {
            side.finish(SendOp::BindMw(*bind));
            bind.rkey
        }
    }
}

/// A request of the initiator that changes a window of its own, and the objects that it needs. The order of the fields
/// is that of their destruction.
pub struct Local {
    pub key: u32,
    mw: Option<Arc<Mw>>,
    mr: Arc<Mr>,
    _binder: Option<Side>,
    offset: u64,
    len: u64,
    access: Access,
}

impl Local {
    /// Make the objects for BIND_MW and LOCAL_INV; `side` can post.
    pub fn new(fixture: &Fixture, side: &Side, case: &Case) -> Local {
        const LEN: u64 = 64;
        let other = || fixture.context.alloc_pd().expect("ibv_alloc_pd");
        let kind = if case.op == Op::BindOne { MwKind::Type1 } else { MwKind::Type2 };
        let rights = match case.fault {
            Fault::BindUnbindable => ALL - Access::MW_BIND,
            Fault::BindReadOnly => Access::MW_BIND | Access::REMOTE_READ,
            _ => ALL,
        };
        let pd = if case.fault == Fault::BindDomain { other() } else { fixture.pd.clone() };
        let mr = register(&pd, LEN as usize, rights);
        let pd = if case.fault == Fault::BindWindowDomain { other() } else { fixture.pd.clone() };
        let kind = if case.fault == Fault::InvalidateTypeOne { MwKind::Type1 } else { kind };
        let mw = pd.alloc_mw(kind).expect("ibv_alloc_mw");
        let key = next_key(mw.rkey());
        let mut local =
            Local { key, mw: Some(mw), mr, _binder: None, offset: 0, len: LEN, access: Access::REMOTE_WRITE };
        match case.fault {
            Fault::BindBeyond => local.len += 1,
            Fault::BindBefore => local.offset = u64::MAX,
            Fault::BindNothing => local.len = 0,
            Fault::BindBound => {
                bind(side, kind, &local.bind());
                local.key = next_key(local.key);
            }
            Fault::InvalidateRegion => local.key = local.mr.rkey(),
            Fault::InvalidateNothing => local.key = 0,
            Fault::InvalidateTypeOne => local.key = bind(side, kind, &local.bind()),
            Fault::InvalidateOfAnotherQp => {
                let binder = Side::binder(fixture, &fixture.pd);
                local.key = bind(&binder, kind, &local.bind());
                local._binder = Some(binder);
            }
            Fault::Nothing if case.op == Op::LocalInv => local.key = bind(side, kind, &local.bind()),
            _ => {}
        }
        local
    }

    pub fn bind(&self) -> Bind<'_> {
        let mw = self.mw.as_ref().expect("a window");
        Bind { mw, rkey: self.key, mr: &self.mr, offset: self.offset, len: self.len, access: self.access }
    }
}

// ---- what the target grants ----

/// The memory that the initiator may use, or is told that it may. The order of the fields is that of their destruction.
pub struct Grant {
    pub offer: Offer,
    _mw: Option<Arc<Mw>>,
    mr: Arc<Mr>,
    _binder: Option<Side>,
}

impl Grant {
    /// Make the grant; `side` is connected.
    pub fn new(fixture: &Fixture, side: &Side, case: &Case, len: usize) -> Grant {
        let fault = case.fault;
        let access = if fault == Fault::RegionRight { ALL - case.op.right() } else { ALL };
        let pd = match fault {
            Fault::Domain | Fault::OneDomain => fixture.context.alloc_pd().expect("ibv_alloc_pd"),
            _ => fixture.pd.clone(),
        };
        let step = if case.op.is_word() { 8 } else { 1 };
        let room = match fault {
            // A word that is not aligned, and the bytes in front of the window, are inside the region all the same.
            Fault::Misaligned => len + 8,
            Fault::WindowBefore | Fault::OneBefore => len + step,
            _ => len,
        };
        let mr = register(&pd, room, access);
        let mut offer = Offer { addr: mr.addr(), rkey: mr.rkey() };
        let (mut mw, mut binder) = (None, None);
        match fault {
            Fault::Key => offer.rkey ^= 1,
            Fault::Beyond => offer.addr += step as u64,
            Fault::Before => offer.addr -= step as u64,
            Fault::Misaligned => offer.addr += 4,
            Fault::Deregistered => {
                // The memory is there still, and only its registration is not.
                let gone = pd.reg_mr_again(&mr, access).expect("ibv_reg_mr");
                offer = Offer { addr: gone.addr(), rkey: gone.rkey() };
            }
            _ => {}
        }
        if let Some(kind) = window(fault) {
            let elsewhere = kind == MwKind::Type1 || fault == Fault::WindowOfAnotherQp;
            binder = elsewhere.then(|| Side::binder(fixture, &pd));
            let offset = (room - len) as u64;
            (offer.rkey, mw) = grant_window(binder.as_ref().unwrap_or(side), &pd, &mr, case, kind, offset);
        }
        Grant { offer, _mw: mw, mr, _binder: binder }
    }

    /// The memory that must not be written if the request fails. Without a receive, only the last packet is refused.
    pub fn watched(&self, case: &Case) -> Option<&Mr> {
        let late = matches!(case.fault, Fault::RecvNone | Fault::SrqNobody | Fault::SrqDomain);
        (!late).then_some(&*self.mr)
    }
}

/// The type of window that a fault is about.
fn window(fault: Fault) -> Option<MwKind> {
    use Fault::*;
    let one =
        matches!(fault, OneGood | OneUnbound | OneRebound | OneFreed | OneBeyond | OneBefore | OneRight | OneDomain);
    match (one, fault.is_type_two()) {
        (true, _) => Some(MwKind::Type1),
        (_, true) => Some(MwKind::Type2),
        _ => None,
    }
}

/// Bind a window, and apply the fault to it. The result is the key that the initiator is told.
fn grant_window(side: &Side, pd: &Arc<Pd>, mr: &Mr, case: &Case, kind: MwKind, offset: u64) -> (u32, Option<Arc<Mw>>) {
    use Fault::*;
    let mw = pd.alloc_mw(kind).expect("ibv_alloc_mw");
    let access = if matches!(case.fault, WindowRight | OneRight) { REMOTE - case.op.right() } else { REMOTE };
    let shorter = u64::from(matches!(case.fault, WindowBeyond | OneBeyond));
    let len = mr.len() as u64 - offset - shorter;
    let whole = Bind { mw: &mw, rkey: next_key(mw.rkey()), mr, offset, len, access };
    let key = bind(side, kind, &whole);
    match case.fault {
        WindowInvalidated => side.finish(SendOp::LocalInv(key)),
        WindowRebound => {
            side.finish(SendOp::LocalInv(key));
            bind(side, kind, &Bind { rkey: next_key(key), ..whole });
        }
        // The key that it had until then is that of the next case.
        OneUnbound => return (bind(side, kind, &Bind { len: 0, ..whole }), Some(mw)),
        OneRebound => {
            bind(side, kind, &whole);
        }
        WindowFreed | OneFreed => return (key, None),
        _ => {}
    }
    (key, Some(mw))
}
