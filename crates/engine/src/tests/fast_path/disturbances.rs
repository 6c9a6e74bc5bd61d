//! Disturbances of a program: the network, forged packets, other calls, and failures.

use super::*;

/// The flags of requests that no packet carries: mostly none.
const FLAGS: [SendFlags; 5] =
    [SendFlags::SIGNALED, SendFlags::FENCE, SendFlags::empty(), SendFlags::empty(), SendFlags::empty()];

impl Program {
    /// Has the network lose or exchange packets, or find room again; or the packets wish for no acknowledgement.
    pub(super) fn disturb(&mut self) {
        let (from, to) = (self.r.below(2) as usize, self.r.below(2) as usize);
        let (what, at) = (self.r.below(5), self.r.below(4) as usize);
        self.t.both(|w| match what {
            0 | 1 => _ = w.drop_packets(from, to, at, 1),
            2 => {
                if let Some(queue) = w.net.borrow_mut().queues.get_mut(&(from, to)).filter(|q| q.len() > at + 1) {
                    queue.swap(at, at + 1);
                }
            }
            3 => {
                for msg in w.net.borrow_mut().queues.get_mut(&(from, to)).into_iter().flatten() {
                    msg.packet.flags &= !packet_flags::ACK_REQ;
                }
            }
            _ => w.net.borrow_mut().writable.iter_mut().for_each(|writable| writable.extend((0..3).map(LinkId))),
        });
    }

    /// Forges a packet: nearly the expected one.
    pub(super) fn forge(&mut self) {
        let (end, peer) = self.end();
        self.forge_for(end, peer);
    }

    /// Disturbs a queue pair in the middle of a message, or of a wait.
    pub(super) fn interrupt(&mut self) {
        let ends = self.pairs.iter().flat_map(|pair| [(pair[0], pair[1]), (pair[1], pair[0])]);
        let found = ends.into_iter().find(|(end, _)| {
            let qp = self.t.fast.nodes[end.node].engine.qps.get(end.qp);
            qp.is_some_and(|qp| qp.recv.is_some() || qp.rc.write.is_some() || qp.rc.rnr_until.is_some())
        });
        if let Some((end, peer)) = found
            && !self.gentle
            && self.r.coin()
        {
            self.forge_for(end, peer);
        }
    }

    pub(super) fn forge_for(&mut self, end: End, peer: End) {
        use packet_flags::{ACK_REQ, FIRST, LAST};
        let Some(qp) = self.t.fast.nodes[end.node].engine.qps.get(end.qp) else { return };
        let r = &mut self.r;
        let op = match r.below(6) {
            0..3 if qp.rc.rnr_until.is_some() => PacketOp::Ack,
            0..3 => PacketOp::from_raw(r.below(11) as u8).unwrap(),
            _ => PacketOp::Send,
        };
        let near = if op.is_response() { qp.rc.unacked } else { qp.rc.epsn };
        let psn = near.plus(r.pick(&[0, 0, 0, 0xff_ffff, 1]));
        let src = if r.below(8) == 0 { Qpn::new(r.next() as u32) } else { peer.qpn };
        let mut packet = Packet::new(op, end.qpn, src, psn);
        packet.flags = FIRST | LAST | r.pick(&[0, ACK_REQ]);
        if r.coin() {
            packet.flags ^= 1 << r.below(8);
        }
        let payload: Vec<u8> = (0..r.pick(&LENGTHS)).map(|_| r.next() as u8).collect();
        packet.len = if r.below(4) == 0 { r.any() as u32 } else { payload.len() as u32 };
        (packet.syndrome, packet.imm) = (r.pick(&[31, 31, 31, 0, 0x2c, 0x60, 0x61]), r.any() as u32);
        (packet.rkey, packet.remote_addr, packet.dma_len) = (r.any() as u32, r.any(), r.any() as u32);
        (packet.swap, packet.compare) = (r.any(), r.any());
        let from = if r.below(8) == 0 { 1 - peer.node } else { peer.node };
        let polled = self.polled(end.node);
        self.t.both(|w| {
            w.polled[end.node] = polled;
            w.inject(from, end.node, packet, payload.clone());
            w.polled[end.node] = None;
        });
    }

    /// Binds a window, and takes its key back, or has the peer do that by a SEND; or another key.
    pub(super) fn take_back(&mut self, wr_id: u64) {
        let (end, peer) = self.end();
        let length = self.r.pick(&[64, 0x1_0000]); // peers are shown a long one
        let (mw, RKey(old)) = self.t.both(|w| {
            let n = &mut w.nodes[end.node];
            n.engine.alloc_mw(n.pd, crate::MwKind::Type2).unwrap()
        });
        let key = old ^ 1;
        let flags = self.r.pick(&FLAGS);
        let n = &self.t.fast.nodes[end.node];
        let (mr, access) = (n.engine.mem.find_mr(n.key), verbs::Access::REMOTE_READ);
        let body = SendBody::BindMw { mw, rkey: RKey(key), mr, addr: BASE, length, access };
        let bind = Request { opcode: Opcode::BindMw, flags, imm: 0, body, sges: vec![], inline: None };
        self.ask_for(end, &[bind], wr_id);
        self.receive(end, wr_id..wr_id + 2);
        self.arrive((peer.node, end.node), None, 8);
        if self.r.coin() {
            let imm = self.r.pick(&[key, key, key, key, key, old]);
            let (opcode, body, flags) = (Opcode::LocalInv, SendBody::Plain, self.r.pick(&FLAGS));
            self.ask_for(end, &[Request { opcode, flags, imm, body, sges: vec![], inline: None }], wr_id + 1);
        }
        for n in 1..=self.r.pick(&[1, 1, 2]) {
            let mut send = self.small_request(peer, end);
            let imm = self.r.pick(&[key, key, key, key, old, self.extras[end.node].mrs[0].1]);
            (send.opcode, send.body, send.imm) = (Opcode::SendWithInv, SendBody::Plain, imm);
            self.ask_for(peer, &[send], wr_id + n);
        }
        let polled = self.polled(end.node);
        self.arrive((peer.node, end.node), polled, 4);
    }

    /// Asks for events.
    pub(super) fn ask(&mut self) {
        let node = self.r.below(2) as usize;
        let (cq, srq) = (self.r.pick(&self.extras[node].cqs), self.extras[node].srq);
        let (solicited, count) = (self.r.coin(), self.r.below(4) as u16);
        let what = self.r.below(8);
        _ = self.t.both(|w| {
            let engine = &mut w.nodes[node].engine;
            match what {
                0 => engine.moderate_cq(cq, count, 100),
                1 => engine.modify_srq(srq, None, Some(u32::from(count))),
                _ => engine.arm_cq(cq, solicited),
            }
        });
    }

    /// Goes to SQD, or there and back with another timeout.
    pub(super) fn modify(&mut self) {
        let (end, _) = self.end();
        let attr = |state, timeout| QpAttr { state, timeout, en_sqd_async_notify: true, ..self.attrs };
        let (sqd, rts) = (attr(QpState::Sqd, 0), attr(QpState::Rts, 0));
        let other = attr(QpState::Sqd, self.r.pick(&[0, 8, 14]));
        let told = self.r.pick(&[M::empty(), M::EN_SQD_ASYNC_NOTIFY]);
        let mask = self.r.pick(&[M::TIMEOUT, M::TIMEOUT, M::AV]);
        match self.r.below(4) {
            0 => _ = self.t.both(|w| w.modify(end.node, end.qp, &sqd, told)),
            1 => _ = self.t.both(|w| w.modify(end.node, end.qp, &rts, M::empty())),
            _ => {
                for (attr, mask) in [(&sqd, told), (&other, mask), (&rts, M::empty())] {
                    _ = self.t.both(|w| w.modify(end.node, end.qp, attr, mask));
                }
            }
        }
    }

    pub(super) fn break_something(&mut self) {
        let (end, _) = self.end();
        let (mr, _, start) = self.extras[end.node].mrs[0];
        let broken = QpAttr { state: QpState::Err, ..self.attrs };
        let peer = LinkId(2 - end.node as u32);
        match self.r.below(6) {
            0 => _ = self.t.both(|w| w.nodes[end.node].engine.dereg_mr(mr, true)),
            1 => {
                let place = Some((start + 0x800, 0x8000, start + 0x800));
                _ = self.t.both(|w| w.nodes[end.node].engine.rereg_mr(mr, place, None, None));
            }
            2 => _ = self.t.both(|w| w.modify(end.node, end.qp, &broken, M::empty())),
            3 => self.t.both(|w| {
                let now = w.now;
                w.nodes[end.node].engine.fail_qp(end.qpn, now);
            }),
            4 => self.t.both(|w| {
                w.nodes[end.node].engine.link_down(peer, None);
                w.net.borrow_mut().writable[end.node].push(peer);
            }),
            _ => {
                let _ = self.t.both(|w| w.nodes[end.node].engine.destroy_qp(end.qp));
                let other = self.pairs.iter().position(|pair| pair.iter().any(|e| e.qpn == end.qpn));
                let pair = self.pairs.remove(other.unwrap());
                for e in pair.iter().filter(|e| e.qpn != end.qpn) {
                    // The queue pair is destroyed a while later.
                    self.t.both(|w| w.deliver(end.node, e.node, 9));
                    let _ = self.t.both(|w| w.nodes[e.node].engine.destroy_qp(e.qp));
                }
                self.make_pair();
            }
        }
    }

    /// Connects queue pairs in error again, and takes those that wait in RTR on, some time later.
    pub(super) fn mend(&mut self) {
        let state = |end: &End| self.t.fast.nodes[end.node].engine.qp_state(end.qp);
        let is_broken = |end: &End| matches!(state(end), Ok(QpState::Err | QpState::Sqe));
        let broken = self.pairs.iter().position(|pair| pair.iter().any(is_broken));
        let waiting = self.pairs.iter().copied().find(|pair| state(&pair[1]) == Ok(QpState::Rtr));
        match self.r.below(6) {
            0 => {
                if let Some(pair) = broken {
                    self.connect(pair);
                }
            }
            1 => {
                if let Some([peer, end]) = waiting {
                    let expected = self.t.fast.nodes[peer.node].engine.qps.get(peer.qp).map(|qp| qp.attr.rq_psn);
                    let attr = QpAttr { state: QpState::Rts, sq_psn: expected.unwrap_or(0), ..self.attrs };
                    self.t.both(|w| {
                        let ty = w.nodes[end.node].engine.query_qp(end.qp).unwrap().1.qp_type;
                        let (required, _) = verbs::state::transition(ty, QpState::Rtr, QpState::Rts).unwrap();
                        w.modify(end.node, end.qp, &attr, required).unwrap();
                    });
                }
            }
            _ => {}
        }
    }
}
