//! Lists of work requests that are built once, and changed and posted without an allocation.

use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Arc;

use sys::*;
use verbs::SendFlags;

use crate::error::{Error, Result, number};
use crate::post::send;
use crate::qp::Handle;
use crate::{Ah, Data, Qp, RecvWr, SendOp, SendWr, Sge, Srq};

/// The outcome of posting a list. The error comes with the index of the first request that was not posted.
type Posted = std::result::Result<(), (usize, Error)>;

/// Send work requests in the form that `ibv_post_send(3)` takes.
///
/// A list is built once, with as many entries and inline bytes per request as it will ever need. [`SendList::request`]
/// changes the members that differ from post to post. [`Qp::post_send_list`] and [`Qp::post_send_part`] post the list.
/// None of these allocates. The list may be changed again as soon as the post returns: the adapter has copied the
/// requests. Memory that the requests name belongs to the adapter until they are completed.
///
/// ```no_run
/// # use rdma::{Data, Mr, Qp, SendList, SendOp, SendWr};
/// # fn example(qp: &Qp, mr: &Mr, addr: u64, rkey: u32) -> Result<(), Box<dyn std::error::Error>> {
/// let sges = [mr.sge(0, 64)];
/// let mut list = SendList::new(&[SendWr::new(0, SendOp::Write { addr, rkey }, Data::Sges(&sges))])?;
/// for i in 0..4 {
///     list.request(0).wr_id(i).remote(addr + 64 * i, rkey).sge(0, mr.sge(64 * i as usize, 64));
///     qp.post_send_list(&mut list).map_err(|(_, error)| error)?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct SendList {
    raws: Box<[ibv_send_wr]>,
    slots: Box<[Slot]>,
    sges: Box<[ibv_sge]>,
    bytes: Box<[u8]>,
    /// The handles that `wr.ud.ah` of the same index names.
    handles: Box<[Option<Arc<Handle>>]>,
}

/// The parts of the list that belong to a request.
struct Slot {
    /// The range in `sges`.
    entries: Range<usize>,
    /// The range in `bytes`; `None`: its entries name registered memory.
    inline: Option<Range<usize>>,
}

// SAFETY: the pointers lead to the list's own boxes, and to address handles that it holds, which may be sent.
unsafe impl Send for SendList {}
// SAFETY: through a shared reference nothing is reached but the length.
unsafe impl Sync for SendList {}

impl SendList {
    /// Build the list; entries and inline bytes are copied.
    ///
    /// EINVAL: a bind, because the list cannot hold its window and region, or a FLUSH, which only [`Qp::build`] posts.
    pub fn new(wrs: &[SendWr<'_>]) -> Result<SendList> {
        if wrs.iter().any(|wr| matches!(wr.op, SendOp::BindMw(_) | SendOp::Flush { .. })) {
            return Err(Error::new("ibv_post_send", libc::EINVAL));
        }
        let (mut sges, mut bytes): (Vec<ibv_sge>, Vec<u8>) = Default::default();
        let (mut raws, mut slots) = (Vec::with_capacity(wrs.len()), Vec::with_capacity(wrs.len()));
        for wr in wrs {
            let (first, start) = (sges.len(), bytes.len());
            let (inline, flag) = match wr.data {
                Data::Sges(list) => {
                    sges.extend(list.iter().map(|sge| sge.0));
                    (None, 0)
                }
                Data::Inline(pieces) => {
                    pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
                    let length = u32::try_from(bytes.len() - start);
                    let length = length.map_err(|_| Error::new("ibv_post_send", libc::EINVAL))?;
                    sges.push(ibv_sge { addr: 0, length, lkey: 0 });
                    (Some(start..bytes.len()), IBV_SEND_INLINE)
                }
            };
            raws.push(send(wr, null_mut(), sges.len() - first, flag));
            slots.push(Slot { entries: first..sges.len(), inline });
        }
        let handles = wrs.iter().map(|wr| wr.to.map(|(ah, ..)| ah.handle().clone())).collect();
        Ok(SendList { raws: raws.into(), slots: slots.into(), sges: sges.into(), bytes: bytes.into(), handles })
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.raws.len()
    }

    /// True if there is no request.
    pub fn is_empty(&self) -> bool {
        self.raws.is_empty()
    }

    /// The request of this index, to be changed.
    ///
    /// # Panics
    /// If there is none.
    pub fn request(&mut self, index: usize) -> SendRequest<'_> {
        assert!(index < self.len(), "request {index} of {}", self.len());
        SendRequest { list: self, index }
    }

    /// Set the pointers of these requests: each to its entries and the next, the last to none; null if there are none.
    /// Pointers are set with every post, so that none is kept while the boxes are written by name.
    fn link(&mut self, part: &Range<usize>) -> *mut ibv_send_wr {
        let slots = &self.slots[part.clone()];
        let (raws, sges, bytes) = (self.raws.as_mut_ptr(), self.sges.as_mut_ptr(), self.bytes.as_ptr());
        for (at, slot) in slots.iter().enumerate() {
            let index = part.start + at;
            // SAFETY: `part` lies inside the list, as slicing has checked; entries and inline bytes of a slot lie
            // inside their boxes.
            unsafe {
                let raw = raws.add(index);
                (*raw).next = if index + 1 < part.end { raws.add(index + 1) } else { null_mut() };
                (*raw).sg_list = sges.add(slot.entries.start);
                if let Some(inline) = &slot.inline {
                    (*sges.add(slot.entries.start)).addr = bytes.add(inline.start).expose_provenance() as u64;
                }
            }
        }
        if part.is_empty() { null_mut() } else { raws.wrapping_add(part.start) }
    }
}

/// The index of `bad`, which the library has set when it refused a request of `part`; the first if it has not.
fn refused<T>(raws: &[T], part: &Range<usize>, bad: *const T) -> usize {
    part.clone().find(|index| std::ptr::eq(&raw const raws[*index], bad)).unwrap_or(part.start)
}

/// A request of a [`SendList`], to be changed. Members that are not changed stay as they were.
pub struct SendRequest<'a> {
    list: &'a mut SendList,
    index: usize,
}

impl SendRequest<'_> {
    fn raw(&mut self) -> &mut ibv_send_wr {
        &mut self.list.raws[self.index]
    }

    #[track_caller]
    fn refuse(&mut self, what: &str) -> ! {
        let opcode = self.raw().opcode;
        panic!("request {} with operation {opcode} has no {what}", self.index)
    }

    /// Set the number that comes back in the completion.
    pub fn wr_id(&mut self, wr_id: u64) -> &mut Self {
        self.raw().wr_id = wr_id;
        self
    }

    /// Set the flags; INLINE stays as it was built.
    pub fn flags(&mut self, flags: SendFlags) -> &mut Self {
        let inline = self.raw().send_flags & IBV_SEND_INLINE;
        self.raw().send_flags = flags.difference(SendFlags::INLINE).bits() | inline;
        self
    }

    /// Set the remote address and key of a WRITE, READ or atomic.
    ///
    /// # Panics
    /// If it is another operation.
    #[track_caller]
    pub fn remote(&mut self, addr: u64, rkey: u32) -> &mut Self {
        let raw = self.raw();
        match raw.opcode {
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ | IBV_WR_ATOMIC_WRITE => {
                raw.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: addr, rkey };
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                raw.wr.atomic.remote_addr = addr;
                raw.wr.atomic.rkey = rkey;
            }
            _ => self.refuse("remote address"),
        }
        self
    }

    /// Set the immediate value, in host order.
    ///
    /// # Panics
    /// If it is an operation without one.
    #[track_caller]
    pub fn imm(&mut self, imm: u32) -> &mut Self {
        match self.raw().opcode {
            IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM => self.raw().anon_1.imm_data = imm.to_be(),
            _ => self.refuse("immediate value"),
        }
        self
    }

    /// Set the key that a SEND or LOCAL_INV invalidates.
    ///
    /// # Panics
    /// If it is another operation.
    #[track_caller]
    pub fn invalidate(&mut self, rkey: u32) -> &mut Self {
        match self.raw().opcode {
            IBV_WR_SEND_WITH_INV | IBV_WR_LOCAL_INV => self.raw().anon_1.invalidate_rkey = rkey,
            _ => self.refuse("key to invalidate"),
        }
        self
    }

    /// Set the operands of a compare and swap.
    ///
    /// # Panics
    /// If it is another operation.
    #[track_caller]
    pub fn compare_swap(&mut self, compare: u64, swap: u64) -> &mut Self {
        let raw = self.raw();
        if raw.opcode != IBV_WR_ATOMIC_CMP_AND_SWP {
            self.refuse("operands of a compare and swap");
        }
        raw.wr.atomic.compare_add = compare;
        raw.wr.atomic.swap = swap;
        self
    }

    /// Set the operand of a fetch and add.
    ///
    /// # Panics
    /// If it is another operation.
    #[track_caller]
    pub fn add(&mut self, add: u64) -> &mut Self {
        let raw = self.raw();
        if raw.opcode != IBV_WR_ATOMIC_FETCH_AND_ADD {
            self.refuse("operand of a fetch and add");
        }
        raw.wr.atomic.compare_add = add;
        self
    }

    /// Set the destination of a datagram, and its Q_Key. The list holds the handle until it gets another.
    ///
    /// # Panics
    /// If it was built without.
    #[track_caller]
    pub fn to(&mut self, ah: &Ah, qpn: u32, qkey: u32) -> &mut Self {
        match &mut self.list.handles[self.index] {
            Some(handle) => *handle = ah.handle().clone(),
            None => self.refuse("address handle"),
        }
        self.raw().wr.ud =
            ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah: ah.as_ptr(), remote_qpn: qpn, remote_qkey: qkey };
        self
    }

    /// Set the shared receive queue of an extended reliable connection.
    pub fn srqn(&mut self, srqn: u32) -> &mut Self {
        self.raw().qp_type.xrc.remote_srqn = srqn;
        self
    }

    /// The entries that it was built with, which name registered memory.
    #[track_caller]
    fn entries(&mut self) -> &mut [ibv_sge] {
        let slot = &self.list.slots[self.index];
        assert!(slot.inline.is_none(), "the data of request {} are inline", self.index);
        &mut self.list.sges[slot.entries.clone()]
    }

    /// Set one entry: address, length and key.
    ///
    /// # Panics
    /// If it was built with fewer, or with inline data.
    #[track_caller]
    pub fn sge(&mut self, index: usize, sge: Sge) -> &mut Self {
        self.entries()[index] = sge.0;
        self
    }

    /// Set all entries, and their number.
    ///
    /// # Panics
    /// If it was built with fewer, or with inline data.
    #[track_caller]
    pub fn sges(&mut self, sges: &[Sge]) -> &mut Self {
        set_entries(self.entries(), sges);
        self.raw().num_sge = sges.len() as i32;
        self
    }

    /// Set the inline data, which are copied.
    ///
    /// # Panics
    /// If it was built with fewer bytes, or with entries.
    #[track_caller]
    pub fn inline(&mut self, data: &[u8]) -> &mut Self {
        let slot = &self.list.slots[self.index];
        let Some(inline) = &slot.inline else { panic!("the data of request {} are not inline", self.index) };
        let room = &mut self.list.bytes[inline.clone()];
        assert!(data.len() <= room.len(), "{} bytes into a request that was built with {}", data.len(), room.len());
        room[..data.len()].copy_from_slice(data);
        self.list.sges[slot.entries.start].length = data.len() as u32;
        self
    }
}

#[track_caller]
fn set_entries(room: &mut [ibv_sge], sges: &[Sge]) {
    assert!(sges.len() <= room.len(), "{} entries in a request that was built with {}", sges.len(), room.len());
    room.iter_mut().zip(sges).for_each(|(room, sge)| *room = sge.0);
}

/// Receive work requests in the form that `ibv_post_recv(3)` takes. The rules of [`SendList`] hold.
pub struct RecvList {
    raws: Box<[ibv_recv_wr]>,
    slots: Box<[Range<usize>]>,
    sges: Box<[ibv_sge]>,
}

// SAFETY: the pointers lead to the list's own boxes.
unsafe impl Send for RecvList {}
// SAFETY: through a shared reference nothing is reached but the length.
unsafe impl Sync for RecvList {}

impl RecvList {
    /// Build the list; entries are copied.
    pub fn new(wrs: &[RecvWr<'_>]) -> RecvList {
        let mut sges = Vec::new();
        let (mut raws, mut slots) = (Vec::with_capacity(wrs.len()), Vec::with_capacity(wrs.len()));
        for wr in wrs {
            let first = sges.len();
            sges.extend(wr.sges.iter().map(|sge| sge.0));
            let num_sge = i32::try_from(wr.sges.len()).unwrap_or(i32::MAX);
            raws.push(ibv_recv_wr { wr_id: wr.wr_id, next: null_mut(), sg_list: null_mut(), num_sge });
            slots.push(first..sges.len());
        }
        RecvList { raws: raws.into(), slots: slots.into(), sges: sges.into() }
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.raws.len()
    }

    /// True if there is no request.
    pub fn is_empty(&self) -> bool {
        self.raws.is_empty()
    }

    /// The request of this index, to be changed.
    ///
    /// # Panics
    /// If there is none.
    pub fn request(&mut self, index: usize) -> RecvRequest<'_> {
        assert!(index < self.len(), "request {index} of {}", self.len());
        RecvRequest { list: self, index }
    }

    /// Set the pointers of these requests; see [`SendList::link`].
    fn link(&mut self, part: &Range<usize>) -> *mut ibv_recv_wr {
        let slots = &self.slots[part.clone()];
        let (raws, sges) = (self.raws.as_mut_ptr(), self.sges.as_mut_ptr());
        for (at, slot) in slots.iter().enumerate() {
            let index = part.start + at;
            // SAFETY: `part` lies inside the list, as slicing has checked; a slot lies inside the box of entries.
            unsafe {
                let raw = raws.add(index);
                (*raw).next = if index + 1 < part.end { raws.add(index + 1) } else { null_mut() };
                (*raw).sg_list = sges.add(slot.start);
            }
        }
        if part.is_empty() { null_mut() } else { raws.wrapping_add(part.start) }
    }
}

/// A request of a [`RecvList`], to be changed. Members that are not changed stay as they were.
pub struct RecvRequest<'a> {
    list: &'a mut RecvList,
    index: usize,
}

impl RecvRequest<'_> {
    /// Set the number that comes back in the completion.
    pub fn wr_id(&mut self, wr_id: u64) -> &mut Self {
        self.list.raws[self.index].wr_id = wr_id;
        self
    }

    /// Set one entry: address, length and key.
    ///
    /// # Panics
    /// If it was built with fewer.
    #[track_caller]
    pub fn sge(&mut self, index: usize, sge: Sge) -> &mut Self {
        self.list.sges[self.list.slots[self.index].clone()][index] = sge.0;
        self
    }

    /// Set all entries, and their number.
    ///
    /// # Panics
    /// If it was built with fewer.
    #[track_caller]
    pub fn sges(&mut self, sges: &[Sge]) -> &mut Self {
        set_entries(&mut self.list.sges[self.list.slots[self.index].clone()], sges);
        self.list.raws[self.index].num_sge = sges.len() as i32;
        self
    }
}

impl Qp {
    /// `ibv_post_send(3)` of a whole list, without an allocation.
    #[inline]
    pub fn post_send_list(&self, list: &mut SendList) -> Posted {
        let all = 0..list.len();
        self.post_send_part(list, all)
    }

    /// `ibv_post_send(3)` of a part of a list, without an allocation.
    ///
    /// # Panics
    /// If the part is not inside.
    pub fn post_send_part(&self, list: &mut SendList, part: Range<usize>) -> Posted {
        let first = list.link(&part);
        if first.is_null() {
            return Ok(());
        }
        let mut bad = null_mut();
        // SAFETY: a live queue pair and requests whose lists live during the call. Inline entries point at the list's
        // own bytes; all others are checked by the adapter against registered regions. Address handles are held by the
        // list.
        let ret = unsafe { (self.post_send_fn)(self.as_ptr(), first, &mut bad) };
        number("ibv_post_send", ret).map_err(|error| (refused(&list.raws, &part, bad), error))
    }

    /// `ibv_post_recv(3)` of a whole list, without an allocation.
    #[inline]
    pub fn post_recv_list(&self, list: &mut RecvList) -> Posted {
        let all = 0..list.len();
        self.post_recv_part(list, all)
    }

    /// `ibv_post_recv(3)` of a part of a list, without an allocation.
    ///
    /// # Panics
    /// If the part is not inside.
    pub fn post_recv_part(&self, list: &mut RecvList, part: Range<usize>) -> Posted {
        let first = list.link(&part);
        if first.is_null() {
            return Ok(());
        }
        let mut bad = null_mut();
        // SAFETY: a live queue pair and requests whose lists live during the call.
        let ret = unsafe { (self.post_recv_fn)(self.as_ptr(), first, &mut bad) };
        number("ibv_post_recv", ret).map_err(|error| (refused(&list.raws, &part, bad), error))
    }
}

impl Srq {
    /// `ibv_post_srq_recv(3)` of a part of a list, without an allocation.
    ///
    /// # Panics
    /// If the part is not inside.
    pub fn post_recv_part(&self, list: &mut RecvList, part: Range<usize>) -> Posted {
        const CALL: &str = "ibv_post_srq_recv";
        let first = list.link(&part);
        if first.is_null() {
            return Ok(());
        }
        // SAFETY: the tables of a live context.
        let post = unsafe { (*self.pd.context.raw()).ops.post_srq_recv };
        let post = post.ok_or((part.start, Error::new(CALL, libc::EOPNOTSUPP)))?;
        let mut bad = null_mut();
        // SAFETY: a live queue and requests whose lists live during the call.
        let ret = unsafe { post(self.as_ptr(), first, &mut bad) };
        number(CALL, ret).map_err(|error| (refused(&list.raws, &part, bad), error))
    }
}

#[cfg(test)]
mod tests;
