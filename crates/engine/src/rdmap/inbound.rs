//! The peer's messages, over regions, receives and completions.

use iwarp::ddp::TagFault;
use iwarp::rdmap::{Delivery, Place, Target};
use verbs::{Access, LKey, Opcode, QpState, RKey, Sge, WcOpcode};
use wire::{Env, Nanos, Packet, Span, packet_flags as flag};

use super::state::{Owed, StreamState, Tagged};
use crate::Engine;
use crate::qp::Qp;
use crate::region::RemoteFault;

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

/// This side's memory and receives, for one call into a stream.
struct Here<'a, P: Env> {
    engine: &'a mut Engine<P>,
    qp: &'a mut Qp,
    owed: &'a mut std::collections::VecDeque<Owed>,
    tagged: &'a mut Tagged,
    now: Nanos,
}

impl<P: Env> Here<'_, P> {
    /// The memory of a tagged place.
    fn tagged(&self, stag: RKey, offset: u64, len: u32) -> Result<Span, TagFault> {
        match self.tagged {
            Tagged::Write => {
                let Qp { ctx, init, id, .. } = &*self.qp;
                let found = self.engine.mem.remote(*ctx, init.pd, *id, stag, offset, len, Access::REMOTE_WRITE);
                found.map_err(tag_fault)
            }
            Tagged::Sink => {
                let sge = Sge { addr: offset, length: len, lkey: LKey(stag.0) };
                self.engine.mem.local(self.qp.init.pd, &sge, true).map_err(|_| TagFault::Invalid)
            }
        }
    }
}

impl<P: Env> Target for Here<'_, P> {
    fn check_write(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        *self.tagged = Tagged::Write;
        self.tagged(stag, offset, len).map(|_| ())
    }

    fn check_sink(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        *self.tagged = Tagged::Sink;
        self.tagged(stag, offset, len).map(|_| ())
    }

    fn check_source(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        let Qp { ctx, init, id, .. } = &*self.qp;
        let found = self.engine.mem.remote(*ctx, init.pd, *id, stag, offset, len, Access::REMOTE_READ);
        found.map(|_| ()).map_err(tag_fault)
    }

    fn take_receive(&mut self) -> Option<u32> {
        let taken = self.engine.take_recv(self.qp, &Packet::NONE).ok()?;
        let room: u64 = taken.wqe.sges.iter().map(|sge| u64::from(sge.length)).sum();
        self.qp.recv = Some(taken);
        Some(u32::try_from(room).unwrap_or(u32::MAX))
    }

    fn invalidate(&mut self, stag: RKey) -> Result<(), TagFault> {
        self.engine.mem.invalidate(self.qp.id, stag).map_err(|()| TagFault::NotInvalidated)
    }

    fn place(&mut self, place: Place, bytes: &[u8]) -> Result<(), TagFault> {
        let len = bytes.len() as u32;
        self.engine.spans.clear();
        match place {
            Place::Tagged { stag, offset } => {
                let span = self.tagged(stag, offset, len)?;
                self.engine.spans.push(span);
            }
            Place::Receive { offset } => {
                let recv = self.qp.recv.as_ref().ok_or(TagFault::Invalid)?;
                let pd = self.engine.recv_pd(self.qp, recv.srq);
                let Engine { mem, spans, .. } = &mut *self.engine;
                mem.local_spans(pd, &recv.wqe.sges, offset, len, true, spans).map_err(|_| TagFault::Invalid)?;
            }
        }
        self.qp.counts.counters.received_bytes += u64::from(len);
        self.engine.store_spans(bytes).map_err(|_| TagFault::Invalid)
    }

    fn deliver(&mut self, delivery: Delivery) {
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
                let waits = |e: &&mut crate::qp::Inflight| e.opcode == Opcode::RdmaRead && e.out && !e.done;
                if let Some(e) = self.qp.inflight.iter_mut().find(waits) {
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
