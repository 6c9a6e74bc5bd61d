//! Managed queues: `include/softrnic/dv_queues.h`.

use core::sync::atomic::AtomicU64;
use std::sync::Arc;

use libc::{c_int, c_void, size_t};
use nic::{CqOpts, EntryArray, Managed, QueueRules, Side};
use sys::{ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_init_attr};
use verbs::{Count, Errno, Opcode, Result, SendBody, SendData, SendFlags, SendWr};

use crate::context::alive;
use crate::cq::{Cq, CqInit};
use crate::dm::Memory;
use crate::entry::{argument, by_handle_if_any, number, object, output, pointer};
use crate::mr::{self, Made, Mr};
use crate::pd::Pd;
use crate::qp::Qp;

const CROSS_CHANNEL: u32 = 1 << 2;
const MANAGED_SEND: u32 = 1 << 3;
const MANAGED_RECV: u32 = 1 << 4;
const IGNORE_OVERFLOW: u32 = 1 << 6 | 1 << 7;
const CYCLIC_SEND: u32 = 1 << 16;
const CYCLIC_RECV: u32 = 1 << 17;

const CQ_CROSS_CHANNEL: u32 = 1 << 0;
const CQ_IGNORE_OVERRUN: u32 = 1 << 1;

const ABSOLUTE: u32 = 1 << 0;
const LAST: u32 = 1 << 1;

/// `SOFTRNIC_DV_ENTRY_VERSION`.
const VERSION: u32 = 1;

/// `struct softrnic_dv_qp_attr`.
#[repr(C)]
pub struct QpAttr {
    comp_mask: u64,
    create_flags: u32,
    reserved: u32,
    opcodes: u64,
    patchable: [u64; 2],
    recv_patchable: [u64; 2],
}

/// `struct softrnic_dv_cq_attr`.
#[repr(C)]
pub struct CqAttr {
    comp_mask: u64,
    cqe: u32,
    flags: u32,
    first_count: u64,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
    reserved: u32,
}

/// `struct softrnic_dv_task`.
#[repr(C)]
pub struct Task {
    wr_id: u64,
    opcode: u32,
    send_flags: u32,
    flags: u32,
    step: u32,
    count: u64,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
}

/// `struct softrnic_dv_queue`.
#[repr(C)]
pub struct Queue {
    addr: *mut c_void,
    stride: u32,
    count: u32,
    posted: u64,
    enabled: u64,
    begun: u64,
    version: u32,
    reserved: u32,
}

/// `struct ibv_hyperloop_wqe_buffer`.
#[repr(C)]
pub struct WqeBuffer {
    address: *mut c_void,
    size: size_t,
}

/// The entries of a managed queue in memory that peers may map.
fn entries(memory: &Arc<Memory>) -> EntryArray {
    let (start, len) = memory.whole();
    // SAFETY: whole pages, mapped as long as the memory lives, which the value that gets these words holds: it hands
    // them out for no longer. Any bytes are valid words, and are only reached through atomics and by copies of the
    // device.
    let words = unsafe { core::slice::from_raw_parts(start.cast::<AtomicU64>(), len / 8) };
    EntryArray::mapped(words, memory.clone())
}

/// What a queue pair needs to be made with managed queues.
pub struct Wanted {
    send: Option<QueueRules>,
    recv: Option<QueueRules>,
}

impl Wanted {
    fn new(attr: &QpAttr) -> Result<Self> {
        let known = CROSS_CHANNEL | MANAGED_SEND | MANAGED_RECV | IGNORE_OVERFLOW | CYCLIC_SEND | CYCLIC_RECV;
        let has = |bit| attr.create_flags & bit != 0;
        if attr.comp_mask != 0 || attr.reserved != 0 || attr.create_flags & !known != 0 || attr.create_flags == 0 {
            return Err(Errno::EINVAL);
        }
        let rules = |managed: bool, cyclic: bool, opcodes: u64, patchable: [u64; 2]| {
            if !managed && (cyclic || (opcodes, patchable) != (0, [0; 2])) {
                return Err(Errno::EINVAL);
            }
            Ok(managed.then_some(QueueRules { opcodes, patchable, cyclic }))
        };
        Ok(Wanted {
            send: rules(has(MANAGED_SEND), has(CYCLIC_SEND), attr.opcodes, attr.patchable)?,
            recv: rules(has(MANAGED_RECV), has(CYCLIC_RECV), 0, attr.recv_patchable)?,
        })
    }

    /// The queues, and the memory of their entries. EINVAL for sizes that no queue pair has.
    pub fn queues(&self, nic: &'static nic::Nic, cap: &verbs::QpCap) -> Result<(Managed, Arrays)> {
        let most = (verbs::limits::MAX_QP_WR, verbs::limits::MAX_SGE);
        let make = |rules: Option<QueueRules>, wr: u32, sge: u32| {
            let Some(rules) = rules else { return Ok((None, None)) };
            if wr > most.0 || sge > most.1 {
                return Err(Errno::EINVAL);
            }
            let memory = Memory::new(Some(nic), nic::array_bytes(wr, sge), 1)?;
            Ok((Some((entries(&memory), rules)), Some(memory)))
        };
        let (send, sends) = make(self.send, cap.max_send_wr, cap.max_send_sge)?;
        let (recv, receives) = make(self.recv, cap.max_recv_wr, cap.max_recv_sge)?;
        Ok((Managed { send, recv }, [sends, receives]))
    }
}

/// The memory of the entries of a queue pair's managed queues: the send queue's, the receive queue's.
pub type Arrays = [Option<Arc<Memory>>; 2];

/// `softrnic_dv_create_qp`.
pub unsafe extern "C" fn softrnic_dv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
    attr: *const QpAttr,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: live or NULL (dv_queues.h).
        let ctx = unsafe { Pd::of(pd) }?.context()?;
        // SAFETY: the caller's structures or NULL.
        let (init, attr) = unsafe { (output(init)?, argument(attr)?) };
        Qp::create_managed(ctx, pd, init, &Wanted::new(attr)?)
    })
}

/// `softrnic_dv_create_cq`.
pub unsafe extern "C" fn softrnic_dv_create_cq(context: *mut ibv_context, attr: *const CqAttr) -> *mut ibv_cq {
    pointer(|| {
        // SAFETY: the caller's structure or NULL.
        let attr = unsafe { argument(attr) }?;
        if attr.comp_mask != 0 || attr.reserved != 0 || attr.flags & !(CQ_CROSS_CHANNEL | CQ_IGNORE_OVERRUN) != 0 {
            return Err(Errno::EINVAL);
        }
        let init = CqInit {
            cqe: attr.cqe,
            user: attr.cq_context,
            channel: attr.channel,
            vector: attr.comp_vector.into(),
            opts: CqOpts {
                ignore_overrun: attr.flags & CQ_IGNORE_OVERRUN != 0,
                cross_channel: attr.flags & CQ_CROSS_CHANNEL != 0,
                first_count: attr.first_count & (u64::MAX >> 2),
                ..CqOpts::default()
            },
            parent_domain: core::ptr::null_mut(),
        };
        // SAFETY: the pointers are live or NULL (dv_queues.h).
        unsafe { Cq::create(context, init) }.map(|cq| cq.cast())
    })
}

/// `softrnic_dv_cq_count`.
pub unsafe extern "C" fn softrnic_dv_cq_count(cq: *mut ibv_cq, count: *mut u64) -> c_int {
    number(|| {
        // SAFETY: live or NULL; the caller's variable or NULL (dv_queues.h).
        let (this, count) = unsafe { (Cq::named(cq)?, output(count)?) };
        *count = alive(this.nic)?.lock().cq_count(this.id())?;
        Ok(())
    })
}

fn count(count: u64, flags: u32) -> Result<Count> {
    if flags & !(ABSOLUTE | LAST) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & ABSOLUTE != 0 {
        return if flags & LAST == 0 { Ok(Count::Absolute(count)) } else { Err(Errno::EINVAL) };
    }
    let count = u32::try_from(count).map_err(|_| Errno::EINVAL)?;
    Ok(Count::Relative { count, last: flags & LAST != 0 })
}

/// `softrnic_dv_post_task`.
pub unsafe extern "C" fn softrnic_dv_post_task(qp: *mut ibv_qp, task: *const Task) -> c_int {
    number(|| {
        // SAFETY: live or NULL; the caller's structure or NULL (dv_queues.h).
        let (this, task) = unsafe { (Qp::named(qp)?, argument(task)?) };
        let opcode = u8::try_from(task.opcode).ok().and_then(Opcode::from_entry);
        let opcode = opcode.filter(|opcode| opcode.is_task()).ok_or(Errno::EINVAL)?;
        let count = count(task.count, task.flags)?;
        let flags = SendFlags::from_bits(task.send_flags).ok_or(Errno::EINVAL)?;
        if !(SendFlags::SIGNALED | SendFlags::FENCE).contains(flags) {
            return Err(Errno::EINVAL);
        }
        let nic = alive(this.nic)?;
        // SAFETY: live or NULL (dv_queues.h).
        let (cq, target) = unsafe { (by_handle_if_any::<Cq, _>(task.cq)?, by_handle_if_any::<Qp, _>(task.qp)?) };
        let body = match opcode {
            Opcode::Nop => SendBody::Plain,
            Opcode::Wait => {
                let cq = cq.filter(|cq| core::ptr::eq(cq.nic, this.nic)).ok_or(Errno::EINVAL)?.id();
                SendBody::Wait { cq, count, step: task.step }
            }
            _ => {
                let qp = target.filter(|qp| core::ptr::eq(qp.nic, this.nic)).ok_or(Errno::EINVAL)?.id;
                SendBody::Enable { qp, count, step: task.step }
            }
        };
        let wr = SendWr {
            wr_id: task.wr_id,
            opcode,
            flags,
            imm_or_rkey: 0,
            remote_srqn: 0,
            body: &body,
            data: SendData::Sges(&[]),
        };
        nic.post_send(this.id, &wr)
    })
}

fn side(side: u32) -> Result<Side> {
    match side {
        0 => Ok(Side::Send),
        1 => Ok(Side::Recv),
        _ => Err(Errno::EINVAL),
    }
}

/// `softrnic_dv_enable`.
pub unsafe extern "C" fn softrnic_dv_enable(qp: *mut ibv_qp, which: u32, wanted: u64, flags: u32) -> c_int {
    number(|| {
        // SAFETY: live or NULL (dv_queues.h).
        let this = unsafe { Qp::named(qp) }?;
        let count = count(wanted, flags)?;
        alive(this.nic)?.lock().enable(this.id, side(which)?, count)
    })
}

/// `softrnic_dv_query_queue`.
pub unsafe extern "C" fn softrnic_dv_query_queue(qp: *mut ibv_qp, which: u32, queue: *mut Queue) -> c_int {
    number(|| {
        // SAFETY: live or NULL; the caller's structure or NULL (dv_queues.h).
        let (this, out) = unsafe { (Qp::named(qp)?, output(queue)?) };
        let state = alive(this.nic)?.lock().queue_state(this.id, side(which)?)?;
        *out = Queue {
            addr: core::ptr::with_exposed_provenance_mut(state.addr as usize),
            stride: state.stride,
            count: state.count,
            posted: state.posted,
            enabled: state.enabled,
            begun: state.begun,
            version: VERSION,
            reserved: 0,
        };
        Ok(())
    })
}

/// `softrnic_dv_reg_queue`.
pub unsafe extern "C" fn softrnic_dv_reg_queue(qp: *mut ibv_qp, which: u32, access: c_int) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: live or NULL (dv_queues.h).
        let this = unsafe { Qp::named(qp) }?;
        let nic = alive(this.nic)?;
        let memory = this.arrays.get(which as usize).and_then(Clone::clone).ok_or(Errno::EINVAL)?;
        let state = nic.lock().queue_state(this.id, side(which)?)?;
        let length = state.stride as usize * state.count as usize;
        let addr = memory.range(0, length)?;
        let rights = mr::access(access as u32)?;
        // SAFETY: a field that no thread writes; the domain outlives its queue pairs.
        let pd = unsafe { (*this.c()).qp_base.pd };
        // SAFETY: live, as above.
        let domain = unsafe { object::<Pd, _>(pd) }?;
        let (id, lkey, rkey) = nic.reg_mr(domain.id, addr as u64, length as u64, addr as u64, rights)?;
        Mr::create(pd, Made { id, lkey: lkey.0, rkey: rkey.0, addr, length }, Some(memory))
    })
}

/// `ibv_hyperloop_get_wqe_buffer`.
pub unsafe extern "C" fn ibv_hyperloop_get_wqe_buffer(qp: *mut ibv_qp) -> WqeBuffer {
    let none = WqeBuffer { address: core::ptr::null_mut(), size: 0 };
    // SAFETY: live or NULL (dv_queues.h).
    let Ok(this) = (unsafe { Qp::named(qp) }) else { return none };
    let [Some(memory), _] = &this.arrays else { return none };
    WqeBuffer { address: memory.whole().0, size: nic::array_bytes(this.cap.max_send_wr, this.cap.max_send_sge) }
}
