//! Receive queues, private and shared (IBTA vol. 1, 10.8.3, 10.2.9).

use std::collections::VecDeque;

use smallvec::SmallVec;
use verbs::{CqId, CtxId, Errno, PdId, RecvWr, Result, Sge, XrcdId};

/// A posted receive, copied at the post.
#[derive(Clone, Debug)]
pub(crate) struct RecvWqe {
    pub wr_id: u64,
    pub sges: SmallVec<[Sge; 2]>,
}

pub(crate) struct RecvQueue {
    pub wqes: VecDeque<RecvWqe>,
    pub depth: u32,
    pub max_sge: u32,
    /// Posted and not yet polled: they hold their places.
    pub held: u32,
    /// Posted since it was made.
    pub total: u64,
}

impl RecvQueue {
    /// ENOMEM without memory for so many: posting must not fail for that.
    pub fn new(depth: u32, max_sge: u32) -> Result<Self> {
        let mut wqes = VecDeque::new();
        wqes.try_reserve_exact(depth as usize).map_err(|_| Errno::ENOMEM)?;
        Ok(RecvQueue { wqes, depth, max_sge, held: 0, total: 0 })
    }

    pub fn push(&mut self, wr: &RecvWr<'_>) -> Result<()> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(Errno::EINVAL);
        }
        if self.held >= self.depth {
            return Err(Errno::ENOMEM);
        }
        self.held += 1;
        self.total += 1;
        let sges = match wr.sges {
            // Most have one entry, which needs no loop.
            &[sge] => SmallVec::from_buf_and_len([sge, Sge::default()], 1),
            sges => SmallVec::from_slice(sges),
        };
        self.wqes.push_back(RecvWqe { wr_id: wr.wr_id, sges });
        Ok(())
    }

    /// ENOMEM without memory for so many.
    pub fn resize(&mut self, depth: u32) -> Result<()> {
        let more = (depth as usize).saturating_sub(self.wqes.len());
        self.wqes.try_reserve_exact(more).map_err(|_| Errno::ENOMEM)?;
        self.depth = depth;
        Ok(())
    }

    pub fn reset(&mut self) {
        self.wqes.clear();
        self.held = 0;
    }
}

pub(crate) struct Srq {
    pub ctx: CtxId,
    pub user: u64,
    pub pd: PdId,
    pub number: u32,
    pub queue: RecvQueue,
    /// The event is due when fewer remain; 0: disarmed.
    pub limit: u32,
    pub xrc: Option<(XrcdId, CqId)>,
    /// Queue pairs that take from it.
    pub users: u32,
}

impl Srq {
    /// Takes the next receive. True beside it when the limit event is due.
    pub fn take(&mut self) -> Option<(RecvWqe, bool)> {
        let wqe = self.queue.wqes.pop_front()?;
        self.queue.held -= 1;
        let due = self.limit > 0 && (self.queue.wqes.len() as u32) < self.limit;
        if due {
            self.limit = 0; // one event; the program arms it anew (ibv_modify_srq(3))
        }
        Some((wqe, due))
    }
}
