//! What waits for TCP: bytes of whole FPDUs, of which large payloads stay where they are.

use std::collections::VecDeque;

use wire::{Memory, Part, Span};

/// Bytes of a payload that are worth a place of their own in the call that sends them: shorter ones are copied.
const GATHER_FROM: u32 = 4096;

/// An address that no process has: the memory that was to be sent has gone.
const NOWHERE: u64 = 1 << 63;

/// Memory among the bytes of ours.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Bytes of ours between the piece before it and this one.
    before: usize,
    span: Span,
    /// The request that it belongs to; `None`: an answer to the peer's READ.
    request: Option<u64>,
}

/// The bytes that wait for TCP.
#[derive(Debug, Default)]
pub struct Output {
    /// Bytes of ours, of which TCP has taken the first `taken`.
    own: Vec<u8>,
    taken: usize,
    pieces: VecDeque<Piece>,
    /// Sums of the pieces' `before` and lengths.
    before: usize,
    memory: usize,
    /// The requests that TCP does not have yet, and the places of the stream where they end.
    ends: VecDeque<(u64, u64)>,
}

/// The end of an output.
pub(super) struct Mark {
    own: usize,
    pieces: usize,
    before: usize,
    memory: usize,
}

impl Output {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.own.len() - self.taken + self.memory
    }

    /// True if none wait.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that wait, in their order.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let mut at = self.taken;
        let mut own = move |len: usize| {
            let bytes = self.own.get(at..at + len).unwrap_or_default();
            at += len;
            Part::Own(bytes)
        };
        let pieces = self.pieces.iter().flat_map(move |piece| [own(piece.before), Part::Memory(piece.span)]);
        let behind = self.own.get(self.taken + self.before..).unwrap_or_default();
        pieces.chain([Part::Own(behind)]).filter(|part| *part != Part::Own(&[]))
    }

    /// Where bytes of ours are appended.
    pub(super) fn own(&mut self) -> &mut Vec<u8> {
        &mut self.own
    }

    /// True if this memory is to be appended as it is.
    pub(super) fn gathers(span: &Span) -> bool {
        span.len >= GATHER_FROM
    }

    /// Appends memory, which is read when TCP takes it.
    pub(super) fn push(&mut self, span: Span, request: Option<u64>) {
        let before = self.own.len() - self.taken - self.before;
        self.before += before;
        self.memory += span.len as usize;
        self.pieces.push_back(Piece { before, span, request });
    }

    /// The end of what there is, for [`Output::cut`].
    pub(super) fn mark(&self) -> Mark {
        Mark { own: self.own.len(), pieces: self.pieces.len(), before: self.before, memory: self.memory }
    }

    /// Drops what was appended behind a mark. Nothing has been taken meanwhile.
    pub(super) fn cut(&mut self, mark: Mark) {
        self.own.truncate(mark.own);
        self.pieces.truncate(mark.pieces);
        (self.before, self.memory) = (mark.before, mark.memory);
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.own.clear();
        self.pieces.clear();
        self.ends.clear();
        (self.taken, self.before, self.memory) = (0, 0, 0);
    }

    /// Drops so many bytes from the front: TCP has them.
    pub(super) fn advance(&mut self, bytes: usize) {
        let mut left = bytes.min(self.len());
        while left > 0 {
            let Some(piece) = self.pieces.front_mut() else {
                self.taken += left;
                return;
            };
            let own = left.min(piece.before);
            (piece.before, self.before) = (piece.before - own, self.before - own);
            self.taken += own;
            left -= own;
            let memory = left.min(piece.span.len as usize);
            piece.span.addr = piece.span.addr.wrapping_add(memory as u64);
            piece.span.len -= memory as u32;
            self.memory -= memory;
            left -= memory;
            if piece.span.len == 0 {
                self.pieces.pop_front();
            }
        }
    }

    /// Gives back the room of bytes that TCP has.
    pub(super) fn tidy(&mut self) {
        if self.taken > self.own.len() - self.taken {
            self.own.drain(..std::mem::take(&mut self.taken));
        }
    }

    /// Bytes for which it has room, as far as they are ours.
    pub(crate) fn capacity(&self) -> usize {
        self.own.capacity()
    }

    /// True if it has memory that is still to be read.
    pub(super) fn has_memory(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// The request with the first memory; `None`: an answer's memory is the first.
    pub(super) fn first_request(&self) -> Option<u64> {
        self.pieces.front()?.request
    }

    /// Copies all memory, which may be the program's alone, or gone, after that. Memory that is gone already stays in
    /// the output, as such: TCP has begun to take the FPDU, or what is in front of it.
    pub(super) fn settle(&mut self, memory: &impl Memory) {
        let old = std::mem::take(self);
        let mut at = old.taken;
        for piece in &old.pieces {
            self.own.extend_from_slice(old.own.get(at..at + piece.before).unwrap_or_default());
            at += piece.before;
            let start = self.own.len();
            self.own.resize(start + piece.span.len as usize, 0);
            let room = self.own.get_mut(start..).unwrap_or_default();
            if memory.load(piece.span.addr, piece.span.guarded, room).is_err() {
                self.own.truncate(start);
                self.push(Span { addr: NOWHERE, ..piece.span }, piece.request);
            }
        }
        self.own.extend_from_slice(old.own.get(at..).unwrap_or_default());
        self.ends = old.ends;
    }

    /// The bytes that wait, all of them copied; `None` if some memory has gone.
    pub(super) fn into_bytes(mut self, memory: &impl Memory) -> Option<Vec<u8>> {
        self.settle(memory);
        self.pieces.is_empty().then(|| self.own.split_off(self.taken))
    }

    /// Notes that a request ends at this place of the stream.
    pub(super) fn end_request(&mut self, number: u64, place: u64) {
        self.ends.push_back((number, place));
    }

    /// The next request that ends before this place of the stream.
    pub(super) fn next_ended(&mut self, place: u64) -> Option<u64> {
        self.ends.pop_front_if(|(_, end)| *end <= place).map(|(number, _)| number)
    }
}
