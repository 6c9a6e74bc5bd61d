//! Unreliable datagrams and multicast (IBTA vol. 1, 9.8.3, 10.5; RoCEv2: annex A17).

use verbs::{Gid, QpId, QpState, QpType, Qpn, SendBody, WcFlags, WcOpcode, WcStatus, limits};
use wire::{Env, Nanos, Packet, PacketOp, Payload, SendError, packet_flags as flag};

use crate::Engine;
use crate::copies::Source;
use crate::qp::Qp;
use crate::rc::requester::NoRoom;
use crate::region::LocalFault;
use crate::ud::backlog::HOLD;
use crate::ud::header::{self, Network};
use crate::wq::inflight::Inflight;
use crate::wq::rq::RecvWqe;

/// Bytes in front of a datagram's data on a link: source and destination GID.
const GIDS: u32 = 32;

impl<P: Env> Engine<P> {
    /// Checks a datagram before it is sent.
    pub(crate) fn check_datagram(&mut self, qp: &Qp, e: &Inflight) -> Result<(), WcStatus> {
        let SendBody::Datagram { ah, .. } = e.body else { return Err(WcStatus::LocQpOpErr) };
        // 9.8.3.1: one packet, at most the port's MTU
        if e.len > limits::MAX_DATAGRAM {
            return Err(WcStatus::LocLenErr);
        }
        // The entry may have been patched since the post: the handle belongs to this domain, or is of no use.
        self.ahs.get(ah).filter(|ah| Some(ah.pd) == qp.init.pd).ok_or(WcStatus::LocQpOpErr)?;
        self.spans.clear();
        if e.flags.contains(verbs::SendFlags::INLINE) {
            return Ok(());
        }
        self.mem.local_spans(qp.init.pd, &e.sges, 0, e.len, false, &mut self.spans).map_err(|fault| match fault {
            LocalFault::Length => WcStatus::LocLenErr,
            LocalFault::Protection => WcStatus::LocProtErr,
        })
    }

    /// Sends the datagram at the cursor; the request is done when the datagram has left. A datagram without a
    /// destination is lost, as on a wire. A datagram that finds the link full waits a while. `checked`: nothing has
    /// happened since [`Engine::check_datagram`], and `self.spans` is its memory.
    // Apart: within the loop over requests, this function and the others' would keep all that they need on the stack.
    #[inline(never)]
    pub(crate) fn send_datagram(&mut self, qp: &mut Qp, at: usize, checked: bool, now: Nanos) -> Result<(), NoRoom> {
        let e = &qp.inflight[at];
        if !checked && let Err(status) = self.check_datagram(qp, e) {
            self.fail_entry(qp, at, status);
            return Ok(());
        }
        let SendBody::Datagram { ah, remote_qpn, remote_qkey } = e.body else { return Ok(()) };
        let Some(ah) = self.ahs.get(ah).map(|ah| ah.attr) else { return Ok(()) };
        let source = self.gids.get(usize::from(ah.sgid_index)).copied().unwrap_or_default();
        self.bytes.clear();
        self.bytes.extend_from_slice(&source.0);
        self.bytes.extend_from_slice(&ah.dgid.0);
        if e.flags.contains(verbs::SendFlags::INLINE) {
            self.bytes.resize((GIDS + e.len) as usize, 0);
            qp.sq.inline_bytes(e.number, 0, &mut self.bytes[GIDS as usize..]);
        }
        self.fill_null_spans();
        let to = self.destination(&ah);
        let multicast = to.is_some_and(|gid| gid.is_multicast());
        let dst = if multicast { Qpn::MULTICAST } else { remote_qpn };
        let mut packet = Packet::new(PacketOp::Datagram, dst, qp.qpn, e.first_psn);
        packet.flags = flag::FIRST | flag::LAST;
        // 10.2.5: with the high bit set, the queue pair's own key is used
        packet.rkey = if remote_qkey >> 31 != 0 { qp.attr.qkey } else { remote_qkey };
        packet.len = e.len;
        packet.imm = e.imm;
        (packet.swap, packet.compare) = header::pack(&ah, self.link_layer.lid());
        if e.opcode == verbs::Opcode::SendWithImm {
            packet.flags |= flag::IMM;
        }
        if e.flags.contains(verbs::SendFlags::SOLICITED) {
            packet.flags |= flag::SOLICITED;
        }
        let mut links = std::mem::take(&mut self.links);
        links.clear();
        // A datagram that had to wait goes to the links that it has not gone to.
        let waited = !qp.unreliable.full_links.is_empty();
        match to {
            _ if waited => links.append(&mut qp.unreliable.full_links),
            Some(group) if multicast => self.env.resolve_multicast(&group, &mut links),
            Some(gid) => links.extend(self.env.resolve(&gid, dst)),
            None => {}
        }
        let mut fault = false;
        for &link in &links {
            let payload = Payload { prefix: &self.bytes, spans: &self.spans };
            match self.env.send(link, &packet, payload) {
                Ok(()) if qp.unreliable.lossy_links.is_empty() => {}
                Ok(()) => qp.unreliable.lossy_links.retain(|lossy| *lossy != link),
                Err(SendError::Fault) => fault = true,
                Err(SendError::Full) if qp.unreliable.lossy_links.contains(&link) => qp.counts.counters.no_room += 1,
                Err(SendError::Full) => qp.unreliable.full_links.push(link),
                Err(SendError::Down) => {}
            }
        }
        self.links = links;
        if fault {
            qp.unreliable.full_links.clear();
            self.fail_entry(qp, at, WcStatus::LocProtErr);
            return Ok(());
        }
        if let Some(&link) = qp.unreliable.full_links.first() {
            if self.waits_for_room(qp, now) {
                qp.link = Some(link); // the link that the datagram waits for
                return Err(NoRoom);
            }
            self.give_links_up(qp);
        }
        qp.unreliable.give_up_at = None;
        let e = &mut qp.inflight[at];
        (e.out, e.done) = (true, true);
        Ok(())
    }

    /// Gives up links where a datagram has waited long enough for room. The datagram is lost there, and so are later
    /// ones until the link takes a packet again. Datagrams to other links do not wait for these any more.
    fn give_links_up(&mut self, qp: &mut Qp) {
        qp.unreliable.lossy = false; // the flag is for connections
        qp.counts.counters.no_room += qp.unreliable.full_links.len() as u64;
        let env = &self.env;
        qp.unreliable.lossy_links.retain(|link| env.lives(*link));
        qp.unreliable.lossy_links.append(&mut qp.unreliable.full_links);
    }

    /// True if an unreliable packet should wait for room on its link: not for ever, since the peer may be stopped.
    pub(crate) fn waits_for_room(&mut self, qp: &mut Qp, now: Nanos) -> bool {
        if qp.unreliable.lossy {
            return false;
        }
        match qp.unreliable.give_up_at {
            None => {
                qp.unreliable.give_up_at = Some(now + HOLD);
                self.arm_timer(qp, now + HOLD);
            }
            Some(until) if until <= now => {
                (qp.unreliable.lossy, qp.unreliable.give_up_at) = (true, None);
                return false;
            }
            Some(until) => self.rearm_timer(qp, until),
        }
        true
    }

    /// Takes a datagram that has come.
    pub(crate) fn datagram(&mut self, packet: &Packet, rx: Source<P::Rx>, now: Nanos) {
        let len = self.payload_len(rx);
        if len < GIDS || len - GIDS != packet.len || packet.len > limits::MAX_DATAGRAM {
            return;
        }
        let mut gids = [0u8; GIDS as usize];
        self.payload_fetch(rx, 0, &mut gids);
        let mut dest = Gid::ZERO;
        dest.0.copy_from_slice(&gids[16..]);
        if packet.dst == Qpn::MULTICAST {
            let members: Vec<QpId> = self.groups.get(&dest).cloned().unwrap_or_default();
            for id in members {
                self.deliver(id, packet, rx, now);
            }
        } else if let Some(id) = self.qpns.find(packet.dst) {
            self.deliver(id, packet, rx, now);
        }
    }

    fn deliver(&mut self, id: QpId, packet: &Packet, rx: Source<P::Rx>, now: Nanos) {
        let Some(mut qp) = self.checkout_qp(id) else { return };
        self.datagram_to(&mut qp, packet, rx, now);
        self.qps.put_back(id, qp);
    }

    /// Delivers a datagram to one queue pair.
    pub(crate) fn datagram_to(&mut self, qp: &mut Qp, packet: &Packet, rx: Source<P::Rx>, now: Nanos) {
        let receives = matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        if qp.init.qp_type != QpType::Ud || !receives {
            return;
        }
        // 9.6.1.4: a wrong Q_Key drops the datagram silently
        if packet.rkey != qp.attr.qkey {
            qp.counts.counters.wrong_qkey += 1;
            return;
        }
        if matches!(rx, Source::Wire(_)) && !qp.unreliable.backlog.is_empty() {
            self.hold(qp, packet, rx, now); // behind the packets that already wait
            return;
        }
        // 9.9.3, class D: a datagram that is longer than the receive is dropped silently, and takes none. Otherwise any
        // sender could stop a queue pair.
        let next = match qp.init.srq {
            None => qp.rq.wqes.front(),
            Some(id) => self.srqs.get(id).and_then(|srq| srq.queue.wqes.front()),
        };
        let room = |wqe: &RecvWqe| wqe.sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
        if next.is_some_and(|wqe| room(wqe) < u64::from(limits::GRH_BYTES + packet.len)) {
            qp.counts.counters.too_long += 1;
            return;
        }
        let (wqe, srq) = match qp.init.srq {
            None => match qp.rq.wqes.pop_front() {
                Some(wqe) => (wqe, None),
                None => {
                    self.hold(qp, packet, rx, now); // 9.8.3.2: dropped, if the datagram cannot wait
                    return;
                }
            },
            Some(id) => {
                let Some((wqe, limit)) = self.srqs.get_mut(id).and_then(|s| s.take()) else {
                    self.hold(qp, packet, rx, now);
                    return;
                };
                if limit && let Some(srq) = self.srqs.get(id) {
                    let (ctx, user) = (srq.ctx, srq.user);
                    let source = verbs::EventSource::Srq(id);
                    self.done.async_event(ctx, verbs::EventKind::SrqLimitReached, source, user);
                }
                (wqe, Some(id))
            }
        };
        let pd = match srq {
            Some(id) => self.srqs.get(id).map(|s| s.pd),
            None => qp.init.pd,
        };
        qp.unreliable.fed_at = Some(now);
        let total = limits::GRH_BYTES + packet.len;
        let network = match self.place_datagram(pd, &wqe.sges, packet, rx) {
            Ok(network) => network,
            Err(status) => {
                self.push_recv_error(qp, wqe.wr_id, srq, status, now);
                self.enter_error(qp, now);
                return;
            }
        };
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::GRH, network.header.is_some());
        flags.set(WcFlags::WITH_IMM, packet.has(flag::IMM));
        let wc = verbs::Completion {
            wr_id: wqe.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: total,
            imm_or_rkey: packet.imm,
            qp_num: qp.qpn,
            src_qp: packet.src,
            flags,
            slid: network.slid,
            sl: network.sl,
            ..Default::default()
        };
        self.push_recv(qp, srq, wc, packet.has(flag::SOLICITED), now);
    }

    fn place_datagram(
        &mut self,
        pd: Option<verbs::PdId>,
        sges: &[verbs::Sge],
        packet: &Packet,
        rx: Source<P::Rx>,
    ) -> Result<Network, WcStatus> {
        let status = |fault| match fault {
            LocalFault::Length => WcStatus::LocLenErr,
            LocalFault::Protection => WcStatus::LocProtErr,
        };
        let (mut source, mut dest) = (Gid::ZERO, Gid::ZERO);
        self.payload_fetch(rx, 0, &mut source.0);
        self.payload_fetch(rx, 16, &mut dest.0);
        let network = header::network(self.link_layer, packet, &source, &dest);
        self.spans.clear();
        self.mem.local_spans(pd, sges, 0, limits::GRH_BYTES, true, &mut self.spans).map_err(status)?;
        // The data are checked before anything is written.
        let mut data = Vec::new();
        std::mem::swap(&mut data, &mut self.remote_spans);
        data.clear();
        let checked = self.mem.local_spans(pd, sges, limits::GRH_BYTES, packet.len, true, &mut data);
        self.remote_spans = data;
        checked.map_err(status)?;
        // 11.4.2.1: without a GRH the room for the GRH stays as it is.
        if let Some(grh) = &network.header {
            self.store_spans(grh).map_err(|_| WcStatus::LocProtErr)?;
        }
        std::mem::swap(&mut self.spans, &mut self.remote_spans);
        self.scatter(rx, GIDS).map_err(|_| WcStatus::LocProtErr)?;
        Ok(network)
    }
}
