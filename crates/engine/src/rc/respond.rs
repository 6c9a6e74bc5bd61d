//! Responses that the responder owes: acknowledgements, NAKs, READ data, results of atomics (IBTA vol. 1, 9.7.5).

use verbs::{EventKind, EventSource, QpState, Qpn, WcStatus};
use wire::{Env, Nanos, PIECE, Packet, PacketOp, Payload, SendError, packet_flags as flag};

use crate::Engine;
use crate::qp::Qp;
use crate::rc::refused::{ACK, NAK, NAK_REMOTE_ACCESS, NAK_REMOTE_OPERATIONAL, Refused, refused_copy};
use crate::rc::requester::NoRoom;
use crate::rc::state::{Into, Response};
use crate::run::BURST;

impl<P: Env> Engine<P> {
    /// Puts `self.spans` (one piece of a READ, from byte `offset` on) into the initiator's memory.
    fn put(&mut self, into: &Into, offset: u32) -> Result<(), Refused> {
        let len: u32 = self.spans.iter().map(|s| s.len).sum();
        self.remote_spans.clear();
        crate::copies::cut(&into.spans, offset, len, &mut self.remote_spans);
        self.moved += u64::from(len);
        self.env.push(into.link, into.ticket, &self.spans, &self.remote_spans).map_err(refused_copy)
    }

    /// Sends the owed responses, as far as there is room.
    pub(crate) fn run_responses(&mut self, qp: &mut Qp, now: Nanos) -> Result<(), NoRoom> {
        if qp.rc.responses.is_empty() {
            return Ok(());
        }
        self.find_link(qp);
        let Some(link) = qp.link else {
            // A queue pair in error will get no repeated request. Otherwise the requester may be waiting without a
            // timer.
            if qp.state == QpState::Err {
                qp.rc.responses.clear();
            } else {
                self.seek(qp, now);
            }
            return Ok(());
        };
        let dst = Qpn::new(qp.attr.dest_qp_num);
        while let Some(response) = qp.rc.responses.front().cloned() {
            if self.moved > BURST || self.turn_is_over() {
                return Ok(()); // others have their turn; the rest follows
            }
            let mut packet;
            // 9.9.3: the error that ends the queue pair, beside the NAK
            let (mut fatal, mut quiet) = (None, false);
            self.spans.clear();
            match response {
                Response::Ack { psn, msn, quiet: is_quiet } => {
                    (packet, quiet) = (qp.acknowledgement(psn, ACK, msn), is_quiet);
                }
                Response::Nak { psn, syndrome, msn } => packet = qp.acknowledgement(psn, syndrome, msn),
                Response::Atomic { psn, value, msn, again: _ } => {
                    packet = Packet::new(PacketOp::AtomicAck, dst, qp.qpn, psn);
                    (packet.syndrome, packet.imm) = (ACK, msn);
                    (packet.swap, packet.len) = value.map_or((0, 0), |value| (value, 8));
                }
                Response::Read { psn, addr, rkey, len, sent, msn, first_offset, again: _, into } => {
                    packet = Packet::new(PacketOp::ReadResponse, dst, qp.qpn, psn.plus(sent / qp.mtu));
                    let piece = if into.is_some() { PIECE } else { self.env.caps(link).segment };
                    packet.len = (len - sent).min(piece);
                    packet.mtu = qp.cut(len);
                    (packet.syndrome, packet.imm) = (ACK, msn);
                    packet.remote_addr = u64::from(first_offset) + u64::from(sent);
                    if sent == 0 {
                        packet.flags |= flag::FIRST;
                    }
                    if sent + packet.len == len {
                        packet.flags |= flag::LAST;
                    }
                    // The region may have gone or changed since the request: it is checked for every packet.
                    match self.check_read(qp, rkey, addr, len) {
                        Ok(Some(mut span)) => {
                            span.addr = span.addr.wrapping_add(u64::from(sent));
                            span.len = packet.len;
                            self.spans.push(span);
                        }
                        Ok(None) => {}
                        Err(refused) => {
                            if let Refused::Access(fault) = refused {
                                self.done.broken(qp.qpn, None, WcStatus::LocAccessErr, fault.rule());
                            }
                            packet = qp.acknowledgement(psn.plus(sent / qp.mtu), NAK | NAK_REMOTE_ACCESS, msn);
                            fatal = Some(EventKind::QpAccessErr);
                        }
                    }
                    if let Some(into) = &into
                        && packet.op == PacketOp::ReadResponse
                    {
                        let code = match self.put(into, sent) {
                            Ok(()) => None,
                            Err(Refused::Source(code)) => Some(code),
                            Err(_) => {
                                fatal = Some(EventKind::QpFatal);
                                Some(NAK_REMOTE_OPERATIONAL)
                            }
                        };
                        self.spans.clear();
                        packet.flags |= flag::BY_REF;
                        if let Some(code) = code {
                            packet = qp.acknowledgement(psn.plus(sent / qp.mtu), NAK | code, msn);
                        }
                    }
                }
            }
            let payload = Payload { prefix: &[], spans: &self.spans };
            let sent = match quiet {
                true => self.env.send_quietly(link, &packet, payload),
                false => self.env.send(link, &packet, payload),
            };
            match sent {
                Ok(()) if packet.op == PacketOp::ReadResponse => {
                    qp.counts.counters.sent_bytes += u64::from(packet.len);
                    self.served += u64::from(!packet.has(flag::LAST));
                    qp.rc.answered = (self.env.sent_mark(link), packet.psn.plus(qp.psns(packet.len)));
                }
                Ok(()) => {}
                Err(SendError::Full) => return Err(NoRoom),
                Err(SendError::Fault) => {
                    let mut nak = Packet::new(PacketOp::Ack, dst, qp.qpn, packet.psn);
                    nak.syndrome = NAK | NAK_REMOTE_OPERATIONAL;
                    if let Err(SendError::Full) = self.env.send(link, &nak, Payload::default()) {
                        return Err(NoRoom);
                    }
                    fatal = Some(EventKind::QpFatal);
                }
                Err(SendError::Down) => {
                    qp.rc.responses.clear();
                    return Ok(());
                }
            }
            if let Some(event) = fatal {
                qp.rc.responses.clear();
                if qp.state != QpState::Err {
                    self.done.async_event(qp.ctx, event, EventSource::Qp(qp.id), qp.user);
                    self.enter_error(qp, now);
                }
                return Ok(());
            }
            self.turn += self.spans.iter().map(|s| u64::from(s.len)).sum::<u64>();
            let more = match qp.rc.responses.front_mut() {
                Some(Response::Read { sent, len, .. }) if packet.op == PacketOp::ReadResponse => {
                    *sent += packet.len;
                    *sent < *len
                }
                _ => false,
            };
            if !more {
                qp.rc.responses.pop_front();
            }
        }
        Ok(())
    }
}
