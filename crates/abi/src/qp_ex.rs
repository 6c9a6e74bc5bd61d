//! The interface of functions for posting (`ibv_wr_post(3)`): builders, setters, and a section around them.
//!
//! Requests are collected in lists that keep their memory from one section to the next, so the steady state does not
//! allocate. `wr_complete` posts all of them or none; the first error is remembered until then.

use core::cell::UnsafeCell;

use libc::{c_int, c_void, size_t};
use nic::{Nic, RawBiased};
use parking_lot::lock_api::RawMutex as _;
use sys::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_qp_type, ibv_sge};
use verbs::{Errno, LKey, Opcode, QpType, Qpn, RKey, Result, SendBody, SendData, SendFlags, SendWr, Sge};

use crate::ah::Ah;
use crate::context::alive;
use crate::entry::{argument, caught, object};
use crate::mw::{Mw, bind_body, set_key};
use crate::qp::Qp;

/// The operations that can be built for a queue pair of this type (`enum ibv_qp_create_send_ops_flags`).
pub fn possible(ty: ibv_qp_type) -> u64 {
    use sys::*;
    let datagram = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let unreliable = datagram
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | IBV_QP_EX_WITH_LOCAL_INV
        | IBV_QP_EX_WITH_BIND_MW;
    let reliable = unreliable
        | IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | IBV_QP_EX_WITH_FLUSH
        | IBV_QP_EX_WITH_ATOMIC_WRITE;
    u64::from(match ty {
        IBV_QPT_RC | IBV_QPT_XRC_SEND => reliable,
        IBV_QPT_UC => unreliable,
        IBV_QPT_UD => datagram,
        _ => 0,
    })
}

/// A request that is being built.
struct Entry {
    wr_id: u64,
    /// The immediate value or key, and above it the number of a shared receive queue. They share one word because they
    /// are read as one, and a load that is wider than the stores before it waits for them
    /// (`engine::wq::in_place_ring`).
    numbers: u64,
    opcode: Opcode,
    flags: SendFlags,
    /// The kind and the range of the data that the request sends.
    data: Data,
    from: usize,
    to: usize,
    /// The data for [`Data::Word`].
    word: [u8; 8],
    body: SendBody,
}

/// The place of the data that a request sends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    /// In the list of scatter/gather entries.
    Listed,
    /// In the list of bytes: inline data.
    Bytes,
    /// In the entry itself: inline data of 8 bytes. A kind of its own, because a copy of a known length is one load and
    /// one store.
    Word,
}

impl Entry {
    fn new() -> Self {
        Entry {
            wr_id: 0,
            numbers: 0,
            opcode: Opcode::Send,
            flags: SendFlags::empty(),
            data: Data::Listed,
            from: 0,
            to: 0,
            word: [0; 8],
            body: SendBody::Plain,
        }
    }
}

/// The requests between wr_start and wr_complete.
pub struct Batch {
    section: RawBiased,
    work: UnsafeCell<Work>,
}

/// Lists that only grow: their elements are written in place, and counters say how many are in use.
#[derive(Default)]
struct Work {
    entries: Vec<Entry>,
    in_use: usize,
    sges: Vec<Sge>,
    sges_in_use: usize,
    bytes: Vec<u8>,
    /// The windows that the requests bind, and the keys with which they do.
    binds: Vec<(*mut ibv_mw, u32)>,
    error: Option<Errno>,
}

impl Default for Batch {
    fn default() -> Self {
        Batch { section: RawBiased::INIT, work: UnsafeCell::default() }
    }
}

impl Work {
    #[inline(always)]
    fn clear(&mut self) {
        (self.in_use, self.sges_in_use) = (0, 0);
        self.bytes.clear();
        self.binds.clear();
        self.error = None;
    }

    #[cold]
    #[inline(never)]
    fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }

    fn requests(&self) -> &[Entry] {
        &self.entries[..self.in_use]
    }

    /// Begin a request that sends nothing yet.
    #[inline(always)]
    fn begin(&mut self, wr_id: u64, opcode: Opcode, flags: SendFlags, numbers: u64, body: SendBody) {
        let from = self.sges_in_use;
        let Some(e) = self.entries.get_mut(self.in_use) else {
            return self.begin_another(wr_id, opcode, flags, numbers, body);
        };
        (e.wr_id, e.opcode, e.flags, e.numbers) = (wr_id, opcode, flags, numbers);
        match body {
            // A case of its own, so that only its tag is written. The whole body would be copied from where it was
            // made, by loads wider than the store of the tag, and such loads wait for all stores before them.
            SendBody::Plain => e.body = SendBody::Plain,
            body => e.body = body,
        }
        (e.data, e.from, e.to) = (Data::Listed, from, from);
        self.in_use += 1;
    }

    #[cold]
    #[inline(never)]
    fn begin_another(&mut self, wr_id: u64, opcode: Opcode, flags: SendFlags, numbers: u64, body: SendBody) {
        self.entries.push(Entry::new());
        self.begin(wr_id, opcode, flags, numbers, body);
    }

    #[inline(always)]
    fn last(&mut self) -> Option<&mut Entry> {
        // The first request has none in front of it.
        let last = self.entries.get_mut(self.in_use.wrapping_sub(1));
        if last.is_none() {
            self.error.get_or_insert(Errno::EINVAL);
        }
        last
    }

    /// Give the last request one scatter/gather entry.
    #[inline(always)]
    fn set_sge(&mut self, sge: Sge) {
        let at = self.sges_in_use;
        let (Some(place), Some(e)) = (self.sges.get_mut(at), self.entries.get_mut(self.in_use.wrapping_sub(1))) else {
            return self.set_sges(&[sge]);
        };
        *place = sge;
        (e.data, e.from, e.to) = (Data::Listed, at, at + 1);
        self.sges_in_use = at + 1;
    }

    /// Give the last request these scatter/gather entries.
    #[inline(never)]
    fn set_sges(&mut self, list: &[Sge]) {
        let from = self.sges_in_use;
        let to = from + list.len();
        let Some(e) = self.last() else { return };
        (e.data, e.from, e.to) = (Data::Listed, from, to);
        let (there, lacks) = list.split_at(list.len().min(self.sges.len() - from));
        self.sges[from..from + there.len()].copy_from_slice(there);
        self.sges.extend_from_slice(lacks);
        self.sges_in_use = to;
    }
}

/// The queue pair and its lists.
///
/// # Safety
/// `qp` is live, and the calling thread is inside its section: the section's lock makes the lists its own.
unsafe fn inside<'a>(qp: *mut ibv_qp_ex) -> (&'a Qp, &'a mut Work) {
    // SAFETY: the caller's promise.
    unsafe {
        let qp = &*qp.cast::<Qp>();
        (qp, &mut *qp.batch.work.get())
    }
}

/// Begin a request.
///
/// # Safety
/// As [`inside`].
unsafe fn build(qp: *mut ibv_qp_ex, op: u32, opcode: Opcode, imm_or_rkey: u32, body: Result<SendBody>) {
    // SAFETY: the caller's promise; the two members are the program's to set before.
    let ((this, work), wr_id, wr_flags) = unsafe { (inside(qp), (*qp).wr_id, (*qp).wr_flags) };
    if this.send_ops.unwrap_or(0) & u64::from(op) == 0 {
        return work.fail(Errno::EOPNOTSUPP);
    }
    match body {
        Ok(body) => {
            let flags = SendFlags::from_bits_truncate(wr_flags) - SendFlags::INLINE;
            work.begin(wr_id, opcode, flags, imm_or_rkey.into(), body);
        }
        Err(errno) => work.fail(errno),
    }
}

macro_rules! builders {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) = $op:ident $opcode:ident, $imm:expr, $body:expr;)*) => {$(
        $(#[$doc])*
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $ty)*) {
            let (imm, body): (u32, Result<SendBody>) = ($imm, $body);
            // SAFETY: live and inside its section (man page).
            unsafe { build(qp, sys::$op, Opcode::$opcode, imm, body) }
        }
    )*};
}

builders! {
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) =
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP CmpAndSwp,
        0, Ok(SendBody::Atomic { remote_addr, rkey: RKey(rkey), compare_add: compare, swap });
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) = IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD FetchAndAdd,
        0, Ok(SendBody::Atomic { remote_addr, rkey: RKey(rkey), compare_add: add, swap: 0 });
    wr_local_inv(rkey: u32) = IBV_QP_EX_WITH_LOCAL_INV LocalInv, rkey, Ok(SendBody::Plain);
    wr_rdma_read(rkey: u32, remote_addr: u64) = IBV_QP_EX_WITH_RDMA_READ RdmaRead,
        0, Ok(SendBody::Rdma { remote_addr, rkey: RKey(rkey) });
    wr_rdma_write(rkey: u32, remote_addr: u64) = IBV_QP_EX_WITH_RDMA_WRITE RdmaWrite,
        0, Ok(SendBody::Rdma { remote_addr, rkey: RKey(rkey) });
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm: u32) = IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM RdmaWriteWithImm,
        imm, Ok(SendBody::Rdma { remote_addr, rkey: RKey(rkey) });
    wr_send() = IBV_QP_EX_WITH_SEND Send, 0, Ok(SendBody::Plain);
    wr_send_imm(imm: u32) = IBV_QP_EX_WITH_SEND_WITH_IMM SendWithImm, imm, Ok(SendBody::Plain);
    wr_send_inv(rkey: u32) = IBV_QP_EX_WITH_SEND_WITH_INV SendWithInv, rkey, Ok(SendBody::Plain);
    wr_flush(rkey: u32, remote_addr: u64, len: size_t, kind: u8, level: u8) = IBV_QP_EX_WITH_FLUSH Flush,
        0, flush(rkey, remote_addr, len, kind, level);
}

fn bind(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) -> Result<SendBody> {
    // SAFETY: live or NULL (man page).
    unsafe {
        // Windows of type 1 are bound by ibv_bind_mw alone.
        if object::<Mw, _>(mw)?.kind() != sys::IBV_MW_TYPE_2 {
            return Err(Errno::EINVAL);
        }
        bind_body(mw, rkey, argument(info)?)
    }
}

fn flush(rkey: u32, remote_addr: u64, len: usize, placement: u8, level: u8) -> Result<SendBody> {
    let known = sys::IBV_FLUSH_GLOBAL | sys::IBV_FLUSH_PERSISTENT;
    if placement == 0 || u32::from(placement) & !known != 0 || u32::from(level) > sys::IBV_FLUSH_MR {
        return Err(Errno::EINVAL);
    }
    // The length field of a FLUSH has 32 bits (IBTA vol. 1 release 1.5, annex A19.4.1); level MR ignores it.
    let whole = u32::from(level) == sys::IBV_FLUSH_MR;
    let length = if whole { 0 } else { u32::try_from(len).map_err(|_| Errno::EINVAL)? };
    Ok(SendBody::Flush { remote_addr, rkey: RKey(rkey), length, placement, level })
}

unsafe extern "C" fn wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    let body = bind(mw, rkey, info);
    // SAFETY: live and inside its section (man page).
    unsafe {
        inside(qp).1.binds.push((mw, rkey));
        build(qp, sys::IBV_QP_EX_WITH_BIND_MW, Opcode::BindMw, 0, body);
    }
}

/// Segmentation, which is for raw packets.
unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _hdr: *mut c_void, _hdr_sz: u16, _mss: u16) {
    // SAFETY: live and inside its section (man page).
    unsafe { inside(qp) }.1.fail(Errno::EOPNOTSUPP);
}

/// An atomic write of 8 bytes, which are copied now.
unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, value: *const c_void) {
    let body = if value.is_null() { Err(Errno::EINVAL) } else { Ok(SendBody::Rdma { remote_addr, rkey: RKey(rkey) }) };
    // SAFETY: live and inside its section; the caller has 8 bytes there (man page).
    unsafe {
        let before = inside(qp).1.in_use;
        build(qp, sys::IBV_QP_EX_WITH_ATOMIC_WRITE, Opcode::AtomicWrite, 0, body);
        if inside(qp).1.in_use > before {
            append(qp, [(value, 8)].into_iter());
        }
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: live and inside its section; the handle is live or NULL (man page).
    unsafe {
        let (this, work) = inside(qp);
        match object::<Ah, _>(ah) {
            Ok(ah) if this.ty == QpType::Ud => {
                if let Some(entry) = work.last() {
                    entry.body = SendBody::Datagram { ah: ah.id, remote_qpn: Qpn::new(remote_qpn), remote_qkey };
                }
            }
            _ => work.fail(Errno::EINVAL),
        }
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: live and inside its section (man page).
    if let Some(entry) = unsafe { inside(qp) }.1.last() {
        entry.numbers = entry.numbers & u64::from(u32::MAX) | u64::from(remote_srqn) << 32;
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: live and inside its section (man page).
    let (this, work) = unsafe { inside(qp) };
    if this.cap.max_send_sge == 0 {
        return work.fail(Errno::EINVAL);
    }
    work.set_sge(Sge { addr, length, lkey: LKey(lkey) });
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: size_t, list: *const ibv_sge) {
    // SAFETY: live and inside its section; the list is the caller's (man page) and has the layout of [`Sge`] (asserted
    // in post).
    unsafe {
        if count > 0 && list.is_null() {
            return inside(qp).1.fail(Errno::EINVAL);
        }
        set_sges(qp, if count == 0 { &[] } else { core::slice::from_raw_parts(list.cast(), count) });
    }
}

/// # Safety
/// As [`inside`].
unsafe fn set_sges(qp: *mut ibv_qp_ex, list: &[Sge]) {
    // SAFETY: the caller's promise.
    let (this, work) = unsafe { inside(qp) };
    if list.len() > this.cap.max_send_sge as usize {
        return work.fail(Errno::EINVAL);
    }
    work.set_sges(list);
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: size_t) {
    // SAFETY: live and inside its section; the bytes are the caller's (man page).
    unsafe {
        let (this, work) = inside(qp);
        if length == 8 && this.cap.max_inline_data >= 8 && !addr.is_null() {
            if let Some(entry) = work.last() {
                entry.data = Data::Word;
                entry.word = addr.cast::<[u8; 8]>().read_unaligned();
            }
            return;
        }
        append(qp, [(addr.cast_const(), length)].into_iter());
    }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: size_t, list: *const ibv_data_buf) {
    // SAFETY: live and inside its section; the list and the bytes are the caller's (man page).
    unsafe {
        if count > 0 && list.is_null() {
            return inside(qp).1.fail(Errno::EINVAL);
        }
        let list: &[ibv_data_buf] = if count == 0 { &[] } else { core::slice::from_raw_parts(list, count) };
        append(qp, list.iter().map(|b| (b.addr.cast_const(), b.length)));
    }
}

/// Copy inline data of the last request.
///
/// # Safety
/// As [`inside`]; every piece is readable.
unsafe fn append(qp: *mut ibv_qp_ex, pieces: impl Iterator<Item = (*const c_void, usize)>) {
    // SAFETY: the caller's promise.
    let (this, work) = unsafe { inside(qp) };
    let start = work.bytes.len();
    for (addr, length) in pieces {
        let total = (work.bytes.len() - start).saturating_add(length);
        if total > this.cap.max_inline_data as usize || (addr.is_null() && length > 0) {
            return work.fail(Errno::EINVAL);
        }
        if length > 0 {
            // SAFETY: the caller's promise.
            work.bytes.extend_from_slice(unsafe { core::slice::from_raw_parts(addr.cast(), length) });
        }
    }
    let end = work.bytes.len();
    if let Some(entry) = work.last() {
        (entry.data, entry.from, entry.to) = (Data::Bytes, start, end);
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: live (man page).
    unsafe { &*qp.cast::<Qp>() }.batch.section.lock();
    // SAFETY: locked just now.
    unsafe { inside(qp) }.1.clear();
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: live, and locked by this thread's wr_start (man page).
    unsafe { (*qp.cast::<Qp>()).batch.section.unlock() }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: live and inside its section (man page).
    let (this, work) = unsafe { inside(qp) };
    let result = caught(|| post(this, work));
    if result.is_ok() {
        for &(mw, rkey) in &work.binds {
            // SAFETY: windows of requests that are posted are live (man page).
            unsafe { set_key(mw, rkey) };
        }
    }
    // SAFETY: locked by this thread's wr_start (man page).
    unsafe { this.batch.section.unlock() };
    result.map_or_else(|errno| errno.0, |()| 0)
}

/// [`wr_complete`] if a rule may make it fail: then nothing is posted.
unsafe extern "C" fn wr_complete_guarded(qp: *mut ibv_qp_ex) -> c_int {
    match crate::faults::failure("ibv_wr_complete") {
        // SAFETY: as this function.
        None => unsafe { wr_complete(qp) },
        Some(errno) => {
            // SAFETY: as this function.
            unsafe { wr_abort(qp) };
            errno.0
        }
    }
}

/// Post all requests or none: every request is checked before the first one is queued.
fn post(qp: &Qp, work: &Work) -> Result<()> {
    if let Some(errno) = work.error {
        return Err(errno);
    }
    let nic = alive(qp.nic)?;
    // A single request is checked by the post itself. The fast path of a plain SEND over RC is tried first; those of
    // other requests are part of the ordinary post.
    if let [entry] = work.requests() {
        let may_be_fast = qp.ty == QpType::Rc && entry.opcode == Opcode::Send;
        return with_request(work, entry, |wr| {
            if may_be_fast && nic.post_send_fast(qp.id, wr) { Ok(()) } else { nic.post_send(qp.id, wr) }
        });
    }
    post_all(nic, qp, work)
}

#[inline(never)]
fn post_all(nic: &Nic, qp: &Qp, work: &Work) -> Result<()> {
    let mut core = nic.lock();
    let now = core.time();
    if work.in_use > core.send_room(qp.id)? as usize {
        return Err(Errno::ENOMEM);
    }
    for entry in work.requests() {
        with_request(work, entry, |wr| core.check_send(qp.id, wr))?;
    }
    for entry in work.requests() {
        with_request(work, entry, |wr| core.post_send(qp.id, wr, now))?;
    }
    Ok(())
}

/// Call a function with a collected request.
#[inline(always)]
fn with_request(work: &Work, entry: &Entry, act: impl FnOnce(&SendWr<'_>) -> Result<()>) -> Result<()> {
    let request = |data| SendWr {
        wr_id: entry.wr_id,
        opcode: entry.opcode,
        flags: entry.flags,
        imm_or_rkey: entry.numbers as u32,
        remote_srqn: (entry.numbers >> 32) as u32,
        body: &entry.body,
        data,
    };
    let piece;
    act(&request(match entry.data {
        Data::Listed => SendData::Sges(&work.sges[entry.from..entry.to]),
        Data::Bytes => {
            piece = [&work.bytes[entry.from..entry.to]];
            SendData::Inline(&piece)
        }
        Data::Word => {
            piece = [&entry.word[..]];
            SendData::Inline(&piece)
        }
    }))
}

/// Set the members that the header's inline functions call.
pub fn fill(c: &mut ibv_qp_ex) {
    c.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    c.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    c.wr_bind_mw = Some(wr_bind_mw);
    c.wr_local_inv = Some(wr_local_inv);
    c.wr_rdma_read = Some(wr_rdma_read);
    c.wr_rdma_write = Some(wr_rdma_write);
    c.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    c.wr_send = Some(wr_send);
    c.wr_send_imm = Some(wr_send_imm);
    c.wr_send_inv = Some(wr_send_inv);
    c.wr_send_tso = Some(wr_send_tso);
    c.wr_set_ud_addr = Some(wr_set_ud_addr);
    c.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(if crate::faults::watches("ibv_wr_complete") { wr_complete_guarded } else { wr_complete });
    c.wr_abort = Some(wr_abort);
    c.wr_atomic_write = Some(wr_atomic_write);
    c.wr_flush = Some(wr_flush);
}
