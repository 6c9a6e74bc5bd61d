//! Registrations and receives of a socket, as its stream asks for them.

use std::collections::{HashMap, VecDeque};

use iwarp::ddp::TagFault;
use iwarp::rdmap::{Delivery, Place, Target};
use verbs::RKey;
use wire::rdmap::read_request;

use crate::buffer::Posting;
use crate::{Access, Buffer, Indication, Receive, Tag};

/// The peer's READ that is to be answered.
pub(crate) struct Request {
    pub message: u32,
    pub request: read_request::Repr,
}

/// All that the peer's messages may reach.
#[derive(Default)]
pub(crate) struct Placement {
    registrations: HashMap<u32, (Buffer, Access)>,
    last: u32,
    posted: VecDeque<Posting>,
    /// The receive of the SEND that is coming in.
    taken: Option<Receive>,
    /// A tagged message that is coming in has bytes.
    has_bytes: bool,
    pub requests: VecDeque<Request>,
    pub indications: VecDeque<Indication>,
    /// READs of this side that are done, and that no call has seen.
    pub reads_done: usize,
}

impl Placement {
    /// The socket of a connection; `seed` makes tags hard to guess.
    pub fn new(seed: u32) -> Placement {
        let mut placement = Placement::default();
        placement.last = seed;
        placement
    }

    pub fn register(&mut self, buffer: &Buffer, access: Access) -> Tag {
        loop {
            // An odd step visits every number; 0 and the tags of empty messages (1: siw's) are left out.
            self.last = self.last.wrapping_add(0x9e37_79b1);
            if self.last > 1 && !self.registrations.contains_key(&self.last) {
                self.registrations.insert(self.last, (buffer.clone(), access));
                return Tag(self.last);
            }
        }
    }

    pub fn deregister(&mut self, tag: Tag) -> bool {
        self.registrations.remove(&tag.0).is_some()
    }

    pub fn has(&self, tag: Tag) -> bool {
        self.registrations.contains_key(&tag.0)
    }

    pub fn post(&mut self, posting: Posting) {
        self.posted.push_back(posting);
    }

    /// The buffer of a tag, for this access to so many bytes from an offset on.
    fn find(&self, tag: RKey, offset: u64, len: usize, may: fn(Access) -> bool) -> Result<(&Buffer, usize), TagFault> {
        let (buffer, access) = self.registrations.get(&tag.0).ok_or(TagFault::Invalid)?;
        let at = usize::try_from(offset).map_err(|_| TagFault::Bounds)?;
        // RFC 5041, section 7.1: the offset of a byte behind the largest one wraps.
        let end = at.checked_add(len).ok_or(TagFault::Wrap)?;
        if end > buffer.len() {
            return Err(TagFault::Bounds);
        }
        if may(*access) { Ok((buffer, at)) } else { Err(TagFault::Rights) }
    }

    /// A copy of bytes that the peer reads.
    pub fn source(&self, tag: RKey, offset: u64, len: usize) -> Result<Vec<u8>, TagFault> {
        // RFC 5040, section 5.2.1: the place of a READ of no bytes is not looked at.
        if len == 0 {
            return Ok(Vec::new());
        }
        let (buffer, at) = self.find(tag, offset, len, |access| access.read)?;
        buffer.get(at..at + len).map_err(|_| TagFault::Bounds)
    }

    /// True if answers to READs may go there.
    pub fn is_sink(&self, tag: RKey, offset: u64, len: usize) -> bool {
        self.find(tag, offset, len, |access| access.write).is_ok()
    }
}

impl Drop for Placement {
    /// A receive whose message will never be whole is the program's again, and so is one that it has not asked for.
    fn drop(&mut self) {
        let waiting = self.indications.drain(..).filter_map(|indication| match indication {
            Indication::Message { receive, .. } => Some(receive),
            Indication::Tagged { .. } => None,
        });
        waiting.chain(self.taken.take()).for_each(|receive| receive.give_back());
    }
}

impl Target for Placement {
    fn check_write(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        self.find(stag, offset, len as usize, |access| access.write).map(|_| ())
    }

    fn check_sink(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        self.find(stag, offset, len as usize, |access| access.write).map(|_| ())
    }

    fn check_source(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        self.find(stag, offset, len as usize, |access| access.read).map(|_| ())
    }

    fn take_receive(&mut self) -> Option<u32> {
        // Postings whose receive a message on another socket has taken are stale.
        let receive = std::iter::from_fn(|| self.posted.pop_front()).find_map(Posting::take)?;
        let len = u32::try_from(receive.buffer().len()).unwrap_or(u32::MAX);
        self.taken = Some(receive);
        Some(len)
    }

    fn invalidate(&mut self, stag: RKey) -> Result<(), TagFault> {
        if self.deregister(Tag(stag.0)) { Ok(()) } else { Err(TagFault::NotInvalidated) }
    }

    fn place(&mut self, place: Place, bytes: &[u8]) -> Result<(), TagFault> {
        if bytes.is_empty() {
            return Ok(());
        }
        match place {
            Place::Tagged { stag, offset } => {
                let (buffer, at) = self.find(stag, offset, bytes.len(), |access| access.write)?;
                buffer.put(at, bytes).map_err(|_| TagFault::Bounds)?;
                self.has_bytes = true;
                Ok(())
            }
            Place::Receive { offset } => {
                let receive = self.taken.as_ref().ok_or(TagFault::Invalid)?;
                receive.buffer().put(offset as usize, bytes).map_err(|_| TagFault::Bounds)
            }
        }
    }

    fn deliver(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Send { len, solicited, invalidated } => {
                let Some(receive) = self.taken.take() else { return };
                let invalidated = invalidated.map(|stag| Tag(stag.0));
                self.indications.push_back(Indication::Message { receive, len: len as usize, solicited, invalidated });
            }
            Delivery::Write { stag, end } => {
                // A tagged message of no bytes to a registration is the notice of those before it.
                let is_notice = !std::mem::take(&mut self.has_bytes);
                if is_notice && self.registrations.contains_key(&stag.0) {
                    self.indications.push_back(Indication::Tagged { tag: Tag(stag.0), id: end });
                }
            }
            Delivery::Read => {
                self.has_bytes = false;
                self.reads_done += 1;
            }
            Delivery::Request { message, request } => self.requests.push_back(Request { message, request }),
            Delivery::Terminated(_) => {}
        }
    }
}
