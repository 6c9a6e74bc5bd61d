//! Queue pair numbers: claimed in blocks by the surroundings, given out here.

use std::cell::Cell;
use std::hint::cold_path;

use verbs::{QpId, Qpn};

/// Numbers in one block.
pub const BLOCK: u32 = 4096;

/// How many numbers are remembered.
const RECENT: usize = 16;

struct Block {
    first: u32,
    qps: Vec<Option<QpId>>,
    used: u32,
    /// Where the search for a free number starts. A freed number is not given out again soon, so that stray packets of
    /// its last connection find no queue pair.
    next: u32,
}

pub(crate) struct QpnTable {
    blocks: Vec<Block>,
    /// The numbers that were found last, each in the place of its last bits: mostly one of them is the next.
    recent: [Cell<(u32, QpId)>; RECENT],
    /// The number that was found last of all, compared first. Its place does not depend on a packet, so the processor
    /// does what mostly follows, the fetch of the cache line for the answer included, while the packet's own cache line
    /// is still on its way.
    last: Cell<(u32, QpId)>,
}

/// The mark of a place where no number is remembered: it has more bits than a number.
const NONE: (u32, QpId) = (u32::MAX, QpId { index: u32::MAX, generation: 0 });

impl Default for QpnTable {
    fn default() -> Self {
        QpnTable { blocks: Vec::new(), recent: [const { Cell::new(NONE) }; RECENT], last: Cell::new(NONE) }
    }
}

impl QpnTable {
    pub fn add_block(&mut self, first: u32) {
        self.blocks.push(Block { first, qps: vec![None; BLOCK as usize], used: 0, next: 0 });
    }

    pub fn free(&self) -> u32 {
        self.blocks.iter().map(|b| BLOCK - b.used).sum()
    }

    pub fn claim(&mut self) -> Option<(usize, Qpn)> {
        let (i, block) = self.blocks.iter_mut().enumerate().find(|(_, b)| b.used < BLOCK)?;
        let at = (0..BLOCK).map(|n| (block.next + n) % BLOCK).find(|&at| block.qps[at as usize].is_none())?;
        block.next = (at + 1) % BLOCK;
        Some((i, Qpn::new(block.first + at)))
    }

    pub fn set(&mut self, block: usize, qpn: Qpn, qp: QpId) {
        let block = &mut self.blocks[block];
        block.qps[(qpn.get() - block.first) as usize] = Some(qp);
        block.used += 1;
    }

    #[inline(always)]
    pub fn find(&self, qpn: Qpn) -> Option<QpId> {
        // Branches: a conditional move would wait for the packet.
        let (last, id) = self.last.get();
        if last == qpn.get() {
            return Some(id);
        }
        cold_path();
        let (recent, id) = self.recent(qpn).get();
        if recent == qpn.get() {
            self.last.set((recent, id));
            return Some(id);
        }
        cold_path();
        self.look_up(qpn)
    }

    #[inline(always)]
    fn recent(&self, qpn: Qpn) -> &Cell<(u32, QpId)> {
        &self.recent[qpn.get() as usize % RECENT]
    }

    fn look_up(&self, qpn: Qpn) -> Option<QpId> {
        let block = self.blocks.iter().find(|b| qpn.get().wrapping_sub(b.first) < BLOCK)?;
        let id = block.qps[(qpn.get() - block.first) as usize]?;
        self.recent(qpn).set((qpn.get(), id));
        self.last.set((qpn.get(), id));
        Some(id)
    }

    pub fn release(&mut self, qpn: Qpn) {
        self.recent(qpn).set(NONE);
        self.last.set(NONE);
        if let Some(block) = self.blocks.iter_mut().find(|b| qpn.get().wrapping_sub(b.first) < BLOCK)
            && block.qps[(qpn.get() - block.first) as usize].take().is_some()
        {
            block.used -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_remembered_at_first() {
        let table = QpnTable::default();
        assert!((0..1 << 24).step_by(977).chain([0, 0xff_ffff]).all(|qpn| table.find(Qpn::new(qpn)).is_none()));
    }

    #[test]
    fn a_number_that_is_given_back_is_forgotten() {
        let mut table = QpnTable::default();
        table.add_block(BLOCK);
        let (block, qpn) = table.claim().unwrap();
        for generation in 0..2 {
            let id = QpId { index: 3, generation };
            table.set(block, qpn, id);
            assert_eq!((table.find(qpn), table.find(qpn)), (Some(id), Some(id)));
            table.release(qpn);
            assert_eq!(table.find(qpn), None);
        }
    }
}
