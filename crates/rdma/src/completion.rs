//! Completion queues and channels.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use sys::*;
use verbs::{Errno, WcFlags};

use crate::Context;
use crate::device::extended;
use crate::error::{Error, Result, number, pointer};

/// A completion channel.
pub struct CompChannel {
    context: Arc<Context>,
    raw: NonNull<ibv_comp_channel>,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for CompChannel {}
// SAFETY: verbs are thread-safe.
unsafe impl Sync for CompChannel {}

impl Drop for CompChannel {
    fn drop(&mut self) {
        // SAFETY: a live channel, destroyed once; every queue that uses it holds it, so none remains.
        unsafe { (self.context.library().api.destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

impl CompChannel {
    pub(crate) fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.raw.as_ptr()
    }

    pub(crate) fn create(context: &Arc<Context>) -> Result<Arc<Self>> {
        // SAFETY: a live context.
        let raw = unsafe { (context.library().api.create_comp_channel)(context.raw()) };
        Ok(Arc::new(CompChannel { context: context.clone(), raw: pointer("ibv_create_comp_channel", raw)? }))
    }

    /// Make [`CompChannel::event`] return EAGAIN instead of waiting.
    pub fn set_nonblocking(&self) -> Result<()> {
        crate::device::set_nonblocking(self.as_fd())
    }

    /// The next event, acknowledged: the cookie of the queue that has new completions. The call waits for one, unless
    /// [`CompChannel::set_nonblocking`].
    pub fn event(&self) -> Result<u64> {
        self.pending_event().map(|event| event.cookie)
    }

    /// As [`CompChannel::event`]; `None` instead of EAGAIN. For a channel that is nonblocking, in the caller's own
    /// loop: wait until the descriptor is readable, take events until `None`, arm each queue again ([`Cq::arm`]), and
    /// poll it until it is empty. What is completed between the last poll and arming would be missed by another order.
    pub fn try_event(&self) -> Result<Option<u64>> {
        self.try_pending_event().map(|event| event.map(|event| event.cookie))
    }

    /// The next event, as by [`CompChannel::pending_event`], or `None` instead of EAGAIN.
    pub fn try_pending_event(&self) -> Result<Option<PendingEvent>> {
        match self.pending_event() {
            Err(Error { errno: Errno(libc::EAGAIN), .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    /// The next event, acknowledged when the result is dropped: until then, the queue's destruction waits. To
    /// acknowledge several by one call, see [`PendingEvent::join`].
    pub fn pending_event(&self) -> Result<PendingEvent> {
        let (mut cq, mut cookie) = (null_mut(), null_mut());
        let api = &self.context.library().api;
        // SAFETY: a live channel and places for the results.
        let ret = unsafe { (api.get_cq_event)(self.raw.as_ptr(), &mut cq, &mut cookie) };
        number("ibv_get_cq_event", ret)?;
        Ok(PendingEvent { context: self.context.clone(), cq, count: 1, cookie: cookie as u64 })
    }
}

/// Events of one queue that are not acknowledged yet.
pub struct PendingEvent {
    context: Arc<Context>,
    cq: *mut ibv_cq,
    count: u32,
    /// The cookie of the queue that has new completions.
    pub cookie: u64,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for PendingEvent {}
// SAFETY: verbs are thread-safe.
unsafe impl Sync for PendingEvent {}

impl Drop for PendingEvent {
    fn drop(&mut self) {
        if self.count > 0 {
            // SAFETY: the queue lives until the events are acknowledged: destroying it waits for that.
            unsafe { (self.context.library().api.ack_cq_events)(self.cq, self.count) };
        }
    }
}

impl PendingEvent {
    /// The number of events in it.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Take a later event of the same queue in, so that both are acknowledged by one call, which takes a lock
    /// (`ibv_ack_cq_events(3)`). An event of another queue is given back.
    ///
    /// A program that keeps these must drop them before the queue: its destruction waits for them, for ever if they are
    /// held by the thread that destroys.
    pub fn join(&mut self, mut later: PendingEvent) -> std::result::Result<(), PendingEvent> {
        match self.count.checked_add(later.count) {
            Some(count) if later.cq == self.cq => self.count = count,
            _ => return Err(later),
        }
        later.count = 0;
        Ok(())
    }
}

impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for CompChannel {
    /// Readable when an event waits; for the caller's own poll or epoll.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel owns the descriptor and closes it when dropped; it is not -1.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

/// The outcome of a work request (`enum ibv_wc_status`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// It was done.
    pub const SUCCESS: Status = Status(IBV_WC_SUCCESS);
    /// The queue pair went to the error state before the request was begun.
    pub const FLUSHED: Status = Status(IBV_WC_WR_FLUSH_ERR);
    /// The peer does not grant this access.
    pub const REMOTE_ACCESS: Status = Status(IBV_WC_REM_ACCESS_ERR);
    /// The peer found the request invalid.
    pub const REMOTE_INVALID_REQUEST: Status = Status(IBV_WC_REM_INV_REQ_ERR);
    /// A local entry names memory that is not registered so.
    pub const LOCAL_PROTECTION: Status = Status(IBV_WC_LOC_PROT_ERR);
    /// A window could not be bound or invalidated.
    pub const MW_BIND: Status = Status(IBV_WC_MW_BIND_ERR);
    /// The message does not fit.
    pub const LOCAL_LENGTH: Status = Status(IBV_WC_LOC_LEN_ERR);
    /// The peer had no receive posted, too often.
    pub const RNR_RETRIES: Status = Status(IBV_WC_RNR_RETRY_EXC_ERR);
    /// The peer did not answer, too often.
    pub const RETRIES: Status = Status(IBV_WC_RETRY_EXC_ERR);
}

/// The names, as `verbs.h` has them.
const STATUS_NAMES: [&str; 22] = [
    "SUCCESS",
    "LOC_LEN_ERR",
    "LOC_QP_OP_ERR",
    "LOC_EEC_OP_ERR",
    "LOC_PROT_ERR",
    "WR_FLUSH_ERR",
    "MW_BIND_ERR",
    "BAD_RESP_ERR",
    "LOC_ACCESS_ERR",
    "REM_INV_REQ_ERR",
    "REM_ACCESS_ERR",
    "REM_OP_ERR",
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "LOC_RDD_VIOL_ERR",
    "REM_INV_RD_REQ_ERR",
    "REM_ABORT_ERR",
    "INV_EECN_ERR",
    "INV_EEC_STATE_ERR",
    "FATAL_ERR",
    "RESP_TIMEOUT_ERR",
    "GENERAL_ERR",
];

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match STATUS_NAMES.get(self.0 as usize) {
            Some(name) => write!(f, "IBV_WC_{name}"),
            None => write!(f, "status {}", self.0),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A work completion. Which fields are valid depends on the others, as `ibv_poll_cq(3)` says.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Wc(ibv_wc);

impl Default for Wc {
    fn default() -> Self {
        // SAFETY: plain data, for which zeroes are valid.
        Wc(unsafe { std::mem::zeroed() })
    }
}

#[allow(missing_docs)] // the names are the ABI's
impl Wc {
    pub fn wr_id(&self) -> u64 {
        self.0.wr_id
    }
    pub fn status(&self) -> Status {
        Status(self.0.status)
    }
    pub fn opcode(&self) -> u32 {
        self.0.opcode
    }
    pub fn vendor_err(&self) -> u32 {
        self.0.vendor_err
    }
    pub fn byte_len(&self) -> u32 {
        self.0.byte_len
    }
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num
    }
    pub fn src_qp(&self) -> u32 {
        self.0.src_qp
    }
    pub fn flags(&self) -> WcFlags {
        WcFlags::from_bits_retain(self.0.wc_flags)
    }
    /// The immediate value, in host order, if there is one.
    pub fn imm(&self) -> Option<u32> {
        // SAFETY: both members of the union are plain numbers of one size.
        self.flags().contains(WcFlags::WITH_IMM).then(|| u32::from_be(unsafe { self.0.anon_1.imm_data }))
    }
    /// The key that the peer invalidated, if it did.
    pub fn invalidated_rkey(&self) -> Option<u32> {
        // SAFETY: both members of the union are plain numbers of one size.
        self.flags().contains(WcFlags::WITH_INV).then_some(unsafe { self.0.anon_1.invalidated_rkey })
    }
}

impl fmt::Debug for Wc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wc")
            .field("wr_id", &self.wr_id())
            .field("status", &self.status())
            .field("opcode", &self.opcode())
            .field("vendor_err", &self.vendor_err())
            .field("byte_len", &self.byte_len())
            .field("qp_num", &self.qp_num())
            .field("flags", &self.flags())
            .finish()
    }
}

/// A completion queue.
pub struct Cq {
    context: Arc<Context>,
    raw: NonNull<ibv_cq>,
    // Taken out of the table once: programs poll more often than they do anything else.
    poll: unsafe extern "C" fn(*mut ibv_cq, i32, *mut ibv_wc) -> i32,
    channel: Option<Arc<CompChannel>>,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for Cq {}
// SAFETY: verbs are thread-safe.
unsafe impl Sync for Cq {}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: a live queue, destroyed once; every queue pair that uses it holds it, so none remains. No event is
        // unacknowledged: `CompChannel::event` acknowledges.
        unsafe { (self.context.library().api.destroy_cq)(self.raw.as_ptr()) };
    }
}

impl Context {
    /// `ibv_create_cq(3)` with at least `cqe` entries. `cookie` is what [`CompChannel::event`] gives back.
    pub fn create_cq(self: &Arc<Self>, cqe: u32, channel: Option<&Arc<CompChannel>>, cookie: u64) -> Result<Arc<Cq>> {
        let raw_channel = channel.map_or(null_mut(), |channel| channel.raw.as_ptr());
        let size = i32::try_from(cqe).unwrap_or(i32::MAX);
        // SAFETY: a live context and channel; the cookie is only handed back.
        let raw = unsafe { (self.library().api.create_cq)(self.raw(), size, cookie as *mut _, raw_channel, 0) };
        Ok(Cq::wrap(self, pointer("ibv_create_cq", raw)?, channel))
    }
}

impl Cq {
    /// The value for a queue that was just created.
    pub(crate) fn wrap(context: &Arc<Context>, raw: NonNull<ibv_cq>, channel: Option<&Arc<CompChannel>>) -> Arc<Cq> {
        // SAFETY: the tables of a live context; every provider has this function.
        let poll = unsafe { (*context.raw()).ops.poll_cq }.expect("poll_cq");
        Arc::new(Cq { context: context.clone(), raw, poll, channel: channel.cloned() })
    }

    /// The context that it belongs to.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    /// The channel that it was created with.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.channel.as_ref()
    }

    /// Entries that it has.
    pub fn cqe(&self) -> u32 {
        // SAFETY: a live queue.
        unsafe { (*self.raw.as_ptr()).cqe as u32 }
    }

    /// Take completions out of the queue; the result is how many.
    #[inline]
    pub fn poll(&self, out: &mut [Wc]) -> Result<usize> {
        let room = i32::try_from(out.len()).unwrap_or(i32::MAX);
        // SAFETY: a live queue and `room` places for completions (`Wc` is transparent).
        let count = unsafe { (self.poll)(self.raw.as_ptr(), room, out.as_mut_ptr().cast()) };
        usize::try_from(count).map_err(|_| Error::new("ibv_poll_cq", -count))
    }

    /// Ask for an event with the next completion (`ibv_req_notify_cq(3)`).
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        // SAFETY: the tables of a live context; every provider has this function.
        let arm = unsafe { (*self.context.raw()).ops.req_notify_cq }.expect("req_notify_cq");
        // SAFETY: a live queue.
        number("ibv_req_notify_cq", unsafe { arm(self.raw.as_ptr(), solicited_only.into()) })
    }

    /// `ibv_modify_cq(3)`: at most one event per `count` completions or `period` microseconds.
    pub fn moderate(&self, count: u16, period: u16) -> Result<()> {
        const CALL: &str = "ibv_modify_cq";
        let modify = extended!(self.context.raw(), modify_cq).ok_or(Error::new(CALL, libc::EOPNOTSUPP))?;
        let moderate = ibv_moderate_cq { cq_count: count, cq_period: period };
        let mut attr = ibv_modify_cq_attr { attr_mask: IBV_CQ_ATTR_MODERATE, moderate };
        // SAFETY: a live queue and valid attributes.
        number(CALL, unsafe { modify(self.raw.as_ptr(), &mut attr) })
    }

    /// `ibv_resize_cq(3)`.
    pub fn resize(&self, cqe: u32) -> Result<()> {
        let cqe = i32::try_from(cqe).unwrap_or(i32::MAX);
        // SAFETY: a live queue.
        number("ibv_resize_cq", unsafe { (self.context.library().api.resize_cq)(self.raw.as_ptr(), cqe) })
    }
}
