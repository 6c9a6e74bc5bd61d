//! Posting work requests: the checks that a post makes at once (`ibv_post_send(3)`, `ibv_post_recv(3)`), and the
//! legal operations of each transport service.

use verbs::{
    AhId, Errno, Opcode, QpId, QpState, QpType, RecvWr, Result, SendBody, SendData, SendFlags, SendWr, SrqId, limits,
};
use wire::{Env, Nanos};

use crate::qp::Qp;
use crate::slab::Slab;
use crate::{Ah, Engine};

/// Operations of each service (IBTA vol. 1, table 6; `ibv_post_send(3)`).
pub(crate) fn legal(ty: QpType, opcode: Opcode) -> bool {
    use Opcode::*;
    match ty {
        QpType::Rc => true,
        QpType::XrcIni => !opcode.is_task(),
        QpType::Uc => matches!(opcode, Send | SendWithImm | RdmaWrite | RdmaWriteWithImm | BindMw | LocalInv),
        QpType::Ud => matches!(opcode, Send | SendWithImm),
        QpType::XrcTgt => false,
    }
}

impl<P: Env> Engine<P> {
    /// Checks a request as [`Engine::post_send`] would, except for the room in the queue ([`Engine::send_room`]), so
    /// that several requests can be posted together or not at all.
    pub fn check_send(&self, id: QpId, wr: &SendWr<'_>) -> Result<()> {
        Self::check(self.qps.get(id).ok_or(Errno::EINVAL)?, &self.ahs, wr).map(|_| ())
    }

    /// Number of send requests that can be posted now.
    pub fn send_room(&self, id: QpId) -> Result<u32> {
        self.qps.get(id).map(|qp| qp.sq.room()).ok_or(Errno::EINVAL)
    }

    /// Gives the flags that the request is queued with.
    fn check(qp: &Qp, ahs: &Slab<AhId, Ah>, wr: &SendWr<'_>) -> Result<SendFlags> {
        let ty = qp.init.qp_type;
        if qp.stream.is_some() && !crate::rdmap::takes(wr) {
            return Err(Errno::EINVAL);
        }
        if matches!(qp.state, QpState::Reset | QpState::Init | QpState::Rtr) || !ty.sends() {
            return Err(Errno::EINVAL);
        }
        // An operation that the service does not have is queued, and completes with LOC_QP_OP_ERR (11.6.2):
        // [`Engine::run`] finds it.
        let mut flags = wr.flags;
        match wr.data {
            SendData::Sges(list) => {
                flags.remove(SendFlags::INLINE);
                if list.len() > qp.sq.max_sge as usize {
                    return Err(Errno::EINVAL);
                }
            }
            SendData::Inline(pieces) => {
                flags.insert(SendFlags::INLINE);
                let total: usize = pieces.iter().map(|p| p.len()).sum();
                let may = matches!(
                    wr.opcode,
                    Opcode::Send
                        | Opcode::SendWithImm
                        | Opcode::SendWithInv
                        | Opcode::RdmaWrite
                        | Opcode::RdmaWriteWithImm
                        | Opcode::AtomicWrite
                );
                if total > qp.sq.max_inline as usize || !may {
                    return Err(Errno::EINVAL);
                }
            }
        }
        let fits = match wr.opcode {
            _ if !legal(ty, wr.opcode) => true,
            Opcode::Send | Opcode::SendWithImm => matches!(wr.body, SendBody::Datagram { .. }) == (ty == QpType::Ud),
            Opcode::SendWithInv | Opcode::LocalInv => matches!(wr.body, SendBody::Plain),
            Opcode::RdmaWrite | Opcode::RdmaWriteWithImm | Opcode::RdmaRead | Opcode::AtomicWrite => {
                matches!(wr.body, SendBody::Rdma { .. })
            }
            Opcode::CmpAndSwp | Opcode::FetchAndAdd => matches!(wr.body, SendBody::Atomic { .. }),
            Opcode::BindMw => matches!(wr.body, SendBody::BindMw { .. }),
            Opcode::Flush => matches!(wr.body, SendBody::Flush { .. }),
            Opcode::Nop => qp.cross_channel && matches!(wr.body, SendBody::Plain),
            Opcode::Wait => qp.cross_channel && matches!(wr.body, SendBody::Wait { .. }),
            Opcode::SendEn | Opcode::RecvEn => qp.cross_channel && matches!(wr.body, SendBody::Enable { .. }),
        };
        let carries_data = !matches!(wr.data, SendData::Sges([]));
        if !fits || flags.contains(SendFlags::IP_CSUM) || wr.opcode.is_task() && carries_data {
            return Err(Errno::EINVAL);
        }
        if wr.opcode == Opcode::RdmaRead
            && let SendData::Sges(list) = wr.data
            && list.len() > limits::MAX_SGE_RD as usize
        {
            return Err(Errno::EINVAL);
        }
        if let SendBody::Datagram { ah, .. } = *wr.body
            && ahs.get(ah).is_none()
        // a handle of another domain is found when the request is executed (C10-10)
        {
            return Err(Errno::EINVAL);
        }
        if qp.init.sq_sig_all {
            flags.insert(SendFlags::SIGNALED);
        }
        Ok(flags)
    }

    /// Queues a send request. EINVAL: an operation, flag or list that this queue pair cannot take, or a state in which
    /// it takes none; ENOMEM: the queue is full. Execution starts with the next [`Engine::run`].
    // Inlined, because most of a request that the caller has just made need not go through memory then.
    #[inline(always)]
    pub fn post_send(&mut self, id: QpId, wr: &SendWr<'_>, now: Nanos) -> Result<()> {
        if self.post_send_fast(id, wr, now) { Ok(()) } else { self.post_slow(id, wr, now) }
    }

    /// Does the work of [`Engine::post_send`], if the request can be sent at once and nothing else is to be done. If
    /// not (also for any error), nothing was done, and the caller calls that.
    #[inline(always)]
    pub fn post_send_fast(&mut self, id: QpId, wr: &SendWr<'_>, now: Nanos) -> bool {
        self.done.overwritten.is_empty() && self.post_fast(id, wr, now)
    }

    // A function of its own, so that the fast path pays nothing for it.
    #[inline(never)]
    fn post_slow(&mut self, id: QpId, wr: &SendWr<'_>, now: Nanos) -> Result<()> {
        self.free_overwritten();
        // A program that posts until the queue is full gets its answer without a listing of all requests under way.
        let qp = self.qps.get(id).ok_or(Errno::EINVAL)?;
        if qp.sq.is_full() {
            Self::check(qp, &self.ahs, wr)?;
            return Err(Errno::ENOMEM);
        }
        let mut qp = self.checkout_qp(id).ok_or(Errno::EINVAL)?;
        let result = self.enqueue(&mut qp, wr, now);
        self.qps.put_back(id, qp);
        result
    }

    #[inline]
    fn enqueue(&mut self, qp: &mut Qp, wr: &SendWr<'_>, now: Nanos) -> Result<()> {
        let flags = Self::check(qp, &self.ahs, wr)?;
        let body = if wr.opcode.is_task() { self.resolve_task(qp, wr)? } else { *wr.body };
        qp.sq.push(&SendWr { body: &body, ..*wr }, flags);
        if qp.state == QpState::Err || qp.state == QpState::Sqe {
            // 10.3.1.7, 10.3.1.6: accepted, and flushed at once
            self.flush_sends(qp, now);
            return Ok(());
        }
        self.schedule(qp);
        Ok(())
    }

    /// Queues a receive request. EINVAL in RESET and for a queue pair that has no receive queue of its own; ENOMEM when
    /// the queue is full.
    pub fn post_recv(&mut self, id: QpId, wr: &RecvWr<'_>, now: Nanos) -> Result<()> {
        self.free_overwritten();
        let qp = self.qps.fast(id).ok_or(Errno::EINVAL)?;
        if qp.state == QpState::Reset || !qp.init.qp_type.receives() || qp.init.srq.is_some() {
            return Err(Errno::EINVAL);
        }
        qp.rq.push_any(wr)?;
        if qp.state == QpState::Err {
            let mut qp = self.checkout_qp(id).ok_or(Errno::EINVAL)?;
            self.flush_recvs(&mut qp, now);
            self.qps.put_back(id, qp);
        }
        self.feed(now);
        Ok(())
    }

    /// Does the work of [`Engine::post_recv`], if nothing else is to be done. If not (also for any error), nothing was
    /// done, and the caller calls that.
    #[inline(always)]
    pub fn post_recv_fast(&mut self, id: QpId, wr: &RecvWr<'_>) -> bool {
        if !self.done.overwritten.is_empty() || !self.starving.is_empty() {
            return false;
        }
        let Some(qp) = self.qps.fast(id) else { return false };
        let takes = !matches!(qp.state, QpState::Reset | QpState::Err) && qp.init.qp_type.receives();
        takes && qp.init.srq.is_none() && qp.rq.push(wr).is_ok()
    }

    /// Queues a receive request of a shared receive queue.
    pub fn post_srq_recv(&mut self, id: SrqId, wr: &RecvWr<'_>, now: Nanos) -> Result<()> {
        self.srqs.get_mut(id).ok_or(Errno::EINVAL)?.queue.push(wr)?;
        self.feed(now);
        Ok(())
    }
}
