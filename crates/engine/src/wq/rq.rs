//! Receive queues, private and shared (IBTA vol. 1, 10.8.3, 10.2.9).

use std::hint::cold_path;

use smallvec::SmallVec;
use verbs::{CqId, CtxId, Errno, PdId, RecvWr, Result, Sge, SrqId, XrcdId};

use crate::wq::in_place_ring::InPlaceRing;
use crate::wq::managed::{Base, Entries, ManagedQueue, ManagedRecv};

/// A posted receive, copied at the post. One with up to two entries lies in one cache line.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(crate) struct RecvWqe {
    pub wr_id: u64,
    pub sges: SmallVec<[Sge; 2]>,
}

/// Puts a scatter/gather list in the place of another. Mostly both have one entry. That entry is written member by
/// member, for the list may have been written just before, and a load that is wider than the stores before it waits for
/// them ([`crate::wq::in_place_ring`]).
#[inline(always)]
pub(crate) fn set_list(list: &mut SmallVec<[Sge; 2]>, from: &[Sge]) {
    match (list.as_mut_slice(), from) {
        (&mut [ref mut to], &[Sge { addr, length, lkey }]) => (to.addr, to.length, to.lkey) = (addr, length, lkey),
        (&mut [], []) => {}
        _ => {
            cold_path();
            list.clear();
            list.extend_from_slice(from);
        }
    }
}

pub(crate) struct RecvQueue {
    pub wqes: InPlaceRing<RecvWqe>,
    pub depth: u32,
    pub max_sge: u32,
    /// Receives that are posted and not yet polled: they hold their places.
    pub held: u32,
    /// Receives posted since the queue was made.
    pub total: u64,
    pub managed: Option<Box<ManagedRecv>>,
}

/// A message being received into a receive request.
#[derive(Debug)]
pub(crate) struct RecvProgress {
    pub wqe: RecvWqe,
    pub srq: Option<SrqId>,
    pub offset: u32,
}

impl RecvQueue {
    /// A new queue; ENOMEM without memory for so many receives, as a post must not fail for that.
    pub fn new(depth: u32, max_sge: u32) -> Result<Self> {
        let mut wqes = InPlaceRing::default();
        wqes.try_reserve(depth as usize).map_err(|_| Errno::ENOMEM)?;
        Ok(RecvQueue { wqes, depth, max_sge, held: 0, total: 0, managed: None })
    }

    #[inline(always)]
    pub fn push(&mut self, wr: &RecvWr<'_>) -> Result<()> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(Errno::EINVAL);
        }
        if self.held >= self.depth {
            return Err(Errno::ENOMEM);
        }
        // The queue has room for as many as may be held; a managed queue has none here.
        let wqe = self.wqes.place().ok_or(Errno::ENOMEM)?;
        wqe.wr_id = wr.wr_id;
        set_list(&mut wqe.sges, wr.sges);
        self.held += 1;
        self.total += 1;
        Ok(())
    }

    /// Resizes the queue; ENOMEM without memory for so many receives.
    pub fn resize(&mut self, depth: u32) -> Result<()> {
        let more = (depth as usize).saturating_sub(self.wqes.len());
        self.wqes.try_reserve(more).map_err(|_| Errno::ENOMEM)?;
        self.depth = depth;
        Ok(())
    }

    /// Makes the queue a managed one.
    ///
    /// # Errors
    /// As [`Entries::new`].
    pub fn manage(&mut self, managed: &ManagedQueue) -> Result<()> {
        let entries = Entries::new(managed, self.depth, self.max_sge)?;
        self.wqes = InPlaceRing::default();
        self.managed = Some(Box::new(ManagedRecv::new(entries)));
        Ok(())
    }

    /// Adds a receive to any queue.
    ///
    /// # Errors
    /// EINVAL: its list is too long; ENOMEM: the queue is full.
    pub fn push_any(&mut self, wr: &RecvWr<'_>) -> Result<()> {
        let Some(managed) = &mut self.managed else { return self.push(wr) };
        if wr.sges.len() > self.max_sge as usize {
            return Err(Errno::EINVAL);
        }
        if self.held >= self.depth {
            return Err(Errno::ENOMEM);
        }
        if managed.entries.rules.cyclic && self.total >= u64::from(self.depth) {
            return Err(Errno::ENOMEM); // it is filled once
        }
        managed.write(self.total, wr);
        self.held += 1;
        self.total += 1;
        Ok(())
    }

    pub fn reset(&mut self) {
        self.wqes.clear();
        self.held = 0;
        if let Some(managed) = &mut self.managed {
            (managed.enabled, managed.taken, managed.base) = (0, 0, Base::default());
            self.total = 0;
        }
    }

    /// Takes the next receive, if it is enabled.
    pub fn take(&mut self) -> Option<RecvWqe> {
        let Some(managed) = &mut self.managed else { return self.wqes.pop_front() };
        if managed.taken >= managed.enabled {
            return None;
        }
        managed.taken += 1;
        let (wr_id, sges) = managed.read(managed.taken - 1);
        Some(RecvWqe { wr_id, sges })
    }

    /// The rule that the entry of the receive taken last breaks.
    pub fn broken(&self) -> Option<&'static str> {
        self.managed.as_ref()?.broken
    }

    /// Takes the next receive to flush it.
    pub fn flush(&mut self) -> Option<RecvWqe> {
        let Some(managed) = &mut self.managed else { return self.wqes.pop_front() };
        if managed.taken >= self.total {
            return None;
        }
        managed.taken += 1;
        let (wr_id, sges) = managed.read(managed.taken - 1);
        Some(RecvWqe { wr_id, sges })
    }

    /// Puts back the receive that was taken last.
    pub fn untake(&mut self, wqe: RecvWqe) {
        match &mut self.managed {
            Some(managed) => managed.taken -= 1,
            None => self.wqes.push_front(wqe),
        }
    }

    /// Receives that wait in the queue. Those of a circle wait again when they have been taken, as far as they are
    /// enabled.
    pub fn waiting(&self) -> u64 {
        match &self.managed {
            Some(managed) => {
                let ahead = if managed.entries.rules.cyclic { managed.enabled } else { 0 };
                ahead.max(self.total).saturating_sub(managed.taken).min(self.depth.into())
            }
            None => self.wqes.len() as u64,
        }
    }

    /// Enables the receives below this count.
    ///
    /// # Errors
    /// EINVAL: the queue is not managed, or has no receives that far.
    pub fn enable(&mut self, count: u64) -> Result<()> {
        let full = self.total >= u64::from(self.depth);
        let managed = self.managed.as_mut().ok_or(Errno::EINVAL)?;
        if count > self.total && !(managed.entries.rules.cyclic && full) || count >> 63 != 0 {
            return Err(Errno::EINVAL);
        }
        managed.enabled = managed.enabled.max(count);
        Ok(())
    }
}

pub(crate) struct Srq {
    pub ctx: CtxId,
    pub user: u64,
    pub pd: PdId,
    pub number: u32,
    pub queue: RecvQueue,
    /// Number of receives below which the event is due; 0: disarmed.
    pub limit: u32,
    pub xrc: Option<(XrcdId, CqId)>,
    /// Queue pairs that take from the queue.
    pub users: u32,
}

impl Srq {
    /// Takes the next receive. The second value is true when the limit event is due.
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
