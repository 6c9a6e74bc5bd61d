//! Regions and windows: their keys and bounds are in `region`.

use verbs::{Access, Errno, LKey, MrId, MwId, PdId, RKey, Result};
use wire::Env;

use crate::Engine;
use crate::region::{Backing, MrInfo, MwKind, Regions};
use crate::wq::inflight::Inflight;

impl<P: Env> Engine<P> {
    /// Registers memory. The caller has made sure that the memory is there (or that ON_DEMAND is set).
    ///
    /// The memory has to stay there until it is deregistered. Nothing is pinned: to ask the kernel before each access
    /// would cost more than to copy a small message. So an access to a region that was unmapped is a SIGSEGV in its
    /// owner, where an adapter would go on with the orphaned pages. ON_DEMAND regions are reached through the kernel,
    /// and end in a completion error.
    pub fn reg_mr(
        &mut self,
        pd: PdId,
        addr: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<(MrId, LKey, RKey)> {
        Regions::check_access(access)?;
        let ctx = self.pd_ctx(pd)?;
        let (length, iova) = Self::layout(addr, length, iova, access)?;
        let backing = if access.contains(Access::ON_DEMAND) { Backing::Guarded } else { Backing::Plain };
        let info = MrInfo { addr, length, iova, access, pd, key: 0 };
        let (id, key) = self.mem.add_mr(ctx, info, backing, || self.env.random())?;
        let _ = self.use_pd(pd);
        self.publish_mr(id);
        Ok((id, LKey(key), RKey(key)))
    }

    fn layout(addr: u64, length: u64, iova: u64, access: Access) -> Result<(u64, u64)> {
        // The implicit region: address 0, all of it, on demand (ibv_reg_mr(3)).
        if addr == 0 && length == u64::MAX && access.contains(Access::ON_DEMAND) {
            return Ok((u64::MAX, 0));
        }
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        if addr.checked_add(length).is_none() || iova.checked_add(length).is_none() {
            return Err(Errno::EINVAL);
        }
        Ok((length, iova))
    }

    /// `ibv_alloc_null_mr(3)`.
    pub fn reg_null_mr(&mut self, pd: PdId) -> Result<(MrId, LKey)> {
        let ctx = self.pd_ctx(pd)?;
        let info = MrInfo { addr: 0, length: u64::MAX, iova: 0, access: Access::LOCAL_WRITE, pd, key: 0 };
        let (id, key) = self.mem.add_mr(ctx, info, Backing::Null, || self.env.random())?;
        let _ = self.use_pd(pd);
        Ok((id, LKey(key)))
    }

    /// Has a region reached as an ON_DEMAND one, since its memory may go although the region is not ON_DEMAND. No
    /// request has used the region since it was registered, or registered anew.
    ///
    /// # Errors
    /// EINVAL: no such region, or one without memory.
    pub fn guard_mr(&mut self, mr: MrId) -> Result<()> {
        let found = self.mem.mrs.get(mr).filter(|found| found.backing != Backing::Null).ok_or(Errno::EINVAL)?;
        let info = found.info;
        self.mem.change_mr(mr, info, Backing::Guarded)
    }

    /// `ibv_rereg_mr(3)`: changes the given attributes. The keys stay: peers that hold them see the new rights at their
    /// next access.
    pub fn rereg_mr(
        &mut self,
        mr: MrId,
        translation: Option<(u64, u64, u64)>,
        pd: Option<PdId>,
        access: Option<Access>,
    ) -> Result<(LKey, RKey)> {
        let old = self.mem.mrs.get(mr).ok_or(Errno::EINVAL)?;
        if old.windows > 0 {
            return Err(Errno::EBUSY);
        }
        if old.backing == Backing::Null {
            return Err(Errno::EINVAL); // there is no memory to register anew
        }
        let (ctx, mut info, mut backing) = (old.ctx, old.info, old.backing);
        if let Some(access) = access {
            Regions::check_access(access)?;
            info.access = access;
        }
        if let Some((addr, length, iova)) = translation {
            let (length, iova) = Self::layout(addr, length, iova, info.access)?;
            (info.addr, info.length, info.iova) = (addr, length, iova);
        }
        if let Some(new) = pd {
            if self.pd_ctx(new)? != ctx {
                return Err(Errno::EINVAL);
            }
            self.use_pd(new)?;
            self.leave_pd(info.pd);
            info.pd = new;
        }
        self.hide_mr(info.key);
        self.expel(mr);
        self.settle_streams();
        if translation.is_some() || access.is_some() {
            let on_demand = info.access.contains(Access::ON_DEMAND);
            backing = if on_demand { Backing::Guarded } else { Backing::Plain };
        }
        self.mem.change_mr(mr, info, backing)?;
        self.publish_mr(mr);
        Ok((LKey(info.key), RKey(info.key)))
    }

    /// `ibv_dereg_mr(3)`: EBUSY while windows are bound to it, EAGAIN while a peer may be reading or writing it for
    /// one of our requests (unless `force`).
    pub fn dereg_mr(&mut self, mr: MrId, force: bool) -> Result<()> {
        let region = self.mem.mrs.get(mr).ok_or(Errno::EINVAL)?;
        if !force && region.windows > 0 {
            return Err(Errno::EBUSY);
        }
        if !force && region.single_copy > 0 {
            return Err(Errno::EAGAIN);
        }
        let key = region.info.key;
        self.hide_mr(key);
        self.expel(mr);
        self.settle_streams();
        if let Some(gone) = self.mem.remove_mr(mr) {
            self.leave_pd(gone.info.pd);
        }
        Ok(())
    }

    /// Gives up all requests for which a peer may be reading or writing a region. When this returns, no peer reads or
    /// writes it.
    fn expel(&mut self, mr: MrId) {
        let Some(region) = self.mem.mrs.get(mr).filter(|region| region.single_copy > 0) else { return };
        let lkey = LKey(region.info.key);
        let touches = |e: &Inflight| e.by_ref && e.sges.iter().any(|s| s.lkey == lkey);
        for (_, qp) in self.qps.iter().filter(|(_, qp)| qp.inflight.iter().any(touches)) {
            qp.same_host.ticket.void();
            self.env.quiesce(qp.link);
        }
    }

    /// True if a region has some of these addresses of the process.
    pub fn has_region_at(&self, addr: u64, length: u64) -> bool {
        let end = addr.saturating_add(length);
        self.mem.mrs.iter().any(|(_, mr)| {
            mr.backing != Backing::Null && mr.info.addr < end && addr < mr.info.addr.saturating_add(mr.info.length)
        })
    }

    /// Attributes of a region.
    pub fn mr_info(&self, mr: MrId) -> Option<MrInfo> {
        self.mem.mrs.get(mr).map(|m| m.info)
    }

    /// The region with this key.
    pub fn find_mr(&self, key: u32) -> Option<MrId> {
        self.mem.find_mr(key)
    }

    /// `ibv_alloc_mw(3)`.
    pub fn alloc_mw(&mut self, pd: PdId, kind: MwKind) -> Result<(MwId, RKey)> {
        let ctx = self.pd_ctx(pd)?;
        self.not_in_iwarp(ctx)?;
        let (id, key) = self.mem.add_mw(ctx, pd, kind, || self.env.random())?;
        let _ = self.use_pd(pd);
        Ok((id, RKey(key)))
    }

    /// `ibv_dealloc_mw(3)`: a bound window is unbound.
    pub fn dealloc_mw(&mut self, mw: MwId) -> Result<()> {
        let gone = self.mem.remove_mw(mw).ok_or(Errno::EINVAL)?;
        if gone.shown {
            self.hide_mr(gone.key);
        }
        self.env.wait_for_late_writers();
        self.leave_pd(gone.pd);
        Ok(())
    }
}
