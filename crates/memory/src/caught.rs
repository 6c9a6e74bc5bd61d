//! Small copies from and to memory that may go at any time, without a system call.
//!
//! Every instruction that may fault lies in one range of addresses. If the program's handler of SIGSEGV and SIGBUS
//! hands its faults over (`softrnic_dv_catch_faults`, [`begin`]; then [`fault`]), a fault in that range goes on behind
//! it, and the copy fails. Kernels have such exception tables for their copies from and to programs. Without a handler,
//! and on threads that block these signals, such memory is reached through the kernel ([`crate::single_copy`]). That
//! takes as long as a small message itself.

use core::cell::Cell;
use core::ffi::c_void;
use core::mem::zeroed;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use wire::Fault;

/// Up to this many bytes: a packet has no more. The system call takes longer than such a copy. A program that replaces
/// its handler later keeps the kernel's answer for longer ones.
const MOST: usize = 16 << 10;

/// A handler hands its faults over.
static CATCHES: AtomicBool = AtomicBool::new(false);

/// False: nothing is caught on this processor.
pub const CAN: bool = cfg!(all(target_arch = "x86_64", not(miri)));

/// From now on a handler of the program calls [`fault`] first.
pub fn begin() {
    CATCHES.store(CAN, Ordering::Relaxed);
}

thread_local! {
    /// Whether this thread takes SIGSEGV and SIGBUS. None: it has not been asked; to ask each time would take a system
    /// call. A fault of a thread that blocks them ends the process (sigprocmask(2)).
    static TAKES: Cell<Option<bool>> = const { Cell::new(None) };
}

/// True if a copy of so many bytes is to be made by [`copy`].
#[inline]
pub(crate) fn serves(len: usize) -> bool {
    len <= MOST && CATCHES.load(Ordering::Relaxed) && TAKES.get().unwrap_or_else(ask)
}

#[cold]
fn ask() -> bool {
    // SAFETY: a set of signals on the stack, which the call fills; it changes nothing.
    let takes = unsafe {
        let mut blocked: libc::sigset_t = zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut blocked) == 0
            && [libc::SIGSEGV, libc::SIGBUS].iter().all(|signal| libc::sigismember(&raw const blocked, *signal) == 0)
    };
    TAKES.set(Some(takes));
    takes
}

/// Copies `len` bytes, of which a part may have been copied when it fails. Call it only if [`serves`] says so.
///
/// # Safety
/// A place that is memory of this library is valid for the access. The other one is the program's, and may be gone.
pub(crate) unsafe fn copy(from: u64, to: u64, len: usize) -> Result<(), Fault> {
    // SAFETY: by this function's contract; a fault of the program's place is caught.
    if unsafe { machine::copy(to as usize, from as usize, len) } == 0 { Ok(()) } else { Err(Fault) }
}

/// For a handler of SIGSEGV or SIGBUS: if a copy has faulted, let it fail when the handler returns, and return true.
/// Async-signal-safe.
///
/// # Safety
/// `context` is what a handler with SA_SIGINFO gets for a fault, and is this handler's while it runs.
pub unsafe fn fault(context: *mut c_void) -> bool {
    // SAFETY: by this function's contract.
    unsafe { machine::fault(context) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod machine {
    use core::ffi::c_void;

    // Every instruction that may fault lies between the first two labels, and none of them changes the stack: what
    // stands behind the third one may follow each of them. Values of 4 and 8 bytes are copied whole. The stores of one
    // string instruction may be seen in any order, and those behind it after them (Intel SDM vol. 3, 8.2.4): the last
    // word, or byte, for which a program may wait, has a store of its own.
    core::arch::global_asm!(
        ".pushsection .text.softrnic_caught, \"ax\", @progbits",
        ".hidden softrnic_caught_copy",
        ".hidden softrnic_caught_end",
        ".hidden softrnic_caught_fault",
        ".globl softrnic_caught_copy",
        ".globl softrnic_caught_end",
        ".globl softrnic_caught_fault",
        ".p2align 4",
        "softrnic_caught_copy:",
        ".cfi_startproc",
        "cmp rdx, 16",
        "ja 3f",
        "cmp rdx, 8",
        "jae 2f",
        "cmp rdx, 4",
        "jb 5f",
        "mov eax, dword ptr [rsi]",
        "mov ecx, dword ptr [rsi + rdx - 4]",
        "mov dword ptr [rdi], eax",
        "mov dword ptr [rdi + rdx - 4], ecx",
        "xor eax, eax",
        "ret",
        "2:",
        "mov rax, qword ptr [rsi]",
        "mov rcx, qword ptr [rsi + rdx - 8]",
        "mov qword ptr [rdi], rax",
        "mov qword ptr [rdi + rdx - 8], rcx",
        "xor eax, eax",
        "ret",
        "3:",
        "lea rcx, [rdx - 8]",
        "lea rax, [rdi + rdx]",
        "test al, 7",
        "jnz 4f",
        "rep movsb",
        "mov rax, qword ptr [rsi]",
        "mov qword ptr [rdi], rax",
        "xor eax, eax",
        "ret",
        "4:",
        "add rcx, 7",
        "rep movsb",
        "mov al, byte ptr [rsi]",
        "mov byte ptr [rdi], al",
        "xor eax, eax",
        "ret",
        "5:",
        "mov rcx, rdx",
        "rep movsb",
        "xor eax, eax",
        "ret",
        "softrnic_caught_end:",
        "softrnic_caught_fault:",
        "mov eax, 1",
        "ret",
        ".cfi_endproc",
        ".popsection",
    );

    unsafe extern "C" {
        fn softrnic_caught_copy(to: usize, from: usize, len: usize) -> u32;
        fn softrnic_caught_end();
        fn softrnic_caught_fault() -> u32;
    }

    /// 0, or 1 if a place was not there.
    ///
    /// # Safety
    /// See [`super::copy`].
    pub unsafe fn copy(to: usize, from: usize, len: usize) -> u32 {
        // SAFETY: by this function's contract.
        unsafe { softrnic_caught_copy(to, from, len) }
    }

    /// See [`super::fault`].
    pub unsafe fn fault(context: *mut c_void) -> bool {
        let code = softrnic_caught_copy as *const () as usize..softrnic_caught_end as *const () as usize;
        // SAFETY: the kernel's structure, by this function's contract.
        let at = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] };
        let ours = code.contains(&(*at as usize));
        if ours {
            *at = softrnic_caught_fault as *const () as i64;
        }
        ours
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod machine {
    use core::ffi::c_void;

    pub unsafe fn copy(_: usize, _: usize, _: usize) -> u32 {
        1
    }

    pub unsafe fn fault(_: *mut c_void) -> bool {
        false
    }
}

#[cfg(all(test, not(loom), not(miri), target_arch = "x86_64"))]
#[path = "caught_tests.rs"]
mod tests;
