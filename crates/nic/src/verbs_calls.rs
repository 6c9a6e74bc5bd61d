//! Verbs that do more than ask the engine: they wait, or they need the system.

use ::verbs::{
    Access, Completion, CqId, CtxId, Errno, LKey, MrId, PdId, QpAttr, QpAttrMask, QpCreated, QpId, QpInit, QpState,
    Qpn, RKey, RecvWr, Result, SendWr, SrqId,
};

use memory::biased::MutexGuard;

use crate::context::{Object, UNKNOWN};
use crate::core::{Core, Guard, Mode};
use crate::fast_poll::{Finds, Polled};
use crate::{Nic, now};

/// How long deregistration waits for a peer's copy that is under way before it goes on without it, in nanoseconds. It
/// is far longer than any copy takes; a peer that is stopped in the middle of one must not hang this process for ever.
const DEREG_PATIENCE: u64 = 2_000_000_000;

/// The end of a poll without result.
#[inline]
fn empty_handed(give_way: bool) -> usize {
    if give_way {
        // A program that polls this long without result waits for a peer that may be waiting for this processor.
        std::thread::yield_now();
    }
    0
}

/// Receive and answer the packets that came before a queue pair leaves its connection, if it has one. An adapter has
/// done so already.
pub(crate) fn last_words(core: &mut Core, qp: QpId) {
    if !matches!(core.qp_state(qp), Ok(QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)) {
        return;
    }
    core.take_in();
    let now = core.read_time();
    core.send_owed(qp, now);
}

impl Nic {
    /// `ibv_reg_mr(3)`. Make sure that the memory is there, as an adapter that pins it would.
    ///
    /// # Errors
    /// EFAULT: not mapped, or not writable where LOCAL_WRITE is asked for; EINVAL: length, rights.
    pub fn reg_mr(&self, pd: PdId, addr: u64, length: u64, iova: u64, access: Access) -> Result<(MrId, LKey, RKey)> {
        let guarded = check_memory(addr, length, access)?;
        let mut core = self.lock();
        let migrated = self.migrate(&mut core, addr, length, access);
        match core.reg_mr(pd, addr, length, iova, access) {
            Ok(made) => {
                if guarded {
                    core.guard_mr(made.0)?;
                }
                self.keep_migrated(&mut core, made.0, migrated);
                Ok(made)
            }
            Err(errno) => {
                self.migrate_back(&mut core, migrated);
                Err(errno)
            }
        }
    }

    /// `ibv_rereg_mr(3)`.
    ///
    /// # Errors
    /// As [`Nic::reg_mr`]; EBUSY while windows are bound to it.
    pub fn rereg_mr(
        &self,
        mr: MrId,
        translation: Option<(u64, u64, u64)>,
        pd: Option<PdId>,
        access: Option<Access>,
    ) -> Result<(LKey, RKey)> {
        let mut guarded = false;
        // New rights ask for other memory as new bounds do: LOCAL_WRITE wants it to be writable.
        if translation.is_some() || access.is_some() {
            let old = self.lock().mr_info(mr).ok_or(UNKNOWN)?;
            let (addr, length) = translation.map_or((old.addr, old.length), |(addr, length, _)| (addr, length));
            if length > 0 || translation.is_some() {
                guarded = check_memory(addr, length, access.unwrap_or(old.access))?;
            }
        }
        let mut core = self.lock();
        // The new memory is taken before the old one is left: they may be the same.
        let migrated = match (translation, core.mr_info(mr)) {
            (Some((addr, length, _)), Some(old)) => self.migrate(&mut core, addr, length, access.unwrap_or(old.access)),
            _ => Vec::new(),
        };
        match core.rereg_mr(mr, translation, pd, access) {
            Ok(keys) => {
                if guarded {
                    core.guard_mr(mr)?;
                }
                if translation.is_some() || access.is_some_and(|access| access.contains(Access::ON_DEMAND)) {
                    // Peers' copies are over when the lock is taken again: nothing moves under them.
                    drop(core);
                    let mut core = self.lock();
                    self.drop_migrated(&mut core, mr);
                    self.keep_migrated(&mut core, mr, migrated);
                }
                Ok(keys)
            }
            Err(errno) => {
                self.migrate_back(&mut core, migrated);
                Err(errno)
            }
        }
    }

    /// `ibv_dereg_mr(3)`. It returns when no peer is reading or writing the memory any more.
    ///
    /// # Errors
    /// EINVAL: no such region; EBUSY: windows are bound to it.
    pub fn dereg_mr(&self, mr: MrId) -> Result<()> {
        let until = now() + DEREG_PATIENCE;
        loop {
            let mut core = self.lock();
            match core.dereg_mr(mr, false) {
                Err(Errno::EAGAIN) => {}
                result => {
                    // Peers' copies are over when the lock is taken again: nothing moves under them.
                    drop(core);
                    if result.is_ok() {
                        self.drop_migrated(&mut self.lock(), mr);
                    }
                    return result;
                }
            }
            let now = core.read_time();
            core.progress(now);
            if now > until {
                core.dereg_mr(mr, true)?;
                drop(core);
                self.drop_migrated(&mut self.lock(), mr);
                return Ok(());
            }
            drop(core);
            std::thread::yield_now();
        }
    }

    /// `ibv_create_qp(3)`.
    ///
    /// # Errors
    /// EINVAL: attributes; ENOMEM: limits.
    pub fn create_qp(&self, ctx: CtxId, init: &QpInit, user: u64) -> Result<(QpId, QpCreated)> {
        self.lock_for_qp()?.create_qp(ctx, init, user)
    }

    /// Take the lock, and see to it that there is a number for a new queue pair.
    ///
    /// # Errors
    /// ENOMEM: none is left on this host.
    pub fn lock_for_qp(&self) -> Result<Guard<'_>> {
        let mut core = self.lock();
        if core.free_qpns() == 0 {
            let first = core.env_mut().claim_block()?;
            core.add_qpns(first);
        }
        Ok(core)
    }

    /// `ibv_modify_qp(3)`.
    ///
    /// # Errors
    /// EINVAL: transition or attributes.
    pub fn modify_qp(&self, qp: QpId, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let mut core = self.lock();
        if mask.contains(QpAttrMask::STATE) && matches!(attr.state, QpState::Err | QpState::Reset) {
            last_words(&mut core, qp);
        }
        let now = core.read_time();
        core.modify_qp(qp, attr, mask, now)
    }

    /// Take in the packets that have come over the links. The result is the number of completions of a queue pair that
    /// report success and wait to be polled.
    pub fn arrived(&self, qpn: Qpn) -> usize {
        let mut core = self.lock();
        core.take_in();
        core.unpolled(qpn)
    }

    /// `ibv_destroy_qp(3)`. It waits for the acknowledgement of the queue pair's events.
    ///
    /// # Errors
    /// EBUSY: attached to a multicast group.
    pub fn destroy_qp(&self, ctx: CtxId, qp: QpId) -> Result<()> {
        {
            let mut core = self.lock();
            last_words(&mut core, qp);
            core.leave_stream(qp);
            core.destroy_qp(qp)?;
        }
        self.await_event_acks(ctx, Object::Qp(qp));
        Ok(())
    }

    /// `ibv_destroy_cq(3)`. It waits for the acknowledgement of the queue's events.
    ///
    /// # Errors
    /// EBUSY: in use.
    pub fn destroy_cq(&self, ctx: CtxId, cq: CqId) -> Result<()> {
        self.lock().destroy_cq(cq)?;
        self.unbind_cq_channel(cq);
        self.await_event_acks(ctx, Object::Cq(cq));
        Ok(())
    }

    /// `ibv_destroy_srq(3)`. It waits for the acknowledgement of the queue's events.
    ///
    /// # Errors
    /// EBUSY: in use.
    pub fn destroy_srq(&self, ctx: CtxId, srq: SrqId) -> Result<()> {
        self.lock().destroy_srq(srq)?;
        self.await_event_acks(ctx, Object::Srq(srq));
        Ok(())
    }

    /// `ibv_poll_cq(3)`. It moves data if no completion waits, then takes at most `most` completions. `out` is called
    /// with the number of each, from 0 on. The result is how many there were.
    #[inline(always)]
    pub fn poll_cq(&self, cq: CqId, most: usize, mut out: impl FnMut(usize, &Completion)) -> usize {
        let mut core = self.core.lock();
        let finds = core.finds(cq);
        if finds == Finds::Nothing {
            let polled = match most {
                1 => core.poll_fast::<true, _>(cq, 1, &mut out),
                _ => core.poll_fast::<false, _>(cq, most, &mut out),
            };
            if polled != Polled::Packets {
                return self.after_fast_poll(core, polled);
            }
        }
        self.poll_slow(core, finds, cq, most, out)
    }

    /// The end of a poll on the fast path.
    #[inline(always)]
    fn after_fast_poll(&self, mut core: MutexGuard<'_, Core>, polled: Polled) -> usize {
        if let Polled::Completions { n, more } = polled {
            if !(more && core.is_flushed_behind_fast_path()) {
                self.flush_poll(core);
            }
            return n;
        }
        let give_way = core.found_nothing();
        if core.is_flushed_behind_fast_path() {
            core.ring_late();
            drop(core);
        } else {
            drop(Guard::new(self, core));
        }
        empty_handed(give_way)
    }

    /// The end of a poll that found completions and left something to be done.
    #[inline(never)]
    fn flush_poll(&self, core: MutexGuard<'_, Core>) {
        Guard::new(self, core).after_completions(self);
    }

    // Not inlined, so that the fast path has the registers for itself.
    #[inline(never)]
    fn poll_slow(
        &self,
        core: MutexGuard<'_, Core>,
        finds: Finds,
        cq: CqId,
        most: usize,
        out: impl FnMut(usize, &Completion),
    ) -> usize {
        let mut core = Guard::new(self, core);
        if finds != Finds::Completions {
            core.polled(self);
            core.poll_slow(cq, most, finds);
        } else if core.only_polls() {
            core.polled(self);
        }
        let n = core.engine.poll(cq, most, out);
        if n > 0 {
            core.empty_polls = 0;
            core.after_completions(self);
            return n;
        }
        let give_way = core.found_nothing();
        if finds == Finds::Work && core.mode == Mode::Polled {
            core.ring_late(); // the program had nothing to do either way, but asked for an event
        }
        drop(core);
        empty_handed(give_way)
    }

    /// `ibv_req_notify_cq(3)`. The program is about to sleep, so peers ring from now on.
    ///
    /// # Errors
    /// EINVAL: no such queue.
    pub fn arm_cq(&self, cq: CqId, solicited_only: bool) -> Result<()> {
        let mut core = self.lock();
        core.arm_cq(cq, solicited_only)?;
        let has_channel = core.channels.contains_key(&cq);
        if has_channel {
            core.await_events(true);
        }
        core.arm_for(self);
        Ok(())
    }

    /// Posts one send request.
    ///
    /// # Errors
    /// As [`engine::Engine::post_send`].
    pub fn post_send(&self, qp: QpId, wr: &SendWr<'_>) -> Result<()> {
        let mut core = self.lock();
        let now = core.time();
        core.post_send(qp, wr, now)
    }

    /// Posts one receive request.
    ///
    /// # Errors
    /// As [`engine::Engine::post_recv`].
    pub fn post_recv(&self, qp: QpId, wr: &RecvWr<'_>) -> Result<()> {
        let mut core = self.lock();
        let now = core.time();
        core.post_recv(qp, wr, now)
    }

    /// [`Nic::post_recv`], if there is nothing else to do: it does not read the clock, and leaves nothing to flush.
    /// False: nothing was done (also for any error), and the caller must use [`Nic::post_recv`].
    #[inline(always)]
    pub fn post_recv_fast(&self, qp: QpId, wr: &RecvWr<'_>) -> bool {
        self.core.lock().engine.post_recv_fast(qp, wr)
    }

    /// Posts one send request, if it can be sent at once. False: nothing was done (also for any error), and the caller
    /// must post it in another way.
    #[inline(always)]
    pub fn post_send_fast(&self, qp: QpId, wr: &SendWr<'_>) -> bool {
        let mut core = self.core.lock();
        Guard::begin(&mut core);
        let now = core.time();
        let posted = core.engine.post_send_fast(qp, wr, now);
        // Mostly nothing is left to be done. Then the lock is released here, without a call.
        if !core.is_flushed() {
            drop(Guard::begun(self, core));
        }
        posted
    }

    /// Posts one receive request to a shared queue.
    ///
    /// # Errors
    /// As [`engine::Engine::post_srq_recv`].
    pub fn post_srq_recv(&self, srq: SrqId, wr: &RecvWr<'_>) -> Result<()> {
        let mut core = self.lock();
        let now = core.time();
        core.post_srq_recv(srq, wr, now)
    }
}

/// Make sure that the memory is there. True if it may go nevertheless, because a process may truncate its file.
fn check_memory(addr: u64, length: u64, access: Access) -> Result<bool> {
    // Linux pins the pages from the address to the end, and refuses where there is none; so a region of no bytes at an
    // address inside a page is valid (`ib_umem_get`).
    if length == 0 && addr.is_multiple_of(rustix::param::page_size() as u64) {
        return Err(Errno::EINVAL);
    }
    if access.contains(Access::ON_DEMAND) {
        return Ok(false); // it is reached with care anyway
    }
    let length = length.max(1);
    let writable = access.contains(Access::LOCAL_WRITE);
    memory::local::populate(addr, length, writable)?;
    let may_shrink = memory::files::may_shrink(addr, length);
    // Memory that is only read may be sparse and is not touched: pages that were never written cost nothing.
    if writable && !may_shrink {
        let _ = memory::huge::collapse(addr, length);
    }
    Ok(may_shrink)
}
