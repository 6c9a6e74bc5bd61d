//! Work requests: from Rust's shape into C's.

use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Arc;

use sys::*;
use verbs::{Access, SendFlags};

use crate::error::{Result, number};
use crate::{Ah, Mr, Mw, Qp, Sge, Srq};

/// The operation of a send work request. Immediate values are in host order.
#[derive(Clone, Copy, Debug)]
pub enum SendOp<'a> {
    /// SEND.
    Send,
    /// SEND with an immediate value.
    SendImm(u32),
    /// SEND that invalidates a key of the receiver.
    SendInv(u32),
    /// RDMA WRITE.
    Write {
        /// Address in the space of the peer's region.
        addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// RDMA WRITE with an immediate value.
    WriteImm {
        /// Address in the space of the peer's region.
        addr: u64,
        /// The peer's key.
        rkey: u32,
        /// The value.
        imm: u32,
    },
    /// RDMA READ.
    Read {
        /// Address in the space of the peer's region.
        addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Compare and swap.
    CompareSwap {
        /// Address in the space of the peer's region.
        addr: u64,
        /// The peer's key.
        rkey: u32,
        /// The value to compare with.
        compare: u64,
        /// The value to store when equal.
        swap: u64,
    },
    /// Fetch and add.
    FetchAdd {
        /// Address in the space of the peer's region.
        addr: u64,
        /// The peer's key.
        rkey: u32,
        /// The number to add.
        add: u64,
    },
    /// Atomic write of 8 bytes: [`Qp::build`] takes them inline.
    AtomicWrite {
        /// Address in the space of the peer's region.
        addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// FLUSH of earlier writes, without data; for [`Qp::build`] only.
    Flush {
        /// Address in the space of the peer's region.
        addr: u64,
        /// The peer's key.
        rkey: u32,
        /// The number of bytes.
        len: usize,
        /// `enum ibv_placement_type`: global visibility, persistence, or both.
        placement: u8,
        /// `enum ibv_selectivity_level`: the range, or the whole region.
        level: u8,
    },
    /// Invalidates a key of this process.
    LocalInv(u32),
    /// Binds a type 2 window.
    BindMw(Bind<'a>),
}

/// The memory that a window is bound to.
#[derive(Clone, Copy)]
pub struct Bind<'a> {
    /// The window.
    pub mw: &'a Mw,
    /// The key that it gets; for type 2, the window's own with any low byte.
    pub rkey: u32,
    /// The region below it.
    pub mr: &'a Mr,
    /// The first byte, counted from the start of the region's buffer.
    pub offset: u64,
    /// The number of bytes; 0 unbinds a type 1 window.
    pub len: u64,
    /// The access of peers.
    pub access: Access,
}

impl std::fmt::Debug for Bind<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bind({:#x} to {}+{}, {:?})", self.rkey, self.offset, self.len, self.access)
    }
}

impl Bind<'_> {
    pub(crate) fn info(&self) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: self.mr.as_ptr(),
            addr: self.mr.addr().wrapping_add(self.offset),
            length: self.len,
            mw_access_flags: self.access.bits(),
        }
    }
}

/// The place of a request's data.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// In registered memory.
    Sges(&'a [Sge]),
    /// In these slices, copied before the post returns; at most as many bytes as the queue pair's `max_inline_data`.
    Inline(&'a [&'a [u8]]),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The number that comes back in the completion.
    pub wr_id: u64,
    /// Flags; INLINE is set by [`Data::Inline`].
    pub flags: SendFlags,
    /// The operation.
    pub op: SendOp<'a>,
    /// The data, which are read; READ and atomics write them.
    pub data: Data<'a>,
    /// For datagrams: the destination's handle and queue pair, and its Q_Key.
    pub to: Option<(&'a Ah, u32, u32)>,
    /// For extended reliable connections: the peer's shared receive queue.
    pub srqn: u32,
}

impl<'a> SendWr<'a> {
    /// A signaled request of a connected queue pair.
    pub fn new(wr_id: u64, op: SendOp<'a>, data: Data<'a>) -> Self {
        SendWr { wr_id, flags: SendFlags::SIGNALED, op, data, to: None, srqn: 0 }
    }
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The number that comes back in the completion.
    pub wr_id: u64,
    /// The memory for the data.
    pub sges: &'a [Sge],
}

/// The number of pieces of inline data that fit without an allocation.
const FEW: usize = 4;

impl Qp {
    /// `ibv_post_send(3)`.
    #[inline(always)]
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        match wr.data {
            Data::Sges(sges) => self.post_raw(wr, sges.as_ptr().cast_mut().cast(), sges.len(), 0),
            Data::Inline([piece]) => self.post_raw(wr, &mut inline_entry(piece), 1, IBV_SEND_INLINE),
            Data::Inline(pieces) if pieces.len() <= FEW => {
                let mut list = [ibv_sge { addr: 0, length: 0, lkey: 0 }; FEW];
                for (entry, piece) in list.iter_mut().zip(pieces) {
                    *entry = inline_entry(piece);
                }
                self.post_raw(wr, list.as_mut_ptr(), pieces.len(), IBV_SEND_INLINE)
            }
            Data::Inline(pieces) => {
                let mut list: Vec<ibv_sge> = pieces.iter().map(|piece| inline_entry(piece)).collect();
                self.post_raw(wr, list.as_mut_ptr(), pieces.len(), IBV_SEND_INLINE)
            }
        }
    }

    /// Post with a C list of `len` entries at `sges`, which outlives the call.
    #[inline(always)]
    fn post_raw(&self, wr: &SendWr<'_>, sges: *mut ibv_sge, len: usize, inline: u32) -> Result<()> {
        let mut raw = send(wr, sges, len, inline);
        let mut bad = null_mut();
        // SAFETY: a live queue pair and a request whose list lives during the call. Inline entries point at
        // borrowed bytes; all others are checked by the adapter against registered regions.
        let ret = unsafe { (self.post_send_fn)(self.as_ptr(), &mut raw, &mut bad) };
        number("ibv_post_send", ret)
    }

    /// `ibv_post_send(3)` with a list of requests, which is built anew with every call; [`crate::SendList`] is built
    /// once. Up to 4 requests without inline data take no allocation. The error comes with the index of the first
    /// request that was not posted.
    pub fn post_sends(&self, wrs: &[SendWr<'_>]) -> std::result::Result<(), (usize, crate::Error)> {
        if wrs.len() <= FEW && wrs.iter().all(|wr| matches!(wr.data, Data::Sges(_))) {
            let mut raws: [ibv_send_wr; FEW] = std::array::from_fn(|at| match wrs.get(at) {
                // The lists are borrowed, and have one layout in both languages.
                Some(SendWr { data: Data::Sges(sges), .. }) => {
                    send(&wrs[at], sges.as_ptr().cast_mut().cast(), sges.len(), 0)
                }
                // SAFETY: integers and pointers.
                _ => unsafe { zeroed() },
            });
            return self.post_linked(&mut raws[..wrs.len()]);
        }
        let mut lists: Vec<Vec<ibv_sge>> = wrs
            .iter()
            .map(|wr| match wr.data {
                Data::Sges(sges) => sges.iter().map(|sge| sge.0).collect(),
                Data::Inline(pieces) => pieces.iter().map(|piece| inline_entry(piece)).collect(),
            })
            .collect();
        let mut raws: Vec<ibv_send_wr> = wrs
            .iter()
            .zip(&mut lists)
            .map(|(wr, list)| {
                let inline = if matches!(wr.data, Data::Inline(_)) { IBV_SEND_INLINE } else { 0 };
                send(wr, list.as_mut_ptr(), list.len(), inline)
            })
            .collect();
        self.post_linked(&mut raws)
    }

    /// Post these requests, whose lists live during the call.
    fn post_linked(&self, raws: &mut [ibv_send_wr]) -> std::result::Result<(), (usize, crate::Error)> {
        let first = raws.as_mut_ptr();
        for i in 1..raws.len() {
            raws[i - 1].next = first.wrapping_add(i);
        }
        if raws.is_empty() {
            return Ok(());
        }
        let mut bad = null_mut();
        // SAFETY: a live queue pair and requests whose lists live during the call; see `post_raw`.
        let ret = unsafe { (self.post_send_fn)(self.as_ptr(), first, &mut bad) };
        let at = raws.iter().position(|raw| std::ptr::eq(raw, bad)).unwrap_or(raws.len());
        number("ibv_post_send", ret).map_err(|error| (at, error))
    }

    /// `ibv_post_recv(3)`.
    #[inline]
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        let mut raw = recv(wr);
        let mut bad = null_mut();
        // SAFETY: a live queue pair and a request whose list lives during the call.
        number("ibv_post_recv", unsafe { (self.post_recv_fn)(self.as_ptr(), &mut raw, &mut bad) })
    }

    /// `ibv_bind_mw(3)`: binds a type 1 window. Its new key is in the window after the call.
    pub fn bind_mw(&self, wr_id: u64, flags: SendFlags, bind: &Bind<'_>) -> Result<()> {
        // SAFETY: the tables of a live context.
        let op = unsafe { (*self.context().raw()).ops.bind_mw };
        let op = op.ok_or(crate::Error { call: "ibv_bind_mw", errno: verbs::Errno::EOPNOTSUPP })?;
        let mut raw = ibv_mw_bind { wr_id, send_flags: flags.bits(), bind_info: bind.info() };
        // SAFETY: live objects.
        number("ibv_bind_mw", unsafe { op(self.as_ptr(), bind.mw.as_ptr(), &mut raw) })
    }
}

impl Srq {
    /// `ibv_post_srq_recv(3)`.
    pub fn post_recv(self: &Arc<Self>, wr: &RecvWr<'_>) -> Result<()> {
        // SAFETY: the tables of a live context.
        let post = unsafe { (*self.pd.context.raw()).ops.post_srq_recv };
        let post = post.ok_or(crate::Error { call: "ibv_post_srq_recv", errno: verbs::Errno::EOPNOTSUPP })?;
        let mut raw = recv(wr);
        let mut bad = null_mut();
        // SAFETY: a live queue and a request whose list lives during the call.
        number("ibv_post_srq_recv", unsafe { post(self.as_ptr(), &mut raw, &mut bad) })
    }
}

/// The C form of a request whose list of `len` entries is at `sges`.
#[inline(always)]
pub(crate) fn send(wr: &SendWr<'_>, sges: *mut ibv_sge, len: usize, inline: u32) -> ibv_send_wr {
    // SAFETY: plain data, for which zeroes are valid.
    let mut raw: ibv_send_wr = unsafe { zeroed() };
    raw.wr_id = wr.wr_id;
    raw.sg_list = sges;
    raw.num_sge = i32::try_from(len).unwrap_or(i32::MAX);
    raw.send_flags = wr.flags.difference(SendFlags::INLINE).bits() | inline;
    raw.opcode = match wr.op {
        SendOp::Send => IBV_WR_SEND,
        SendOp::SendImm(imm) => {
            raw.anon_1.imm_data = imm.to_be();
            IBV_WR_SEND_WITH_IMM
        }
        SendOp::SendInv(rkey) => {
            raw.anon_1.invalidate_rkey = rkey;
            IBV_WR_SEND_WITH_INV
        }
        SendOp::Write { addr, rkey } => {
            raw.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: addr, rkey };
            IBV_WR_RDMA_WRITE
        }
        SendOp::WriteImm { addr, rkey, imm } => {
            raw.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: addr, rkey };
            raw.anon_1.imm_data = imm.to_be();
            IBV_WR_RDMA_WRITE_WITH_IMM
        }
        SendOp::Read { addr, rkey } => {
            raw.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: addr, rkey };
            IBV_WR_RDMA_READ
        }
        SendOp::CompareSwap { addr, rkey, compare, swap } => {
            raw.wr.atomic =
                ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr: addr, compare_add: compare, swap, rkey };
            IBV_WR_ATOMIC_CMP_AND_SWP
        }
        SendOp::FetchAdd { addr, rkey, add } => {
            raw.wr.atomic =
                ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr: addr, compare_add: add, swap: 0, rkey };
            IBV_WR_ATOMIC_FETCH_AND_ADD
        }
        SendOp::AtomicWrite { addr, rkey } => {
            raw.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: addr, rkey };
            IBV_WR_ATOMIC_WRITE
        }
        // The structure has no members for it: the library returns an error.
        SendOp::Flush { .. } => IBV_WR_FLUSH,
        SendOp::LocalInv(rkey) => {
            raw.anon_1.invalidate_rkey = rkey;
            IBV_WR_LOCAL_INV
        }
        SendOp::BindMw(bind) => {
            raw.anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
                mw: bind.mw.as_ptr(),
                rkey: bind.rkey,
                bind_info: bind.info(),
            };
            IBV_WR_BIND_MW
        }
    };
    if let Some((ah, qpn, qkey)) = wr.to {
        raw.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah: ah.as_ptr(), remote_qpn: qpn, remote_qkey: qkey };
    }
    raw.qp_type.xrc.remote_srqn = wr.srqn;
    raw
}

fn inline_entry(piece: &[u8]) -> ibv_sge {
    ibv_sge { addr: piece.as_ptr() as u64, length: piece.len() as u32, lkey: 0 }
}

fn recv(wr: &RecvWr<'_>) -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id: wr.wr_id,
        next: null_mut(),
        sg_list: wr.sges.as_ptr().cast_mut().cast(),
        num_sge: i32::try_from(wr.sges.len()).unwrap_or(i32::MAX),
    }
}
