//! Requests of this side and answers to the peer's READs, on their way into the TCP connection.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use iwarp::ddp::TagFault;
use iwarp::mpa::send::{Payload, Sink};
use iwarp::rdmap::Work;
use verbs::{Access, Opcode, Psn, QpState, RKey, SendBody, SendData, SendFlags, SendWr, WcStatus, limits};
use wire::mpa::fpdu::Crc;
use wire::rdmap::read_request;
use wire::{Env, Memory, Nanos, Span};

use super::inbound::tag_fault;
use super::output::{Mark, Output};
use super::state::{Current, StreamState};
use crate::Engine;
use crate::qp::Qp;
use crate::region::NULL_ADDR;
use crate::wq::inflight::Inflight;

/// Answers to READs that are begun one after the other while requests of this side wait. Linux's siw has the same
/// number.
const ANSWERS_IN_ROW: u32 = 4;

/// FPDUs of a message on their way into the output.
///
/// Without CRCs, long pieces of the message stay where they are until TCP takes them. With CRCs all bytes are copied
/// once, and their CRC is that of the copy: memory that changes meanwhile, as that of a READ may, spoils no CRC.
struct Gather<'a, M> {
    memory: &'a M,
    spans: &'a [Span],
    /// The bytes of the message, in place of the spans.
    inline: Option<&'a [u8]>,
    out: RefCell<&'a mut Output>,
    /// The request that the message belongs to, if it is no answer.
    request: Option<u64>,
    /// All bytes are to be copied.
    copies: bool,
    /// The last range was copied for its CRC.
    copied: Cell<bool>,
    /// Some memory could not be read.
    faulted: Cell<bool>,
}

impl<M: Memory> Gather<'_, M> {
    /// Appends a range of the message to the output.
    fn append(&self, range: Range<usize>, copies: bool) {
        let mut out = self.out.borrow_mut();
        if let Some(inline) = self.inline {
            out.own().extend_from_slice(inline.get(range).unwrap_or_default());
            return;
        }
        let (mut skip, mut left) = (range.start, range.len());
        for span in self.spans {
            let len = span.len as usize;
            if skip >= len {
                skip -= len;
                continue;
            }
            let take = (len - skip).min(left);
            let from = span.addr.wrapping_add(skip as u64);
            let piece = Span { addr: from, len: take as u32, guarded: span.guarded };
            if !copies && span.addr != NULL_ADDR && Output::gathers(&piece) {
                out.push(piece, self.request);
            } else {
                let own = out.own();
                let at = own.len();
                own.resize(at + take, 0);
                let to = own.get_mut(at..).unwrap_or_default();
                if span.addr != NULL_ADDR && self.memory.load(from, span.guarded, to).is_err() {
                    self.faulted.set(true);
                }
            }
            left -= take;
            skip = 0;
            if left == 0 {
                break;
            }
        }
    }
}

impl<M: Memory> Payload for Gather<'_, M> {
    fn crc(&self, range: Range<usize>, crc: Crc) -> Crc {
        let start = self.out.borrow_mut().own().len();
        self.append(range, true);
        self.copied.set(true);
        crc.bytes(self.out.borrow_mut().own().get(start..).unwrap_or_default())
    }
}

/// The sink of a [`Gather`].
struct Into<'a, 'b, M>(&'a Gather<'b, M>);

impl<M: Memory> Sink for Into<'_, '_, M> {
    fn own(&mut self, bytes: &[u8]) {
        self.0.out.borrow_mut().own().extend_from_slice(bytes);
    }

    fn payload(&mut self, range: Range<usize>) {
        if !self.0.copied.take() {
            self.0.append(range, self.0.copies);
        }
    }
}

/// A sink for messages without payload.
struct Plain<'a>(&'a mut Vec<u8>);

impl Sink for Plain<'_> {
    fn own(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn payload(&mut self, _range: Range<usize>) {}
}

/// Appends the message that comes before all else, if there is one.
pub(super) fn add_urgent(state: &mut StreamState) -> bool {
    let StreamState { stream, output, .. } = state;
    stream.urgent(&mut Plain(output.own()))
}

/// Appends a WRITE of no bytes. Where it goes is not looked at (RFC 5040, section 5.1).
pub(super) fn add_nothing(state: &mut StreamState) {
    let StreamState { stream, output, .. } = state;
    if stream.start(Work::Write { stag: RKey(1), offset: 0, len: 0 }).is_ok() {
        let _ = stream.send(&[][..], &mut Plain(output.own()));
    }
}

/// Drops an FPDU whose payload could not be read. The places of later markers have counted it (RFC 5044, section 4.3),
/// so nothing can follow it if there are any.
fn give_up(state: &mut StreamState, mark: Mark) {
    state.output.cut(mark);
    state.torn |= state.stream.agreed().markers_out;
}

/// The operations of iWARP (RFC 5040, section 5); those of RFC 7306 are not supported.
fn is_supported(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Send | Opcode::SendWithInv | Opcode::RdmaWrite | Opcode::RdmaRead)
}

/// True if this request may be posted: its operation is one of iWARP's, and a READ names one region: the sink
/// is one steering tag (RFC 5040, section 5.2).
pub(crate) fn takes(wr: &SendWr<'_>) -> bool {
    let lists_one = !matches!(wr.data, SendData::Sges(list) if list.len() > limits::IWARP_MAX_SGE_RD as usize);
    is_supported(wr.opcode) && (wr.opcode != Opcode::RdmaRead || lists_one)
}

impl<P: Env> Engine<P> {
    /// Appends to the output what can be sent, until there is as much as is wanted.
    pub(super) fn fill_stream(&mut self, qp: &mut Qp, state: &mut StreamState, most: usize, now: Nanos) {
        if qp.state != QpState::Rts {
            return;
        }
        state.output.tidy();
        if state.output.capacity() == 0 {
            state.output = std::mem::take(&mut self.spare_output);
        }
        while state.output.len() < most {
            if add_urgent(state) {
                continue;
            }
            if state.stream.end().is_some() {
                break;
            }
            if state.current.is_none() {
                state.current = self.begin(qp, state, now);
            }
            match state.current {
                None => break,
                Some(Current::Request) => self.segment_of_request(qp, state, now),
                Some(Current::Response) => self.segment_of_response(qp, state),
            }
        }
        if state.output.is_empty() {
            self.put_output_aside(state);
        }
        self.retire(qp, now);
    }

    /// Begins the next message: an answer to a READ, or a request of this side.
    fn begin(&mut self, qp: &mut Qp, state: &mut StreamState, now: Nanos) -> Option<Current> {
        let waits = qp.cursor < qp.inflight.len() || qp.sq.is_runnable();
        if let Some(&(_, request)) = state.owed.front()
            && !(waits && state.answers_in_row >= ANSWERS_IN_ROW)
            && state.stream.start(Work::Response(request)).is_ok()
        {
            state.answers_in_row += 1;
            return Some(Current::Response);
        }
        state.answers_in_row = 0;
        loop {
            if qp.cursor >= qp.inflight.len() && !self.fetch_request(qp, state, now) {
                break;
            }
            let Some(e) = qp.inflight.get(qp.cursor) else { break };
            if e.out {
                // It has failed, or it was local.
                qp.cursor += 1;
                continue;
            }
            let work = work_of(e);
            return state.stream.start(work).is_ok().then_some(Current::Request);
        }
        // A turn that no request has taken.
        let &(_, request) = state.owed.front()?;
        state.stream.start(Work::Response(request)).is_ok().then_some(Current::Response)
    }

    /// Takes the next entry out of the send queue, if it may begin.
    fn fetch_request(&mut self, qp: &mut Qp, state: &StreamState, now: Nanos) -> bool {
        if qp.halted {
            return false;
        }
        let Some(next) = qp.sq.peek() else { return false };
        if let Some(wqe) = &next {
            // A fence waits for READs (RFC 5040, section 5.5, rule 14 leaves them unordered otherwise); a READ waits
            // for its place among those that the peer takes.
            let is_read = wqe.opcode == Opcode::RdmaRead;
            let most = u32::from(state.stream.agreed().ord);
            let out = qp.rc.reads_out;
            if out > 0 && (wqe.flags.contains(SendFlags::FENCE) || is_read && out >= most) {
                return false;
            }
        }
        if qp.inflight.is_full() && qp.inflight.try_reserve(1).is_err() {
            return false; // without memory for more, the next waits for one to finish
        }
        let number = qp.sq.advance();
        let Some(request) = next else {
            let wr_id = qp.sq.wr_id(number);
            qp.inflight.push_back(Inflight::failed(number, wr_id, WcStatus::LocQpOpErr, Psn::default()));
            qp.halted = true;
            return true;
        };
        let mut entry = Inflight { since: now, ..request };
        let admitted = if is_supported(entry.opcode) { self.admit(qp, &mut entry) } else { Err(WcStatus::LocQpOpErr) };
        match admitted {
            Ok(()) => {
                // What `complete` counts a READ by.
                entry.psns = 1;
                if entry.opcode == Opcode::RdmaRead {
                    qp.rc.reads_out += 1;
                }
            }
            Err(status) => {
                (entry.error, entry.out) = (Some(status), true);
                qp.halted = true;
            }
        }
        qp.inflight.push_back(entry);
        true
    }

    /// Sends a segment of the request at the cursor.
    fn segment_of_request(&mut self, qp: &mut Qp, state: &mut StreamState, now: Nanos) {
        let at = qp.cursor;
        let Some(e) = qp.inflight.get(at) else { return };
        let (opcode, number, len, inline_len) = (e.opcode, e.number, e.len, e.inline_len as usize);
        let is_inline = e.flags.contains(SendFlags::INLINE) || inline_len > 0;
        self.spans.clear();
        let mut inline = [0u8; limits::MAX_INLINE as usize];
        let inline = inline.get_mut(..inline_len.min(limits::MAX_INLINE as usize)).unwrap_or_default();
        let mut fault = false;
        if is_inline {
            qp.sq.inline_bytes(number, 0, inline);
        } else if opcode != Opcode::RdmaRead {
            let list = self.mem.local_spans(qp.init.pd, &e.sges, 0, len, false, &mut self.spans);
            fault = list.is_err();
        }
        let mut last = None;
        if !fault {
            let mark = state.output.mark();
            let gather = Gather {
                memory: &self.env,
                spans: &self.spans,
                inline: is_inline.then_some(&*inline),
                out: RefCell::new(&mut state.output),
                request: Some(number),
                copies: self.streams_copied,
                copied: Cell::new(false),
                faulted: Cell::new(false),
            };
            last = state.stream.send(&gather, &mut Into(&gather));
            fault = gather.faulted.get();
            if fault {
                give_up(state, mark);
            }
        }
        if fault {
            self.fail_entry(qp, at, WcStatus::LocProtErr);
            state.current = None;
            self.retire(qp, now);
            return;
        }
        if last != Some(false) {
            state.current = None;
        }
        if last == Some(true) {
            let e = &mut qp.inflight[at];
            e.out = true;
            e.sent = len;
            qp.cursor += 1;
            if opcode != Opcode::RdmaRead {
                state.output.end_request(number, state.sent + state.output.len() as u64);
            }
        }
    }

    /// Sends a segment of the answer to the oldest READ of the peer.
    fn segment_of_response(&mut self, qp: &mut Qp, state: &mut StreamState) {
        let Some(&(message, request)) = state.owed.front() else {
            state.current = None;
            return;
        };
        match self.source(qp, &request) {
            Ok(span) => {
                self.spans.clear();
                self.spans.extend(span);
            }
            Err(fault) => {
                // The region has gone, or changed, since the request came.
                state.current = None;
                return state.stream.refuse(message, &request, 0, fault);
            }
        }
        let mark = state.output.mark();
        let gather = Gather {
            memory: &self.env,
            spans: &self.spans,
            inline: None,
            out: RefCell::new(&mut state.output),
            request: None,
            copies: self.streams_copied,
            copied: Cell::new(false),
            faulted: Cell::new(false),
        };
        let last = state.stream.send(&gather, &mut Into(&gather));
        if gather.faulted.get() {
            give_up(state, mark);
            state.current = None;
            return state.stream.refuse(message, &request, 0, TagFault::Invalid);
        }
        if last != Some(false) {
            state.current = None;
            state.owed.pop_front();
            self.served += 1;
        }
    }

    /// The memory that a READ of the peer asks for; none for a READ of no bytes.
    pub(super) fn source(&self, qp: &Qp, request: &read_request::Repr) -> Result<Option<Span>, TagFault> {
        let read_request::Repr { source_stag, source_offset, size, .. } = *request;
        if size == 0 {
            return Ok(None);
        }
        let need = Access::REMOTE_READ;
        let found = self.mem.remote(qp.ctx, qp.init.pd, qp.id, source_stag, source_offset, size, need);
        found.map(Some).map_err(tag_fault)
    }
}

/// The message of a request.
fn work_of(e: &Inflight) -> Work {
    let (remote_addr, rkey) = match e.body {
        SendBody::Rdma { remote_addr, rkey } => (remote_addr, rkey),
        _ => (0, RKey(0)),
    };
    match e.opcode {
        Opcode::RdmaWrite => Work::Write { stag: rkey, offset: remote_addr, len: e.len },
        Opcode::RdmaRead => {
            // RFC 5040, section 5.2: the sink is one region. The keys of a region are one number here.
            let sink = e.sges.first();
            Work::Read(read_request::Repr {
                sink_stag: RKey(sink.map_or(0, |sge| sge.lkey.0)),
                sink_offset: sink.map_or(0, |sge| sge.addr),
                size: e.len,
                source_stag: rkey,
                source_offset: remote_addr,
            })
        }
        opcode => Work::Send {
            len: e.len,
            solicited: e.flags.contains(SendFlags::SOLICITED),
            invalidate: (opcode == Opcode::SendWithInv).then_some(RKey(e.imm)),
        },
    }
}
