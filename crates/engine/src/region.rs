//! Memory regions and windows, and the one place where an access is checked against them (IBTA vol. 1, 10.6).

mod recent;

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::cold_path;

use verbs::{Access, CtxId, Errno, LKey, MrId, MwId, PdId, QpId, Qpn, RKey, Result, Sge, limits};
use wire::{Export, Span};

use crate::slab::Slab;

use recent::Recent;

/// The address of spans that stand for the null region: reads give zeros, writes are discarded.
pub(crate) const NULL_ADDR: u64 = u64::MAX;

/// Hashes the 24-bit index of a key; the indexes are random already.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = (self.0 << 8) | u64::from(b);
        }
    }
    fn write_u32(&mut self, n: u32) {
        self.0 = u64::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

pub(crate) type KeyMap<V> = HashMap<u32, V, BuildHasherDefault<KeyHasher>>;

/// The memory behind a region's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backing {
    /// Memory that was there at registration.
    Plain,
    /// Memory that may come and go (ON_DEMAND), or go (a file that others can cut off).
    Guarded,
    /// Nothing: `ibv_alloc_null_mr(3)`.
    Null,
}

/// A region as [`crate::Engine::mr_info`] tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrInfo {
    /// Start in this process.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Start in the space of the keys.
    pub iova: u64,
    /// Rights.
    pub access: Access,
    /// Protection domain.
    pub pd: PdId,
    /// lkey and rkey.
    pub key: u32,
}

pub(crate) struct Mr {
    pub ctx: CtxId,
    pub info: MrInfo,
    pub backing: Backing,
    /// Windows bound to it.
    pub windows: u32,
    /// Requests under way that let the peer reach it directly.
    pub single_copy: u32,
}

/// Type of a memory window (`enum ibv_mw_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MwKind {
    /// Bound by `ibv_bind_mw`, belongs to a protection domain.
    Type1,
    /// Bound by a work request, belongs to a queue pair (type 2B).
    Type2,
}

#[derive(Clone, Copy)]
pub(crate) struct Binding {
    pub mr: MrId,
    pub qp: QpId,
    pub addr: u64,
    pub length: u64,
    pub access: Access,
}

pub(crate) struct Mw {
    pub ctx: CtxId,
    pub pd: PdId,
    pub kind: MwKind,
    pub key: u32,
    pub bound: Option<Binding>,
    /// Peers are shown it: see [`crate::Engine::publish_mw`].
    pub shown: bool,
}

#[derive(Clone, Copy)]
enum Keyed {
    Mr(MrId),
    Mw(MwId),
}

/// Why a local access was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LocalFault {
    /// More bytes than the list holds.
    Length,
    /// Wrong key, domain, rights or bounds.
    Protection,
}

/// How many regions are remembered: several times the dozen regions of a chain of replicas.
const RECENT: usize = 64;

/// How many random keys a region may try before it shares a place with another one.
const KEYS: usize = 16;

/// Where a region is remembered: by the random part of its key.
#[inline(always)]
pub(crate) const fn place(key: u32) -> usize {
    (key >> 8) as usize % RECENT
}

/// All regions and windows of a process.
pub(crate) struct Regions {
    pub mrs: Slab<MrId, Mr>,
    pub mws: Slab<MwId, Mw>,
    keys: KeyMap<(u32, Keyed)>,
    /// The regions that were found last, each in the place that its key says: mostly one of them is the next. A place
    /// is forgotten when its region goes or changes.
    recent: [Cell<Recent>; RECENT],
    /// How many regions there are for each place. A program uses its regions by turns, so a new one goes where none is.
    placed: [u32; RECENT],
}

/// Rights that need LOCAL_WRITE on the region (IBTA vol. 1, 11.2.8.2; `ibv_reg_mr(3)`).
const NEED_LOCAL_WRITE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

impl Regions {
    pub fn new() -> Self {
        Regions {
            mrs: Slab::new(limits::MAX_MR),
            mws: Slab::new(limits::MAX_MW),
            keys: KeyMap::default(),
            recent: [const { Cell::new(Recent::NONE) }; RECENT],
            placed: [0; RECENT],
        }
    }

    /// A new key that no region or window has: 24 random bits of index and 8 of variable part, never all zeros or ones
    /// in the index. The key is difficult to predict, as RFC 5040, section 8.1.1 and RFC 5041, section 8.3.1 ask.
    fn new_key(&self, mut random: impl FnMut() -> u64) -> u32 {
        loop {
            let key = random() as u32;
            if key >> 8 != 0 && key >> 8 != 0xff_ffff && !self.keys.contains_key(&(key >> 8)) {
                return key;
            }
        }
    }

    pub fn check_access(access: Access) -> Result<()> {
        if access.intersects(NEED_LOCAL_WRITE) && !access.contains(Access::LOCAL_WRITE) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    pub fn add_mr(
        &mut self,
        ctx: CtxId,
        mut info: MrInfo,
        backing: Backing,
        mut random: impl FnMut() -> u64,
    ) -> Result<(MrId, u32)> {
        let mut key = self.new_key(&mut random);
        let mut others = self.placed[place(key)];
        for _ in 1..KEYS {
            if others == 0 {
                break;
            }
            let another = self.new_key(&mut random);
            if self.placed[place(another)] < others {
                (key, others) = (another, self.placed[place(another)]);
            }
        }
        info.key = key;
        let id = self.mrs.insert(Mr { ctx, info, backing, windows: 0, single_copy: 0 }).ok_or(Errno::ENOMEM)?;
        self.placed[place(key)] += 1;
        self.keys.insert(key >> 8, (key, Keyed::Mr(id)));
        Ok((id, key))
    }

    /// Gives a region other bounds or rights (`ibv_rereg_mr(3)`).
    pub fn change_mr(&mut self, id: MrId, info: MrInfo, backing: Backing) -> Result<()> {
        let mr = self.mrs.get_mut(id).ok_or(Errno::EINVAL)?;
        self.recent[place(mr.info.key)].set(Recent::NONE);
        (mr.info, mr.backing) = (info, backing);
        Ok(())
    }

    pub fn remove_mr(&mut self, id: MrId) -> Option<Mr> {
        let mr = self.mrs.remove(id)?;
        self.recent[place(mr.info.key)].set(Recent::NONE);
        self.placed[place(mr.info.key)] -= 1;
        self.keys.remove(&(mr.info.key >> 8));
        Some(mr)
    }

    pub fn add_mw(&mut self, ctx: CtxId, pd: PdId, kind: MwKind, random: impl FnMut() -> u64) -> Result<(MwId, u32)> {
        let key = self.new_key(random);
        let id = self.mws.insert(Mw { ctx, pd, kind, key, bound: None, shown: false }).ok_or(Errno::ENOMEM)?;
        self.keys.insert(key >> 8, (key, Keyed::Mw(id)));
        Ok((id, key))
    }

    pub fn remove_mw(&mut self, id: MwId) -> Option<Mw> {
        let mw = self.mws.remove(id)?;
        self.keys.remove(&(mw.key >> 8));
        self.release(&mw);
        Some(mw)
    }

    fn release(&mut self, mw: &Mw) {
        if let Some(mr) = mw.bound.and_then(|b| self.mrs.get_mut(b.mr)) {
            mr.windows -= 1;
        }
    }

    pub fn find_mr(&self, key: u32) -> Option<MrId> {
        match self.keys.get(&(key >> 8)) {
            Some(&(full, Keyed::Mr(id))) if full == key => Some(id),
            _ => None,
        }
    }

    pub fn mr_by_lkey(&mut self, lkey: LKey) -> Option<&mut Mr> {
        let id = self.find_mr(lkey.0)?;
        self.mrs.get_mut(id)
    }

    /// Checks one entry against its region (IBTA vol. 1, 10.6.3.1) and gives the place of its memory.
    pub fn local(&self, pd: Option<PdId>, sge: &Sge, write: bool) -> std::result::Result<Span, LocalFault> {
        self.local_here(pd, sge, write)
    }

    /// [`Self::local`], inlined into the fast path: its result stays in registers. In memory it would be written in
    /// narrow stores and read by wide loads, which have to wait for them.
    #[inline(always)]
    pub fn local_here(&self, pd: Option<PdId>, sge: &Sge, write: bool) -> std::result::Result<Span, LocalFault> {
        let recent = self.recent[place(sge.lkey.0)].get();
        if recent.key == sge.lkey.0
            && pd == Some(recent.pd)
            && (recent.writable || !write)
            && covers(recent.iova, recent.length, sge.addr, u64::from(sge.length))
        {
            let addr = sge.addr.wrapping_add(recent.shift);
            return Ok(Span { addr, len: sge.length, guarded: recent.guarded });
        }
        self.recall(pd, sge, write)
    }

    /// The span of an entry if its region is not the remembered one, or the remembered one does not allow the access.
    #[cold]
    fn recall(&self, pd: Option<PdId>, sge: &Sge, write: bool) -> std::result::Result<Span, LocalFault> {
        let mr = self.find_mr(sge.lkey.0).and_then(|id| self.mrs.get(id)).ok_or(LocalFault::Protection)?;
        if mr.backing != Backing::Null {
            self.recent[place(sge.lkey.0)].set(Recent::new(mr));
        }
        mr.info.local(mr.backing, pd, sge, write)
    }

    /// What a request of this process to itself is checked against, and whether the region's memory may be gone. `None`
    /// if no region has the key, or if it has no memory.
    #[inline(always)]
    pub fn shown(&self, rkey: RKey) -> Option<(Export, bool)> {
        let mut recent = self.recent[place(rkey.0)].get();
        if recent.key != rkey.0 {
            cold_path();
            let mr = self.mrs.get(self.find_mr(rkey.0)?).filter(|mr| mr.backing != Backing::Null)?;
            recent = Recent::new(mr);
            self.recent[place(rkey.0)].set(recent);
        }
        let Recent { key, ctx, pd, access, iova, length, shift, guarded, .. } = recent;
        let addr = iova.wrapping_add(shift);
        Some((Export::Region { key, through: None, ctx, pd, access, addr, length, iova }, guarded))
    }

    /// The pieces of memory behind bytes `offset .. offset + len` of a scatter/gather list, appended to `out`.
    pub fn local_spans(
        &self,
        pd: Option<PdId>,
        sges: &[Sge],
        mut offset: u32,
        mut len: u32,
        write: bool,
        out: &mut Vec<Span>,
    ) -> std::result::Result<(), LocalFault> {
        for sge in sges {
            if len == 0 {
                return Ok(());
            }
            if offset >= sge.length {
                offset -= sge.length;
                continue;
            }
            let Span { addr, guarded, .. } = self.local_here(pd, sge, write)?;
            let addr = if addr == NULL_ADDR { addr } else { addr + u64::from(offset) };
            let take = (sge.length - offset).min(len);
            out.push(Span { addr, len: take, guarded });
            len -= take;
            offset = 0;
        }
        if len == 0 { Ok(()) } else { Err(LocalFault::Length) }
    }

    /// Checks a peer's access by rkey (IBTA vol. 1, 9.7.4.1.5, 10.6.3.2): key, domain, rights, bounds. `pd` is the
    /// domain of the queue pair; an XRC target has none and reaches the regions of its context.
    #[allow(clippy::too_many_arguments)] // the requester's domain and queue pair, and the access
    pub fn remote(
        &self,
        ctx: CtxId,
        pd: Option<PdId>,
        qp: QpId,
        rkey: RKey,
        addr: u64,
        len: u32,
        need: Access,
    ) -> std::result::Result<Span, RemoteFault> {
        match *self.keys.get(&(rkey.0 >> 8)).ok_or(RemoteFault::Key)? {
            (full, Keyed::Mr(id)) if full == rkey.0 => {
                let mr = self.mrs.get(id).ok_or(RemoteFault::Key)?;
                if !pd.map_or(mr.ctx == ctx, |pd| pd == mr.info.pd) {
                    return Err(RemoteFault::Domain);
                }
                if !mr.info.access.contains(need) {
                    return Err(RemoteFault::Rights);
                }
                mr.info.span(mr.backing, addr, len).ok_or_else(|| beyond(addr, len))
            }
            (_, Keyed::Mw(id)) => {
                let mw = self.mws.get(id).ok_or(RemoteFault::Key)?;
                let bound = mw.bound.as_ref().filter(|_| mw.key == rkey.0).ok_or(RemoteFault::Key)?;
                // A type 2B window belongs to the queue pair that bound it (IBTA vol. 1, 10.6.7.2.3).
                let owner = match mw.kind {
                    MwKind::Type1 => pd.map_or(mw.ctx == ctx, |pd| pd == mw.pd),
                    MwKind::Type2 => bound.qp == qp,
                };
                if !owner {
                    return Err(RemoteFault::Domain);
                }
                if !bound.access.contains(need) {
                    return Err(RemoteFault::Rights);
                }
                let zero_based = bound.access.contains(Access::ZERO_BASED);
                let start = if zero_based { 0 } else { bound.addr };
                let offset = addr.checked_sub(start).ok_or_else(|| beyond(addr, len))?;
                if offset.checked_add(u64::from(len)).is_none_or(|end| end > bound.length) {
                    return Err(beyond(addr, len));
                }
                let mr = self.mrs.get(bound.mr).ok_or(RemoteFault::Key)?;
                mr.info.span(mr.backing, bound.addr + offset, len).ok_or(RemoteFault::Bounds)
            }
            _ => Err(RemoteFault::Key),
        }
    }

    /// Executes BIND_MW (IBTA vol. 1, 10.6.6.2, 11.4.1.1). The caller names the queue pair. Of the new key only the low
    /// 8 bits are the consumer's (10.6.2, 11.4.1.1: the key portion); the others are the window's, whatever is given.
    #[allow(clippy::too_many_arguments)] // the fields of the work request
    pub fn bind(
        &mut self,
        qp: QpId,
        pd: Option<PdId>,
        mw_id: MwId,
        rkey: RKey,
        mr_id: Option<MrId>,
        addr: u64,
        length: u64,
        access: Access,
    ) -> std::result::Result<(), ()> {
        let mw = self.mws.get(mw_id).ok_or(())?;
        if Some(mw.pd) != pd {
            return Err(());
        }
        let key = mw.key & !0xff | rkey.0 & 0xff;
        if mw.kind == MwKind::Type2 && (mw.bound.is_some() || length == 0) {
            return Err(()); // 10.6.6.2.2: a type 2 window must be invalid before it is bound; no zero-length bind
        }
        let bound = if length == 0 {
            None
        } else {
            let id = mr_id.ok_or(())?;
            let mr = self.mrs.get(id).ok_or(())?;
            let enough = mr.info.access.contains(Access::MW_BIND)
                && (!access.intersects(NEED_LOCAL_WRITE) || mr.info.access.contains(Access::LOCAL_WRITE))
                // C10-75 (release 1.2.1): no window over a zero-based region
                && !mr.info.access.contains(Access::ZERO_BASED)
                && Some(mr.info.pd) == pd;
            if !enough || !mr.info.covers(addr, length) {
                return Err(());
            }
            Some(Binding { mr: id, qp, addr, length, access })
        };
        let old = self.mws.get_mut(mw_id).and_then(|mw| {
            mw.key = key;
            std::mem::replace(&mut mw.bound, bound)
        });
        if let Some(mr) = old.and_then(|b| self.mrs.get_mut(b.mr)) {
            mr.windows -= 1;
        }
        if let Some(mr) = bound.and_then(|b| self.mrs.get_mut(b.mr)) {
            mr.windows += 1;
        }
        self.rewrite_key(mw_id, key);
        Ok(())
    }

    fn rewrite_key(&mut self, id: MwId, key: u32) {
        self.keys.insert(key >> 8, (key, Keyed::Mw(id)));
    }

    /// The window whose key [`Regions::invalidate`] takes.
    pub fn invalidable(&self, qp: QpId, rkey: RKey) -> Option<MwId> {
        let Some(&(_, Keyed::Mw(id))) = self.keys.get(&(rkey.0 >> 8)) else { return None };
        let mw = self.mws.get(id)?;
        let takes = mw.kind == MwKind::Type2 && mw.key == rkey.0 && mw.bound.is_some_and(|b| b.qp == qp);
        takes.then_some(id)
    }

    /// LOCAL_INV or the invalidation that came with a SEND: only a bound type 2 window of this queue pair and domain
    /// can be invalidated (IBTA vol. 1, 10.6.5; fast-register regions do not exist in user space).
    ///
    /// The result is true if peers are shown it.
    pub fn invalidate(&mut self, qp: QpId, rkey: RKey) -> std::result::Result<bool, ()> {
        let mw = self.invalidable(qp, rkey).and_then(|id| self.mws.get_mut(id)).ok_or(())?;
        let (bound, shown) = (mw.bound.take(), std::mem::take(&mut mw.shown));
        if let Some(mr) = bound.and_then(|b| self.mrs.get_mut(b.mr)) {
            mr.windows -= 1;
        }
        Ok(shown)
    }

    /// Sends the type 2 windows of a queue pair back to the invalid state, as the queue pair goes (IBTA vol. 1,
    /// 10.6.7.2.3).
    ///
    /// The result is the keys of those that peers are shown.
    pub fn qp_gone(&mut self, qp: QpId) -> Vec<u32> {
        let mut shown = Vec::new();
        let lost: Vec<(MwId, MrId)> = self
            .mws
            .iter()
            .filter(|(_, mw)| mw.kind == MwKind::Type2)
            .filter_map(|(id, mw)| mw.bound.filter(|b| b.qp == qp).map(|b| (id, b.mr)))
            .collect();
        for (mw, mr) in lost {
            if let Some(mw) = self.mws.get_mut(mw) {
                mw.bound = None;
                shown.extend(std::mem::take(&mut mw.shown).then_some(mw.key));
            }
            if let Some(mr) = self.mrs.get_mut(mr) {
                mr.windows -= 1;
            }
        }
        shown
    }

    /// A bound window of type 2 as peers may know it. None: it reaches nothing that they can copy.
    pub fn export_mw(&self, id: MwId, through: Qpn) -> Option<Export> {
        let mw = self.mws.get(id).filter(|mw| mw.kind == MwKind::Type2)?;
        let bound = mw.bound.as_ref()?;
        let mr = self.mrs.get(bound.mr).filter(|mr| mr.backing != Backing::Null)?;
        let zero_based = bound.access.contains(Access::ZERO_BASED);
        Some(Export::Region {
            key: mw.key,
            through: Some(through),
            ctx: mw.ctx,
            pd: mw.pd,
            // Whether the memory may vanish is the region's.
            access: bound.access | mr.info.access & Access::ON_DEMAND,
            addr: mr.info.addr.wrapping_add(bound.addr.wrapping_sub(mr.info.iova)),
            length: bound.length,
            iova: if zero_based { 0 } else { bound.addr },
        })
    }

    /// Note that peers are shown a window.
    pub fn mw_is_shown(&mut self, id: MwId) {
        if let Some(mw) = self.mws.get_mut(id) {
            mw.shown = true;
        }
    }
}

/// Why a peer may not reach memory by a key. IBTA folds all of them into one NAK (vol. 1, 9.7.5.2.8: remote access
/// error); RFC 5040 and 5041 tell them apart (Terminate codes), and so does the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteFault {
    /// No region and no bound window has this key.
    Key,
    /// The region or window belongs to another protection domain, context or queue pair.
    Domain,
    /// The rights of the region or window do not include the access.
    Rights,
    /// The memory does not lie within the region or window.
    Bounds,
    /// The end of the memory is beyond the address space.
    Wrap,
}

impl RemoteFault {
    /// One line for the log.
    pub const fn rule(self) -> &'static str {
        match self {
            RemoteFault::Key => {
                "responder: no memory region and no bound window has this rkey (FLUSH of a region: no region)"
            }
            RemoteFault::Domain => {
                "responder: the rkey's region or window belongs to another protection domain (a type 2 window: to \
                 another queue pair)"
            }
            RemoteFault::Rights => "responder: the rkey's region or window does not grant this access",
            RemoteFault::Bounds => "responder: the access lies beyond the bounds of the rkey's region or window",
            RemoteFault::Wrap => "responder: the access ends beyond the address space",
        }
    }
}

/// The reason why memory is not within bounds.
#[cold]
fn beyond(addr: u64, len: u32) -> RemoteFault {
    let last = u64::from(len).saturating_sub(1);
    if addr.checked_add(last).is_none() { RemoteFault::Wrap } else { RemoteFault::Bounds }
}

/// True if so many bytes at this address are inside the region that starts at `iova`.
#[inline(always)]
fn covers(iova: u64, length: u64, addr: u64, len: u64) -> bool {
    addr >= iova && length >= len && addr - iova <= length - len
}

impl MrInfo {
    #[inline]
    fn covers(&self, addr: u64, length: u64) -> bool {
        covers(self.iova, self.length, addr, length)
    }

    #[inline(always)]
    fn local(
        &self,
        backing: Backing,
        pd: Option<PdId>,
        sge: &Sge,
        write: bool,
    ) -> std::result::Result<Span, LocalFault> {
        if pd != Some(self.pd) || (write && !self.access.contains(Access::LOCAL_WRITE)) {
            cold_path();
            return Err(LocalFault::Protection);
        }
        self.span(backing, sge.addr, sge.length).ok_or(LocalFault::Protection)
    }

    /// The memory behind `len` bytes at `addr` of the region's space.
    #[inline(always)]
    fn span(&self, backing: Backing, addr: u64, len: u32) -> Option<Span> {
        if backing == Backing::Null {
            return Some(Span { addr: NULL_ADDR, len, guarded: true });
        }
        if !self.covers(addr, u64::from(len)) {
            return None;
        }
        Some(Span { addr: self.addr.wrapping_add(addr - self.iova), len, guarded: backing == Backing::Guarded })
    }
}
