//! Buffers that the library allocates (`ibv_alloc_buf(3)`): here, whole pages of ordinary memory.

use core::ptr::null_mut;

use libc::{c_int, c_void, size_t};
use sys::{ibv_buf, ibv_mr, ibv_pd};
use verbs::{Errno, Result};

use crate::entry::{ENODATA, minus_one, object, output, pointer, silent};
use crate::mr;
use crate::pd::Pd;

struct Buf {
    pd: *mut ibv_pd,
    start: *mut c_void,
    size: usize,
}

/// `ibv_alloc_buf(3)`.
pub unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: size_t, buf: *mut *mut ibv_buf) -> *mut c_void {
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let domain = unsafe { Pd::of(pd) }?;
        domain.context()?.nic()?;
        // SAFETY: the caller's variable or NULL.
        let handle = unsafe { output(buf) }?;
        if size == 0 {
            return Err(Errno::EINVAL);
        }
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { libc::mmap(null_mut(), size, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::ENOMEM);
        }
        domain.hold();
        *handle = Box::into_raw(Box::new(Buf { pd, start, size })).cast();
        Ok(start)
    })
}

/// `ibv_free_buf(3)`.
pub unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    silent(|| {
        if !buf.is_null() {
            // SAFETY: made by ibv_alloc_buf and given back once; the protection domain was held since; the program does
            // not use the pages any more (man page).
            unsafe {
                let buf = Box::from_raw(buf.cast::<Buf>());
                libc::munmap(buf.start, buf.size);
                Pd::release(buf.pd);
            }
        }
    });
}

/// EINVAL unless the range lies in the buffer and the domain is the buffer's.
///
/// # Safety
/// `buf` is NULL or live.
pub unsafe fn check(buf: *mut ibv_buf, pd: *mut ibv_pd, addr: *mut c_void, length: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    let buf = unsafe { object::<Buf, _>(buf) }?;
    let offset = (addr as usize).checked_sub(buf.start as usize).ok_or(Errno::EINVAL)?;
    let inside = offset.checked_add(length).is_some_and(|end| end <= buf.size);
    if inside && buf.pd == pd { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `ibv_reg_buf_mr(3)`.
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: live or NULL (man page).
    let checked = pointer(|| unsafe { check(buf, pd, addr, length) }.map(|()| buf));
    if checked.is_null() {
        return null_mut();
    }
    // SAFETY: as ibv_reg_mr demands.
    unsafe { mr::ibv_reg_mr(pd, addr, length, access) }
}

/// `ibv_export_buf_dmabuf_fd(3)`: ENODATA, no buffer of this library is a dma-buf.
pub unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    minus_one(|| Err(if buf.is_null() { Errno::EINVAL } else { ENODATA }))
}
