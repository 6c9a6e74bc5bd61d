//! READs of this side that are not answered yet (RFC 5040, section 5.2).

use alloc::collections::VecDeque;

use verbs::RKey;
use wire::ddp::tagged;
use wire::rdmap::read_request;

use crate::ddp::{Fault as DdpFault, TagFault};
use crate::rdmap::Fault;

/// A READ under way.
#[derive(Clone, Copy, Debug)]
struct Read {
    sink: RKey,
    offset: u64,
    len: u32,
    got: u32,
    /// The READ says "ready to receive": the program knows nothing of it.
    quiet: bool,
}

/// READs under way, the oldest first. Responses come in the order of the requests (RFC 5040, section 5.2.2).
#[derive(Clone, Debug)]
pub(super) struct Reads {
    reads: VecDeque<Read>,
    most: usize,
}

/// The kind of READ that a response's last segment has completed, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    Read,
    Quiet,
}

impl Reads {
    /// At most this many at a time.
    pub(super) fn new(most: u16) -> Reads {
        Reads { reads: VecDeque::with_capacity(most.into()), most: most.into() }
    }

    /// True if one more may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.reads.len() < self.most
    }

    /// Counts a request that has been sent.
    pub(super) fn push(&mut self, request: &read_request::Repr, quiet: bool) {
        let read_request::Repr { sink_stag: sink, sink_offset: offset, size: len, .. } = *request;
        self.reads.push_back(Read { sink, offset, len, got: 0, quiet });
    }

    /// The place of a segment that came early is inside one of the READs. When it is that segment's turn, it is checked
    /// again, against the oldest one.
    pub(super) fn covers(&self, header: &tagged::Repr, len: u32) -> bool {
        self.reads.iter().any(|read| {
            let from = header.offset.checked_sub(read.offset);
            header.stag == read.sink
                && from.and_then(|from| from.checked_add(len.into())).is_some_and(|to| to <= read.len.into())
        })
    }

    /// Checks a segment that has come in order: it has to go on with the answer to the oldest READ. These checks are
    /// permitted, not demanded (RFC 5040, section 5.2.2).
    pub(super) fn check(&self, header: &tagged::Repr, len: u32) -> Result<(), Fault> {
        // A response to nothing is a message that is not expected.
        let read = self.reads.front().ok_or(Fault::Opcode)?;
        let rest = read.len - read.got;
        let fault = |fault| Err(Fault::Ddp(DdpFault::Tag(fault)));
        // RFC 5041, section 5.2: the place of a tagged message of no bytes is not looked at.
        if read.len > 0 && header.stag != read.sink {
            return fault(TagFault::Invalid);
        }
        let expected = read.offset.wrapping_add(read.got.into());
        if (read.len > 0 && header.offset != expected) || len > rest || header.last != (len == rest) {
            return fault(TagFault::Bounds);
        }
        Ok(())
    }

    /// Ends a segment that has been checked and is whole.
    pub(super) fn take(&mut self, len: u32, last: bool) -> Step {
        if !last {
            if let Some(read) = self.reads.front_mut() {
                read.got = read.got.saturating_add(len);
            }
            return Step::Nothing;
        }
        match self.reads.pop_front() {
            Some(read) if read.quiet => Step::Quiet,
            Some(_) => Step::Read,
            None => Step::Nothing,
        }
    }
}
