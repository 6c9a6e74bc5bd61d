//! A region as it is remembered ([`super::Regions`]).

use verbs::{Access, CtxId, PdId};

use super::{Backing, Mr};

/// The checked attributes of a remembered region, ready for use.
#[derive(Clone, Copy)]
pub(super) struct Recent {
    /// The region's lkey; 0, which is no lkey, if no region is remembered here.
    pub key: u32,
    pub writable: bool,
    pub guarded: bool,
    pub ctx: CtxId,
    pub access: Access,
    pub pd: PdId,
    pub iova: u64,
    pub length: u64,
    /// The difference from the region's own space to this process's.
    pub shift: u64,
}

impl Recent {
    pub const NONE: Recent = Recent {
        key: 0,
        writable: false,
        guarded: true,
        ctx: CtxId { index: u32::MAX, generation: 0 },
        access: Access::empty(),
        pd: PdId { index: u32::MAX, generation: 0 },
        iova: 0,
        length: 0,
        shift: 0,
    };

    pub fn new(mr: &Mr) -> Recent {
        let info = &mr.info;
        Recent {
            key: info.key,
            writable: info.access.contains(Access::LOCAL_WRITE),
            guarded: mr.backing == Backing::Guarded,
            ctx: mr.ctx,
            access: info.access,
            pd: info.pd,
            iova: info.iova,
            length: info.length,
            shift: info.addr.wrapping_sub(info.iova),
        }
    }
}
