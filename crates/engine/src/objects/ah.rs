//! Address handles.

use verbs::{AhAttr, AhId, Errno, PdId, Result};
use wire::Env;

use crate::{Ah, Engine};

impl<P: Env> Engine<P> {
    /// Checks an address vector.
    pub(crate) fn check_ah(&self, attr: &AhAttr) -> Result<()> {
        if attr.port_num != 1 || !self.takes_path(attr) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// `ibv_create_ah(3)`.
    pub fn create_ah(&mut self, pd: PdId, attr: &AhAttr) -> Result<AhId> {
        let ctx = self.pd_ctx(pd)?;
        self.not_in_iwarp(ctx)?;
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
}
