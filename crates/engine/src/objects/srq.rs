//! Shared receive queues.

use verbs::{CtxId, Errno, Result, SrqAttr, SrqId, SrqInit, limits};
use wire::Env;

use crate::Engine;
use crate::wq::rq::{RecvQueue, Srq};

impl<P: Env> Engine<P> {
    /// `ibv_create_srq(3)`, `ibv_create_srq_ex(3)`. All objects are of one context, as a kernel finds them by their
    /// handles in that context.
    pub fn create_srq(&mut self, ctx: CtxId, init: &SrqInit, user: u64) -> Result<(SrqId, SrqAttr)> {
        if self.pd_ctx(init.pd)? != ctx {
            return Err(Errno::EINVAL);
        }
        if init.max_wr == 0 || init.max_wr > limits::MAX_QP_WR || init.max_sge > limits::MAX_SGE {
            return Err(Errno::EINVAL);
        }
        if let Some((xrcd, cq)) = init.xrc {
            self.not_in_iwarp(ctx)?;
            let is_its = self.xrcds.get(xrcd).is_some_and(|xrcd| xrcd.ctx == ctx);
            if !is_its || self.done.cqs.get(cq).is_none_or(|cq| cq.ctx != ctx) {
                return Err(Errno::EINVAL);
            }
        }
        let max_sge = init.max_sge.max(1);
        let queue = RecvQueue::new(init.max_wr, max_sge)?;
        while self.next_srqn == 0 || self.srqns.contains_key(&self.next_srqn) {
            self.next_srqn = (self.next_srqn + 1) & 0xff_ffff;
        }
        let number = self.next_srqn;
        self.next_srqn = (self.next_srqn + 1) & 0xff_ffff;
        let id = self
            .srqs
            .insert(Srq { ctx, user, pd: init.pd, number, queue, limit: 0, xrc: init.xrc, users: 0 })
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
        srq.queue.resize(depth)?;
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
}
