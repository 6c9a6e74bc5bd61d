//! Two functions of libibverbs about sysfs, which providers and older programs call.

use core::ffi::CStr;
use std::ffi::CString;
use std::sync::OnceLock;

use libc::{c_char, c_int, c_void, size_t};
use verbs::{Errno, Result};

use crate::entry::minus_one;

/// The root of sysfs: `SYSFS_PATH`, or `/sys`.
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    PATH.get_or_init(|| {
        let asked = report::Settings::of_process().sysfs.as_ref();
        let mut path = asked.map_or_else(|| b"/sys".to_vec(), |path| path.as_encoded_bytes().to_vec());
        while path.len() > 1 && path.last() == Some(&b'/') {
            path.pop();
        }
        CString::new(path).unwrap_or_else(|_| c"/sys".into())
    })
    .as_ptr()
}

/// Read `dir/file` into `buf`, without the newline at its end. The result is the length.
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: size_t,
) -> c_int {
    minus_one(|| {
        if dir.is_null() || file.is_null() || buf.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: strings of the caller's.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let path = [dir.to_bytes(), b"/", file.to_bytes()].concat();
        let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the caller has `size` bytes there.
        unsafe { read(&path, buf, size) }
    })
}

/// # Safety
/// `buf` has `size` bytes.
unsafe fn read(path: &CStr, buf: *mut c_char, size: usize) -> Result<c_int> {
    let last = || Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    // The C library's functions, not system calls: they may be interposed to show the device's own files.
    // SAFETY: a string and a flag.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(last());
    }
    // SAFETY: a descriptor opened above; the caller has `size` bytes.
    let got = unsafe { libc::read(fd, buf.cast::<c_void>(), size) };
    let errno = last();
    // SAFETY: a descriptor opened above.
    unsafe { libc::close(fd) };
    let mut len = usize::try_from(got).map_err(|_| errno)?;
    // SAFETY: `len` is at most `size`; both places are within the caller's bytes.
    unsafe {
        if len > 0 && *buf.add(len - 1) == b'\n' as c_char {
            len -= 1;
        }
        if len < size {
            *buf.add(len) = 0;
        }
    }
    Ok(len as c_int)
}
