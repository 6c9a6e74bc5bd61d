//! Functions of the device beyond verbs.h: `include/softrnic/dv.h`.

use std::collections::BTreeMap;
use std::sync::Arc;

use libc::{c_int, c_void, size_t};
use parking_lot::Mutex;
use sys::{ibv_context, ibv_mr};
use verbs::Errno;

use crate::context::Context;
use crate::dm::{MAX_SIZE, Memory};
use crate::entry::{looked_up, number, pointer};
use crate::mr::Mr;

/// The memory that was given out, by its address, with its bytes.
static GIVEN: Mutex<BTreeMap<usize, (usize, Arc<Memory>)>> = Mutex::new(BTreeMap::new());

/// `softrnic_dv_alloc`: memory that peers map too.
pub unsafe extern "C" fn softrnic_dv_alloc(context: *mut ibv_context, length: size_t) -> *mut c_void {
    pointer(|| {
        // SAFETY: live or NULL (dv.h).
        let ctx = unsafe { Context::of(context) }?;
        if length == 0 {
            return Err(Errno::EINVAL);
        }
        if length > MAX_SIZE {
            return Err(Errno::ENOMEM);
        }
        let memory = Memory::new(ctx.nic().ok(), length, 1)?;
        let start = memory.range(0, length)?;
        GIVEN.lock().insert(start as usize, (length, memory));
        Ok(start)
    })
}

/// `softrnic_dv_free`.
pub unsafe extern "C" fn softrnic_dv_free(context: *mut ibv_context, addr: *mut c_void) -> c_int {
    number(|| {
        // SAFETY: live or NULL (dv.h).
        let ctx = unsafe { Context::of(context) }?;
        // Held over the test, so that no other thread gives the memory back meanwhile. A region that another thread
        // registers at this moment is a race of the program with itself, as with free(3).
        let mut given = GIVEN.lock();
        let (length, _) = given.get(&(addr as usize)).ok_or(Errno::EINVAL)?;
        // A forked child has no regions.
        if let Ok(nic) = ctx.nic()
            && nic.lock().has_region_at(addr as u64, *length as u64)
        {
            return Err(Errno::EBUSY);
        }
        let memory = given.remove(&(addr as usize));
        drop(given);
        drop(memory);
        Ok(())
    })
}

/// `softrnic_dv_catch_faults`: small copies from and to the region may fault from now on.
pub unsafe extern "C" fn softrnic_dv_catch_faults(mr: *mut ibv_mr) -> c_int {
    number(|| {
        // SAFETY: live or NULL (dv.h).
        let this = unsafe { looked_up::<Mr, _>(mr) }?;
        let nic = this.context()?.nic()?;
        if !nic::caught::CAN {
            return Err(Errno::EOPNOTSUPP);
        }
        nic.lock().guard_mr(this.id)?;
        nic::caught::begin();
        Ok(())
    })
}

/// `softrnic_dv_fault`: 1 if the fault was this library's. Async-signal-safe.
pub unsafe extern "C" fn softrnic_dv_fault(context: *mut c_void) -> c_int {
    // SAFETY: NULL, or what a handler has got (dv.h).
    (!context.is_null() && unsafe { nic::caught::fault(context) }).into()
}
