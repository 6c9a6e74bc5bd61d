//! A connection's start and end, and what the device's driver asks and tells.

use iwarp::mpa::Agreed;
use iwarp::rdmap::{Config, End, Fault, Stream};
use verbs::{
    CtxId, Errno, EventKind, EventSource, QpAttr, QpAttrMask as M, QpId, QpState, QpType, Qpn, Result, WcStatus, limits,
};
use wire::{Env, Nanos};

use super::output::Output;
use super::state::StreamState;
use crate::Engine;
use crate::qp::Qp;

/// Segments of at least so many bytes are placed while they come in, before their CRC is checked (the exception that
/// the crate `iwarp` states). Shorter ones wait until they are whole.
const EARLY_FROM: u32 = 16 << 10;

impl<P: Env> Engine<P> {
    /// Makes a context one of iWARP: so are the queue pairs that it gets from now on.
    ///
    /// # Errors
    /// EINVAL: no such context.
    pub fn set_iwarp(&mut self, ctx: CtxId) -> Result<()> {
        self.ctxs.get_mut(ctx).ok_or(Errno::EINVAL)?.is_iwarp = true;
        self.has_iwarp = true;
        Ok(())
    }

    /// True if a context is one of iWARP.
    pub(crate) fn is_iwarp(&self, ctx: CtxId) -> bool {
        self.ctxs.get(ctx).is_some_and(|ctx| ctx.is_iwarp)
    }

    /// Refuses, with EOPNOTSUPP, what iWARP does not have: datagrams, XRC, windows, managed queues.
    pub(crate) fn not_in_iwarp(&self, ctx: CtxId) -> Result<()> {
        if self.is_iwarp(ctx) { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
    }

    /// Connects a queue pair: its TCP connection is in full operation, and the queue pair in RTS. `emss`: bytes of
    /// TCP's segments, or more for longer FPDUs. `before` goes out before all else, and is no part of the stream of
    /// FPDUs.
    ///
    /// # Errors
    /// EINVAL: no such queue pair; EISCONN (106): it has a connection, or had one.
    pub fn attach_stream(&mut self, qpn: Qpn, agreed: &Agreed, emss: usize, before: &[u8], now: Nanos) -> Result<QpId> {
        let id = self.qpns.find(qpn).ok_or(Errno::EINVAL)?;
        let mut qp = self.checkout_qp(id).ok_or(Errno::EINVAL)?;
        let result = if qp.init.qp_type != QpType::Rc || !qp.is_iwarp {
            Err(Errno::EINVAL)
        } else if qp.state != QpState::Init || qp.stream.is_some() {
            Err(Errno(106))
        } else {
            let config = Config { early_from: EARLY_FROM, early_fpdus: 0, ..Config::new(emss) };
            let mut state = StreamState::new(Stream::new(agreed, &config, now));
            state.output.own().extend_from_slice(before);
            qp.stream = Some(Box::new(state));
            qp.state = QpState::Rts;
            let depth = |depth: u16| depth.min(limits::MAX_RD_ATOMIC.into()) as u8;
            (qp.attr.max_rd_atomic, qp.attr.max_dest_rd_atomic) = (depth(agreed.ord), depth(agreed.ird));
            // A message that says "ready to receive" goes out before all else.
            self.streams.push_back(id);
            Ok(id)
        };
        self.qps.put_back(id, qp);
        result
    }

    /// The next connection that has something to send, or has ended.
    pub fn next_stream(&mut self) -> Option<QpId> {
        self.streams.pop_front()
    }

    /// True if [`Engine::next_stream`] has one.
    #[inline]
    pub fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    /// The bytes to be sent next; at most some 100 KiB more than `most`. `None`: there is nothing to send.
    pub fn stream_output(&mut self, id: QpId, most: usize, now: Nanos) -> Option<&Output> {
        self.with_stream(id, now, |engine, qp, state| engine.fill_stream(qp, state, most, now));
        let output = &self.qps.get(id)?.stream.as_ref()?.output;
        (!output.is_empty()).then_some(output)
    }

    /// Has all bytes of messages copied on their way out and in, for a driver that needs to see each of them.
    pub fn set_streams_copied(&mut self, copied: bool) {
        self.streams_copied = copied;
    }

    /// Notes that TCP has taken so many bytes. SENDs and WRITEs of which it has all are done (RFC 5040, section 5.5:
    /// a completion says that the buffer is free, and nothing of the peer).
    pub fn stream_sent(&mut self, id: QpId, bytes: usize, now: Nanos) {
        self.with_stream(id, now, |engine, qp, state| {
            state.output.advance(bytes);
            state.sent += bytes as u64;
            while let Some(number) = state.output.next_ended(state.sent) {
                let at = qp.inflight.front().map_or(0, |first| number.wrapping_sub(first.number)) as usize;
                if qp.inflight.get(at).is_some_and(|e| e.number == number) {
                    qp.inflight[at].done = true;
                }
            }
            if state.output.is_empty() {
                engine.put_output_aside(state);
            }
            engine.retire(qp, now);
        });
    }

    /// Notes that TCP could not read the first memory of the output: the program has unmapped it. The connection ends
    /// without a Terminate message, since TCP has the start of the FPDU; a request completes with LOC_PROT_ERR.
    pub fn stream_unreadable(&mut self, id: QpId, now: Nanos) {
        self.with_stream(id, now, |engine, qp, state| {
            let request = state.output.first_request();
            state.output.clear();
            state.torn = true;
            state.stream.fail();
            if let Some(number) = request {
                engine.break_at(qp, number, WcStatus::LocProtErr, now);
            }
        });
    }

    /// Copies what connections still have to send of regions: a region changes, or goes.
    pub(crate) fn settle_streams(&mut self) {
        if !self.has_iwarp {
            return;
        }
        let waits = |qp: &Qp| qp.stream.as_ref().is_some_and(|state| state.output.has_memory());
        let ids: Vec<QpId> = self.qps.iter().filter(|(_, qp)| waits(qp)).map(|(id, _)| id).collect();
        for id in ids {
            if let Some(state) = self.qps.get_mut(id).and_then(|qp| qp.stream.as_mut()) {
                state.output.settle(&self.env);
            }
        }
    }

    /// Keeps one buffer for the output of all connections: idle ones have none.
    pub(super) fn put_output_aside(&mut self, state: &mut StreamState) {
        let mut output = std::mem::take(&mut state.output);
        if output.capacity() > self.spare_output.capacity() {
            output.clear();
            self.spare_output = output;
        }
    }

    /// Notes that TCP takes nothing at the moment: the connection is not asked for output until
    /// [`Engine::stream_writable`].
    pub fn stream_full(&mut self, id: QpId) {
        if let Some(qp) = self.qps.get_mut(id) {
            qp.counts.counters.ring_full += 1;
            qp.parked = true;
        }
    }

    /// Notes that TCP takes bytes again.
    pub fn stream_writable(&mut self, id: QpId) {
        if let Some(qp) = self.qps.get_mut(id) {
            qp.parked = false;
            self.streams.push_back(id);
        }
    }

    /// Takes bytes of the stream that have come, in their order.
    pub fn stream_input(&mut self, id: QpId, bytes: &[u8], now: Nanos) {
        self.with_stream(id, now, |engine, qp, state| engine.take_stream(qp, state, bytes, now));
    }

    /// Notes that the peer sends nothing any more (FIN), or that the connection is lost.
    pub fn stream_closed(&mut self, id: QpId, now: Nanos) {
        self.with_stream(id, now, |_, _, state| {
            let unread = state.pending.len();
            state.stream.closed(unread);
            state.over = true;
        });
    }

    /// Ends the connection of a queue pair as soon as all that was posted is done. False: it has none.
    pub fn close_stream(&mut self, id: QpId, now: Nanos) -> bool {
        self.with_stream(id, now, |_, _, state| state.closing = true).is_some()
    }

    /// True if the connection is over, or the queue pair has none (any more).
    pub fn stream_is_over(&self, id: QpId) -> bool {
        self.qps.get(id).and_then(|qp| qp.stream.as_ref()).is_none_or(|state| state.over)
    }

    /// Sends a WRITE of no bytes, which has no effect but that bytes come (RFC 5040, section 5.1), if nothing has come
    /// from the peer and nothing is to be sent. False: the peer has been heard, and needs none.
    pub fn nudge_stream(&mut self, id: QpId, now: Nanos) -> bool {
        let nudged = self.with_stream(id, now, |_, _, state| {
            if !state.heard && state.current.is_none() && state.output.is_empty() {
                super::outbound::add_nothing(state);
            }
            !state.heard
        });
        self.streams.push_back(id);
        nudged.unwrap_or(false)
    }

    /// When [`Engine::stream_is_late`] is to be called: a message that says "ready to receive" is awaited.
    pub fn stream_deadline(&self, id: QpId) -> Option<Nanos> {
        self.qps.get(id)?.stream.as_ref()?.stream.deadline()
    }

    /// Takes note of the time. True if the connection has taken too long for what it waits for: that message, or its
    /// end.
    pub fn stream_is_late(&mut self, id: QpId, now: Nanos) -> bool {
        let late = self.with_stream(id, now, |_, _, state| {
            state.stream.timeout(now);
            state.closing
        });
        late.unwrap_or(true) || self.stream_is_over(id)
    }

    /// Takes the connection away from its queue pair, which goes to the error state, if it is not there. The result is
    /// what is still to be sent before the FIN: output that TCP has not taken, and a Terminate message, if there is a
    /// reason for one.
    pub fn detach_stream(&mut self, id: QpId, now: Nanos) -> Vec<u8> {
        let Some(mut qp) = self.checkout_qp(id) else { return Vec::new() };
        let mut tail = Vec::new();
        if let Some(mut state) = qp.stream.take()
            && !state.torn
        {
            super::outbound::add_urgent(&mut state);
            tail = state.output.into_bytes(&self.env).unwrap_or_default();
        }
        qp.parked = false;
        if !matches!(qp.state, QpState::Err | QpState::Reset | QpState::Init) {
            self.enter_error(&mut qp, now);
        }
        self.qps.put_back(id, qp);
        tail
    }

    /// `ibv_modify_qp(3)` of iWARP: no program leads a queue pair to RTS, the connection manager does (Linux:
    /// siw_verbs_modify_qp). A program may go to RTR, which changes nothing, drain the queue pair (SQD) and break it.
    pub(crate) fn modify_iwarp(&mut self, qp: &mut Qp, attr: &QpAttr, mask: M, now: Nanos) -> Result<()> {
        let to = if mask.contains(M::STATE) { attr.state } else { qp.state };
        let is_open = matches!(qp.state, QpState::Init | QpState::Rts);
        match to {
            QpState::Err => self.enter_error(qp, now),
            QpState::Reset => {
                self.reset(qp);
                qp.state = QpState::Init;
            }
            QpState::Sqd if qp.state == QpState::Rts => {
                if let Some(state) = &mut qp.stream {
                    state.closing = true;
                }
                self.streams.push_back(qp.id);
            }
            QpState::Rts if qp.state == QpState::Rts => {}
            QpState::Init | QpState::Rtr if is_open => {}
            _ => return Err(Errno::EINVAL),
        }
        if is_open {
            Self::assign(qp, attr, mask & M::ACCESS_FLAGS);
        }
        Ok(())
    }

    /// Calls a function on a connection, and then looks whether it has ended.
    pub(super) fn with_stream<T>(
        &mut self,
        id: QpId,
        now: Nanos,
        work: impl FnOnce(&mut Self, &mut Qp, &mut StreamState) -> T,
    ) -> Option<T> {
        let mut qp = self.checkout_qp(id)?;
        let result = qp.stream.take().map(|mut state| {
            let result = work(self, &mut qp, &mut state);
            self.look_at_end(&mut qp, &mut state, now);
            qp.stream = Some(state);
            result
        });
        self.schedule(&mut qp);
        self.qps.put_back(id, qp);
        result
    }

    /// Ends the queue pair of a connection that has ended, once.
    fn look_at_end(&mut self, qp: &mut Qp, state: &mut StreamState, now: Nanos) {
        let drained = || qp.inflight.is_empty() && qp.sq.unfetched() == 0 && state.output.is_empty();
        state.over |= state.closing && drained() && state.owed.is_empty() && state.current.is_none();
        if qp.state == QpState::Err && state.stream.end().is_none() && !state.over {
            // A request of this side, or a lost completion, has broken the queue pair.
            state.stream.fail();
        }
        if let Some(end) = state.stream.end()
            && qp.state != QpState::Err
        {
            self.tell_end(qp, *end);
            state.over = true;
        }
        state.over |= qp.state == QpState::Err;
        if state.over {
            if qp.state != QpState::Err {
                self.enter_error(qp, now);
            }
            self.streams.push_back(qp.id);
        }
    }

    /// Raises the event of an error that this side has found, as Linux's siw does: an access error, or a fatal one.
    /// The peer's Terminate message raises none.
    fn tell_end(&mut self, qp: &Qp, end: End) {
        let status = WcStatus::GeneralErr;
        match end {
            End::Fault(fault) => {
                if self.done.diagnose {
                    report::log(format_args!("QP {:#08x}: iWARP: {}", qp.qpn.get(), fault.reason()));
                }
                let access = matches!(fault, Fault::Tag(_) | Fault::Ddp(iwarp::ddp::Fault::Tag(_)));
                let kind = if access { EventKind::QpAccessErr } else { EventKind::QpFatal };
                self.done.async_event(qp.ctx, kind, EventSource::Qp(qp.id), qp.user);
            }
            End::Terminated(said) if self.done.diagnose => {
                report::log(format_args!("QP {:#08x}: iWARP: the peer has ended the connection: {said}", qp.qpn.get()));
            }
            End::Torn => self.done.broken(qp.qpn, None, status, "the TCP connection ended inside of a message"),
            End::Timeout => self.done.broken(qp.qpn, None, status, "no message said \"ready to receive\" in time"),
            End::Terminated(_) | End::Closed => {}
        }
    }
}
