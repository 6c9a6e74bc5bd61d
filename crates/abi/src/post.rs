//! Posting: the fast path of requests, which are translated on the stack, without allocation, under one lock for a
//! list.

use core::mem::{MaybeUninit, offset_of, size_of};

use libc::c_int;
use nic::{Core, Nic, TOGETHER};
use sys::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq};
use verbs::{Errno, Opcode, QpType, RKey, RecvWr, Result, SendBody, SendData, SendFlags, SendWr, Sge, limits};

use crate::ah::Ah;
use crate::entry::{caught, object};
use crate::mw;
use crate::qp::Qp;
use crate::srq::Srq;

const _: () = {
    assert!(size_of::<ibv_sge>() == size_of::<Sge>());
    assert!(offset_of!(ibv_sge, addr) == offset_of!(Sge, addr));
    assert!(offset_of!(ibv_sge, length) == offset_of!(Sge, length));
    assert!(offset_of!(ibv_sge, lkey) == offset_of!(Sge, lkey));
};

/// The pieces of inline data that fit into one request.
type Pieces<'a> = [MaybeUninit<&'a [u8]>; limits::MAX_SGE as usize];

/// A C list of scatter/gather entries as a slice of [`Sge`], whose layout is the same. An entry of length 0 names no
/// bytes on this device (some adapters take it for 2^31).
///
/// # Safety
/// `list` has `count` entries, or `count` is 0.
unsafe fn sges<'a>(list: *mut ibv_sge, count: c_int) -> Result<&'a [Sge]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(_) if list.is_null() => Err(Errno::EINVAL),
        // SAFETY: the caller's promise; same layout, asserted above.
        Ok(n) => Ok(unsafe { core::slice::from_raw_parts(list.cast::<Sge>(), n) }),
        Err(_) => Err(Errno::EINVAL),
    }
}

/// The bytes of an entry.
///
/// # Safety
/// The entry names readable memory.
unsafe fn bytes(sge: &Sge) -> &[u8] {
    if sge.length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise. The program must not write them during the post; they are copied.
    unsafe { core::slice::from_raw_parts(sge.addr as usize as *const u8, sge.length as usize) }
}

/// The bytes of an inline request's entries: addresses of this process, keys are ignored.
///
/// # Safety
/// Every entry names readable memory.
unsafe fn inline<'a, 'p>(list: &'a [Sge], pieces: &'p mut Pieces<'a>) -> Result<&'p [&'a [u8]]> {
    if list.len() > pieces.len() {
        return Err(Errno::EINVAL);
    }
    for (piece, sge) in pieces.iter_mut().zip(list) {
        // SAFETY: the caller's promise.
        piece.write(unsafe { bytes(sge) });
    }
    // SAFETY: the first `list.len()` were written just now.
    Ok(unsafe { core::slice::from_raw_parts(pieces.as_ptr().cast::<&[u8]>(), list.len()) })
}

/// # Safety
/// `wr` is a request as `ibv_post_send(3)` describes it: the pointers that its operation uses are live.
unsafe fn body(qp: &Qp, opcode: Opcode, wr: &ibv_send_wr) -> Result<SendBody> {
    // SAFETY: the operation says which members of the unions are meant; all are integers and pointers, so reading the
    // wrong one would give a wrong number, nothing worse. Pointers are live (caller).
    unsafe {
        Ok(match opcode {
            Opcode::RdmaWrite | Opcode::RdmaWriteWithImm | Opcode::RdmaRead | Opcode::AtomicWrite => {
                SendBody::Rdma { remote_addr: wr.wr.rdma.remote_addr, rkey: RKey(wr.wr.rdma.rkey) }
            }
            Opcode::Send | Opcode::SendWithImm if qp.ty == QpType::Ud => SendBody::Datagram {
                ah: object::<Ah, _>(wr.wr.ud.ah)?.id,
                remote_qpn: verbs::Qpn::new(wr.wr.ud.remote_qpn),
                remote_qkey: wr.wr.ud.remote_qkey,
            },
            Opcode::Send | Opcode::SendWithImm | Opcode::SendWithInv | Opcode::LocalInv => SendBody::Plain,
            Opcode::CmpAndSwp | Opcode::FetchAndAdd => SendBody::Atomic {
                remote_addr: wr.wr.atomic.remote_addr,
                rkey: RKey(wr.wr.atomic.rkey),
                compare_add: wr.wr.atomic.compare_add,
                swap: wr.wr.atomic.swap,
            },
            Opcode::BindMw => {
                let bind = &wr.anon_2.bind_mw;
                // Windows of type 1 are bound by ibv_bind_mw alone.
                if object::<mw::Mw, _>(bind.mw)?.kind() != sys::IBV_MW_TYPE_2 {
                    return Err(Errno::EINVAL);
                }
                mw::bind_body(bind.mw, bind.rkey, &bind.bind_info)?
            }
            // The structure has no members for it; it is posted with ibv_wr_flush.
            Opcode::Flush => return Err(Errno::EINVAL),
            // No `enum ibv_wr_opcode` has their numbers; they are posted with softrnic_dv_post_task.
            Opcode::Nop | Opcode::Wait | Opcode::SendEn | Opcode::RecvEn => return Err(Errno::EINVAL),
        })
    }
}

/// The longest message for which [`post_small`] is tried, in bytes: one packet on every connection.
const SMALL: u32 = 256;

/// True if a list is one small SEND of one entry, and of 8 bytes if they are inline: the smallest messages of most
/// programs.
///
/// # Safety
/// As [`post_send`].
#[inline(always)]
unsafe fn is_small(wr: *const ibv_send_wr) -> bool {
    // SAFETY: NULL or live, and so is its list of entries, which has as many as it says (caller).
    let Some(wr) = (unsafe { wr.as_ref() }) else { return false };
    let one = wr.opcode == sys::IBV_WR_SEND && wr.num_sge == 1 && wr.next.is_null();
    let inline = wr.send_flags & sys::IBV_SEND_INLINE != 0;
    // SAFETY: as above.
    one && unsafe { wr.sg_list.as_ref() }.is_some_and(|sge| if inline { sge.length == 8 } else { sge.length <= SMALL })
}

/// Post such a SEND, if it is the first thing that this queue pair has to do. False: nothing was done, nor read.
///
/// # Safety
/// As [`post_send`], and [`is_small`].
#[inline(always)]
unsafe fn post_small(qp: &Qp, wr: &ibv_send_wr) -> bool {
    let flags = SendFlags::from_bits_truncate(wr.send_flags);
    // With a request of constants, the compiler keeps it out of memory (a tenth of the time of such a message).
    let post = |data| {
        let (wr_id, opcode, body) = (wr.wr_id, Opcode::Send, &SendBody::Plain);
        let request = SendWr { wr_id, opcode, flags, imm_or_rkey: 0, remote_srqn: 0, body, data };
        qp.nic.post_send_fast(qp.id, &request)
    };
    // SAFETY: there is one entry (caller), and both types have one layout (asserted above).
    let sge = unsafe { *wr.sg_list.cast::<Sge>() };
    if flags.contains(SendFlags::INLINE) {
        // SAFETY: it names 8 readable bytes (caller). The length is a constant here, so that they are one load.
        return post(SendData::Inline(&[unsafe { core::slice::from_raw_parts(sge.addr as usize as *const u8, 8) }]));
    }
    post(SendData::Sges(&[sge]))
}

/// True if a list is one SEND of one entry, whose few bytes go with it.
///
/// # Safety
/// As [`post_send`].
#[inline(always)]
unsafe fn is_inline(wr: *const ibv_send_wr) -> bool {
    // SAFETY: NULL or live, and so is its list of entries, which has as many as it says (caller).
    let Some(wr) = (unsafe { wr.as_ref() }) else { return false };
    let inline = wr.opcode == sys::IBV_WR_SEND && wr.send_flags & sys::IBV_SEND_INLINE != 0;
    // SAFETY: as above.
    inline
        && wr.num_sge == 1
        && wr.next.is_null()
        && unsafe { wr.sg_list.as_ref() }.is_some_and(|sge| sge.length <= SMALL)
}

/// Post such a SEND, as [`post_small`].
///
/// # Safety
/// As [`post_send`], and [`is_inline`].
#[inline(always)]
unsafe fn post_inline(qp: &Qp, wr: &ibv_send_wr) -> bool {
    // SAFETY: there is one entry, which names readable memory (caller), and both types have one layout (asserted
    // above).
    let piece = [unsafe { bytes(&*wr.sg_list.cast::<Sge>()) }];
    let (wr_id, opcode, body) = (wr.wr_id, Opcode::Send, &SendBody::Plain);
    let (flags, data) = (SendFlags::from_bits_truncate(wr.send_flags), SendData::Inline(&piece));
    qp.nic.post_send_fast(qp.id, &SendWr { wr_id, opcode, flags, imm_or_rkey: 0, remote_srqn: 0, body, data })
}

/// Post one request.
///
/// # Safety
/// As [`body`].
#[inline(always)]
unsafe fn send_one(core: &mut Core, qp: &Qp, wr: &ibv_send_wr, now: u64) -> Result<()> {
    let opcode = Opcode::from_raw(wr.opcode).ok_or(Errno::EINVAL)?;
    let mut pieces: Pieces = [MaybeUninit::uninit(); limits::MAX_SGE as usize];
    // SAFETY: the caller's promise.
    let list = unsafe { sges(wr.sg_list, wr.num_sge) }?;
    let flags = SendFlags::from_bits_truncate(wr.send_flags);
    let one;
    let data = match list {
        _ if !flags.contains(SendFlags::INLINE) => SendData::Sges(list),
        [sge] => {
            // SAFETY: the caller's promise.
            one = [unsafe { bytes(sge) }];
            SendData::Inline(&one)
        }
        // SAFETY: the caller's promise.
        _ => SendData::Inline(unsafe { inline(list, &mut pieces) }?),
    };
    let request = SendWr {
        wr_id: wr.wr_id,
        opcode,
        flags,
        // SAFETY: the immediate value or the rkey: both 32 bits, passed on as they are.
        imm_or_rkey: unsafe { wr.anon_1.imm_data },
        // SAFETY: the only member; ignored for other services than XRC.
        remote_srqn: unsafe { wr.qp_type.xrc.remote_srqn },
        // SAFETY: the caller's promise.
        body: &unsafe { body(qp, opcode, wr) }?,
        data,
    };
    core.post_send(qp.id, &request, now)?;
    if opcode == Opcode::BindMw {
        // SAFETY: the operation says which member is meant; the window is live (caller).
        unsafe { mw::set_key(wr.anon_2.bind_mw.mw, wr.anon_2.bind_mw.rkey) };
    }
    Ok(())
}

/// True if this request and the next one are WRITEs, or READs, which may be executed by one copy.
///
/// # Safety
/// As [`post_send`].
#[inline(always)]
unsafe fn begins_several(wr: &ibv_send_wr) -> bool {
    // SAFETY: NULL or live (caller).
    matches!(wr.opcode, sys::IBV_WR_RDMA_WRITE | sys::IBV_WR_RDMA_READ)
        && unsafe { wr.next.as_ref() }.is_some_and(|next| next.opcode == wr.opcode)
}

/// Post such requests together, as far as that can be done. The result is their number.
///
/// # Safety
/// As [`post_send`], of a list that begins with this request.
#[inline(never)] // other lists do not pay for its registers
unsafe fn send_several(core: &mut Core, qp: &Qp, first: &ibv_send_wr, now: u64) -> usize {
    const NONE: SendBody = SendBody::Plain;
    let (mut bodies, mut count) = ([NONE; TOGETHER], 0);
    let mut lists: [&[Sge]; TOGETHER] = [&[]; TOGETHER];
    let mut raws = [first; TOGETHER];
    let mut at = Some(first);
    while let Some(wr) = at.filter(|wr| count < TOGETHER && wr.opcode == first.opcode && wr.num_sge == 1) {
        if wr.send_flags & sys::IBV_SEND_INLINE != 0 {
            break;
        }
        // SAFETY: there is one entry, and the operation says which members are meant (caller).
        let Ok(list) = (unsafe { sges(wr.sg_list, 1) }) else { break };
        // SAFETY: as above; both are integers.
        let (remote_addr, rkey) = unsafe { (wr.wr.rdma.remote_addr, RKey(wr.wr.rdma.rkey)) };
        (raws[count], lists[count], bodies[count]) = (wr, list, SendBody::Rdma { remote_addr, rkey });
        count += 1;
        // SAFETY: NULL or live (caller).
        at = unsafe { wr.next.as_ref() };
    }
    let opcode = if first.opcode == sys::IBV_WR_RDMA_READ { Opcode::RdmaRead } else { Opcode::RdmaWrite };
    let requests: [SendWr<'_>; TOGETHER] = core::array::from_fn(|at| SendWr {
        wr_id: raws[at].wr_id,
        opcode,
        flags: SendFlags::from_bits_truncate(raws[at].send_flags),
        imm_or_rkey: 0,
        remote_srqn: 0,
        body: &bodies[at],
        data: SendData::Sges(lists[at]),
    });
    core.post_together(qp.id, &requests[..count], now)
}

/// `ibv_post_send(3)`.
pub unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // Few comparisons, and then a jump: the long way must not pay for the registers of the short one.
    // SAFETY: a list as the man page describes it.
    unsafe { if is_small(wr) { post_send_small(qp, wr, bad) } else { post_send_list(qp, wr, bad) } }
}

/// # Safety
/// As [`post_send`], and [`is_small`].
#[inline(never)]
unsafe extern "C" fn post_send_small(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: a list as the man page describes it; the queue pair is live or NULL. (No other service than RC has a fast
    // path for it.)
    unsafe {
        match Qp::of(qp) {
            Ok(qp) if qp.ty == QpType::Rc && qp.nic.alive() && post_small(qp, &*wr) => 0,
            _ => post_send_list(qp, wr, bad),
        }
    }
}

/// # Safety
/// As [`post_send`].
#[inline(never)]
unsafe extern "C" fn post_send_list(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: live or NULL, and a list as the man page describes it. (No other service than RC has a fast path for one
    // that is inline.)
    unsafe {
        if is_inline(wr)
            && let Ok(qp) = Qp::of(qp)
            && qp.ty == QpType::Rc
            && qp.nic.alive()
            && post_inline(qp, &*wr)
        {
            return 0;
        }
        // Requests of the list that have been posted with one before them.
        let mut posted = 0;
        walk(
            wr,
            bad,
            |wr| wr.next,
            Qp::of(qp).map(|qp| (qp, qp.nic)),
            |qp, core, now, wr| {
                if posted == 0 && begins_several(wr) {
                    posted = send_several(core, qp, wr, now);
                }
                if posted > 0 {
                    posted -= 1;
                    return Ok(());
                }
                send_one(core, qp, wr, now)
            },
        )
    }
}

/// `ibv_post_recv(3)`.
pub unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // The list mostly has one request, which needs nothing else.
    // SAFETY: live or NULL (man page); lists as it describes them.
    unsafe {
        if let (Ok(this), Some(one)) = (Qp::of(qp), wr.as_ref())
            && one.next.is_null()
            && this.nic.alive()
            && let Ok(sges) = sges(one.sg_list, one.num_sge)
            && this.nic.post_recv_fast(this.id, &RecvWr { wr_id: one.wr_id, sges })
        {
            return 0;
        }
        post_recv_list(qp, wr, bad)
    }
}

/// # Safety
/// As [`post_recv`].
#[inline(never)]
unsafe fn post_recv_list(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: live or NULL, and a list as the man page describes it.
    unsafe {
        walk(
            wr,
            bad,
            |wr| wr.next,
            Qp::of(qp).map(|qp| (qp, qp.nic)),
            |qp, core, now, wr| {
                let request = RecvWr { wr_id: wr.wr_id, sges: sges(wr.sg_list, wr.num_sge)? };
                core.post_recv(qp.id, &request, now)
            },
        )
    }
}

/// `ibv_post_srq_recv(3)`.
pub unsafe extern "C" fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: live or NULL, and a list as the man page describes it.
    unsafe {
        walk(
            wr,
            bad,
            |wr| wr.next,
            Srq::of(srq).map(|srq| (srq, srq.nic)),
            |srq, core, now, wr| {
                let request = RecvWr { wr_id: wr.wr_id, sges: sges(wr.sg_list, wr.num_sge)? };
                core.post_srq_recv(srq.id(), &request, now)
            },
        )
    }
}

/// Walk a list of requests to a queue, with the lock of its adapter held; stop at the first that fails and name it in
/// `bad`.
///
/// # Safety
/// `first` is NULL or a list linked by `next`; `bad` is NULL or the caller's variable.
unsafe fn walk<W, T>(
    first: *mut W,
    bad: *mut *mut W,
    next: impl Fn(&W) -> *mut W,
    owner: Result<(&T, &'static Nic)>,
    mut each: impl FnMut(&T, &mut Core, u64, &W) -> Result<()>,
) -> c_int {
    let mut at = first;
    let result = caught(|| {
        let (owner, nic) = owner?;
        let mut core = crate::context::alive(nic)?.lock();
        let now = core.time();
        // SAFETY: NULL or live (caller).
        while let Some(wr) = unsafe { at.as_ref() } {
            each(owner, &mut core, now, wr)?;
            at = next(wr);
        }
        Ok(())
    });
    match result {
        Ok(()) => 0,
        Err(errno) => {
            if !bad.is_null() {
                // SAFETY: the caller's variable.
                unsafe { *bad = at };
            }
            errno.0
        }
    }
}
