//! Managed queues of the device softrnic0 (`softrnic/dv_queues.h`): work queues that run by themselves.
//!
//! A *managed send queue* executes its entries only when they have been enabled. Its entries lie in memory: a
//! receive's scatter/gather list, or a peer's WRITE, may patch them until then. A *WAIT* in a send queue holds back
//! what is behind it until a completion queue has had a number of completions. A *cyclic* queue is filled once, and
//! runs in a circle. Together they make a chain of operations that goes on without any program: a message arrives, its
//! receive patches the entries of the next hop, its completion meets the WAIT in front of them.
//!
//! Another library than softrnic's has none of this: every call fails with EOPNOTSUPP.
//!
//! # What is where
//!
//! | subject | items |
//! |---|---|
//! | a completion queue that counts | [`Context::create_counting_cq`], [`Cq::count`] |
//! | a queue pair with managed queues | [`Pd::create_managed_qp`], [`Managed`] |
//! | tasks: NOP, WAIT, SEND_EN, RECV_EN | [`Qp::post_task`], [`Task`], [`Count`] |
//! | the doorbell, by the program | [`Qp::enable`] |
//! | the array of entries, and keys for it | [`Qp::queue`], [`Qp::reg_queue`], [`QueueMr`] |
//! | the bytes of an entry | [`field`] |
//!
//! # The layout of an entry, version 1
//!
//! Request `n` lies at `addr + (n % count) * stride`; `stride` is a multiple of 64. Numbers are in the host's byte
//! order, but for the immediate value.
//!
//! | bytes | member | |
//! |---|---|---|
//! | 0 | opcode | `enum ibv_wr_opcode`; 0x80 NOP, 0x81 WAIT, 0x82 SEND_EN, 0x83 RECV_EN, 0x84 receive |
//! | 1 | flags | `enum ibv_send_flags`: signaled 2, fence 1, solicited 4; not inline |
//! | 2..4 | num_sge | |
//! | 4..8 | imm | network byte order |
//! | 8..16 | wr_id | |
//! | 16..24 | addr | remote address; WAIT, ENABLE: the absolute count |
//! | 24..28 | rkey | |
//! | 28..32 | step | WAIT, ENABLE of a cyclic queue: added to the count when the entry has been executed |
//! | 32..40 | operand | atomics: compare or add; WAIT: completion queue; ENABLE: queue pair |
//! | 40..48 | swap | |
//! | 48..64 | sge | the first one: address u64, length u32, lkey u32 |
//! | 64.. | | the others, 16 bytes each |
//!
//! # Rules
//!
//! * An entry is copied when it is executed, checked, and executed from the copy. Its list and keys are checked as
//!   those of any request. Beside, only bytes that [`Managed::patchable`] names may differ from what was posted, and
//!   only operations of [`Managed::opcodes`], or NOP, may stand in place of the posted one. Otherwise the entry
//!   completes with LOC_QP_OP_ERR (a receive: LOC_PROT_ERR), and the queue pair is in error.
//! * The data of a message are in memory before its completion is counted. So what a receive patches is executed as
//!   patched, if a WAIT for that completion is in front of it.
//! * A WRITE into entries triggers nothing. The trigger is a completion or an ENABLE.
//! * Counts have 64 bits and begin at 0. A WAIT of a cyclic queue needs a `step`: the completions that come per circle.
//! * Places of a managed queue are free when the request has completed, whether or not its completion is polled. A
//!   cyclic queue takes posts until it is full; enabling may pass the number of posts only when it is full. Entry `n`
//!   begins when entry `n - count` has completed.
//! * A managed queue has a power of two of places ([`Qp::cap`]); a managed send queue takes no inline data. Fill the
//!   rest of a circle with NOPs, or choose the number of places by the entries of a round.
//! * Completions that are never polled: make the completion queue with `ignore_overrun`. It counts on.
//! * A RECV_EN for the queue pair that executes it has no effect.
//! * READs and atomics need `max_rd_atomic` of at least 1.
//!
//! # Example: a hop that passes on what it gets
//!
//! The peer's message of 16 bytes holds address and key of the place at the next hop. They land in the WRITE's entry.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use rdma::*;
//! # use rdma::dv::{field, Count, Managed, Task};
//! # fn hop(pd: &Arc<Pd>, data: &Arc<Mr>, options: &QpOptions<'_>, previous: &Qp, arrivals: &Arc<Cq>) -> Result<()> {
//! // `previous` completes its receives in `arrivals`, made by `create_counting_cq(16, true)`: no program polls it.
//! // To the next hop: WAIT, WRITE (patched), and again, in a circle of two.
//! let rules = Managed {
//!     send: true,
//!     cyclic_send: true,
//!     patchable: [field::mask(field::ADDR) | field::mask(field::RKEY), 0],
//!     ..Managed::default()
//! };
//! let next = pd.create_managed_qp(options, &rules)?; // max_send_wr: 2
//! // ... connect ...
//! next.post_task(&Task::wait(arrivals, Count::Absolute(1)).step(1))?;
//! let (op, list) = (SendOp::Write { addr: 0, rkey: 0 }, [data.sge(0, 1024)]);
//! next.post_send(&SendWr { flags: SendFlags::empty(), ..SendWr::new(1, op, Data::Sges(&list)) })?;
//! let entries = next.reg_queue(Access::LOCAL_WRITE)?;
//! // The receive scatters 8 bytes into the address and 4 bytes into the key of entry 1.
//! let into = [entries.sge(1, field::ADDR), entries.sge(1, field::RKEY)];
//! previous.post_recv(&RecvWr { wr_id: 0, sges: &into })?;
//! next.enable(dv::Side::Send, Count::Absolute(u64::MAX >> 2))?; // for ever: the WAITs hold it back
//! # Ok(()) }
//! ```

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use sys::*;
use verbs::Access;

use crate::error::{Error, Result, number, pointer};
use crate::{CompChannel, Context, Cq, Pd, Qp, QpOptions, SendFlags, Sge};

/// The version of the entries' layout that this module describes.
pub const VERSION: u32 = 1;

/// The members of an entry, as ranges of its bytes.
pub mod field {
    use std::ops::Range;

    /// The operation.
    pub const OPCODE: Range<usize> = 0..1;
    /// Flags of the request.
    pub const FLAGS: Range<usize> = 1..2;
    /// The number of scatter/gather entries.
    pub const NUM_SGE: Range<usize> = 2..4;
    /// Immediate value.
    pub const IMM: Range<usize> = 4..8;
    /// The program's number.
    pub const WR_ID: Range<usize> = 8..16;
    /// Remote address; the count of a WAIT or an ENABLE.
    pub const ADDR: Range<usize> = 16..24;
    /// The peer's key.
    pub const RKEY: Range<usize> = 24..28;
    /// What is added to a count.
    pub const STEP: Range<usize> = 28..32;
    /// The compare or add value.
    pub const OPERAND: Range<usize> = 32..40;
    /// The swap value.
    pub const SWAP: Range<usize> = 40..48;
    /// Address of the first scatter/gather entry.
    pub const SGE_ADDR: Range<usize> = 48..56;
    /// Its length.
    pub const SGE_LENGTH: Range<usize> = 56..60;
    /// Its key.
    pub const SGE_LKEY: Range<usize> = 60..64;

    /// The bits of [`super::Managed::patchable`] for bytes of the first 64 of an entry.
    ///
    /// # Panics
    /// If the range is not within 0..64.
    pub const fn mask(bytes: Range<usize>) -> u64 {
        assert!(bytes.start <= bytes.end && bytes.end <= 64);
        if bytes.start == bytes.end {
            return 0;
        }
        (u64::MAX >> (64 - (bytes.end - bytes.start))) << bytes.start
    }
}

/// The bit of an operation in [`Managed::opcodes`]: `enum ibv_wr_opcode`, or one of [`Task`]'s.
pub const fn allow(opcode: u32) -> u64 {
    1 << if opcode < 0x80 { opcode } else { opcode - 0x80 + 48 }
}

/// Which queue of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The send queue.
    Send = 0,
    /// The receive queue.
    Recv = 1,
}

/// Properties of a new queue pair with managed queues. With none of them it still takes tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Managed {
    /// Requests are executed when they are enabled.
    pub send: bool,
    /// Receives are taken when they are enabled.
    pub recv: bool,
    /// The managed send queue is filled once, and runs in a circle.
    pub cyclic_send: bool,
    /// The managed receive queue is filled once, and runs in a circle.
    pub cyclic_recv: bool,
    /// Operations ([`allow`]) that a patched entry may have beside the one that was posted.
    pub opcodes: u64,
    /// Bytes that may be patched ([`field::mask`]): of the first 64 of an entry, of each further 64.
    pub patchable: [u64; 2],
    /// Bytes of receives that may be patched.
    pub recv_patchable: [u64; 2],
}

/// The count of a WAIT or an ENABLE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// So many, from the place on that the last one with [`Count::Last`] left behind. An ENABLE of 0 enables all that
    /// is posted.
    Relative(u32),
    /// As relative; the place moves on to the greatest count since it last moved.
    Last(u32),
    /// This count.
    Absolute(u64),
}

impl Count {
    fn raw(self) -> (u64, u32) {
        match self {
            Count::Absolute(count) => (count, 1),
            Count::Relative(count) => (count.into(), 0),
            Count::Last(count) => (count.into(), 2),
        }
    }
}

#[derive(Clone, Copy)]
enum Act<'a> {
    Nop,
    Wait(&'a Arc<Cq>, Count),
    Enable(&'a Qp, Side, Count),
}

/// A request of the device to itself.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    act: Act<'a>,
    wr_id: u64,
    flags: SendFlags,
    step: u32,
}

impl<'a> Task<'a> {
    /// Opcodes of entries, for [`allow`] and for patches.
    pub const NOP: u32 = 0x80;
    /// See [`Task::NOP`].
    pub const WAIT: u32 = 0x81;
    /// See [`Task::NOP`].
    pub const SEND_EN: u32 = 0x82;
    /// See [`Task::NOP`].
    pub const RECV_EN: u32 = 0x83;
    /// The opcode of a task's completion (`IBV_WC_DRIVER1`).
    pub const WC_OPCODE: u32 = IBV_WC_DRIVER1;

    fn new(act: Act<'a>) -> Self {
        Task { act, wr_id: 0, flags: SendFlags::empty(), step: 0 }
    }

    /// Nothing; it completes like any request.
    pub fn nop() -> Self {
        Self::new(Act::Nop)
    }

    /// Hold back what is behind it until the queue has had so many completions.
    pub fn wait(cq: &'a Arc<Cq>, count: Count) -> Self {
        Self::new(Act::Wait(cq, count))
    }

    /// Enable the entries of a queue up to a count.
    pub fn enable(qp: &'a Qp, side: Side, count: Count) -> Self {
        Self::new(Act::Enable(qp, side, count))
    }

    /// Give its completion this number.
    #[must_use]
    pub fn wr_id(self, wr_id: u64) -> Self {
        Task { wr_id, ..self }
    }

    /// Have it give a completion.
    #[must_use]
    pub fn signaled(self) -> Self {
        Task { flags: self.flags | SendFlags::SIGNALED, ..self }
    }

    /// In a cyclic queue: what is added to the count in the entry when it has been executed.
    #[must_use]
    pub fn step(self, step: u32) -> Self {
        Task { step, ..self }
    }
}

#[repr(C)]
struct RawQpAttr {
    comp_mask: u64,
    create_flags: u32,
    reserved: u32,
    opcodes: u64,
    patchable: [u64; 2],
    recv_patchable: [u64; 2],
}

#[repr(C)]
struct RawCqAttr {
    comp_mask: u64,
    cqe: u32,
    flags: u32,
    first_count: u64,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
    reserved: u32,
}

#[repr(C)]
pub(crate) struct RawTask {
    wr_id: u64,
    opcode: u32,
    send_flags: u32,
    flags: u32,
    step: u32,
    count: u64,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
}

#[repr(C)]
struct RawQueue {
    addr: *mut c_void,
    stride: u32,
    count: u32,
    posted: u64,
    enabled: u64,
    begun: u64,
    version: u32,
    reserved: u32,
}

/// The functions of `softrnic/dv_queues.h`.
pub(crate) struct DvApi {
    create_qp: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr, *const RawQpAttr) -> *mut ibv_qp,
    create_cq: unsafe extern "C" fn(*mut ibv_context, *const RawCqAttr) -> *mut ibv_cq,
    cq_count: unsafe extern "C" fn(*mut ibv_cq, *mut u64) -> c_int,
    post_task: unsafe extern "C" fn(*mut ibv_qp, *const RawTask) -> c_int,
    enable: unsafe extern "C" fn(*mut ibv_qp, u32, u64, u32) -> c_int,
    query_queue: unsafe extern "C" fn(*mut ibv_qp, u32, *mut RawQueue) -> c_int,
    reg_queue: unsafe extern "C" fn(*mut ibv_qp, u32, c_int) -> *mut ibv_mr,
}

impl DvApi {
    /// The functions, if the library has all of them.
    ///
    /// # Safety
    /// Functions of these names have the signatures of `softrnic/dv_queues.h`.
    pub(crate) unsafe fn look_up(symbol: impl Fn(&std::ffi::CStr) -> *mut c_void) -> Option<Self> {
        macro_rules! take {
            ($name:literal) => {{
                let address = NonNull::new(symbol($name))?;
                // SAFETY: a function pointer has the size of an address; its type is the header's (caller).
                unsafe { std::mem::transmute_copy(&address) }
            }};
        }
        Some(DvApi {
            create_qp: take!(c"softrnic_dv_create_qp"),
            create_cq: take!(c"softrnic_dv_create_cq"),
            cq_count: take!(c"softrnic_dv_cq_count"),
            post_task: take!(c"softrnic_dv_post_task"),
            enable: take!(c"softrnic_dv_enable"),
            query_queue: take!(c"softrnic_dv_query_queue"),
            reg_queue: take!(c"softrnic_dv_reg_queue"),
        })
    }
}

fn api<'a>(context: &'a Context, call: &'static str) -> Result<&'a DvApi> {
    context.library().dv.as_ref().ok_or(Error::new(call, libc::EOPNOTSUPP))
}

/// A queue of a queue pair, as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queue {
    /// The address of the array of entries in this process; 0: the queue has none.
    pub addr: u64,
    /// Bytes from one request to the next.
    pub stride: u32,
    /// Requests that it holds.
    pub count: u32,
    /// Requests posted since the queue pair was reset.
    pub posted: u64,
    /// Requests enabled.
    pub enabled: u64,
    /// Requests that are executed, or being executed.
    pub begun: u64,
    /// The version of the entries' layout.
    pub version: u32,
}

impl Context {
    /// A completion queue that WAITs may wait for, with at least `cqe` entries. With `ignore_overrun`, completions that
    /// are never polled are dropped when it is full, oldest first, and it counts on.
    pub fn create_counting_cq(self: &Arc<Self>, cqe: u32, ignore_overrun: bool) -> Result<Arc<Cq>> {
        self.create_counting_cq_from(cqe, ignore_overrun, 0)
    }

    /// As [`Context::create_counting_cq`]; its count begins at `first_count`.
    pub fn create_counting_cq_from(
        self: &Arc<Self>,
        cqe: u32,
        ignore_overrun: bool,
        first_count: u64,
    ) -> Result<Arc<Cq>> {
        self.create_counting(cqe, ignore_overrun, first_count, None)
    }

    /// As [`Context::create_counting_cq`]; it may be armed for events of a channel.
    pub fn create_counting_cq_with(
        self: &Arc<Self>,
        cqe: u32,
        ignore_overrun: bool,
        channel: &Arc<CompChannel>,
    ) -> Result<Arc<Cq>> {
        self.create_counting(cqe, ignore_overrun, 0, Some(channel))
    }

    fn create_counting(
        self: &Arc<Self>,
        cqe: u32,
        ignore_overrun: bool,
        first_count: u64,
        channel: Option<&Arc<CompChannel>>,
    ) -> Result<Arc<Cq>> {
        const CALL: &str = "softrnic_dv_create_cq";
        let attr = RawCqAttr {
            comp_mask: 0,
            cqe,
            flags: 1 | u32::from(ignore_overrun) << 1,
            first_count,
            cq_context: null_mut(),
            channel: channel.map_or(null_mut(), |channel| channel.as_ptr()),
            comp_vector: 0,
            reserved: 0,
        };
        // SAFETY: a live context and channel, and valid attributes.
        let raw = pointer(CALL, unsafe { (api(self, CALL)?.create_cq)(self.raw(), &attr) })?;
        Ok(Cq::wrap(self, raw, channel))
    }
}

impl Cq {
    /// The completions that it ever had, and `first_count`. EINVAL: it was not made to count.
    pub fn count(&self) -> Result<u64> {
        const CALL: &str = "softrnic_dv_cq_count";
        let mut count = 0;
        // SAFETY: a live queue and a place for the result.
        number(CALL, unsafe { (api(self.context(), CALL)?.cq_count)(self.as_ptr(), &mut count) })?;
        Ok(count)
    }
}

impl Pd {
    /// A queue pair that takes tasks, with managed queues as asked for; for the service RC.
    pub fn create_managed_qp(self: &Arc<Self>, options: &QpOptions<'_>, managed: &Managed) -> Result<Arc<Qp>> {
        const CALL: &str = "softrnic_dv_create_qp";
        let create = api(self.context(), CALL)?.create_qp;
        let flag = |on: bool, bit: u32| u32::from(on) << bit;
        let attr = RawQpAttr {
            comp_mask: 0,
            create_flags: 1 << 2
                | flag(managed.send, 3)
                | flag(managed.recv, 4)
                | flag(managed.cyclic_send, 16)
                | flag(managed.cyclic_recv, 17),
            reserved: 0,
            opcodes: managed.opcodes,
            patchable: managed.patchable,
            recv_patchable: managed.recv_patchable,
        };
        self.create_plain(options, CALL, |pd, init| {
            // SAFETY: a live domain and attributes that name live objects.
            unsafe { create(pd, init, &attr) }
        })
    }
}

impl Qp {
    /// Post a task to the send queue.
    pub fn post_task(&self, task: &Task<'_>) -> Result<()> {
        const CALL: &str = "softrnic_dv_post_task";
        let (opcode, count, flags, cq, qp) = match task.act {
            Act::Nop => (Task::NOP, 0, 0, null_mut(), null_mut()),
            Act::Wait(cq, count) => {
                let (count, flags) = count.raw();
                (Task::WAIT, count, flags, cq.as_ptr(), null_mut())
            }
            Act::Enable(qp, side, count) => {
                let (count, flags) = count.raw();
                let opcode = if side == Side::Send { Task::SEND_EN } else { Task::RECV_EN };
                (opcode, count, flags, null_mut(), qp.as_ptr())
            }
        };
        let send_flags = task.flags.bits();
        let raw = RawTask { wr_id: task.wr_id, opcode, send_flags, flags, step: task.step, count, cq, qp };
        // SAFETY: live objects and a valid structure.
        number(CALL, unsafe { (api(self.context(), CALL)?.post_task)(self.as_ptr(), &raw) })
    }

    /// Enable the entries of a managed queue up to a count, as an ENABLE does.
    pub fn enable(&self, side: Side, count: Count) -> Result<()> {
        const CALL: &str = "softrnic_dv_enable";
        let (count, flags) = count.raw();
        // SAFETY: a live queue pair.
        number(CALL, unsafe { (api(self.context(), CALL)?.enable)(self.as_ptr(), side as u32, count, flags) })
    }

    /// The array and the counts of a queue.
    pub fn queue(&self, side: Side) -> Result<Queue> {
        const CALL: &str = "softrnic_dv_query_queue";
        // SAFETY: plain data, for which zeroes are valid; a live queue pair and a place for the result.
        let raw = unsafe {
            let mut raw: RawQueue = zeroed();
            number(CALL, (api(self.context(), CALL)?.query_queue)(self.as_ptr(), side as u32, &mut raw))?;
            raw
        };
        let RawQueue { addr, stride, count, posted, enabled, begun, version, .. } = raw;
        Ok(Queue { addr: addr as u64, stride, count, posted, enabled, begun, version })
    }

    /// Register the whole array of a managed send queue. While the region lives, the queue pair does.
    pub fn reg_queue(self: &Arc<Self>, access: Access) -> Result<Arc<QueueMr>> {
        self.reg_queue_of(Side::Send, access)
    }

    /// Register the whole array of a managed queue.
    pub fn reg_queue_of(self: &Arc<Self>, side: Side, access: Access) -> Result<Arc<QueueMr>> {
        const CALL: &str = "softrnic_dv_reg_queue";
        let queue = self.queue(side)?;
        if queue.version != VERSION {
            return Err(Error::new(CALL, libc::EPROTONOSUPPORT));
        }
        let reg = api(self.context(), CALL)?.reg_queue;
        // SAFETY: a live queue pair.
        let raw = pointer(CALL, unsafe { reg(self.as_ptr(), side as u32, access.bits() as c_int) })?;
        Ok(Arc::new(QueueMr { raw, queue, qp: self.clone() }))
    }
}

/// A region upon the entries of a managed queue.
pub struct QueueMr {
    raw: NonNull<ibv_mr>,
    queue: Queue,
    // Dropped after the deregistration in `drop`: a queue pair is not destroyed before.
    qp: Arc<Qp>,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for QueueMr {}
// SAFETY: verbs are thread-safe.
unsafe impl Sync for QueueMr {}

impl Drop for QueueMr {
    fn drop(&mut self) {
        // SAFETY: a live region, deregistered once; no window can be bound to it.
        unsafe { (self.qp.context().library().api.dereg_mr)(self.raw.as_ptr()) };
    }
}

impl QueueMr {
    /// The key for this process's own requests and receives.
    pub fn lkey(&self) -> u32 {
        // SAFETY: a live region; its key does not change.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// The key for peers.
    pub fn rkey(&self) -> u32 {
        // SAFETY: a live region; its key does not change.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// The address of a byte of request `number`, for peers and for scatter/gather lists.
    ///
    /// # Panics
    /// If the byte is not within the request's entry.
    pub fn addr(&self, number: u64, byte: usize) -> u64 {
        assert!(byte < self.queue.stride as usize, "byte {byte} is not within an entry");
        let place = number % u64::from(self.queue.count);
        self.queue.addr + place * u64::from(self.queue.stride) + byte as u64
    }

    /// A scatter/gather entry for bytes of request `number`.
    ///
    /// # Panics
    /// If they are not within the request's entry.
    pub fn sge(&self, number: u64, bytes: Range<usize>) -> Sge {
        assert!(
            bytes.start < bytes.end && bytes.end <= self.queue.stride as usize,
            "{bytes:?} are not within an entry"
        );
        Sge::raw(self.addr(number, bytes.start), (bytes.end - bytes.start) as u32, self.lkey())
    }
}
