//! The devices as ids share them: one context of each for the process, kept open; one protection domain and one XRC
//! domain while ids use them (`struct cma_device` of librdmacm).

use libc::c_int;
use parking_lot::Mutex;
use report::{Device, Settings};
use sys::{ibv_context, ibv_pd, ibv_xrcd};
use verbs::Result;

use super::last_errno;
use crate::context::Context;
use crate::entry::pointer;
use crate::per_nic::PerNic;
use crate::{pd, xrcd};

/// The number of devices that a process has at most.
const MOST: usize = 2;

#[derive(Default)]
struct Shared {
    context: usize,
    pd: usize,
    xrcd: usize,
    users: u32,
}

static SHARED: PerNic<[Mutex<Shared>; MOST]> = PerNic::new();

fn shared(kind: Device) -> Result<&'static Mutex<Shared>> {
    Ok(&SHARED.of(super::manager()?.0)[usize::from(kind.is_iwarp())])
}

fn open(kind: Device, shared: &mut Shared) -> Result<*mut ibv_context> {
    if shared.context == 0 {
        shared.context = Context::open(kind)? as usize;
    }
    Ok(shared.context as *mut ibv_context)
}

/// The context of a device, for `rdma_get_devices`.
pub fn context(kind: Device) -> Result<*mut ibv_context> {
    open(kind, &mut shared(kind)?.lock())
}

/// Hold a device for an id.
pub fn hold(kind: Device) -> Result<(*mut ibv_context, *mut ibv_pd)> {
    let mut shared = shared(kind)?.lock();
    let context = open(kind, &mut shared)?;
    if shared.pd == 0 {
        // SAFETY: a live context.
        shared.pd = unsafe { pd::ibv_alloc_pd(context) } as usize;
        if shared.pd == 0 {
            return Err(last_errno());
        }
    }
    shared.users += 1;
    Ok((context, shared.pd as *mut ibv_pd))
}

/// True if a domain is the one that ids of this device have by default.
pub fn is_default(kind: Device, pd: *mut ibv_pd) -> bool {
    shared(kind).is_ok_and(|shared| shared.lock().pd == pd as usize)
}

/// Release a device for an id.
pub fn release(kind: Device) {
    let Ok(shared) = shared(kind) else { return };
    let mut shared = shared.lock();
    shared.users = shared.users.saturating_sub(1);
    if shared.users > 0 {
        return;
    }
    if shared.pd != 0 {
        // SAFETY: allocated above. If the program still uses it, the call fails and the domain stays for the next id.
        if unsafe { pd::ibv_dealloc_pd(shared.pd as *mut ibv_pd) } == 0 {
            shared.pd = 0;
        }
    }
    if shared.xrcd != 0 {
        // SAFETY: opened below. As above.
        if unsafe { xrcd::close_xrcd(shared.xrcd as *mut ibv_xrcd) } == 0 {
            shared.xrcd = 0;
        }
    }
}

/// The XRC domain of a device.
pub fn xrc_domain(kind: Device) -> Result<*mut ibv_xrcd> {
    let mut shared = shared(kind)?.lock();
    let context = open(kind, &mut shared)?;
    if shared.xrcd == 0 {
        let mut attr = sys::ibv_xrcd_init_attr {
            comp_mask: sys::IBV_XRCD_INIT_ATTR_FD | sys::IBV_XRCD_INIT_ATTR_OFLAGS,
            fd: -1,
            oflags: libc::O_CREAT as c_int,
        };
        // SAFETY: a live context, our own structure.
        shared.xrcd = unsafe { xrcd::open_xrcd(context, &raw mut attr) } as usize;
        if shared.xrcd == 0 {
            return Err(last_errno());
        }
    }
    Ok(shared.xrcd as *mut ibv_xrcd)
}

/// `rdma_get_devices(3)`: the list ends with NULL.
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    pointer(|| {
        // SAFETY: the caller's variable, optional by the man page.
        let count = |n| unsafe {
            if let Some(out) = num_devices.as_mut() {
                *out = n;
            }
        };
        count(0);
        let kinds = Settings::of_process().devices.list();
        let mut list = [core::ptr::null_mut(); MOST + 1];
        for (place, kind) in list.iter_mut().zip(kinds) {
            *place = context(*kind)?;
        }
        count(kinds.len() as c_int);
        Ok(Box::into_raw(Box::new(list)).cast())
    })
}

/// `rdma_free_devices(3)`: the devices stay open.
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    if !list.is_null() {
        // SAFETY: made above with this type, and given back once (man page).
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; MOST + 1]>()) });
    }
}
