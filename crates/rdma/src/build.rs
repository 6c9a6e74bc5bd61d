//! Work requests built by functions (`ibv_wr_post(3)`), for operations that the structures of `ibv_post_send(3)` have
//! no room for.

use std::ffi::c_void;
use std::ptr::NonNull;

use sys::inline::*;
use sys::{IBV_SEND_INLINE, ibv_data_buf, ibv_qp_ex, ibv_sge};
use verbs::{Errno, SendFlags};

use crate::error::{Result, number};
use crate::{Data, Error, Qp, SendOp, SendWr};

const CALL: &str = "ibv_wr_complete";

impl Qp {
    /// Build requests and post all of them, or none.
    ///
    /// EOPNOTSUPP: the queue pair was not made by [`crate::Pd::create_qp_ex`] or not for one of the operations; EINVAL:
    /// an atomic write of other than 8 inline bytes.
    pub fn build(&self, wrs: &[SendWr<'_>]) -> Result<()> {
        let qp = self.extended.ok_or(Error { call: "ibv_qp_to_qp_ex", errno: Errno::EOPNOTSUPP })?.as_ptr();
        let values: Vec<[u8; 8]> = wrs.iter().map(value).collect::<Option<_>>().ok_or(EINVAL)?;
        // SAFETY: a live queue pair that was made for this; the section is this thread's, from start to complete.
        unsafe {
            ibv_wr_start(qp);
            for (wr, value) in wrs.iter().zip(&values) {
                begin(qp, wr, value);
                finish(qp, wr);
            }
            number(CALL, ibv_wr_complete(qp))
        }
    }
}

const EINVAL: Error = Error { call: "ibv_wr_atomic_write", errno: Errno::EINVAL };

/// The bytes of an atomic write; anything for other requests.
fn value(wr: &SendWr<'_>) -> Option<[u8; 8]> {
    match (wr.op, wr.data) {
        (SendOp::AtomicWrite { .. }, Data::Inline(pieces)) => pieces.concat().try_into().ok(),
        (SendOp::AtomicWrite { .. }, Data::Sges(_)) => None,
        _ => Some([0; 8]),
    }
}

/// # Safety
/// `qp` is live and in this thread's section.
unsafe fn begin(qp: *mut ibv_qp_ex, wr: &SendWr<'_>, value: &[u8; 8]) {
    // SAFETY: the caller's promise; windows and regions are borrowed by the request, and the value is copied.
    unsafe {
        (*qp).wr_id = wr.wr_id;
        (*qp).wr_flags = wr.flags.difference(SendFlags::from_bits_retain(IBV_SEND_INLINE)).bits();
        match wr.op {
            SendOp::Send => ibv_wr_send(qp),
            SendOp::SendImm(imm) => ibv_wr_send_imm(qp, imm.to_be()),
            SendOp::SendInv(rkey) => ibv_wr_send_inv(qp, rkey),
            SendOp::Write { addr, rkey } => ibv_wr_rdma_write(qp, rkey, addr),
            SendOp::WriteImm { addr, rkey, imm } => ibv_wr_rdma_write_imm(qp, rkey, addr, imm.to_be()),
            SendOp::Read { addr, rkey } => ibv_wr_rdma_read(qp, rkey, addr),
            SendOp::CompareSwap { addr, rkey, compare, swap } => ibv_wr_atomic_cmp_swp(qp, rkey, addr, compare, swap),
            SendOp::FetchAdd { addr, rkey, add } => ibv_wr_atomic_fetch_add(qp, rkey, addr, add),
            SendOp::AtomicWrite { addr, rkey } => ibv_wr_atomic_write(qp, rkey, addr, value.as_ptr().cast()),
            SendOp::Flush { addr, rkey, len, placement, level } => ibv_wr_flush(qp, rkey, addr, len, placement, level),
            SendOp::LocalInv(rkey) => ibv_wr_local_inv(qp, rkey),
            SendOp::BindMw(bind) => ibv_wr_bind_mw(qp, bind.mw.as_ptr(), bind.rkey, &bind.info()),
        }
    }
}

/// # Safety
/// `qp` is live and in this thread's section, and has just begun `wr`.
unsafe fn finish(qp: *mut ibv_qp_ex, wr: &SendWr<'_>) {
    // SAFETY: the caller's promise; lists and inline bytes are borrowed by the request, and copied.
    unsafe {
        match (wr.op, wr.data) {
            (SendOp::AtomicWrite { .. } | SendOp::Flush { .. } | SendOp::LocalInv(_) | SendOp::BindMw(_), _) => {}
            (_, Data::Sges(sges)) => ibv_wr_set_sge_list(qp, sges.len(), sges.as_ptr().cast::<ibv_sge>()),
            (_, Data::Inline(pieces)) => {
                let list: Vec<ibv_data_buf> = pieces
                    .iter()
                    .map(|piece| ibv_data_buf {
                        addr: NonNull::from(*piece).cast::<c_void>().as_ptr(),
                        length: piece.len(),
                    })
                    .collect();
                ibv_wr_set_inline_data_list(qp, list.len(), list.as_ptr());
            }
        }
        if let Some((ah, qpn, qkey)) = wr.to {
            ibv_wr_set_ud_addr(qp, ah.as_ptr(), qpn, qkey);
        }
        if wr.srqn != 0 {
            ibv_wr_set_xrc_srqn(qp, wr.srqn);
        }
    }
}
