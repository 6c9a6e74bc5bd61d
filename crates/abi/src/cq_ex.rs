//! Extended completion queues (`ibv_create_cq_ex(3)`): the program asks for the members that it wants, one by one.

use libc::{c_int, c_uint};
use nic::CqOpts;
use parking_lot::lock_api::RawMutex as _;
use sys::{ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc_opcode, ibv_wc_tm_info};
use verbs::{Completion, Errno, Result};

use crate::cq::{Cq, CqInit};
use crate::entry::{argument, pointer};
use crate::wallclock;

/// The members that a program can ask for: all but those of packets, flows and tag matching.
const WC_FLAGS: u64 = (sys::IBV_WC_STANDARD_FLAGS
    | sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

/// The flags with which a program asks for times.
const TIMESTAMPS: u64 =
    (sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

/// `ibv_create_cq_ex(3)`.
pub unsafe extern "C" fn create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    pointer(|| {
        // SAFETY: the caller's structure or NULL.
        let attr = unsafe { argument(attr) }?;
        // SAFETY: the pointers in it are live or NULL (man page).
        let cq = unsafe { Cq::create(context, check(attr)?) }?;
        if attr.wc_flags & TIMESTAMPS != 0 {
            // SAFETY: made just now.
            unsafe { Cq::of(cq.cast()) }?.nic.lock().want_exact_time();
        }
        Ok(cq.cast())
    })
}

fn check(attr: &ibv_cq_init_attr_ex) -> Result<CqInit> {
    let known = sys::IBV_CQ_INIT_ATTR_MASK_FLAGS | sys::IBV_CQ_INIT_ATTR_MASK_PD;
    if attr.comp_mask & !known != 0 || attr.wc_flags & !WC_FLAGS != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let flags = if attr.comp_mask & sys::IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
    let (single, overrun) = (sys::IBV_CREATE_CQ_ATTR_SINGLE_THREADED, sys::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
    if flags & !(single | overrun) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let domain = attr.comp_mask & sys::IBV_CQ_INIT_ATTR_MASK_PD != 0;
    if domain && attr.parent_domain.is_null() {
        return Err(Errno::EINVAL);
    }
    Ok(CqInit {
        cqe: attr.cqe,
        user: attr.cq_context,
        channel: attr.channel,
        vector: attr.comp_vector.into(),
        opts: CqOpts {
            ignore_overrun: flags & overrun != 0,
            single_threaded: flags & single != 0,
            ..CqOpts::default()
        },
        parent_domain: if domain { attr.parent_domain } else { core::ptr::null_mut() },
    })
}

/// Set the members that the header's inline functions call. All of them are set, whatever was asked for: the rest of
/// the program's flags only lets an adapter save work.
pub fn fill(c: &mut ibv_cq_ex) {
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
    c.end_poll = Some(end_poll);
    c.read_opcode = Some(read_opcode);
    c.read_vendor_err = Some(read_vendor_err);
    c.read_byte_len = Some(read_byte_len);
    c.read_imm_data = Some(read_imm_data);
    c.read_qp_num = Some(read_qp_num);
    c.read_src_qp = Some(read_src_qp);
    c.read_wc_flags = Some(read_wc_flags);
    c.read_slid = Some(read_slid);
    c.read_sl = Some(read_sl);
    c.read_dlid_path_bits = Some(read_dlid_path_bits);
    c.read_completion_ts = Some(read_completion_ts);
    c.read_cvlan = Some(read_cvlan);
    c.read_flow_tag = Some(read_flow_tag);
    c.read_tm_info = Some(read_tm_info);
    c.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// # Safety
/// `cq` is live, and the calling thread is the only one between start_poll and end_poll (the man page; for queues that
/// are not single-threaded the lock sees to it).
unsafe fn step(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: live (caller).
    let this = unsafe { &*cq.cast::<Cq>() };
    let mut one = Completion::default();
    if this.nic.poll_cq(this.id(), 1, |_, completion| one = *completion) == 0 {
        return libc::ENOENT;
    }
    // SAFETY: only this thread is between start_poll and end_poll (caller).
    unsafe {
        (*cq).wr_id = one.wr_id;
        (*cq).status = one.status as u32;
        *this.current.get() = one;
    }
    0
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: live (man page).
    let this = unsafe { &*cq.cast::<Cq>() };
    // SAFETY: the caller's structure or NULL.
    if unsafe { attr.as_ref() }.is_some_and(|a| a.comp_mask != 0) {
        return libc::EINVAL;
    }
    if !this.single_threaded {
        this.polling.lock();
    }
    // SAFETY: live; this thread is the only one, by the lock or by the program's promise.
    let result = unsafe { step(cq) };
    if result != 0 {
        // "If an error code is given, end_poll shouldn't be called."
        // SAFETY: as end_poll.
        unsafe { end_poll(cq) };
    }
    result
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: live, and between start_poll and end_poll (man page).
    unsafe { step(cq) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: live (man page).
    let this = unsafe { &*cq.cast::<Cq>() };
    if !this.single_threaded {
        // SAFETY: locked by this thread's start_poll.
        unsafe { this.polling.unlock() };
    }
}

/// # Safety
/// As [`step`].
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Completion {
    // SAFETY: live, and no thread writes it between start_poll and end_poll but this thread (caller).
    unsafe { &*(*cq.cast::<Cq>()).current.get() }
}

macro_rules! readers {
    ($($name:ident -> $ret:ty = |$c:ident| $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ret {
            // SAFETY: live, and between start_poll and end_poll (man page).
            let $c = unsafe { current(cq) };
            $value
        }
    )*};
}

readers! {
    read_opcode -> ibv_wc_opcode = |c| c.opcode as u32;
    read_vendor_err -> u32 = |c| c.vendor_err;
    read_byte_len -> u32 = |c| c.byte_len;
    read_imm_data -> u32 = |c| c.imm_or_rkey;
    read_qp_num -> u32 = |c| c.qp_num.get();
    read_src_qp -> u32 = |c| c.src_qp.get();
    read_wc_flags -> c_uint = |c| c.flags.bits();
    read_slid -> u32 = |c| c.slid.into();
    read_sl -> u8 = |c| c.sl;
    read_completion_ts -> u64 = |c| c.timestamp;
    read_completion_wallclock_ns -> u64 = |c| c.timestamp.wrapping_add_signed(wallclock::offset());
}

/// The port has one LID (LMC 0).
unsafe extern "C" fn read_dlid_path_bits(_: *mut ibv_cq_ex) -> u8 {
    0
}

/// The VLAN, which a program cannot ask for.
unsafe extern "C" fn read_cvlan(_: *mut ibv_cq_ex) -> u16 {
    0
}

/// The flow tag, which a program cannot ask for.
unsafe extern "C" fn read_flow_tag(_: *mut ibv_cq_ex) -> u32 {
    0
}

/// The tag matching result, which a program cannot ask for.
unsafe extern "C" fn read_tm_info(_: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    if !info.is_null() {
        // SAFETY: the caller's structure.
        unsafe { (*info).tag = 0 };
        // SAFETY: the caller's structure.
        unsafe { (*info).priv_ = 0 };
    }
}
