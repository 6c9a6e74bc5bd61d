//! Creating, asking about and destroying objects. The errors are those of the man pages: EINVAL for what makes no
//! sense, EBUSY for what is in use, ENOMEM for limits.

use std::collections::VecDeque;

use verbs::{
    Access, AhAttr, AhId, CqId, CtxId, Errno, Gid, LKey, MrId, MwId, PdId, Psn, QpAttr, QpCap, QpCreated, QpId, QpInit,
    QpState, QpType, Qpn, RKey, Result, SrqAttr, SrqId, SrqInit, XrcdId, limits,
};

use crate::cq::CqOpts;
use crate::platform::{Nanos, Platform};
use crate::qp::Qp;
use crate::region::{Backing, MrInfo, MwKind, Regions};
use crate::rq::{RecvQueue, Srq};
use crate::sq::SendQueue;
use crate::{Ah, Engine, Pd, Xrcd};

impl<P: Platform> Engine<P> {
    // ---- contexts ----

    /// Opens a context.
    pub fn open_ctx(&mut self) -> Result<CtxId> {
        self.ctxs.insert(()).ok_or(Errno::ENOMEM)
    }

    /// Closes a context, and destroys what its program left behind.
    pub fn close_ctx(&mut self, ctx: CtxId) -> Result<()> {
        self.ctxs.remove(ctx).ok_or(Errno::EINVAL)?;
        let qps: Vec<QpId> = self.qps.iter().filter(|(_, q)| q.ctx == ctx).map(|(id, _)| id).collect();
        for qp in qps {
            self.drop_qp(qp);
        }
        let srqs: Vec<SrqId> = self.srqs.iter().filter(|(_, s)| s.ctx == ctx).map(|(id, _)| id).collect();
        for srq in srqs {
            let _ = self.destroy_srq(srq);
        }
        let cqs: Vec<CqId> = self.done.cqs.iter().filter(|(_, c)| c.ctx == ctx).map(|(id, _)| id).collect();
        for cq in cqs {
            self.done.cqs.remove(cq);
        }
        let mws: Vec<MwId> = self.mem.mws.iter().filter(|(_, m)| m.ctx == ctx).map(|(id, _)| id).collect();
        for mw in mws {
            let _ = self.dealloc_mw(mw);
        }
        let mrs: Vec<MrId> = self.mem.mrs.iter().filter(|(_, m)| m.ctx == ctx).map(|(id, _)| id).collect();
        for mr in mrs {
            let _ = self.dereg_mr(mr, true);
        }
        let pds: Vec<PdId> = self.pds.iter().filter(|(_, p)| p.ctx == ctx).map(|(id, _)| id).collect();
        for pd in pds {
            self.pds.remove(pd);
            let ahs: Vec<AhId> = self.ahs.iter().filter(|(_, a)| a.pd == pd).map(|(id, _)| id).collect();
            for ah in ahs {
                self.ahs.remove(ah);
            }
        }
        let xrcds: Vec<XrcdId> = self.xrcds.iter().filter(|(_, x)| x.ctx == ctx).map(|(id, _)| id).collect();
        for xrcd in xrcds {
            self.xrcds.remove(xrcd);
        }
        Ok(())
    }

    // ---- protection domains ----

    /// `ibv_alloc_pd(3)`.
    pub fn alloc_pd(&mut self, ctx: CtxId) -> Result<PdId> {
        self.ctxs.get(ctx).ok_or(Errno::EINVAL)?;
        self.pds.insert(Pd { ctx, users: 0 }).ok_or(Errno::ENOMEM)
    }

    /// `ibv_dealloc_pd(3)`: EBUSY while anything belongs to it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<()> {
        if self.pds.get(pd).ok_or(Errno::EINVAL)?.users > 0 {
            return Err(Errno::EBUSY);
        }
        self.pds.remove(pd);
        Ok(())
    }

    fn use_pd(&mut self, pd: PdId) -> Result<CtxId> {
        let pd = self.pds.get_mut(pd).ok_or(Errno::EINVAL)?;
        pd.users += 1;
        Ok(pd.ctx)
    }

    fn leave_pd(&mut self, pd: PdId) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users -= 1;
        }
    }

    fn pd_ctx(&self, pd: PdId) -> Result<CtxId> {
        self.pds.get(pd).map(|p| p.ctx).ok_or(Errno::EINVAL)
    }

    // ---- regions and windows ----

    /// Registers memory. The caller has made sure that the memory is there (or that ON_DEMAND is set).
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
        let backing = if access.contains(Access::ON_DEMAND) { Backing::OnDemand } else { Backing::Plain };
        let info = MrInfo { addr, length, iova, access, pd, key: 0 };
        let (id, key) = self.mem.add_mr(ctx, info, backing, || self.platform.random())?;
        let _ = self.use_pd(pd);
        self.show_mr(id);
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
        let (id, key) = self.mem.add_mr(ctx, info, Backing::Null, || self.platform.random())?;
        let _ = self.use_pd(pd);
        Ok((id, LKey(key)))
    }

    /// `ibv_rereg_mr(3)`: changes what is given. The keys stay: peers that hold them see the new
    /// rights at their next access.
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
        let (ctx, mut info) = (old.ctx, old.info);
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
        let region = self.mem.mrs.get_mut(mr).ok_or(Errno::EINVAL)?;
        region.backing = if info.access.contains(Access::ON_DEMAND) { Backing::OnDemand } else { Backing::Plain };
        region.info = info;
        self.show_mr(mr);
        Ok((LKey(info.key), RKey(info.key)))
    }

    /// `ibv_dereg_mr(3)`: EBUSY while windows are bound to it, EAGAIN while a peer may be reading or writing it for
    /// one of our requests (unless `force`).
    pub fn dereg_mr(&mut self, mr: MrId, force: bool) -> Result<()> {
        let region = self.mem.mrs.get(mr).ok_or(Errno::EINVAL)?;
        if !force && region.windows > 0 {
            return Err(Errno::EBUSY);
        }
        if !force && region.straight > 0 {
            return Err(Errno::EAGAIN);
        }
        let key = region.info.key;
        self.hide_mr(key);
        self.expel(mr);
        if let Some(gone) = self.mem.remove_mr(mr) {
            self.leave_pd(gone.info.pd);
        }
        Ok(())
    }

    /// Gives up all requests for which a peer may be reading or writing a region. When this returns, none does.
    fn expel(&mut self, mr: MrId) {
        let Some(region) = self.mem.mrs.get(mr).filter(|region| region.straight > 0) else { return };
        let lkey = LKey(region.info.key);
        let touches = |e: &crate::qp::Inflight| e.by_ref && e.sges.iter().any(|s| s.lkey == lkey);
        for (_, qp) in self.qps.iter().filter(|(_, qp)| qp.inflight.iter().any(touches)) {
            qp.ticket.void();
            self.platform.quiesce(qp.link);
        }
    }

    /// What a region is.
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
        let (id, key) = self.mem.add_mw(ctx, pd, kind, || self.platform.random())?;
        let _ = self.use_pd(pd);
        Ok((id, RKey(key)))
    }

    /// `ibv_dealloc_mw(3)`: a bound window is unbound.
    pub fn dealloc_mw(&mut self, mw: MwId) -> Result<()> {
        let gone = self.mem.remove_mw(mw).ok_or(Errno::EINVAL)?;
        self.leave_pd(gone.pd);
        Ok(())
    }

    // ---- completion queues ----

    /// `ibv_create_cq(3)`. Gives the real number of entries.
    pub fn create_cq(&mut self, ctx: CtxId, cqe: u32, user: u64, opts: CqOpts) -> Result<(CqId, u32)> {
        self.ctxs.get(ctx).ok_or(Errno::EINVAL)?;
        if cqe == 0 || cqe > limits::MAX_CQE {
            return Err(Errno::EINVAL);
        }
        let id = self.done.create(ctx, cqe, user, opts).ok_or(Errno::ENOMEM)?;
        Ok((id, cqe))
    }

    /// `ibv_resize_cq(3)`: EINVAL when what waits would not fit.
    pub fn resize_cq(&mut self, cq: CqId, cqe: u32) -> Result<u32> {
        if cqe == 0 || cqe > limits::MAX_CQE {
            return Err(Errno::EINVAL);
        }
        match self.done.resize(cq, cqe) {
            Some(true) => Ok(cqe),
            _ => Err(Errno::EINVAL),
        }
    }

    /// `ibv_modify_cq(3)`: at most one event for `count` completions or `period_us` microseconds.
    pub fn moderate_cq(&mut self, cq: CqId, count: u16, period_us: u16) -> Result<()> {
        if self.done.moderate(cq, count, period_us) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// `ibv_destroy_cq(3)`: EBUSY while queue pairs or shared receive queues complete here.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<()> {
        if self.done.cqs.get(cq).ok_or(Errno::EINVAL)?.users > 0 {
            return Err(Errno::EBUSY);
        }
        self.done.cqs.remove(cq);
        Ok(())
    }

    fn use_cq(&mut self, cq: CqId, by: i32) {
        if let Some(cq) = self.done.cqs.get_mut(cq) {
            cq.users = cq.users.wrapping_add_signed(by);
        }
    }

    // ---- shared receive queues ----

    /// `ibv_create_srq(3)`, `ibv_create_srq_ex(3)`.
    pub fn create_srq(&mut self, ctx: CtxId, init: &SrqInit, user: u64) -> Result<(SrqId, SrqAttr)> {
        if self.pd_ctx(init.pd)? != ctx {
            return Err(Errno::EINVAL);
        }
        if init.max_wr == 0 || init.max_wr > limits::MAX_QP_WR || init.max_sge > limits::MAX_SGE {
            return Err(Errno::EINVAL);
        }
        if let Some((xrcd, cq)) = init.xrc
            && (self.xrcds.get(xrcd).is_none() || self.done.cqs.get(cq).is_none())
        {
            return Err(Errno::EINVAL);
        }
        let max_sge = init.max_sge.max(1);
        while self.next_srqn == 0 || self.srqns.contains_key(&self.next_srqn) {
            self.next_srqn = (self.next_srqn + 1) & 0xff_ffff;
        }
        let number = self.next_srqn;
        self.next_srqn = (self.next_srqn + 1) & 0xff_ffff;
        let id = self
            .srqs
            .insert(Srq {
                ctx,
                user,
                pd: init.pd,
                number,
                queue: RecvQueue::new(init.max_wr, max_sge),
                limit: 0,
                xrc: init.xrc,
                users: 0,
            })
            .ok_or(Errno::ENOMEM)?;
        self.srqns.insert(number, id);
        let _ = self.use_pd(init.pd);
        if let Some((xrcd, cq)) = init.xrc {
            self.use_cq(cq, 1);
            if let Some(x) = self.xrcds.get_mut(xrcd) {
                x.users += 1;
            }
        }
        Ok((id, SrqAttr { max_wr: init.max_wr, max_sge, limit: 0 }))
    }

    /// `ibv_modify_srq(3)`.
    pub fn modify_srq(&mut self, srq: SrqId, max_wr: Option<u32>, limit: Option<u32>) -> Result<()> {
        let srq = self.srqs.get_mut(srq).ok_or(Errno::EINVAL)?;
        let depth = max_wr.unwrap_or(srq.queue.depth);
        if depth == 0 || depth > limits::MAX_QP_WR || depth < srq.queue.wqes.len() as u32 {
            return Err(Errno::EINVAL);
        }
        if limit.is_some_and(|limit| limit > depth) {
            return Err(Errno::EINVAL);
        }
        srq.queue.depth = depth;
        if let Some(limit) = limit {
            srq.limit = limit;
        }
        Ok(())
    }

    /// `ibv_query_srq(3)`.
    pub fn query_srq(&self, srq: SrqId) -> Result<SrqAttr> {
        let srq = self.srqs.get(srq).ok_or(Errno::EINVAL)?;
        Ok(SrqAttr { max_wr: srq.queue.depth, max_sge: srq.queue.max_sge, limit: srq.limit })
    }

    /// `ibv_get_srq_num(3)`.
    pub fn srq_number(&self, srq: SrqId) -> Result<u32> {
        self.srqs.get(srq).map(|s| s.number).ok_or(Errno::EINVAL)
    }

    /// `ibv_destroy_srq(3)`: EBUSY while queue pairs take from it.
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<()> {
        if self.srqs.get(id).ok_or(Errno::EINVAL)?.users > 0 {
            return Err(Errno::EBUSY);
        }
        let Some(srq) = self.srqs.remove(id) else { return Ok(()) };
        self.srqns.remove(&srq.number);
        self.leave_pd(srq.pd);
        if let Some((xrcd, cq)) = srq.xrc {
            self.use_cq(cq, -1);
            if let Some(x) = self.xrcds.get_mut(xrcd) {
                x.users -= 1;
            }
        }
        Ok(())
    }

    // ---- XRC domains ----

    /// `ibv_open_xrcd(3)`: with an inode, one domain per file.
    pub fn open_xrcd(
        &mut self,
        ctx: CtxId,
        inode: Option<(u64, u64)>,
        create: bool,
        exclusive: bool,
    ) -> Result<XrcdId> {
        self.ctxs.get(ctx).ok_or(Errno::EINVAL)?;
        let known =
            inode.and_then(|_| self.xrcds.iter().find(|(_, x)| x.inode == inode && x.ctx == ctx)).map(|(id, _)| id);
        match known {
            Some(_) if create && exclusive => Err(Errno::EINVAL),
            Some(id) => {
                if let Some(x) = self.xrcds.get_mut(id) {
                    x.opens += 1;
                }
                Ok(id)
            }
            None if inode.is_some() && !create => Err(Errno::EAGAIN),
            None => self.xrcds.insert(Xrcd { ctx, inode, opens: 1, users: 0 }).ok_or(Errno::ENOMEM),
        }
    }

    /// `ibv_close_xrcd(3)`: EBUSY while something belongs to it.
    pub fn close_xrcd(&mut self, id: XrcdId) -> Result<()> {
        let xrcd = self.xrcds.get_mut(id).ok_or(Errno::EINVAL)?;
        if xrcd.opens > 1 {
            xrcd.opens -= 1;
            return Ok(());
        }
        if xrcd.users > 0 {
            return Err(Errno::EBUSY);
        }
        self.xrcds.remove(id);
        Ok(())
    }

    // ---- address handles ----

    /// Checks an address vector (IBTA vol. 1, 11.2.2.1; RoCE: a GRH always).
    pub(crate) fn check_ah(&self, attr: &AhAttr) -> Result<()> {
        let gids = self.gids.len().max(1);
        if attr.port_num != 1 || !attr.is_global || usize::from(attr.sgid_index) >= gids {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// `ibv_create_ah(3)`.
    pub fn create_ah(&mut self, pd: PdId, attr: &AhAttr) -> Result<AhId> {
        self.pd_ctx(pd)?;
        self.check_ah(attr)?;
        let id = self.ahs.insert(Ah { pd, attr: *attr }).ok_or(Errno::ENOMEM)?;
        let _ = self.use_pd(pd);
        Ok(id)
    }

    /// `ibv_destroy_ah(3)`.
    pub fn destroy_ah(&mut self, ah: AhId) -> Result<()> {
        let ah = self.ahs.remove(ah).ok_or(Errno::EINVAL)?;
        self.leave_pd(ah.pd);
        Ok(())
    }

    /// The address vector of a handle.
    pub fn query_ah(&self, ah: AhId) -> Result<AhAttr> {
        self.ahs.get(ah).map(|a| a.attr).ok_or(Errno::EINVAL)
    }

    // ---- queue pairs ----

    /// `ibv_create_qp(3)`.
    pub fn create_qp(&mut self, ctx: CtxId, init: &QpInit, user: u64) -> Result<(QpId, QpCreated)> {
        let cap = self.check_init(ctx, init)?;
        let (block, qpn) = self.qpns.claim().ok_or(Errno::ENOMEM)?;
        let init = QpInit { cap, ..*init };
        // Words of destroyed queue pairs serve again: as many live as there were queue pairs at one time.
        let ticket = self.tickets.pop().unwrap_or_else(|| Box::leak(Box::default()));
        let id = self
            .qps
            .insert_with(|id| {
                Box::new(Qp {
                    id,
                    ctx,
                    user,
                    qpn,
                    init,
                    state: QpState::Reset,
                    attr: QpAttr::default(),
                    mtu: 4096,
                    link: None,
                    seek_at: None,
                    seek_pause: 0,
                    sq: SendQueue::new(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data),
                    rq: RecvQueue::new(cap.max_recv_wr, cap.max_recv_sge),
                    inflight: VecDeque::with_capacity(cap.max_send_wr as usize),
                    cursor: 0,
                    next_psn: Psn::default(),
                    unacked: Psn::default(),
                    reads_out: 0,
                    retries: 0,
                    rnr_retries: 0,
                    rnr_until: None,
                    ack_deadline: None,
                    sent_mark: 0,
                    answered: (0, Psn::default()),
                    patient_since: None,
                    ticket: crate::qp::Ticket::new(ticket),
                    halted: false,
                    lossy: false,
                    give_up_at: None,
                    no_straight: false,
                    proven: false,
                    peer_epoch: None,
                    shown: None,
                    timer_at: None,
                    epsn: Psn::default(),
                    msn: 0,
                    nak_sent: false,
                    recv: None,
                    write: None,
                    dropping: false,
                    backlog: VecDeque::new(),
                    fed_at: None,
                    responses: VecDeque::new(),
                    atomics: VecDeque::new(),
                    comm_est: false,
                    last_wqe_told: false,
                    queued: false,
                    parked: false,
                })
            })
            .ok_or(Errno::ENOMEM)?;
        self.qpns.set(block, qpn, id);
        self.count_users(&init, 1);
        Ok((id, QpCreated { qpn, cap }))
    }

    /// Checks what a queue pair is to be made of; gives the sizes that it gets.
    fn check_init(&self, ctx: CtxId, init: &QpInit) -> Result<QpCap> {
        self.ctxs.get(ctx).ok_or(Errno::EINVAL)?;
        let mut cap = init.cap;
        if cap.max_send_wr > limits::MAX_QP_WR
            || cap.max_recv_wr > limits::MAX_QP_WR
            || cap.max_send_sge > limits::MAX_SGE
            || cap.max_recv_sge > limits::MAX_SGE
            || cap.max_inline_data > limits::MAX_INLINE
        {
            return Err(Errno::EINVAL);
        }
        let ty = init.qp_type;
        if let Some(pd) = init.pd
            && self.pd_ctx(pd)? != ctx
        {
            return Err(Errno::EINVAL);
        }
        let cq_ok = |cq: Option<CqId>| cq.is_some_and(|cq| self.done.cqs.get(cq).is_some_and(|cq| cq.ctx == ctx));
        if ty == QpType::XrcTgt {
            let xrcd = init.xrcd.ok_or(Errno::EINVAL)?;
            self.xrcds.get(xrcd).ok_or(Errno::EINVAL)?;
        } else if init.pd.is_none() || !cq_ok(init.send_cq) {
            return Err(Errno::EINVAL);
        }
        if ty.receives() && !cq_ok(init.recv_cq) {
            return Err(Errno::EINVAL);
        }
        if let Some(srq) = init.srq {
            let srq = self.srqs.get(srq).ok_or(Errno::EINVAL)?;
            if srq.ctx != ctx || srq.xrc.is_some() || !ty.receives() {
                return Err(Errno::EINVAL);
            }
        }
        if ty.sends() {
            cap.max_send_sge = cap.max_send_sge.max(1);
        } else {
            (cap.max_send_wr, cap.max_send_sge, cap.max_inline_data) = (0, 0, 0);
        }
        if !ty.receives() || init.srq.is_some() {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        } else {
            cap.max_recv_sge = cap.max_recv_sge.max(1);
        }
        Ok(cap)
    }

    fn count_users(&mut self, init: &QpInit, by: i32) {
        for cq in [init.send_cq, init.recv_cq].into_iter().flatten() {
            self.use_cq(cq, by);
        }
        if let Some(pd) = init.pd.and_then(|pd| self.pds.get_mut(pd)) {
            pd.users = pd.users.wrapping_add_signed(by);
        }
        if let Some(srq) = init.srq.and_then(|srq| self.srqs.get_mut(srq)) {
            srq.users = srq.users.wrapping_add_signed(by);
        }
        if let Some(xrcd) = init.xrcd.and_then(|x| self.xrcds.get_mut(x)) {
            xrcd.users = xrcd.users.wrapping_add_signed(by);
        }
    }

    /// `ibv_destroy_qp(3)`: EBUSY while it is attached to a multicast group. Its completions vanish from the queues.
    pub fn destroy_qp(&mut self, id: QpId) -> Result<()> {
        self.qps.get(id).ok_or(Errno::EINVAL)?;
        if self.groups.values().any(|qps| qps.contains(&id)) {
            return Err(Errno::EBUSY);
        }
        self.drop_qp(id);
        Ok(())
    }

    fn drop_qp(&mut self, id: QpId) {
        let groups: Vec<Gid> = self.groups.iter().filter(|(_, qps)| qps.contains(&id)).map(|(gid, _)| *gid).collect();
        for gid in groups {
            let _ = self.detach_mcast(id, &gid);
        }
        let Some(mut qp) = self.qps.remove(id) else { return };
        self.hide_qp(&mut qp);
        self.release_straight(&mut qp);
        self.tickets.push(qp.ticket.word());
        for cq in [qp.init.send_cq, qp.init.recv_cq].into_iter().flatten() {
            self.done.forget(cq, id);
        }
        self.mem.qp_gone(id);
        self.qpns.release(qp.qpn);
        self.count_users(&qp.init, -1);
    }

    /// `ibv_query_qp(3)`.
    pub fn query_qp(&self, id: QpId) -> Result<(QpAttr, QpInit)> {
        let qp = self.qps.get(id).ok_or(Errno::EINVAL)?;
        let mut attr = qp.attr;
        attr.state = qp.state;
        attr.cur_state = qp.state;
        attr.cap = qp.init.cap;
        attr.sq_draining = qp.state == QpState::Sqd && !qp.inflight.is_empty();
        if qp.state != QpState::Reset {
            attr.sq_psn = if matches!(qp.state, QpState::Rts | QpState::Sqd) { qp.next_psn.get() } else { attr.sq_psn };
            attr.rq_psn = qp.epsn.get();
        }
        Ok((attr, qp.init))
    }

    /// The state that a queue pair is in.
    pub fn qp_state(&self, id: QpId) -> Result<QpState> {
        self.qps.get(id).map(|qp| qp.state).ok_or(Errno::EINVAL)
    }

    /// The XRC target with this number in this domain (`ibv_open_qp(3)`).
    pub fn find_xrc_tgt(&self, xrcd: XrcdId, qpn: Qpn) -> Option<QpId> {
        let id = self.qpns.find(qpn)?;
        let qp = self.qps.get(id)?;
        (qp.init.qp_type == QpType::XrcTgt && qp.init.xrcd == Some(xrcd)).then_some(id)
    }

    // ---- multicast ----

    /// `ibv_attach_mcast(3)`: UD only; EINVAL for a GID that is no group.
    pub fn attach_mcast(&mut self, id: QpId, gid: &Gid) -> Result<()> {
        let qp = self.qps.get(id).ok_or(Errno::EINVAL)?;
        if qp.init.qp_type != QpType::Ud || !gid.is_multicast() {
            return Err(Errno::EINVAL);
        }
        if !self.groups.contains_key(gid) {
            if self.groups.len() >= limits::MAX_MCAST_GRP as usize {
                return Err(Errno::ENOMEM);
            }
            self.platform.announce_multicast(gid, true)?;
        }
        let members = self.groups.entry(*gid).or_default();
        if !members.contains(&id) {
            members.push(id);
        }
        Ok(())
    }

    /// `ibv_detach_mcast(3)`: EINVAL when it is not attached.
    pub fn detach_mcast(&mut self, id: QpId, gid: &Gid) -> Result<()> {
        let members = self.groups.get_mut(gid).ok_or(Errno::EINVAL)?;
        let at = members.iter().position(|&m| m == id).ok_or(Errno::EINVAL)?;
        members.swap_remove(at);
        if members.is_empty() {
            self.groups.remove(gid);
            let _ = self.platform.announce_multicast(gid, false);
        }
        Ok(())
    }

    // ---- completions ----

    /// Takes completions out; frees the places that they held. Gives how many.
    pub fn poll(&mut self, cq: CqId, out: &mut [verbs::Completion]) -> usize {
        let mut n = 0;
        while n < out.len() {
            let Some(cqe) = self.done.pop(cq) else { break };
            self.free_place(&cqe);
            out[n] = cqe.wc;
            n += 1;
        }
        n
    }

    /// Frees the places of completions that nobody will poll.
    pub(crate) fn free_overwritten(&mut self) {
        while let Some(cqe) = self.done.overwritten.pop() {
            self.free_place(&cqe);
        }
    }

    fn free_place(&mut self, cqe: &crate::cq::Cqe) {
        let Some(qp) = self.qps.get_mut(cqe.qp) else { return };
        match cqe.frees {
            crate::cq::Frees::Sends(count) => qp.sq.retired = qp.sq.retired.max(count),
            crate::cq::Frees::Recv => qp.rq.held = qp.rq.held.saturating_sub(1),
            crate::cq::Frees::Nothing => {}
        }
    }

    /// True if the queue exists.
    pub fn has_cq(&self, cq: CqId) -> bool {
        self.done.cqs.get(cq).is_some()
    }

    /// True if a poll would find nothing.
    pub fn cq_is_empty(&self, cq: CqId) -> bool {
        self.done.is_empty(cq)
    }

    /// `ibv_req_notify_cq(3)`.
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<()> {
        if self.done.arm(cq, solicited_only) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// True while an event is asked for.
    pub fn cq_is_armed(&self, cq: CqId) -> bool {
        self.done.is_armed(cq)
    }

    /// The earliest time at which [`Engine::expire`] has something to do.
    pub fn next_deadline(&mut self) -> Option<Nanos> {
        let timer = self.timers.peek().map(|t| t.0.0);
        let owed = self.done.fire_due(0);
        match (timer, owed) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}
