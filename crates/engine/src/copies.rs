//! Scatter/gather lists, packets and memory: lists of spans, and copies that mind the null region.

use verbs::limits;
use wire::{Env, Fault, Span, TicketRef};

use crate::Engine;
use crate::qp::Qp;
use crate::region::NULL_ADDR;

/// Where the payload of the packet being received lies.
#[derive(Clone, Copy)]
pub(crate) enum Source<Rx> {
    /// On the wire.
    Wire(Rx),
    /// In the engine, where the packet had to wait.
    Held,
}

impl<P: Env> Engine<P> {
    /// Bytes of the payload.
    pub(crate) fn payload_len(&self, rx: Source<P::Rx>) -> u32 {
        match rx {
            Source::Wire(rx) => self.env.rx_len(rx),
            Source::Held => self.held.len() as u32,
        }
    }

    /// Copies a part of the payload; the caller stays inside it.
    pub(crate) fn payload_fetch(&mut self, rx: Source<P::Rx>, offset: u32, dst: &mut [u8]) {
        match rx {
            Source::Wire(rx) => self.env.rx_fetch(rx, offset, dst),
            Source::Held => {
                let at = offset as usize;
                if let Some(part) = self.held.get(at..at + dst.len()) {
                    dst.copy_from_slice(part);
                }
            }
        }
    }

    /// Puts the memory of bytes `offset..offset+len` of an entry into `self.spans`. False when the memory is not (any
    /// more) ours.
    pub(crate) fn gather(&mut self, qp: &Qp, at: usize, offset: u32, len: u32, write: bool) -> bool {
        self.spans.clear();
        self.mem.local_spans(qp.init.pd, &qp.inflight[at].sges, offset, len, write, &mut self.spans).is_ok()
    }

    /// True if `self.spans` is what [`Engine::gather`] would put there for all of an entry. For debug builds, which
    /// check it where an entry's memory is not gathered again.
    pub(crate) fn is_gathered(&self, qp: &Qp, at: usize, write: bool) -> bool {
        let (e, mut spans) = (&qp.inflight[at], Vec::new());
        self.mem.local_spans(qp.init.pd, &e.sges, 0, e.len, write, &mut spans).is_ok() && spans == self.spans
    }

    /// True if peers map the memory of a request's next piece. The wire is asked about the first piece. The other
    /// pieces are taken to be alike.
    pub(crate) fn is_shared(&mut self, qp: &Qp, at: usize) -> bool {
        let offset = qp.inflight[at].sent;
        self.gather(qp, at, offset, 1, false) && self.spans.first().is_some_and(|span| self.env.peers_map(span))
    }

    /// Turns `self.spans` into the list that a packet by reference carries, in `self.bytes`. False when that is
    /// impossible.
    pub(crate) fn list_spans(&mut self, qp: &Qp) -> bool {
        if self.spans.iter().any(|s| s.addr == NULL_ADDR) {
            return false;
        }
        self.bytes.clear();
        let ticket = qp.same_host.ticket.name();
        self.bytes.extend_from_slice(&ticket.addr.to_le_bytes());
        self.bytes.extend_from_slice(&ticket.value.to_le_bytes());
        for span in &self.spans {
            self.bytes.extend_from_slice(&span.addr.to_le_bytes());
            self.bytes.extend_from_slice(&span.len.to_le_bytes());
            self.bytes.extend_from_slice(&[0; 4]);
        }
        true
    }

    /// Sends spans of the null region as zeros: the whole payload becomes bytes of our own.
    pub(crate) fn fill_null_spans(&mut self) {
        if self.spans.iter().all(|s| s.addr != NULL_ADDR) {
            return;
        }
        for span in std::mem::take(&mut self.spans) {
            let start = self.bytes.len();
            self.bytes.resize(start + span.len as usize, 0);
            if span.addr != NULL_ADDR {
                // A fault here leaves zeros; the region was checked a moment ago.
                let _ = self.env.load(span.addr, span.guarded, &mut self.bytes[start..]);
            }
        }
    }

    /// Copies from `self.spans` into a buffer of the same size.
    pub(crate) fn load_spans(&mut self, out: &mut [u8]) -> Result<(), ()> {
        let mut at = 0;
        for span in &self.spans {
            let end = at + span.len as usize;
            if span.addr != NULL_ADDR {
                self.env.load(span.addr, span.guarded, &mut out[at..end]).map_err(|_| ())?;
            }
            at = end;
        }
        Ok(())
    }

    /// Copies the payload of the packet being received from `offset` on to `self.spans`.
    pub(crate) fn scatter(&mut self, rx: Source<P::Rx>, offset: u32) -> Result<(), Fault> {
        let rx = match rx {
            Source::Wire(rx) => rx,
            Source::Held => {
                let held = std::mem::take(&mut self.held);
                let result = self.store_spans(held.get(offset as usize..).unwrap_or_default());
                self.held = held;
                return result;
            }
        };
        if self.spans.iter().all(|s| s.addr != NULL_ADDR) {
            return self.env.rx_scatter(rx, offset, &self.spans);
        }
        let mut at = offset;
        for span in &self.spans {
            if span.addr != NULL_ADDR {
                self.env.rx_scatter(rx, at, std::slice::from_ref(span))?;
            }
            at += span.len;
        }
        Ok(())
    }

    /// Copies a buffer to `self.spans`, which have room for the buffer.
    pub(crate) fn store_spans(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let mut at = 0;
        for span in &self.spans {
            let end = (at + span.len as usize).min(bytes.len());
            if span.addr != NULL_ADDR {
                self.env.store(span.addr, span.guarded, &bytes[at..end])?;
            }
            at = end;
        }
        Ok(())
    }

    /// Takes in the list that a packet by reference carried, and gives its ticket; `None` when it is malformed or does
    /// not have `len` bytes.
    pub(crate) fn referenced(&mut self, rx: Source<P::Rx>, len: u32) -> Option<TicketRef> {
        let bytes = self.payload_len(rx);
        self.remote_spans.clear();
        if bytes < 16 || !bytes.is_multiple_of(16) || bytes / 16 > limits::MAX_SGE + 1 {
            return None;
        }
        let mut ticket = [0u8; 16];
        self.payload_fetch(rx, 0, &mut ticket);
        let word = |at: usize| Some(u64::from_le_bytes(ticket[at..at + 8].try_into().ok()?));
        let ticket = TicketRef { addr: word(0)?, value: word(8)? };
        let mut total = 0u64;
        for i in 1..bytes / 16 {
            let mut entry = [0u8; 16];
            self.payload_fetch(rx, i * 16, &mut entry);
            let addr = u64::from_le_bytes(entry[..8].try_into().ok()?);
            let len = u32::from_le_bytes(entry[8..12].try_into().ok()?);
            total += u64::from(len);
            self.remote_spans.push(Span { addr, len, guarded: true });
        }
        (total == u64::from(len)).then_some(ticket)
    }
}

/// Appends the pieces behind bytes `offset .. offset + len` of a list to `out`.
pub(crate) fn cut(list: &[Span], mut offset: u32, mut len: u32, out: &mut Vec<Span>) {
    for span in list {
        if offset >= span.len {
            offset -= span.len;
            continue;
        }
        let take = (span.len - offset).min(len);
        if take == 0 {
            return;
        }
        out.push(Span { addr: span.addr.wrapping_add(u64::from(offset)), len: take, guarded: span.guarded });
        len -= take;
        offset = 0;
    }
}
