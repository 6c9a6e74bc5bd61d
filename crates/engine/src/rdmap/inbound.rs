//! The peer's messages, over regions, receives and completions.

use iwarp::ddp::TagFault;
use iwarp::rdmap::{Delivery, Place, Target};
use verbs::{Access, LKey, Opcode, QpId, QpState, RKey, Sge, WcOpcode, WcStatus};
use wire::{Env, Nanos, Packet, Span, packet_flags as flag};

use super::state::{Owed, StreamState, Tagged};
use crate::Engine;
use crate::qp::Qp;
use crate::region::{NULL_ADDR, RemoteFault};
use crate::wq::inflight::Inflight;

/// The fault of a steering tag, as DDP and RDMAP number it.
pub(super) fn tag_fault(fault: RemoteFault) -> TagFault {
    match fault {
        RemoteFault::Key => TagFault::Invalid,
        RemoteFault::Domain => TagFault::Stream,
        RemoteFault::Rights => TagFault::Rights,
        RemoteFault::Bounds => TagFault::Bounds,
        RemoteFault::Wrap => TagFault::Wrap,
    }
}

/// Bytes of a segment from which on they are read straight to their place: fewer come with others in one call.
const DIRECT_FROM: usize = 8 << 10;

/// True for a READ that waits for its answer.
fn is_waiting_read(e: &Inflight) -> bool {
    e.opcode == Opcode::RdmaRead && e.out && !e.done
}

/// This side's memory and receives, for one call into a stream.
struct Here<'a, P: Env> {
    engine: &'a mut Engine<P>,
    qp: &'a mut Qp,
    owed: &'a mut std::collections::VecDeque<Owed>,
    tagged: &'a mut Tagged,
    now: Nanos,
}

impl<P: Env> Target for Here<'_, P> {
    fn check_write(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        *self.tagged = Tagged::Write;
        self.engine.find_tagged(self.qp, Tagged::Write, stag, offset, len).map(|_| ())
    }

    fn check_sink(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        *self.tagged = Tagged::Sink;
        self.engine.find_tagged(self.qp, Tagged::Sink, stag, offset, len).map(|_| ())
    }

    fn check_source(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        let Qp { ctx, init, id, .. } = &*self.qp;
        let found = self.engine.mem.remote(*ctx, init.pd, *id, stag, offset, len, Access::REMOTE_READ);
        found.map(|_| ()).map_err(tag_fault)
    }

    fn take_receive(&mut self) -> Option<u32> {
        if self.qp.state != QpState::Rts {
            return None;
        }
        let taken = self.engine.take_recv(self.qp, &Packet::NONE).ok()?;
        let room: u64 = taken.wqe.sges.iter().map(|sge| u64::from(sge.length)).sum();
        self.qp.recv = Some(taken);
        Some(u32::try_from(room).unwrap_or(u32::MAX))
    }

    fn invalidate(&mut self, stag: RKey) -> Result<(), TagFault> {
        self.engine.invalidate(self.qp.id, stag).map_err(|()| TagFault::NotInvalidated)
    }

    fn place(&mut self, place: Place, bytes: &[u8]) -> Result<(), TagFault> {
        let len = bytes.len() as u32;
        self.qp.counts.counters.received_bytes += u64::from(len);
        let tagged = *self.tagged;
        let found = self.engine.find_place(self.qp, tagged, place, len);
        let placed = found.and_then(|()| self.engine.store_spans(bytes).map_err(|_| TagFault::Invalid));
        if placed.is_err() {
            self.engine.lose_place(self.qp, tagged, place, self.now);
        }
        placed
    }

    fn deliver(&mut self, delivery: Delivery) {
        if self.qp.state != QpState::Rts {
            return; // it has ended meanwhile: nothing completes any longer
        }
        match delivery {
            Delivery::Send { len, solicited, invalidated } => {
                let Some(recv) = self.qp.recv.take() else { return };
                let mut packet = Packet::NONE;
                if solicited {
                    packet.flags |= flag::SOLICITED;
                }
                if let Some(stag) = invalidated {
                    packet.flags |= flag::INV;
                    packet.imm = stag.0;
                }
                let (wr_id, srq) = (recv.wqe.wr_id, recv.srq);
                self.engine.complete_recv(self.qp, &packet, wr_id, srq, WcOpcode::Recv, len, self.now);
            }
            // RFC 5040, section 5.5: the verbs raise no completion at the target of a WRITE.
            Delivery::Write { .. } => self.engine.served += 1,
            Delivery::Read => {
                if let Some(e) = self.qp.inflight.iter_mut().find(|e| is_waiting_read(e)) {
                    (e.done, e.received) = (true, e.len);
                    self.qp.rc.reads_out = self.qp.rc.reads_out.saturating_sub(1);
                }
            }
            Delivery::Request { message, request } => self.owed.push_back((message, request)),
            // The stream's end says it.
            Delivery::Terminated(_) => {}
        }
    }
}

impl<P: Env> Engine<P> {
    /// The memory of a tagged place. Its region is of the queue pair's protection domain and permits the access
    /// (RFC 5040, section 8.1.1; RFC 5041, section 8.2). A region that is gone permits nothing (RFC 5041, section 8.3).
    fn find_tagged(&self, qp: &Qp, tagged: Tagged, stag: RKey, offset: u64, len: u32) -> Result<Span, TagFault> {
        match tagged {
            Tagged::Write => {
                let Qp { ctx, init, id, .. } = qp;
                let found = self.mem.remote(*ctx, init.pd, *id, stag, offset, len, Access::REMOTE_WRITE);
                found.map_err(tag_fault)
            }
            Tagged::Sink => {
                let sge = Sge { addr: offset, length: len, lkey: LKey(stag.0) };
                self.mem.local(qp.init.pd, &sge, true).map_err(|_| TagFault::Invalid)
            }
        }
    }

    /// Puts the memory of a place into `self.spans`.
    fn find_place(&mut self, qp: &Qp, tagged: Tagged, place: Place, len: u32) -> Result<(), TagFault> {
        self.spans.clear();
        match place {
            Place::Tagged { stag, offset } => {
                let span = self.find_tagged(qp, tagged, stag, offset, len)?;
                self.spans.push(span);
                Ok(())
            }
            Place::Receive { offset } => {
                let recv = qp.recv.as_ref().ok_or(TagFault::Invalid)?;
                let pd = self.recv_pd(qp, recv.srq);
                let Engine { mem, spans, .. } = self;
                mem.local_spans(pd, &recv.wqe.sges, offset, len, true, spans).map_err(|_| TagFault::Invalid)
            }
        }
    }

    /// Fails what this side has posted for a place that has gone: the receive, or the READ. The region that a WRITE
    /// names is the peer's matter.
    fn lose_place(&mut self, qp: &mut Qp, tagged: Tagged, place: Place, now: Nanos) {
        match (place, tagged) {
            (Place::Receive { .. }, _) => {
                if let Some(recv) = qp.recv.take() {
                    self.push_recv_error(qp, recv.wqe.wr_id, recv.srq, WcStatus::LocProtErr, now);
                }
            }
            (Place::Tagged { .. }, Tagged::Sink) => {
                let number = qp.inflight.iter_mut().find(|e| is_waiting_read(e)).map(|e| e.number);
                if let Some(number) = number {
                    self.break_at(qp, number, WcStatus::LocProtErr, now);
                }
            }
            (Place::Tagged { .. }, Tagged::Write) => {}
        }
    }

    /// The memory to which the next bytes of the stream belong, if it saves enough to read them straight to there;
    /// otherwise empty. [`Engine::stream_placed`] is called then in place of [`Engine::stream_input`].
    ///
    /// With CRCs, all bytes are read elsewhere first: their CRC is that of a copy that the program cannot change.
    pub fn stream_direct(&mut self, id: QpId) -> &[Span] {
        self.spans.clear();
        let Some(qp) = self.qps.get(id).filter(|qp| !self.streams_copied && qp.state == QpState::Rts) else {
            return &[];
        };
        let direct = qp.stream.as_ref().filter(|state| state.pending.is_empty() && !state.stream.agreed().crc);
        let direct = direct.and_then(|state| Some((state.stream.direct()?, state.tagged)));
        let Some(((place, len), tagged)) = direct.filter(|((_, len), _)| *len >= DIRECT_FROM) else { return &[] };
        // Taken out, as the search fills the list of the engine.
        let Some(qp) = self.checkout_qp(id) else { return &[] };
        let found = self.find_place(&qp, tagged, place, len as u32);
        self.qps.put_back(id, qp);
        if found.is_err() || self.spans.iter().any(|span| span.addr == NULL_ADDR) {
            self.spans.clear(); // the ordinary way finds the error, and knows the null region
        }
        &self.spans
    }

    /// Notes that so many bytes were read straight to [`Engine::stream_direct`]'s place, and takes those behind them.
    pub fn stream_placed(&mut self, id: QpId, len: usize, behind: &[u8], now: Nanos) {
        self.with_stream(id, now, |engine, qp, state| {
            state.heard = true;
            state.stream.pass(len, |crc| crc);
            qp.counts.counters.received_bytes += len as u64;
            if !behind.is_empty() {
                engine.take_stream(qp, state, behind, now);
            }
        });
    }

    /// Notes that [`Engine::stream_direct`]'s place cannot be written to: the program has unmapped it.
    pub fn stream_misplaced(&mut self, id: QpId, now: Nanos) {
        self.with_stream(id, now, |engine, qp, state| {
            if let Some((place, _)) = state.stream.direct() {
                state.stream.lose_place(TagFault::Invalid);
                engine.lose_place(qp, state.tagged, place, now);
            }
        });
    }

    /// Takes bytes of the stream.
    pub(super) fn take_stream(&mut self, qp: &mut Qp, state: &mut StreamState, bytes: &[u8], now: Nanos) {
        if qp.state != QpState::Rts {
            return;
        }
        state.heard = true;
        let mut pending = std::mem::take(&mut state.pending);
        let joined = if pending.is_empty() {
            bytes
        } else {
            pending.extend_from_slice(bytes);
            &pending
        };
        let StreamState { stream, owed, tagged, .. } = state;
        let position = stream.position();
        stream.input(position, joined, &mut Here { engine: self, qp, owed, tagged, now });
        let taken = (stream.position() - position) as usize;
        let rest = joined.get(taken..).unwrap_or_default();
        if !rest.is_empty() && stream.end().is_none() {
            // What is no whole FPDU stays until the rest of it comes: less than a segment that is placed early.
            state.pending = rest.to_vec();
        }
        self.retire(qp, now);
    }
}
