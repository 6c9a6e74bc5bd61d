//! Calls that wait for an event: cancellation points (pthreads(7)), as they are where read(2) waits in them.
//!
//! A thread that is cancelled while it waits is unwound from there. That must not cross a frame of Rust, so there is
//! none. The exported function is a few instructions that call its beginning, then the C library's `read`, then its
//! end, with nothing to be undone between the two. A signal ends the wait as it ends any read (EINTR), and so does
//! O_NONBLOCK (EAGAIN).
//!
//! Another thread may destroy meanwhile what the program waits at. So beginning and end have a word of the call's own,
//! where the beginning notes the library's object that it waits at. The end looks at no object of the program's before
//! it has an event, whose object lives until the event is acknowledged.

use core::ptr::null;
use std::sync::Arc;

use libc::{c_int, c_void};
use nic::Waited;
use verbs::Result;

use crate::entry::last_errno;

/// The result of a call's end if there was no event after all: the call begins again.
pub const AGAIN: c_int = 1;

unsafe extern "C" {
    /// The C library's read, which is a cancellation point; this library's own `read` is none (`syscalls.rs`).
    #[cfg_attr(not(test), link_name = "__real_read")]
    pub fn read(fd: c_int, buf: *mut c_void, len: usize) -> isize;
}

/// The outcome of the read: `got` is what it returned, and errno is its own.
pub fn rung(got: isize) -> Result<()> {
    if got < 0 { Err(last_errno()) } else { Ok(()) }
}

/// The word of a call: null, or the object at which it waits. The object lives as long as the thread is among its
/// waiters ([`nic::Outlived`]).
#[repr(transparent)]
pub struct Word<T>(*const T);

impl<T: Waited> Word<T> {
    /// The descriptor of a call that had no event and goes on to wait.
    pub fn again(&self) -> Option<c_int> {
        self.object().map(T::fd)
    }

    /// Begin to wait at an object that is not destroyed during this function; the descriptor.
    pub fn enter(&mut self, object: &Arc<T>) -> c_int {
        object.waiters().enter();
        self.0 = Arc::as_ptr(object);
        object.fd()
    }

    /// End the wait, unless there is no event after all: `None`.
    pub fn leave<E>(&mut self, read: Result<()>, take: impl FnOnce(&T) -> Result<Option<E>>) -> Result<Option<E>> {
        // A call without an object waits for no event (`EventChannel::wait`).
        let Some(object) = self.object() else { return read.map(|()| None) };
        let event = read.and_then(|()| take(object));
        if !matches!(event, Ok(None)) {
            object.waiters().leave();
            self.0 = null();
        }
        event
    }

    fn object(&self) -> Option<&T> {
        // SAFETY: null, or set by `enter`; this thread has been among the object's waiters since.
        unsafe { self.0.as_ref() }
    }
}

/// Define functions that wait, of at most three pointers. `begin` gets a pointer to the call's [`Word`] and these, and
/// returns the descriptor to read 8 bytes from, or -1 with errno set. `end` gets the result of read(2) in front of
/// them, and returns the call's result or [`AGAIN`].
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
                "mov qword ptr [rsp + 32], 0",
                "2: lea rdi, [rsp + 32]",
                "mov rsi, [rsp]",
                "mov rdx, [rsp + 8]",
                "mov rcx, [rsp + 16]",
                "call {begin}",
                "test eax, eax",
                "js 3f",
                "mov edi, eax",
                "lea rsi, [rsp + 24]",
                "mov edx, 8",
                "call {read}",
                "mov rdi, rax",
                "lea rsi, [rsp + 32]",
                "mov rdx, [rsp]",
                "mov rcx, [rsp + 8]",
                "mov r8, [rsp + 16]",
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
                "stp x2, xzr, [sp, #32]",
                "2: add x0, sp, #40",
                "ldp x1, x2, [sp, #16]",
                "ldr x3, [sp, #32]",
                "bl {begin}",
                "tbnz w0, #31, 3f",
                "add x1, sp, #48",
                "mov x2, #8",
                "bl {read}",
                "add x1, sp, #40",
                "ldp x2, x3, [sp, #16]",
                "ldr x4, [sp, #32]",
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
