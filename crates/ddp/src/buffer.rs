//! Memory of messages, and posted receives.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use verbs::RKey;

use crate::Error;

/// Memory of a buffer. Calls come from any thread that uses a socket.
pub trait Memory: fmt::Debug + Send + Sync {
    /// A copy of these bytes; the range is inside the memory.
    fn get(&self, range: Range<usize>) -> Vec<u8>;

    /// Replace the bytes from this place on; they are inside the memory.
    fn put(&self, at: usize, bytes: &[u8]);
}

/// Memory of a buffer's own.
#[derive(Debug)]
struct Own(Mutex<Vec<u8>>);

impl Memory for Own {
    fn get(&self, range: Range<usize>) -> Vec<u8> {
        self.0.lock().get(range).unwrap_or_default().to_vec()
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        if let Some(room) = self.0.lock().get_mut(at..at.saturating_add(bytes.len())) {
            room.copy_from_slice(bytes);
        }
    }
}

/// Memory that messages are placed into and read from. A clone is the same memory.
#[derive(Clone, Debug)]
pub struct Buffer {
    memory: Arc<dyn Memory>,
    range: Range<usize>,
}

impl Buffer {
    /// A buffer of zero bytes.
    pub fn new(len: usize) -> Buffer {
        Buffer::of(Arc::new(Own(Mutex::new(vec![0; len]))), len)
    }

    /// A buffer of memory that has at least so many bytes.
    pub fn of(memory: Arc<dyn Memory>, len: usize) -> Buffer {
        Buffer { memory, range: 0..len }
    }

    /// A part of this buffer: the same memory.
    ///
    /// # Errors
    /// [`Error::Range`]: the part is not inside the buffer.
    pub fn part(&self, range: Range<usize>) -> Result<Buffer, Error> {
        Ok(Buffer { memory: Arc::clone(&self.memory), range: self.inside(range)? })
    }

    /// The place in the memory of a range of this buffer.
    fn inside(&self, range: Range<usize>) -> Result<Range<usize>, Error> {
        let place = |at: usize| self.range.start.checked_add(at).filter(|at| *at <= self.range.end);
        match (place(range.start), place(range.end)) {
            (Some(start), Some(end)) if start <= end => Ok(start..end),
            _ => Err(Error::Range),
        }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// A copy of these bytes.
    ///
    /// # Errors
    /// [`Error::Range`]: they are not inside the buffer.
    pub fn get(&self, range: Range<usize>) -> Result<Vec<u8>, Error> {
        let range = self.inside(range)?;
        Ok(self.memory.get(range))
    }

    /// Replace the bytes from this place on.
    ///
    /// # Errors
    /// [`Error::Range`]: they do not fit.
    pub fn put(&self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        let range = self.inside(at..at.checked_add(bytes.len()).ok_or(Error::Range)?)?;
        self.memory.put(range.start, bytes);
        Ok(())
    }
}

/// A buffer that takes one message at a time. A clone is the same receive.
#[derive(Clone, Debug)]
pub struct Receive {
    buffer: Buffer,
    name: usize,
    /// Even: no message has taken it since it was posted, or it is not posted. It goes up when a message takes it and
    /// when the program has it back, so what an older posting has left behind on other sockets is stale.
    turn: Arc<AtomicU64>,
}

impl Receive {
    /// A receive into this buffer.
    pub fn new(buffer: Buffer) -> Receive {
        Receive::named(buffer, 0)
    }

    /// A receive with a number of the program's, by which the program knows it again.
    pub fn named(buffer: Buffer, name: usize) -> Receive {
        Receive { buffer, name, turn: Arc::new(AtomicU64::new(0)) }
    }

    /// The program's number; 0 if it has given none.
    pub fn name(&self) -> usize {
        self.name
    }

    /// The buffer.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// True if both are the same receive.
    pub fn is(&self, other: &Receive) -> bool {
        Arc::ptr_eq(&self.turn, &other.turn)
    }

    /// True if another value is the same receive: a clone, or a posting on a socket.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.turn) > 1
    }

    /// Post it. `None`: a message is in it that the program has not got yet.
    pub(crate) fn post(&self) -> Option<Posting> {
        let turn = self.turn.load(Ordering::Acquire);
        turn.is_multiple_of(2).then(|| Posting { receive: self.clone(), turn })
    }

    /// Note that the program has it back.
    pub(crate) fn give_back(&self) {
        self.turn.fetch_add(1, Ordering::AcqRel);
    }
}

/// A posted receive, on one of the sockets where it is posted.
#[derive(Debug)]
pub(crate) struct Posting {
    receive: Receive,
    turn: u64,
}

impl Posting {
    /// Take it for a message, from all sockets. `None`: another message has taken it.
    pub(crate) fn take(self) -> Option<Receive> {
        let (turn, taken) = (self.turn, self.turn.wrapping_add(1));
        let took = self.receive.turn.compare_exchange(turn, taken, Ordering::AcqRel, Ordering::Acquire);
        took.is_ok().then_some(self.receive)
    }
}

/// The rights of the peer to a registered buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The peer may read.
    pub read: bool,
    /// The peer may write, and answers to READs of this side may be placed.
    pub write: bool,
}

impl Access {
    /// Tagged messages may come: what `ddp_register` gives.
    pub const WRITE: Access = Access { read: false, write: true };
    /// READs may come.
    pub const READ: Access = Access { read: true, write: false };
    /// Both.
    pub const BOTH: Access = Access { read: true, write: true };
}

/// The name of a registration: the steering tag that the peer writes into its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub u32);

impl From<Tag> for RKey {
    fn from(tag: Tag) -> RKey {
        RKey(tag.0)
    }
}
