//! Calls that wait for an event: cancellation points (pthreads(7)), as they are where read(2) waits in them.
//!
//! A thread that is cancelled while it waits is unwound from there. That must not cross a frame of Rust, so there is
//! none. The exported function is a few instructions that call its beginning, then the C library's `read`, then its
//! end, with nothing to be undone between the two. A signal ends the wait as it ends any read (EINTR), and so does
//! O_NONBLOCK (EAGAIN).

use libc::{c_int, c_void};
use verbs::{Errno, Result};

/// The result of a call's end if there was no event after all: the call begins again.
pub const AGAIN: c_int = 1;

unsafe extern "C" {
    /// The C library's read, which is a cancellation point; this library's own `read` is none (`syscalls.rs`).
    #[cfg_attr(not(test), link_name = "__real_read")]
    pub fn read(fd: c_int, buf: *mut c_void, len: usize) -> isize;
}

/// The outcome of the read: `got` is what it returned, `errno` what it left behind.
pub fn rung(got: isize, errno: Errno) -> Result<()> {
    if got < 0 { Err(errno) } else { Ok(()) }
}

/// Define functions that wait, of at most three pointers. `begin` gets these, and returns the descriptor to read 8
/// bytes from, or -1 with errno set. `end` gets the result of read(2) in front of them, and returns the call's result
/// or [`AGAIN`].
macro_rules! waits {
    ($($(#[$doc:meta])* $name:ident($($ty:ty),*): $begin:path, $end:path;)*) => {$(
        $(#[$doc])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($(_: $ty),*) -> libc::c_int {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 40",
                ".cfi_adjust_cfa_offset 40",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "2: mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "call {begin}",
                "test eax, eax",
                "js 3f",
                "mov edi, eax",
                "lea rsi, [rsp + 24]",
                "mov edx, 8",
                "call {read}",
                "mov rdi, rax",
                "mov rsi, [rsp]",
                "mov rdx, [rsp + 8]",
                "mov rcx, [rsp + 16]",
                "call {end}",
                "cmp eax, {again}",
                "je 2b",
                "3: add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
                "ret",
                ".cfi_endproc",
                begin = sym $begin,
                end = sym $end,
                read = sym $crate::wait::read,
                again = const $crate::wait::AGAIN,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-64]!",
                ".cfi_adjust_cfa_offset 64",
                ".cfi_rel_offset x29, 0",
                ".cfi_rel_offset x30, 8",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "2: ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "bl {begin}",
                "tbnz w0, #31, 3f",
                "add x1, sp, #40",
                "mov x2, #8",
                "bl {read}",
                "ldp x1, x2, [sp, #16]",
                "ldr x3, [sp, #32]",
                "bl {end}",
                "cmp w0, #{again}",
                "b.eq 2b",
                "3: ldp x29, x30, [sp], #64",
                ".cfi_adjust_cfa_offset -64",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "ret",
                ".cfi_endproc",
                begin = sym $begin,
                end = sym $end,
                read = sym $crate::wait::read,
                again = const $crate::wait::AGAIN,
            );
        }
    )*};
}
pub(crate) use waits;
