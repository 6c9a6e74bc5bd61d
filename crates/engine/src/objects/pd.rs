//! Protection domains.

use verbs::{CtxId, Errno, PdId, Result};
use wire::Env;

use crate::{Engine, Pd};

impl<P: Env> Engine<P> {
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

    pub(super) fn use_pd(&mut self, pd: PdId) -> Result<CtxId> {
        let pd = self.pds.get_mut(pd).ok_or(Errno::EINVAL)?;
        pd.users += 1;
        Ok(pd.ctx)
    }

    pub(super) fn leave_pd(&mut self, pd: PdId) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users -= 1;
        }
    }

    pub(super) fn pd_ctx(&self, pd: PdId) -> Result<CtxId> {
        self.pds.get(pd).map(|p| p.ctx).ok_or(Errno::EINVAL)
    }
}
