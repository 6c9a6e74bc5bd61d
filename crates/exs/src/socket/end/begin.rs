//! The begin of operations.

use std::sync::Arc;

use rdma::Errno;

use super::super::Memory;
use super::super::queue::{Event, EventKind, Queue};
use super::{AT_ONCE, End, FEW, Leaving, Operation};
use crate::protocol::{Buffer, Connection, HEADER, Op, Refused, Reset};

/// A part of a memory, and whether a receive waits for all of it.
#[derive(Clone, Copy)]
pub(in crate::socket) struct Part {
    pub offset: usize,
    pub len: usize,
    pub wait_all: bool,
    pub persistent: bool,
    pub peek: bool,
}

fn refused(why: Refused) -> Errno {
    Errno(match why {
        Refused::Full | Refused::Nothing => libc::EAGAIN,
        Refused::Shut => libc::EPIPE,
        Refused::Gone => libc::ECONNRESET,
        Refused::Empty | Refused::Twice => libc::EINVAL,
        Refused::Long => libc::EMSGSIZE,
        Refused::NotSupported => libc::EOPNOTSUPP,
    })
}

impl End {
    /// Begin an operation on a part of a memory.
    ///
    /// A part of its callers: each of them knows the kind, so a send of small data looks at nothing else.
    #[inline(always)]
    pub(in crate::socket) fn begin(
        &mut self,
        kind: EventKind,
        memory: &Arc<Memory>,
        buffer: Part,
        to: (&Arc<Queue>, u64),
    ) -> Result<u64, Errno> {
        if kind == EventKind::Send
            && !buffer.persistent
            && let Some(done) = self.send_at_once(memory, buffer, to)
        {
            return done.map(|()| AT_ONCE);
        }
        self.begin_later(kind, memory, buffer, to)
    }

    /// Begin an operation that ends later.
    #[inline(never)]
    fn begin_later(
        &mut self,
        kind: EventKind,
        memory: &Arc<Memory>,
        buffer: Part,
        to: (&Arc<Queue>, u64),
    ) -> Result<u64, Errno> {
        let protocol = self.protocol.as_mut().ok_or(Errno(libc::ENOTCONN))?;
        let op = self.pending.next();
        let at = Buffer { region: op, offset: buffer.offset as u64, len: buffer.len as u64 };
        let begun = match kind {
            _ if buffer.peek => protocol.peek(Op(op), at),
            EventKind::Send => protocol.send(Op(op), at, buffer.persistent),
            _ => protocol.receive(Op(op), at, buffer.wait_all),
        };
        begun.map_err(refused)?;
        let (queue, memory) = self.holders(to.0, memory);
        self.pending.insert(Operation { queue, handle: to.1, kind, at, memory, lost: false });
        self.act();
        self.post_spare();
        Ok(op)
    }

    /// A send whose data go with the request: it is over. `None`: it is to be begun.
    #[inline(always)]
    fn send_at_once(&mut self, memory: &Memory, part: Part, to: (&Arc<Queue>, u64)) -> Option<Result<(), Errno>> {
        if HEADER + part.len > self.inline || self.posted + FEW > self.room {
            return None;
        }
        let message = self.protocol.as_mut()?.send_at_once(part.len as u64)?;
        if self.send_inline(message, &memory.mr, part.offset, part.len).is_err() {
            self.reset(Reset::Peer);
            return Some(Err(Errno(libc::ECONNRESET)));
        }
        let event = Event::new(EventKind::Send, to.1, Ok(part.len as u64));
        if self.leaving.is_empty() {
            to.0.put(event);
        } else {
            self.leaving.push_back(Leaving { queue: to.0.clone(), event, waits: false });
        }
        // While the message travels.
        if self.protocol.as_mut().is_some_and(Connection::sent_at_once) {
            self.act();
        }
        self.post_spare();
        Some(Ok(()))
    }
}
