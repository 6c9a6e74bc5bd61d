//! Verbs objects: creation, queries and destruction; here: contexts. The errors are those of the man pages: EINVAL for
//! senseless arguments, EBUSY for objects in use, ENOMEM for limits.

mod ah;
mod cq;
pub(crate) mod managed;
mod mcast;
mod mr;
mod pd;
mod qp;
mod srq;
mod xrcd;

use verbs::{AhId, CqId, CtxId, Errno, MrId, MwId, PdId, QpId, Result, SrqId, XrcdId};
use wire::Env;

use crate::{Ctx, Engine};

impl<P: Env> Engine<P> {
    /// Opens a context.
    pub fn open_ctx(&mut self) -> Result<CtxId> {
        self.ctxs.insert(Ctx::default()).ok_or(Errno::ENOMEM)
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
}
