//! Functions that return paths: a path inside the view is returned as the path that the program knows.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use libc::size_t;

use crate::calls::{Missing, hooks};
use crate::next::Next;
use crate::redirect::{leads_into_view, with_path};

/// Turn a path inside the view into the public one, in place. The public path is always the shorter one.
///
/// # Safety
/// `path` is null or a NUL-terminated string that may be written.
unsafe fn publish(path: *mut c_char) -> *mut c_char {
    if path.is_null() {
        return path;
    }
    let Some(root) = view::place::current() else { return path };
    // SAFETY: as demanded of the caller.
    let inside = unsafe { CStr::from_ptr(path) }.to_bytes();
    if let Some(public) = view::place::public_path(root, inside) {
        let public = public.as_os_str().as_bytes();
        assert!(public.len() <= inside.len());
        // SAFETY: the string has room for `inside.len()` bytes and the terminator; `public` is no longer and lies
        // elsewhere.
        unsafe {
            std::ptr::copy_nonoverlapping(public.as_ptr(), path.cast(), public.len());
            *path.add(public.len()) = 0;
        }
    }
    path
}

macro_rules! publishing {
    ($(fn $name:ident($path:ident: $pty:ty $(, $arg:ident: $ty:ty)*);)*) => {$(
        /// libc's function of this name, with paths of the view redirected, and redirected back.
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($path: $pty $(, $arg: $ty)*) -> *mut c_char {
            static NEXT: Next = Next::new(match CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes()) { Ok(name) => name, Err(_) => panic!() });
            let next = NEXT.get();
            let given: *const c_char = $path;
            let mut redirected = false;
            // SAFETY: the caller passes what the libc function demands; `next` is that function.
            let found = unsafe { with_path($path, |$path| {
                redirected = !std::ptr::eq($path, given);
                hooks!(@next next, ($path: $pty $(, $arg: $ty)*) -> *mut c_char, {})
            }) };
            // SAFETY: the function returns null or a string that the caller may write.
            if redirected { unsafe { publish(found) } } else { found }
        }
    )*};
}

publishing! {
    fn realpath(path: *const c_char, resolved: *mut c_char);
    fn __realpath_chk(path: *const c_char, resolved: *mut c_char, room: size_t);
    fn canonicalize_file_name(path: *const c_char);
}

/// The part of `glob_t` that matters here (glibc, all 64-bit architectures; the first three are POSIX).
#[repr(C)]
pub struct Glob {
    pathc: size_t,
    pathv: *mut *mut c_char,
    offs: size_t,
    flags: c_int,
    closedir: Option<unsafe extern "C" fn(*mut c_void)>,
    readdir: Option<unsafe extern "C" fn(*mut c_void) -> *mut c_void>,
    opendir: Option<unsafe extern "C" fn(*const c_char) -> *mut c_void>,
    lstat: Option<unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int>,
    stat: Option<unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int>,
}

/// `GLOB_ALTDIRFUNC`: use the functions in the structure. glibc's `glob` calls its own ones by private names otherwise.
const ALTDIRFUNC: c_int = 1 << 9;

type ErrorFn = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;

unsafe extern "C" fn close_dir(dir: *mut c_void) {
    // SAFETY: `dir` came from `open_dir`.
    unsafe { libc::closedir(dir.cast()) };
}

unsafe extern "C" fn read_dir(dir: *mut c_void) -> *mut c_void {
    // SAFETY: `dir` came from `open_dir`. readdir and readdir64 are one on 64-bit machines.
    unsafe { libc::readdir(dir.cast()).cast() }
}

unsafe extern "C" fn open_dir(path: *const c_char) -> *mut c_void {
    // SAFETY: glob passes a path.
    unsafe { crate::calls::opendir(path).cast() }
}

macro_rules! globbing {
    ($($name:ident)*) => {$(
        /// libc's function of this name, with patterns of the view expanded there.
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(pattern: *const c_char, flags: c_int, error: ErrorFn, out: *mut Glob) -> c_int {
            static NEXT: Next = Next::new(match CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes()) { Ok(name) => name, Err(_) => panic!() });
            let next = NEXT.get();
            if next.is_null() {
                return <c_int as Missing>::missing();
            }
            type Function = unsafe extern "C" fn(*const c_char, c_int, ErrorFn, *mut Glob) -> c_int;
            // SAFETY: `next` is the libc function of this signature.
            let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
            // SAFETY: the caller passes a pattern, which is a string.
            if flags & ALTDIRFUNC != 0 || !unsafe { leads_into_view(pattern) } {
                // SAFETY: the caller's arguments.
                return unsafe { next(pattern, flags, error, out) };
            }
            // SAFETY: the caller passes a glob_t. Without ALTDIRFUNC its function fields mean nothing, and
            // globfree looks at none of them.
            unsafe {
                (*out).closedir = Some(close_dir);
                (*out).readdir = Some(read_dir);
                (*out).opendir = Some(open_dir);
                (*out).lstat = Some(crate::calls::lstat);
                (*out).stat = Some(crate::calls::stat);
                next(pattern, flags | ALTDIRFUNC, error, out)
            }
        }
    )*};
}

globbing! { glob glob64 }
