//! RDMA requests that the initiator executes, without the peer's processor: from process to process, on the regions and
//! queue pairs that the peer shows.
//!
//! Only the plain case goes this way: an RDMA WRITE, READ or atomic operation of a connection, with nothing outstanding
//! in front of it. So order, sequence numbers and path are as if the request had been sent: earlier requests have been
//! executed, and later ones are sent after the copy. Everything else, and every request that the peer's side does not
//! plainly allow, is sent as a packet. So errors have one place, the responder.
//!
//! A reliable connection must have been answered before: then the peer has the right sequence number and path. The
//! responder of an unreliable connection takes any message that begins (IBTA vol. 1, 9.8.2.2.1) and answers nothing. So
//! the peer must have taken all packets that were sent before. It shows its queue pair only while it would take a
//! packet at once (`publish_qp`).
//!
//! Under one hold of the adapter's lock no more than [`PIECE`] bytes are copied, so that no thread waits longer for the
//! lock. The rest of a long request, and the requests behind it, go on under the next hold ([`Engine::next_hold`]). The
//! exports of the peer are checked for each piece anew, and so is our memory. If a piece is not allowed, the rest of
//! the request, with that piece, is sent as a message of its own: executed pieces are not executed again.

use verbs::{Access, CtxId, MrId, MwId, Opcode, QpId, QpState, QpType, RKey, SendBody, SendFlags, WcStatus};
use wire::{
    AtomicOp, Env, Export, ExportId, LinkId, OneSided, OneSidedDone, OneSidedOp, PIECE, Payload, Span, check_one_sided,
};

use crate::Engine;
use crate::qp::Qp;
use crate::region::{Backing, MrInfo, NULL_ADDR, Regions};
use crate::wq::inflight::Inflight;

/// From so many bytes on, one copy by a system call takes less time than packets, also behind short SENDs whose answers
/// it waits for (docs/exs-figures.md). The window of a transfer lives too short for the wire to find out which way is
/// faster ([`wire::SameHost::answered`]).
const WORTH_A_CALL: u32 = 64 << 10;

/// A piece of a request that is executed here.
pub(crate) struct Piece {
    pub op: OneSidedOp,
    /// Its place at the peer.
    pub addr: u64,
    pub rkey: RKey,
    /// Bytes of the request before it, its bytes, and those behind it.
    pub before: u32,
    pub len: u32,
    pub after: u32,
    /// [`Inflight::queued`].
    pub queued: bool,
}

impl<P: Env> Engine<P> {
    /// Begins a hold of the adapter's lock, or a new one after other threads could have the lock.
    #[inline]
    pub fn next_hold(&mut self) {
        (self.executed, self.tasks, self.is_in_pieces) = (0, 0, false);
    }

    /// True if requests that are executed here wait for the next hold of the lock: the caller that lets go of it shall
    /// take it again, call [`Engine::next_hold`], and then [`Engine::run`]. Only after [`Engine::run`]; and
    /// [`Engine::has_ready`] is true as well.
    #[inline]
    pub fn is_in_pieces(&self) -> bool {
        self.is_in_pieces
    }

    /// True if the last request may be executed here, as far as our side goes. The request has been admitted before.
    pub(crate) fn may_go_one_sided(&mut self, qp: &Qp, at: usize) -> bool {
        let e = &qp.inflight[at];
        let Some((op, ..)) = operation(e.opcode, &e.body).filter(|_| e.len > 0) else { return false };
        let Some(link) = qp.link else { return false };
        let here = link == LinkId::LOOPBACK && qp.cross_channel;
        if matches!(op, OneSidedOp::Atomic(_)) && !here && !self.env.maps_peer(link) {
            return false;
        }
        let in_order = match qp.init.qp_type {
            QpType::Rc | QpType::XrcIni => qp.same_host.proven,
            QpType::Uc => !qp.unreliable.astray && self.env.may_follow(link, qp.rc.sent_mark, e.queued),
            _ => false,
        };
        in_order && qp.inflight.iter().take(at).all(|e| e.done && e.error.is_none())
    }

    /// Executes the request at the cursor here, as much of it as this hold of the lock has room for. False if the
    /// request goes on under the next hold. Otherwise it is done, has failed, or has become a request that is sent.
    /// `gathered`: nothing has happened since the request was admitted, and `self.spans` is all of its memory.
    pub(crate) fn one_sided_next(&mut self, qp: &mut Qp, gathered: bool) -> bool {
        let (at, piece) = (qp.cursor, self.piece);
        let e = &qp.inflight[at];
        let len = (e.len - e.executed).min(piece);
        if self.executed > 0 && self.executed + len > piece {
            (self.goes_on, self.is_in_pieces) = (true, true);
            return false;
        }
        let reads = !matches!(e.opcode, Opcode::RdmaWrite);
        let whole = gathered && len == e.len;
        let inline = e.flags.contains(SendFlags::INLINE);
        if inline {
            self.spans.clear();
        }
        debug_assert!(inline || !whole || self.is_gathered(qp, at, reads));
        // The program may have taken its memory back since the last piece.
        if !inline && !whole && !self.gather(qp, at, qp.inflight[at].executed, len, reads) {
            self.fail_entry(qp, at, WcStatus::LocProtErr);
            return true;
        }
        let Some(executed) = self.one_sided(qp, len) else {
            let e = &mut qp.inflight[at];
            (e.one_sided, e.refused) = (false, true);
            *qp.same_host.reached_by(e.opcode == Opcode::RdmaRead) = false;
            *(if e.is_read_like() { &mut e.received } else { &mut e.sent }) = e.executed;
            Self::number(qp, at);
            return true;
        };
        let e = &mut qp.inflight[at];
        if matches!(e.opcode, Opcode::CmpAndSwp | Opcode::FetchAndAdd) {
            let _ = self.store_spans(&executed.before.to_ne_bytes());
        }
        qp.same_host.peer_epoch = Some(executed.epoch);
        qp.unreliable.lossy = false; // the peer has taken all packets that were sent
        self.moved += u64::from(len);
        self.executed += len;
        e.executed += len;
        if e.executed < e.len {
            (self.goes_on, self.is_in_pieces) = (true, true);
            return false;
        }
        (e.out, e.done) = (true, true);
        match e.opcode {
            Opcode::RdmaWrite => qp.same_host.reached = true,
            Opcode::RdmaRead => qp.same_host.reached_by_read = true,
            _ => {}
        }
        true
    }

    /// Executes so many bytes more of the request at the cursor; `self.spans` is their local memory.
    fn one_sided(&mut self, qp: &Qp, len: u32) -> Option<OneSidedDone> {
        let e = &qp.inflight[qp.cursor];
        let (op, addr, rkey) = operation(e.opcode, &e.body)?;
        let link = qp.link?;
        let atomic = matches!(op, OneSidedOp::Atomic(_));
        let addr = addr.wrapping_add(u64::from(e.executed));
        let (before, after) = (e.executed, e.len - e.executed - len);
        let piece = Piece { op, addr, rkey, before, len, after, queued: e.queued };
        self.bytes.clear();
        if e.flags.contains(SendFlags::INLINE) {
            self.bytes.resize(len as usize, 0);
            qp.sq.inline_bytes(e.number, e.executed, &mut self.bytes);
        } else if self.spans.iter().any(|s| s.addr == NULL_ADDR || atomic && s.guarded) {
            return None; // an atomic's result must find its place: it cannot be had a second time
        }
        self.execute_piece(qp, link, &piece)
    }

    /// Executes a piece of a request; its local memory is `self.bytes` and then `self.spans`.
    #[inline]
    pub(crate) fn execute_piece(&mut self, qp: &Qp, link: LinkId, piece: &Piece) -> Option<OneSidedDone> {
        if link == LinkId::LOOPBACK && qp.cross_channel {
            return self.execute_here(qp, piece);
        }
        self.env.one_sided(link, &Self::request_of(qp, piece, Payload { prefix: &self.bytes, spans: &self.spans }))
    }

    #[inline(always)]
    fn request_of<'a>(qp: &Qp, piece: &Piece, local: Payload<'a>) -> OneSided<'a> {
        let &Piece { op, addr, rkey, before, len, after, queued } = piece;
        OneSided {
            service: qp.init.qp_type,
            src: qp.qpn,
            dst: verbs::Qpn::new(qp.attr.dest_qp_num),
            epoch: qp.same_host.peer_epoch.filter(|_| qp.init.qp_type.is_reliable()),
            op,
            rkey,
            addr,
            len,
            before,
            after,
            mtu: qp.mtu,
            queues: queued,
            local,
        }
    }

    /// A piece of a request of a cross-channel queue pair to this process: the replicas of a chain in one process. What
    /// peers would be shown is looked up in the tables themselves.
    // Inlined, so that what is shown and what is asked for stay in registers.
    #[inline(always)]
    pub(crate) fn execute_here(&mut self, qp: &Qp, piece: &Piece) -> Option<OneSidedDone> {
        if !self.bytes.is_empty() {
            return None;
        }
        let request = Self::request_of(qp, piece, Payload::default());
        let target = self.qpns.find(request.dst)?;
        let target = if target == qp.id { qp } else { self.qps.get(target)? };
        let shown = Self::shown(target, target.same_host.exported?);
        let (region, guarded) = self.mem.shown(piece.rkey)?;
        let (addr, epoch) = check_one_sided(shown, region, &request)?;
        let theirs = Span { addr, len: piece.len, guarded };
        self.env.one_sided_here(piece.op, &self.spans, theirs).map(|before| OneSidedDone { epoch, before })
    }

    /// True if a request should wait until it can be executed here: the peer's region is in shared memory, and the
    /// requests in front are RDMA, so that their acknowledgement will come soon. A request of [`WORTH_A_CALL`] bytes
    /// waits for short SENDs: its packets, which are two copies, would have to wait for them at the peer. `at`: the
    /// request is the last of those under way, and has not begun.
    pub(crate) fn waits_for_one_sided(&mut self, qp: &Qp, at: usize) -> bool {
        let e = &qp.inflight[at];
        let Some((_, addr, rkey)) = operation(e.opcode, &e.body) else { return false };
        let len = e.len;
        let outstanding = || qp.inflight.iter().take(at).filter(|e| !e.done);
        let rdma = |e: &Inflight| matches!(e.body, SendBody::Rdma { .. } | SendBody::Atomic { .. });
        let send = |e: &Inflight| matches!(e.opcode, Opcode::Send | Opcode::SendWithInv) && e.len < WORTH_A_CALL;
        let Some(link) = qp.link else { return false };
        if outstanding().next().is_none()
            || !matches!(qp.init.qp_type, QpType::Rc | QpType::XrcIni)
            || !(1..=PIECE).contains(&len)
        {
            return false;
        }
        if len >= WORTH_A_CALL && outstanding().all(|e| e.error.is_none() && send(e)) {
            return self.env.caps(link).single_copy.is_some();
        }
        self.env.shares(link, rkey, addr, len) && outstanding().all(|e| e.error.is_none() && rdma(e))
    }

    /// Shows a queue pair that would execute a request at once to its peer, or shows changes of it.
    pub(crate) fn publish_qp(&mut self, qp: &mut Qp) {
        let connected = matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        let takes = match qp.init.qp_type {
            QpType::Rc | QpType::XrcTgt => connected,
            // The requests come from a process that can be found; and the first message in RTR is an event (11.6.3.1).
            QpType::Uc => {
                let begun = qp.state != QpState::Rtr || qp.rc.comm_est;
                (connected || qp.state == QpState::Sqe) && begun && qp.link.is_some()
            }
            QpType::Ud | QpType::XrcIni => false,
        };
        if !takes {
            return;
        }
        let epoch = *qp.same_host.exported.get_or_insert_with(|| self.env.random());
        self.env.publish(&Self::shown(qp, epoch));
    }

    /// What peers see of a queue pair.
    #[inline(always)]
    fn shown(qp: &Qp, epoch: u64) -> Export {
        let mut access = qp.attr.access & (Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        if !qp.unreliable.backlog.is_empty() {
            // No request passes a message that waits for a receive. A copy that a peer has begun belongs before that
            // message.
            access = Access::empty();
        }
        if qp.attr.max_dest_rd_atomic == 0 {
            // Such a request is refused, and the responder does that.
            access -= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        }
        let peer = verbs::Qpn::new(qp.attr.dest_qp_num);
        let (qpn, service, ctx, pd) = (qp.qpn, qp.init.qp_type, qp.ctx, qp.init.pd);
        Export::Qp { qpn, service, peer, ctx, pd, access, mtu: qp.mtu, epoch }
    }

    /// Ends the peers' own accesses through a queue pair.
    pub(crate) fn hide_qp(&mut self, qp: &mut Qp) {
        if qp.same_host.exported.take().is_some() {
            self.env.retract(ExportId::Qp(qp.qpn));
        }
    }

    /// Shows a region to peers if they have rights on it.
    pub(crate) fn publish_mr(&mut self, id: MrId) {
        let Some(mr) = self.mem.mrs.get(id) else { return };
        let info = &mr.info;
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        if mr.backing == Backing::Null || !info.access.intersects(remote) {
            return;
        }
        self.env.publish(&region(mr.ctx, info));
    }

    /// Shows a window to peers that was bound by this queue pair, if they have rights on it.
    pub(crate) fn publish_mw(&mut self, qp: &Qp, id: MwId) {
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let Some(export) = self.mem.export_mw(id, qp.qpn) else { return };
        let Export::Region { access, addr, length, .. } = export else { return };
        // Bounded by PIECE.
        let start = Span { addr, len: length.min(u64::from(PIECE)) as u32, guarded: false };
        let worth = length >= u64::from(WORTH_A_CALL) || self.env.peers_map(&start);
        if worth && access.intersects(remote) {
            self.env.publish(&export);
            self.mem.mw_is_shown(id);
        }
    }

    /// Ends every access by the key of a window of type 2, for LOCAL_INV and for a SEND that invalidates (IBTA vol. 1,
    /// 10.6.5). The copies of peers are waited for before the program can see that the window is invalid: a look at
    /// completions waits for them as well ([`wire::SameHost::retract`]).
    pub(crate) fn invalidate(&mut self, qp: QpId, rkey: RKey) -> Result<(), ()> {
        Self::take_back(&mut self.env, &mut self.mem, qp, rkey)
    }

    /// [`Engine::invalidate`], for a caller that has borrowed the queue pair.
    pub(crate) fn take_back(env: &mut P, mem: &mut Regions, qp: QpId, rkey: RKey) -> Result<(), ()> {
        if mem.invalidate(qp, rkey)? {
            env.retract(ExportId::Region(rkey.0));
        }
        Ok(())
    }

    /// Ends every access through the windows of a queue pair that goes.
    pub(crate) fn invalidate_all(&mut self, qp: QpId) {
        for key in self.mem.qp_gone(qp) {
            self.hide_mr(key);
        }
    }

    /// Ends the peers' own accesses to a region, and waits for those under way.
    pub(crate) fn hide_mr(&mut self, key: u32) {
        self.env.retract(ExportId::Region(key));
    }
}

/// What peers see of a region.
fn region(ctx: CtxId, info: &MrInfo) -> Export {
    Export::Region {
        key: info.key,
        through: None,
        ctx,
        pd: info.pd,
        access: info.access,
        addr: info.addr,
        length: info.length,
        iova: info.iova,
    }
}

/// The operation of a request that the initiator executes itself, and its place; `None` for requests that are always
/// sent.
fn operation(opcode: Opcode, body: &SendBody) -> Option<(OneSidedOp, u64, RKey)> {
    match (opcode, *body) {
        (Opcode::RdmaWrite, SendBody::Rdma { remote_addr, rkey }) => Some((OneSidedOp::Write, remote_addr, rkey)),
        (Opcode::RdmaRead, SendBody::Rdma { remote_addr, rkey }) => Some((OneSidedOp::Read, remote_addr, rkey)),
        (Opcode::FetchAndAdd, SendBody::Atomic { remote_addr, rkey, compare_add, .. }) => {
            Some((OneSidedOp::Atomic(AtomicOp::FetchAdd(compare_add)), remote_addr, rkey))
        }
        (Opcode::CmpAndSwp, SendBody::Atomic { remote_addr, rkey, compare_add, swap }) => {
            Some((OneSidedOp::Atomic(AtomicOp::CompareSwap(compare_add, swap)), remote_addr, rkey))
        }
        _ => None,
    }
}
