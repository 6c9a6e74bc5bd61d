//! `ibv_poll_cq(3)`: the fast path of completions, which are translated on the stack.

use libc::c_int;
use sys::{ibv_cq, ibv_wc, ibv_wc__bindgen_ty_1};
use verbs::Completion;

use crate::cq::Cq;

/// `ibv_poll_cq(3)`: the number of completions, or a negative errno.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: live or NULL (man page).
    let (Ok(this), Ok(wanted)) = (unsafe { Cq::of(cq) }, usize::try_from(num_entries)) else {
        return -libc::EINVAL;
    };
    if !this.nic.alive() {
        return -libc::ENODEV;
    }
    let n = this.nic.poll_cq(this.id(), wanted, |i, completion| {
        // SAFETY: `i` is below `num_entries`, and the caller has so many of them.
        unsafe { wc.add(i).write(convert(completion)) }
    });
    n as c_int
}

#[inline]
fn convert(c: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: c.wr_id,
        status: c.status as u32,
        opcode: c.opcode as u32,
        vendor_err: c.vendor_err,
        byte_len: c.byte_len,
        anon_1: ibv_wc__bindgen_ty_1 { imm_data: c.imm_or_rkey },
        qp_num: c.qp_num.get(),
        src_qp: c.src_qp.get(),
        wc_flags: c.flags.bits(),
        pkey_index: c.pkey_index,
        slid: c.slid,
        sl: c.sl,
        dlid_path_bits: 0,
    }
}
