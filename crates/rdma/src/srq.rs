//! Shared receive queues.

use std::mem::zeroed;
use std::ptr::NonNull;
use std::sync::Arc;

use sys::*;

use crate::device::extended;
use crate::error::{Error, Result, number, pointer};
use crate::{Cq, Pd, Xrcd};

/// A shared receive queue.
pub struct Srq {
    pub(crate) pd: Arc<Pd>,
    raw: NonNull<ibv_srq>,
    // The objects that it uses; never read, only kept alive.
    _xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for Srq {}
// SAFETY: verbs are thread-safe.
unsafe impl Sync for Srq {}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: a live queue, destroyed once; every queue pair that uses it holds it, so none remains.
        unsafe { (self.pd.context.library().api.destroy_srq)(self.raw.as_ptr()) };
    }
}

impl Pd {
    /// `ibv_create_srq(3)`. An asynchronous event gives `cookie` back.
    pub fn create_srq(self: &Arc<Self>, max_wr: u32, max_sge: u32, cookie: u64) -> Result<Arc<Srq>> {
        let mut init =
            ibv_srq_init_attr { srq_context: cookie as *mut _, attr: ibv_srq_attr { max_wr, max_sge, srq_limit: 0 } };
        // SAFETY: a live domain and valid attributes.
        let raw = unsafe { (self.context.library().api.create_srq)(self.raw.as_ptr(), &mut init) };
        Ok(Arc::new(Srq { pd: self.clone(), raw: pointer("ibv_create_srq", raw)?, _xrc: None }))
    }

    /// `ibv_create_srq_ex(3)` for extended reliable connections.
    pub fn create_xrc_srq(
        self: &Arc<Self>,
        max_wr: u32,
        max_sge: u32,
        xrcd: &Arc<Xrcd>,
        cq: &Arc<Cq>,
    ) -> Result<Arc<Srq>> {
        const CALL: &str = "ibv_create_srq_ex";
        let create = extended!(self.context.raw(), create_srq_ex).ok_or(Error::new(CALL, libc::EOPNOTSUPP))?;
        // SAFETY: plain data, for which zeroes are valid; then a live context and attributes that name live objects.
        let raw = unsafe {
            let mut init: ibv_srq_init_attr_ex = zeroed();
            init.attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
            init.comp_mask =
                IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
            init.srq_type = IBV_SRQT_XRC;
            init.pd = self.raw.as_ptr();
            init.xrcd = xrcd.raw.as_ptr();
            init.cq = cq.as_ptr();
            create(self.context.raw(), &mut init)
        };
        let raw = pointer(CALL, raw)?;
        Ok(Arc::new(Srq { pd: self.clone(), raw, _xrc: Some((xrcd.clone(), cq.clone())) }))
    }
}

impl Srq {
    pub(crate) fn as_ptr(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }

    /// The number of the queue, for extended reliable connections (`ibv_get_srq_num(3)`).
    pub fn number(&self) -> Result<u32> {
        const CALL: &str = "ibv_get_srq_num";
        let get = extended!(self.pd.context.raw(), get_srq_num).ok_or(Error::new(CALL, libc::EOPNOTSUPP))?;
        let mut found = 0;
        // SAFETY: a live queue and a place for the result.
        number(CALL, unsafe { get(self.raw.as_ptr(), &mut found) })?;
        Ok(found)
    }

    /// Ask for an event when fewer than `limit` requests are left (`ibv_modify_srq(3)`).
    pub fn set_limit(&self, limit: u32) -> Result<()> {
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let modify = self.pd.context.library().api.modify_srq;
        // SAFETY: a live queue and valid attributes.
        let ret = unsafe { modify(self.raw.as_ptr(), &mut attr, IBV_SRQ_LIMIT as i32) };
        number("ibv_modify_srq", ret)
    }

    /// `ibv_query_srq(3)`: requests, entries of one, limit.
    pub fn query(&self) -> Result<verbs::SrqAttr> {
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 0 };
        // SAFETY: a live queue and a place for the result.
        let ret = unsafe { (self.pd.context.library().api.query_srq)(self.raw.as_ptr(), &mut attr) };
        number("ibv_query_srq", ret)?;
        Ok(verbs::SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: attr.srq_limit })
    }
}
