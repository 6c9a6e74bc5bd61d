//! Registered memory.

use std::sync::Arc;

use rdma::{Errno, Mr};

use crate::protocol::Buffer;

/// Registered memory. It stays registered while an operation uses it.
pub struct Memory {
    pub(super) mr: Arc<Mr>,
    /// A second region of these bytes, whose loss the device survives.
    careful: Option<Arc<Mr>>,
    /// Of memory that its owner may unmap.
    look: Option<Look>,
    /// It is for many transfers: a connection may keep it from one to the next.
    pub(super) lasting: bool,
}

/// Tells whether the pages of an address and a length are mapped.
pub type Look = fn(usize, usize, By) -> bool;

/// How a [`Look`] is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// By a load from each page: nanoseconds, but a fault if the page is gone.
    Loads,
    /// By a system call: slower, and without a fault of this thread.
    Kernel,
}

/// Up to this many bytes a transfer uses the plain region: a careful access may be a system call, which costs as much
/// as the transfer.
const PLAIN: usize = 4096;

/// Up to this many bytes [`Memory::is_gone`] looks at.
const LOOKED_AT: u64 = 16 << 20;

impl Memory {
    /// Memory that the caller has registered in [`super::Exs::domain`], with [`super::Exs::access`]. `careful`: the
    /// same bytes, registered a second time with [`super::Exs::careful`]; transfers of more than 4 KiB use that region.
    /// `look` is asked before an access that does not use it. `lasting`: the memory is for many transfers, and ends by
    /// [`super::Exs::deregister`] or with its connections. Other memory ends with its last holder.
    pub fn adopt(mr: Arc<Mr>, careful: Option<Arc<Mr>>, look: Look, lasting: bool) -> Arc<Memory> {
        Arc::new(Memory { mr, careful, look: Some(look), lasting })
    }

    /// Memory that its holder cannot unmap.
    pub(super) fn own(mr: Arc<Mr>, lasting: bool) -> Arc<Memory> {
        Arc::new(Memory { mr, careful: None, look: None, lasting })
    }

    pub(super) fn deregister(self) -> Result<(), (Arc<Memory>, Errno)> {
        let Memory { mr, careful, look, lasting } = self;
        if let Some(Err((careful, error))) = careful.map(Mr::deregister) {
            return Err((Arc::new(Memory { mr, careful: Some(careful), look, lasting }), error.errno));
        }
        Mr::deregister(mr).map_err(|(mr, error)| (Arc::new(Memory { mr, careful: None, look, lasting }), error.errno))
    }

    /// False if the pages of a part are known to be gone.
    pub(super) fn is_there(&self, offset: u64, len: u64) -> bool {
        self.looks(offset, len, By::Loads)
    }

    fn looks(&self, offset: u64, len: u64, by: By) -> bool {
        self.look.is_none_or(|look| look((self.mr.addr() + offset) as usize, len as usize, by))
    }

    /// True if an operation of a lost connection has lost its memory: the peer's access may have found it gone, of
    /// which only the device is told. To look at longer ones could take milliseconds.
    pub(super) fn is_gone(&self, at: Buffer) -> bool {
        at.len <= LOOKED_AT && !self.looks(at.offset, at.len, By::Kernel)
    }

    /// As [`Memory::is_there`], for a request of the device. A large one needs no look, which would take its time under
    /// the lock of a socket: the device finds out by the careful region, and an adapter keeps the pages.
    pub(super) fn serves(&self, offset: u64, len: u64) -> bool {
        len as usize > PLAIN || self.is_there(offset, len)
    }

    /// The region for a transfer of so many bytes.
    pub(super) fn region(&self, len: usize) -> &Arc<Mr> {
        self.careful.as_ref().filter(|_| len > PLAIN).unwrap_or(&self.mr)
    }

    /// The bytes: [`Mr::read`] and [`Mr::write`] copy them.
    pub fn bytes(&self) -> &Mr {
        &self.mr
    }
}
