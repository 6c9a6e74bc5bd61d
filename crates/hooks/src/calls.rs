//! Functions that take one path and leave the rest to the kernel.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::ptr::null_mut;

use libc::{AT_FDCWD, mode_t, size_t, ssize_t};

use crate::next::{Next, set_errno};
use crate::redirect::{with_path, with_path_at};

/// The result of a function when there is no next definition to call.
pub(crate) trait Missing {
    fn missing() -> Self;
}

impl Missing for c_int {
    fn missing() -> Self {
        set_errno(libc::ENOSYS);
        -1
    }
}

impl Missing for ssize_t {
    fn missing() -> Self {
        set_errno(libc::ENOSYS);
        -1
    }
}

impl<T> Missing for *mut T {
    fn missing() -> Self {
        set_errno(libc::ENOSYS);
        null_mut()
    }
}

/// Define interposers. Behind the signature stand the system call to make when there is no next definition (without one
/// the function fails), and, for a variadic function, the signature's fixed part. The path comes first, or second
/// behind a directory (`at`) or behind glibc's structure version (`versioned`, `versioned at`).
///
/// `open` is defined with its third argument fixed: on Linux's 64-bit architectures a variadic integer argument lies in
/// the same register. Without O_CREAT the value is garbage, and no code reads it.
macro_rules! hooks {
    ($($shape:ident fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty $(= $fallback:expr)?;)*) => {$(
        /// libc's function of this name, with paths of the view redirected.
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            static NEXT: Next = Next::new(match std::ffi::CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes()) { Ok(name) => name, Err(_) => panic!() });
            let next = NEXT.get();
            hooks!(@call $shape next, [$($arg: $ty),*] -> $ret, { $($fallback)? })
        }
    )*};
    (@call path $next:ident, [$path:ident: $pty:ty $(, $arg:ident: $ty:ty)*] -> $ret:ty, {$($fallback:expr)?}) => {
        // SAFETY: the caller passes what the libc function demands, a path among it; `next` is that function.
        unsafe { with_path($path, |$path| hooks!(@next $next, ($path: $pty $(, $arg: $ty)*) -> $ret, {$($fallback)?})) }
    };
    (@call at $next:ident, [$dir:ident: $dty:ty, $path:ident: $pty:ty $(, $arg:ident: $ty:ty)*] -> $ret:ty,
        {$($fallback:expr)?}) => {
        // SAFETY: the caller passes what the libc function demands, a path among it; `next` is that function.
        unsafe { with_path_at($dir, $path, |$dir, $path|
            hooks!(@next $next, ($dir: $dty, $path: $pty $(, $arg: $ty)*) -> $ret, {$($fallback)?})) }
    };
    (@call versioned_at $next:ident, [$version:ident: $vty:ty, $dir:ident: $dty:ty, $path:ident: $pty:ty
        $(, $arg:ident: $ty:ty)*] -> $ret:ty, {$($fallback:expr)?}) => {
        // SAFETY: the caller passes what the libc function demands, a path among it; `next` is that function.
        unsafe { with_path_at($dir, $path, |$dir, $path|
            hooks!(@next $next, ($version: $vty, $dir: $dty, $path: $pty $(, $arg: $ty)*) -> $ret, {$($fallback)?})) }
    };
    // In `versioned` a number takes the place of the directory; the closure has the same shape.
    (@call versioned $($rest:tt)*) => { hooks!(@call at $($rest)*) };
    // A variadic function is called as such. x86-64 passes the number of vector registers along.
    (@call variadic $next:ident, [$path:ident: $pty:ty, $flags:ident: $fty:ty,
        $mode:ident: $mty:ty] -> $ret:ty,
        {$fallback:expr}) => {
        // SAFETY: the caller passes what the libc function demands, a path among it; `next` is that function.
        unsafe { with_path($path, |$path| {
            if $next.is_null() { return $fallback as $ret; }
            let next: unsafe extern "C" fn($pty, $fty, ...) -> $ret = std::mem::transmute($next);
            next($path, $flags, $mode)
        }) }
    };
    (@call variadic_at $next:ident,
        [$dir:ident: $dty:ty, $path:ident: $pty:ty, $flags:ident: $fty:ty, $mode:ident: $mty:ty]
        -> $ret:ty, {$fallback:expr}) => {
        // SAFETY: the caller passes what the libc function demands, a path among it; `next` is that function.
        unsafe { with_path_at($dir, $path, |$dir, $path| {
            if $next.is_null() { return $fallback as $ret; }
            let next: unsafe extern "C" fn($dty, $pty, $fty, ...) -> $ret = std::mem::transmute($next);
            next($dir, $path, $flags, $mode)
        }) }
    };
    (@next $next:ident, ($($arg:ident: $ty:ty),*) -> $ret:ty, {$($fallback:expr)?}) => {{
        if $next.is_null() {
            #[allow(unused_variables)]
            let result: $ret = <$ret as Missing>::missing();
            $(let result = $fallback as $ret;)?
            return result;
        }
        let next: unsafe extern "C" fn($($ty),*) -> $ret = std::mem::transmute($next);
        next($($arg),*)
    }};
}
pub(crate) use hooks;

/// A path as C passes it.
type Path = *const c_char;
/// A structure whose members only the kernel and the caller read.
type Buf = *mut c_void;

unsafe fn sys_open(dir: c_int, path: Path, flags: c_int, mode: mode_t) -> c_long {
    // SAFETY: the system call checks its arguments itself.
    unsafe { libc::syscall(libc::SYS_openat, dir, path, flags, mode) }
}

unsafe fn sys_stat(dir: c_int, path: Path, buf: Buf, flags: c_int) -> c_long {
    // SAFETY: the system call checks its arguments itself.
    unsafe { libc::syscall(libc::SYS_newfstatat, dir, path, buf, flags) }
}

unsafe fn sys_access(dir: c_int, path: Path, mode: c_int) -> c_long {
    // SAFETY: the system call checks its arguments itself.
    unsafe { libc::syscall(libc::SYS_faccessat, dir, path, mode) }
}

unsafe fn sys_readlink(dir: c_int, path: Path, buf: *mut c_char, len: size_t) -> c_long {
    // SAFETY: the system call checks its arguments itself.
    unsafe { libc::syscall(libc::SYS_readlinkat, dir, path, buf, len) }
}

const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;

hooks! {
    variadic fn open(path: Path, flags: c_int, mode: mode_t) -> c_int = sys_open(AT_FDCWD, path, flags, mode);
    variadic fn open64(path: Path, flags: c_int, mode: mode_t) -> c_int = sys_open(AT_FDCWD, path, flags, mode);
    variadic_at fn openat(dir: c_int, path: Path, flags: c_int, mode: mode_t) -> c_int =
        sys_open(dir, path, flags, mode);
    variadic_at fn openat64(dir: c_int, path: Path, flags: c_int, mode: mode_t) -> c_int =
        sys_open(dir, path, flags, mode);
    // A fortified build calls this function when it cannot see the flags.
    path fn __open_2(path: Path, flags: c_int) -> c_int = sys_open(AT_FDCWD, path, flags, 0);
    path fn __open64_2(path: Path, flags: c_int) -> c_int = sys_open(AT_FDCWD, path, flags, 0);
    at fn __openat_2(dir: c_int, path: Path, flags: c_int) -> c_int = sys_open(dir, path, flags, 0);
    at fn __openat64_2(dir: c_int, path: Path, flags: c_int) -> c_int = sys_open(dir, path, flags, 0);

    path fn fopen(path: Path, mode: Path) -> *mut libc::FILE;
    path fn fopen64(path: Path, mode: Path) -> *mut libc::FILE;
    path fn freopen(path: Path, mode: Path, stream: *mut libc::FILE) -> *mut libc::FILE;
    path fn freopen64(path: Path, mode: Path, stream: *mut libc::FILE) -> *mut libc::FILE;

    path fn stat(path: Path, buf: Buf) -> c_int = sys_stat(AT_FDCWD, path, buf, 0);
    path fn stat64(path: Path, buf: Buf) -> c_int = sys_stat(AT_FDCWD, path, buf, 0);
    path fn lstat(path: Path, buf: Buf) -> c_int = sys_stat(AT_FDCWD, path, buf, NOFOLLOW);
    path fn lstat64(path: Path, buf: Buf) -> c_int = sys_stat(AT_FDCWD, path, buf, NOFOLLOW);
    at fn fstatat(dir: c_int, path: Path, buf: Buf, flags: c_int) -> c_int = sys_stat(dir, path, buf, flags);
    at fn fstatat64(dir: c_int, path: Path, buf: Buf, flags: c_int) -> c_int = sys_stat(dir, path, buf, flags);
    // The names of stat and its siblings in programs linked before glibc 2.33. On 64-bit machines every version is the
    // kernel's layout.
    versioned fn __xstat(version: c_int, path: Path, buf: Buf) -> c_int = sys_stat(AT_FDCWD, path, buf, 0);
    versioned fn __xstat64(version: c_int, path: Path, buf: Buf) -> c_int = sys_stat(AT_FDCWD, path, buf, 0);
    versioned fn __lxstat(version: c_int, path: Path, buf: Buf) -> c_int = sys_stat(AT_FDCWD, path, buf, NOFOLLOW);
    versioned fn __lxstat64(version: c_int, path: Path, buf: Buf) -> c_int = sys_stat(AT_FDCWD, path, buf, NOFOLLOW);
    versioned_at fn __fxstatat(version: c_int, dir: c_int, path: Path, buf: Buf, flags: c_int) -> c_int
        = sys_stat(dir, path, buf, flags);
    versioned_at fn __fxstatat64(version: c_int, dir: c_int, path: Path, buf: Buf, flags: c_int) -> c_int
        = sys_stat(dir, path, buf, flags);
    at fn statx(dir: c_int, path: Path, flags: c_int, mask: c_uint, buf: Buf) -> c_int
        = libc::syscall(libc::SYS_statx, dir, path, flags, mask, buf);

    path fn access(path: Path, mode: c_int) -> c_int = sys_access(AT_FDCWD, path, mode);
    path fn eaccess(path: Path, mode: c_int) -> c_int;
    path fn euidaccess(path: Path, mode: c_int) -> c_int;
    at fn faccessat(dir: c_int, path: Path, mode: c_int, flags: c_int) -> c_int;

    path fn readlink(path: Path, buf: *mut c_char, len: size_t) -> ssize_t = sys_readlink(AT_FDCWD, path, buf, len);
    path fn __readlink_chk(path: Path, buf: *mut c_char, len: size_t, room: size_t) -> ssize_t;
    at fn readlinkat(dir: c_int, path: Path, buf: *mut c_char, len: size_t) -> ssize_t =
        sys_readlink(dir, path, buf, len);
    at fn __readlinkat_chk(dir: c_int, path: Path, buf: *mut c_char, len: size_t, room: size_t) -> ssize_t;

    // `ls -l` asks for access control lists, and complains if the file that it has just seen is not there.
    path fn getxattr(path: Path, name: Path, value: Buf, size: size_t) -> ssize_t;
    path fn lgetxattr(path: Path, name: Path, value: Buf, size: size_t) -> ssize_t;
    path fn listxattr(path: Path, list: *mut c_char, size: size_t) -> ssize_t;
    path fn llistxattr(path: Path, list: *mut c_char, size: size_t) -> ssize_t;

    path fn opendir(path: Path) -> *mut libc::DIR;
    path fn scandir(path: Path, list: Buf, filter: Buf, compare: Buf) -> c_int;
    path fn scandir64(path: Path, list: Buf, filter: Buf, compare: Buf) -> c_int;
    at fn scandirat(dir: c_int, path: Path, list: Buf, filter: Buf, compare: Buf) -> c_int;
    at fn scandirat64(dir: c_int, path: Path, list: Buf, filter: Buf, compare: Buf) -> c_int;
}
