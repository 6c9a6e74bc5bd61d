//! `dlopen` and `dlmopen`: a program that asks for libibverbs or librdmacm by name gets this library.
//!
//! A preloaded library wins wherever the loader binds a symbol. Programs bypass it that open `libibverbs.so.1` and ask
//! that handle for functions (NCCL, UCX's modules, Python's ctypes). So that handle has to be this library's; dlsym(3)
//! and dlvsym(3) then find its functions, with their versions, without being interposed themselves.
//!
//! The loader learns from the return address which object called `dlopen`: whose `DT_RUNPATH` counts, what `$ORIGIN`
//! is, which namespace it is. So the interposers leave no trace: they look at the name and jump on, with the stack as
//! it was.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::next::{Next, set_errno};

/// The libraries that this one stands for.
const OURS: [&[u8]; 2] = [b"libibverbs.so", b"librdmacm.so"];

/// The number of their ABI, as in `libibverbs.so.1` and `libibverbs.so.1.14.44.0`.
const VERSION: &[u8] = b".1";

/// The target of a jump, and the name to pass to it; returned in two registers.
#[repr(C)]
pub struct Jump {
    next: *mut c_void,
    file: *const c_char,
}

/// libc's `dlopen`, with this library for libibverbs and librdmacm.
///
/// # Safety
/// As for libc's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "call {choose}",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "mov rdi, rdx",
        "jmp rax",
        ".cfi_endproc",
        choose = sym choose_open,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        ".cfi_startproc",
        "bti c",
        "stp x30, x1, [sp, #-16]!",
        ".cfi_adjust_cfa_offset 16",
        ".cfi_rel_offset x30, 0",
        "bl {choose}",
        "mov x16, x0",
        "mov x0, x1",
        "ldp x30, x1, [sp], #16",
        ".cfi_adjust_cfa_offset -16",
        ".cfi_restore x30",
        "br x16",
        ".cfi_endproc",
        choose = sym choose_open,
    );
}

/// libc's `dlmopen`: as [`dlopen`] in the program's own namespace, and unchanged in others.
///
/// # Safety
/// As for libc's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlmopen(namespace: c_long, file: *const c_char, flags: c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {choose}",
        "mov rsi, rdx",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "jmp rax",
        ".cfi_endproc",
        choose = sym choose_open_in,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        ".cfi_startproc",
        "bti c",
        "stp x30, x0, [sp, #-32]!",
        ".cfi_adjust_cfa_offset 32",
        ".cfi_rel_offset x30, 0",
        "str x2, [sp, #16]",
        "bl {choose}",
        "mov x16, x0",
        "ldr x2, [sp, #16]",
        "ldp x30, x0, [sp], #32",
        ".cfi_adjust_cfa_offset -32",
        ".cfi_restore x30",
        "br x16",
        ".cfi_endproc",
        choose = sym choose_open_in,
    );
}

/// # Safety
/// `file` is null or a string.
unsafe extern "C" fn choose_open(file: *const c_char) -> Jump {
    static NEXT: Next = Next::new(c"dlopen");
    // SAFETY: the caller's promise.
    Jump { next: or_refuse(NEXT.get()), file: unsafe { replaced(file) } }
}

/// # Safety
/// `file` is null or a string.
unsafe extern "C" fn choose_open_in(namespace: c_long, file: *const c_char) -> Jump {
    static NEXT: Next = Next::new(c"dlmopen");
    let next = or_refuse(NEXT.get());
    // Another namespace has a C library of its own, where a second copy of the device would have to live.
    // SAFETY: the caller's promise.
    Jump { next, file: if namespace == libc::LM_ID_BASE { unsafe { replaced(file) } } else { file } }
}

/// The next definition, or a function that refuses: in a libc without `dlopen`, or in a call from inside the look-up.
fn or_refuse(next: *mut c_void) -> *mut c_void {
    extern "C" fn refuse() -> *mut c_void {
        set_errno(libc::ENOSYS);
        null_mut()
    }
    if next.is_null() { refuse as *mut c_void } else { next }
}

/// The file to open instead.
///
/// # Safety
/// `file` is null or a string.
unsafe fn replaced(file: *const c_char) -> *const c_char {
    // SAFETY: a string if it is not null (caller).
    if file.is_null() || !is_ours(unsafe { CStr::from_ptr(file) }.to_bytes()) {
        return file;
    }
    let own = own_name();
    if own.is_null() { file } else { own }
}

/// True for a name or a path of libibverbs or librdmacm.
fn is_ours(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    OURS.iter().filter_map(|ours| name.strip_prefix(*ours)).any(|rest| {
        rest.is_empty() || rest.strip_prefix(VERSION).is_some_and(|rest| matches!(rest.first(), None | Some(b'.')))
    })
}

/// The name under which the loader has this library. By that name the loader finds it without a look at the disk. The
/// name stays valid, for a preloaded library is never unloaded.
fn own_name() -> *const c_char {
    static NAME: AtomicPtr<c_char> = AtomicPtr::new(null_mut());
    let known = NAME.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: null_mut(),
    };
    // SAFETY: any address may be asked for; the structure is a local variable.
    if unsafe { libc::dladdr(own_name as *const c_void, &raw mut info) } == 0 {
        return std::ptr::null();
    }
    NAME.store(info.dli_fname.cast_mut(), Ordering::Relaxed);
    info.dli_fname
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_of_the_two_libraries() {
        for ours in [
            "libibverbs.so",
            "libibverbs.so.1",
            "libibverbs.so.1.14.44.0",
            "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
            "./librdmacm.so",
            "lib/librdmacm.so.1",
        ] {
            assert!(is_ours(ours.as_bytes()), "{ours}");
        }
        for other in [
            "",
            "/",
            "libibverbs",
            "libibverbs.so.2",
            "libibverbs.so.10",
            "libibverbs.so.1/x",
            "xlibibverbs.so",
            "libmlx5.so.1",
        ] {
            assert!(!is_ours(other.as_bytes()), "{other}");
        }
    }

    /// In this program, the interposers are the program's own `dlopen` and `dlmopen`.
    #[test]
    fn other_libraries_are_opened_as_ever() {
        for name in [c"libc.so.6", c"libm.so.6"] {
            // SAFETY: a string and flags; the handle is closed as often as it was opened.
            unsafe {
                let handle = dlopen(name.as_ptr(), libc::RTLD_NOW);
                assert!(!handle.is_null());
                assert_eq!(dlmopen(libc::LM_ID_BASE, name.as_ptr(), libc::RTLD_NOW), handle);
                libc::dlclose(handle);
                libc::dlclose(handle);
            }
        }
        // SAFETY: as above; the program itself.
        assert!(!unsafe { dlopen(std::ptr::null(), libc::RTLD_NOW) }.is_null());
        // SAFETY: as above.
        assert!(unsafe { dlopen(c"libdoes-not-exist.so".as_ptr(), libc::RTLD_NOW) }.is_null());
    }
}
