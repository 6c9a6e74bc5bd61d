//! The memory of operations, and whether it is still there.

use std::sync::Arc;

use rdma::{Sge, Status};

use super::super::Memory;
use super::super::queue::{Event, Queue, Taker};
use super::{End, IDLE};
use crate::protocol::{Buffer, Reset};

/// The reason why a request has completed with an error.
pub(super) fn of_status(status: Status) -> Reset {
    if matches!(status, Status::LOCAL_PROTECTION | Status::MW_BIND) { Reset::Memory } else { Reset::Peer }
}

impl End {
    /// A hold of both for an operation.
    pub(super) fn holders(&mut self, queue: &Arc<Queue>, memory: &Arc<Memory>) -> (Arc<Queue>, Arc<Memory>) {
        match self.idle.pop() {
            Some(idle) if Arc::ptr_eq(&idle.0, queue) && Arc::ptr_eq(&idle.1, memory) => idle,
            _ => (queue.clone(), memory.clone()),
        }
    }

    /// Tell the program of the end of an operation, and keep what the operation had for the next ones. Other memory is
    /// given back before: the program may deregister it then.
    #[inline(always)]
    pub(super) fn tell_program(
        &mut self,
        queue: Arc<Queue>,
        memory: Arc<Memory>,
        event: Event,
        taker: Option<&mut Taker<'_>>,
    ) {
        if let Ok(bytes) = event.result {
            queue.patience.moved(bytes);
        }
        if memory.lasting && self.idle.len() < IDLE {
            let (queue, _) = self.idle.push_mut((queue, memory));
            Taker::put(taker, queue, event);
        } else {
            drop(memory);
            Taker::put(taker, &queue, event);
        }
    }

    /// Keep a memory no longer than an operation needs it.
    pub(in crate::socket) fn release(&mut self, memory: &Arc<Memory>) {
        self.idle.retain(|(_, idle)| !Arc::ptr_eq(idle, memory));
    }

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
