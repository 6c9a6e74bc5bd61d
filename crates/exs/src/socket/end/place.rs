//! The memory of operations, and whether it is still there.

use std::sync::Arc;

use rdma::Sge;

use super::super::Memory;
use super::End;
use crate::protocol::{Buffer, Reset};

impl End {
    pub(super) fn memory(&self, buffer: Buffer) -> Option<&Arc<Memory>> {
        self.pending.get(buffer.region).map(|pending| &pending.memory)
    }

    pub(super) fn sge(&self, buffer: Buffer) -> Option<Sge> {
        let len = buffer.len as usize;
        Some(self.memory(buffer)?.region(len).sge(buffer.offset as usize, len))
    }

    /// True if bytes can go to a place; otherwise its operation ends with EFAULT, and so does the connection.
    pub(super) fn takes(&mut self, to: Buffer) -> bool {
        let takes = self.memory(to).is_none_or(|memory| memory.is_there(to.offset, to.len));
        if !takes {
            if let Some(operation) = self.pending.get_mut(to.region) {
                operation.lost = true;
            }
            self.reset(Reset::Memory);
        }
        takes
    }

    /// True if the device can be given a buffer; otherwise the connection ends.
    pub(super) fn serves(&mut self, buffer: Buffer) -> bool {
        let serves = self.memory(buffer).is_none_or(|memory| memory.serves(buffer.offset, buffer.len));
        if !serves {
            self.reset(Reset::Memory);
        }
        serves
    }
}
