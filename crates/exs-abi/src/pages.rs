//! Whether registered memory of a small transfer is still there, asked without a system call.
//!
//! A call of the kernel would find out, and take as long as half a small transfer. So one byte of each page is loaded,
//! and a handler of SIGSEGV and SIGBUS makes an answer of a fault of that one instruction, as the exception tables of a
//! kernel do. It hands every other fault to the handler that was there before, or to the kernel. No copy is
//! interrupted: the load is made before it.
//!
//! The handlers are installed with the first registered memory. A program that installs its own later, and does not
//! call the one before, gets the faults itself.

use std::sync::Once;

use libc::{c_int, c_void, siginfo_t};

/// The smallest page.
const PAGE: usize = 4096;
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// True if `len` bytes can be read, as far as this can be found out.
#[cfg(target_arch = "x86_64")]
pub fn are_there(start: usize, len: usize) -> bool {
    let Some(last) = len.checked_sub(1).and_then(|len| start.checked_add(len)) else { return true };
    if !INSTALLED.is_completed() {
        return true;
    }
    let mut at = start;
    loop {
        // SAFETY: the function has one load, whose fault is the handler's; it changes no memory.
        if unsafe { misses(at) } != 0 {
            return false;
        }
        match (at | (PAGE - 1)).checked_add(1) {
            Some(next) if next <= last => at = next,
            _ => return true,
        }
    }
}

/// On this processor nothing is found out.
#[cfg(not(target_arch = "x86_64"))]
pub fn are_there(_: usize, _: usize) -> bool {
    true
}

/// Install the handlers, once.
pub fn watch() {
    #[cfg(target_arch = "x86_64")]
    INSTALLED.call_once(handlers::install);
}

static INSTALLED: Once = Once::new();

/// Load the byte; the result is 0, or by the handler 1. The load is the first instruction.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn misses(at: usize) -> usize {
    core::arch::naked_asm!("movzx eax, byte ptr [rdi]", "xor eax, eax", "ret")
}

/// Where [`misses`] goes on after a fault: the stack is as at its entry.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn has_missed() -> usize {
    core::arch::naked_asm!("mov eax, 1", "ret")
}

#[cfg(target_arch = "x86_64")]
mod handlers {
    use std::mem::{transmute, zeroed};
    use std::ptr::{null, null_mut};
    use std::sync::OnceLock;

    use super::*;

    type Simple = extern "C" fn(c_int);
    type Full = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

    /// The actions that were there before.
    static BEFORE: OnceLock<[libc::sigaction; 2]> = OnceLock::new();

    pub fn install() {
        let before = SIGNALS.map(|signal| {
            // SAFETY: plain data, for which zeroes are valid; the call fills it and changes nothing.
            unsafe {
                let mut action: libc::sigaction = zeroed();
                libc::sigaction(signal, null(), &mut action);
                action
            }
        });
        let before = BEFORE.get_or_init(|| before);
        for (signal, before) in SIGNALS.iter().zip(before) {
            let handler: Full = handle;
            let mut action = *before;
            action.sa_sigaction = handler as usize;
            // A program without a handler may have a stack for one all the same, and needs it if its own has no room.
            let is_default = before.sa_sigaction == libc::SIG_DFL || before.sa_sigaction == libc::SIG_IGN;
            action.sa_flags |= libc::SA_SIGINFO | if is_default { libc::SA_ONSTACK } else { 0 };
            action.sa_flags &= !libc::SA_RESETHAND;
            // SAFETY: a whole action, whose handler does only what one may do.
            unsafe { libc::sigaction(*signal, &action, null_mut()) };
        }
    }

    /// The handler. Async-signal-safe: it reads what was stored before it was installed, and calls sigaction(2),
    /// raise(3), or the handler before.
    extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let load = misses as *const () as i64;
        // SAFETY: the kernel's structures, for a handler with SA_SIGINFO; they are this handler's while it runs.
        let (counter, code) = unsafe {
            (&mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize], (*info).si_code)
        };
        if *counter == load {
            *counter = has_missed as *const () as i64;
            return;
        }
        let Some(before) = SIGNALS.iter().position(|known| *known == signal).and_then(|at| BEFORE.get()?.get(at))
        else {
            return;
        };
        match before.sa_sigaction {
            // kill(2) and its like; a fault cannot be ignored.
            libc::SIG_IGN if code <= 0 => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: the default action. The instruction faults again, or the signal is sent again, and the kernel
                // ends the process as it would have.
                unsafe {
                    let action: libc::sigaction = zeroed();
                    libc::sigaction(signal, &action, null_mut());
                    if code <= 0 {
                        libc::raise(signal);
                    }
                }
            }
            // SAFETY: the program's handler, of the form that its flag says.
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => unsafe {
                transmute::<usize, Full>(handler)(signal, info, context);
            },
            // SAFETY: as above.
            handler => unsafe { transmute::<usize, Simple>(handler)(signal) },
        }
    }
}
