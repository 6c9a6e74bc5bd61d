//! The device: listing, opening, importing.

use std::sync::OnceLock;

use libc::{c_char, c_int};
use nic::Nic;
use report::Device;
use sys::{ibv_context, ibv_device};
use verbs::{Errno, Result};

use crate::context::Context;
use crate::entry::{Zeroed, minus_one, pointer, shielded, silent};
use crate::hardware;

/// The devices that this process has.
fn kinds() -> &'static [Device] {
    report::Settings::of_process().devices.list()
}

/// `ibv_device` in front of zeros: direct-verbs libraries of vendors look at the bytes behind it, to see whether the
/// device is one of theirs.
#[repr(C)]
struct Made {
    c: ibv_device,
    behind: [u64; 512],
}

fn put(field: &mut [c_char], text: &str) {
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// The structure of a device. It is never freed: programs keep the pointer beyond `ibv_free_device_list`.
pub fn device(kind: Device) -> *mut ibv_device {
    static DEVICES: [OnceLock<usize>; 2] = [OnceLock::new(), OnceLock::new()];
    let device = &DEVICES[usize::from(kind.is_iwarp())];
    let made = device.get().copied().unwrap_or_else(|| {
        nic::fork::whole(|| {
            // Made outside of the initialization: a child that is forked in the middle of one would wait for its end.
            let made = device.get().copied().unwrap_or_else(|| make(kind) as usize);
            *device.get_or_init(|| made)
        })
    });
    made as *mut ibv_device
}

fn make(kind: Device) -> *mut Made {
    let mut c = ibv_device::zeroed();
    c._ops._dummy1 = Some(no_open);
    c._ops._dummy2 = Some(no_close);
    (c.node_type, c.transport_type) = match kind {
        Device::Roce => (sys::IBV_NODE_CA, sys::IBV_TRANSPORT_IB),
        Device::Iwarp => (sys::IBV_NODE_RNIC, sys::IBV_TRANSPORT_IWARP),
    };
    let name = kind.name();
    put(&mut c.name, name);
    // The name of its command device, as in /sys/class/infiniband_verbs and /dev/infiniband.
    let place = kinds().iter().position(|other| *other == kind).unwrap_or(0);
    let infos = view::tree::ViewInfo::probe(report::Settings::of_process());
    let uverbs = format!("uverbs{}", infos.get(place).map_or(0, view::tree::ViewInfo::uverbs_index));
    put(&mut c.dev_name, &uverbs);
    put(&mut c.dev_path, &format!("/sys/class/infiniband_verbs/{uverbs}"));
    put(&mut c.ibdev_path, &format!("/sys/class/infiniband/{name}"));
    Box::into_raw(Box::new(Made { c, behind: [0; 512] }))
}

unsafe extern "C" fn no_open(_device: *mut ibv_device, _cmd_fd: c_int) -> *mut ibv_context {
    pointer(|| Err(Errno::EOPNOTSUPP))
}

unsafe extern "C" fn no_close(_context: *mut ibv_context) {}

/// The place among this process's devices of the one with this structure. EINVAL: it has none such.
fn place(c: *const ibv_device) -> Result<usize> {
    kinds().iter().position(|kind| c == device(*kind).cast_const()).ok_or(Errno::EINVAL)
}

/// True if a device is this library's.
pub fn is_ours(c: *const ibv_device) -> bool {
    place(c).is_ok()
}

/// `ibv_get_device_list(3)`.
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        if !num_devices.is_null() {
            // SAFETY: the caller's variable, optional by the man page.
            unsafe { *num_devices = 0 };
        }
        Nic::get()?;
        let (others, count) = hardware::list();
        let mut list: Vec<_> = kinds().iter().map(|kind| device(*kind)).collect();
        // SAFETY: rdma-core's list has `count` devices.
        list.extend((0..count).map(|i| unsafe { *others.add(i) }));
        if !num_devices.is_null() {
            // SAFETY: as above.
            unsafe { *num_devices = list.len() as c_int };
        }
        // rdma-core's list stands behind the end that programs see: it is to be given back with this one.
        list.extend([core::ptr::null_mut(), others.cast()]);
        Ok(Box::into_raw(list.into_boxed_slice()).cast())
    })
}

/// `ibv_free_device_list(3)`.
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if list.is_null() {
        return;
    }
    silent(|| {
        let mut len = 0;
        // SAFETY: made above: devices, NULL, and rdma-core's list; given back once (the man page).
        unsafe {
            while !(*list.add(len)).is_null() {
                len += 1;
            }
            hardware::free((*list.add(len + 1)).cast());
            drop(Box::from_raw(core::ptr::slice_from_raw_parts_mut(list, len + 2)));
        }
    });
}

/// `ibv_get_device_name(3)`.
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return core::ptr::null();
    }
    // SAFETY: a device from the list, never freed; the name is terminated by the zeros that follow it.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_guid(3)`: in network byte order; 0 on failure.
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    shielded(|| {
        let kind = *kinds().get(place(device)?).ok_or(Errno::EINVAL)?;
        Ok(Nic::get()?.guid(kind).to_be())
    })
    .unwrap_or(0)
}

/// `ibv_get_device_index(3)`; -1 for a device that is not this library's.
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    place(device).map_or(-1, |place| place as c_int)
}

/// `ibv_open_device(3)`.
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(|| Context::open(*kinds().get(place(device)?).ok_or(Errno::EINVAL)?))
}

/// `ibv_close_device(3)`.
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    minus_one(|| {
        // SAFETY: a live context, not used afterwards (the man page).
        unsafe { Context::close(context) }?;
        Ok(0)
    })
}

/// `ibv_import_device(3)`: within this process only; EINVAL for the descriptor of another one.
pub unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    pointer(|| Context::import(cmd_fd))
}
