//! Completion channels and their events.

use core::cell::UnsafeCell;
use std::sync::Arc;

use libc::{c_int, c_uint, c_void};
use nic::{CompChannel, Nic, Waited as _};
use sys::{ibv_comp_channel, ibv_context, ibv_cq};
use verbs::{Errno, Result};

use crate::context::Context;
use crate::cq::Cq;
use crate::entry::{minus_one, number, object, pointer, silent};
use crate::wait::{AGAIN, Word, rung, waits};

/// A completion channel.
#[repr(C)]
pub struct Channel {
    c: UnsafeCell<ibv_comp_channel>,
    /// The channel of the NIC.
    pub inner: Arc<CompChannel>,
}

impl Channel {
    /// The context that it was made in.
    pub fn context(&self) -> Result<&Context> {
        // SAFETY: a field that no thread writes; a context outlives its objects (ibv_close_device(3)).
        unsafe { Context::of((*self.c.get()).context) }
    }

    /// Change the public count of completion queues, which some programs read.
    pub fn count(&self, by: c_int) {
        // SAFETY: an aligned int that only this function writes.
        let refs = unsafe { core::sync::atomic::AtomicI32::from_ptr(&raw mut (*self.c.get()).refcnt) };
        refs.fetch_add(by, core::sync::atomic::Ordering::Relaxed);
    }
}

/// `ibv_create_comp_channel(3)`.
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let inner = unsafe { Context::of(context) }?.nic()?.create_channel()?;
        let c = UnsafeCell::new(ibv_comp_channel { context, fd: inner.fd(), refcnt: 0 });
        Ok(Box::into_raw(Box::new(Channel { c, inner })).cast())
    })
}

/// `ibv_destroy_comp_channel(3)`: EBUSY while completion queues use it.
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { object::<Channel, _>(channel) }?;
        this.context()?.nic()?.destroy_channel(&this.inner)?;
        // SAFETY: made by Box::into_raw; not used afterwards (man page).
        drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
        Ok(())
    })
}

waits! {
    /// `ibv_get_cq_event(3)`.
    ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void): begin_wait, end_wait;
}

unsafe extern "C" fn begin_wait(
    word: &mut Word<CompChannel>,
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    minus_one(|| {
        if let Some(fd) = word.again() {
            return Ok(fd);
        }
        // SAFETY: live or NULL (man page).
        let this = unsafe { object::<Channel, _>(channel) }?;
        if cq.is_null() || cq_context.is_null() {
            return Err(Errno::EINVAL);
        }
        this.context()?.nic()?;
        Ok(word.enter(&this.inner))
    })
}

unsafe extern "C" fn end_wait(
    got: isize,
    word: &mut Word<CompChannel>,
    _channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let read = rung(got);
    minus_one(|| {
        let Some(token) = word.leave(read, |channel| Ok(Nic::get()?.take_cq_event(channel)))? else { return Ok(AGAIN) };
        let token = token as usize as *mut ibv_cq;
        // SAFETY: the token is the address of the queue's structure (cq::Cq::create), which lives at least until this
        // event is acknowledged; the variables are the caller's.
        unsafe {
            *cq = token;
            *cq_context = (*token).cq_context;
        }
        Ok(0)
    })
}

/// `ibv_ack_cq_events(3)`.
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    silent(|| {
        // SAFETY: live or NULL (man page).
        if let Ok(cq) = unsafe { object::<Cq, _>(cq) } {
            cq.acknowledge(count);
        }
    });
}
