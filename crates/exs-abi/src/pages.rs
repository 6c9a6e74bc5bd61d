//! Whether registered memory of a small transfer is still there, asked without a system call.
//!
//! A call of the kernel would find out, and take as long as half a small transfer. So one byte of each page is loaded,
//! and a handler of SIGSEGV and SIGBUS makes an answer of a fault of that one instruction, as the exception tables of a
//! kernel do. It hands every other fault to the action that was there before. No copy is interrupted: the load is made
//! before it.
//!
//! A device of softrnic copies small parts of such memory by instructions that may fault, too. The handlers ask the
//! device about each fault (`softrnic_dv_fault`).
//!
//! The handlers are installed with the first registered memory. A program that installs its own later, and does not
//! call the one before, gets the faults itself.

use std::sync::{Once, OnceLock};

use exs::socket::By;
use libc::{c_int, c_void, siginfo_t};
use rdma::{FaultAnswer, Mr};

/// The smallest page.
const PAGE: usize = 4096;
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// True if `len` bytes can be read, as far as this can be found out.
pub fn look(start: usize, len: usize, by: By) -> bool {
    match by {
        By::Loads => are_there(start, len),
        By::Kernel => is_readable(start, len),
    }
}

/// True if the kernel can read a byte of each page, or does not say.
fn is_readable(start: usize, len: usize) -> bool {
    /// UIO_MAXIOV (process_vm_readv(2)).
    const AT_ONCE: usize = 1024;
    let Some(last) = len.checked_sub(1).and_then(|len| start.checked_add(len)) else { return true };
    let mut pages = (start..=last).step_by(PAGE).chain([last]).peekable();
    let mut bytes = [0u8; AT_ONCE];
    let mut asked = Vec::with_capacity(AT_ONCE);
    while pages.peek().is_some() {
        asked.clear();
        asked.extend(pages.by_ref().take(AT_ONCE).map(|at| libc::iovec { iov_base: at as *mut c_void, iov_len: 1 }));
        let into = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: asked.len() };
        // SAFETY: as many bytes of the array as there are entries; the kernel checks the program's addresses.
        let read = unsafe {
            let of = (asked.as_ptr(), asked.len() as libc::c_ulong);
            libc::process_vm_readv(libc::getpid(), &raw const into, 1, of.0, of.1, 0)
        };
        let is_fault = read < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT);
        if is_fault || read >= 0 && (read as usize) < asked.len() {
            return false;
        }
        if read < 0 {
            return true; // a filter of system calls
        }
    }
    true
}

/// [`By::Loads`].
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

/// Have the device survive the loss of a region's memory, if it can.
pub fn catch_faults(mr: &Mr) {
    if cfg!(target_arch = "x86_64") {
        mr.catch_faults(|answer| {
            let _ = ANSWER.set(answer); // it is always this one
        });
    }
}

/// Let this thread of the library take SIGSEGV and SIGBUS, if it looks at memory of the program. A fault of a thread
/// that blocks them ends the process, whatever the handler would do.
pub fn let_faults_in() {
    // SAFETY: a set of signals on the stack, filled before it is used; the mask is that of this thread.
    unsafe {
        let mut faults = std::mem::zeroed();
        libc::sigemptyset(&mut faults);
        for signal in SIGNALS {
            libc::sigaddset(&mut faults, signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const faults, std::ptr::null_mut());
    }
}

static INSTALLED: Once = Once::new();

/// The device's answer to its faults.
static ANSWER: OnceLock<FaultAnswer> = OnceLock::new();

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
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    type Simple = extern "C" fn(c_int);
    type Full = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

    /// No mapping has the address (sigaction(2); asm-generic/siginfo.h). The crate `libc` has no name for it.
    const SEGV_MAPERR: c_int = 1;

    /// The action of a signal that was there before.
    struct Before {
        /// As it was when the library looked. It serves until `replaced` is stored.
        seen: OnceLock<libc::sigaction>,
        /// As the call returned it that installed the handler: another thread may have set one since the look.
        replaced: OnceLock<libc::sigaction>,
        /// A handler with SA_RESETHAND was called.
        spent: AtomicBool,
    }

    impl Before {
        const fn new() -> Before {
            Before { seen: OnceLock::new(), replaced: OnceLock::new(), spent: AtomicBool::new(false) }
        }

        fn action(&self) -> Option<&libc::sigaction> {
            self.replaced.get().or_else(|| self.seen.get())
        }
    }

    static BEFORE: [Before; 2] = [const { Before::new() }; 2];

    /// A fault has a positive code; kill(2) and its like have none (sigaction(2)), and come at any instruction. So does
    /// the news of a broken page that no instruction has met.
    fn is_fault(signal: c_int, code: c_int) -> bool {
        code > 0 && (signal, code) != (libc::SIGBUS, libc::BUS_MCEERR_AO)
    }

    fn has_handler(action: &libc::sigaction) -> bool {
        action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN
    }

    pub fn install() {
        for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
            // SAFETY: plain data, for which zeroes are valid; the call fills it and changes nothing.
            let seen = before.seen.get_or_init(|| unsafe {
                let mut action: libc::sigaction = zeroed();
                libc::sigaction(signal, null(), &mut action);
                action
            });
            let handler: Full = handle;
            let mut action = *seen;
            action.sa_sigaction = handler as usize;
            // A program without a handler may have a stack for one all the same, and needs it if its own has no room.
            // No call of it ends for a signal that it ignores.
            action.sa_flags |=
                libc::SA_SIGINFO | if has_handler(seen) { 0 } else { libc::SA_ONSTACK | libc::SA_RESTART };
            // `hand_on` does what this flag says, and only for the faults that the handler before gets. SA_NODEFER and
            // the mask stay, so the signals that are blocked are those of the handler before.
            action.sa_flags &= !libc::SA_RESETHAND;
            // SAFETY: a whole action, whose handler does only what one may do; plain data that the call fills.
            let replaced = unsafe {
                let mut replaced: libc::sigaction = zeroed();
                (libc::sigaction(signal, &action, &mut replaced) == 0).then_some(replaced)
            };
            if let Some(replaced) = replaced {
                before.replaced.get_or_init(|| replaced);
            }
        }
    }

    /// The handler. Async-signal-safe: it reads what was stored before it was installed, and calls sigaction(2),
    /// raise(3), or the handler before.
    extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let Some(before) = SIGNALS.iter().position(|known| *known == signal).and_then(|at| BEFORE.get(at)) else {
            return;
        };
        // SAFETY: the kernel's structures, for a handler with SA_SIGINFO; they are this handler's while it runs.
        let (registers, code) =
            unsafe { (&raw mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs, (*info).si_code) };
        // SAFETY: as above.
        let [at, looked_at] = [libc::REG_RIP, libc::REG_RDI].map(|register| unsafe { (*registers)[register as usize] });
        // SAFETY: the field is valid for every fault, and the union is plain data in any case.
        let is_look = is_fault(signal, code)
            && at == misses as *const () as i64
            && unsafe { (*info).si_addr() } as usize / PAGE == looked_at as usize / PAGE;
        // Memory that is not there: no mapping, or a mapping of a file beyond its end. A mapping without rights is: a
        // program may have made it so in order to get the fault.
        let is_gone = match signal {
            libc::SIGSEGV => code == SEGV_MAPERR,
            _ => code == libc::BUS_ADRERR,
        };
        let has_handler = before.action().is_some_and(has_handler) && !before.spent.load(Ordering::Relaxed);
        if is_look && (is_gone || signal == libc::SIGSEGV && !has_handler) {
            // SAFETY: as above.
            unsafe { (*registers)[libc::REG_RIP as usize] = has_missed as *const () as i64 };
            return;
        }
        // Whatever is wrong with the memory: the device copies under its lock, where no handler of the program may run.
        // SAFETY: what this handler has got for a fault.
        let is_answered = |answer: &FaultAnswer| unsafe { answer(context) != 0 };
        if is_fault(signal, code) && ANSWER.get().is_some_and(is_answered) {
            return;
        }
        hand_on(before, signal, info, context);
    }

    /// Do what the action before would have done. When it returns, the instruction is tried again.
    fn hand_on(before: &Before, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let Some(action) = before.action() else { return };
        // SAFETY: the kernel's structure, as in `handle`.
        let code = unsafe { (*info).si_code };
        let is_fault = is_fault(signal, code);
        // A fault cannot be ignored.
        if action.sa_sigaction == libc::SIG_IGN && !is_fault {
            return;
        }
        let resets = action.sa_flags & libc::SA_RESETHAND != 0;
        let is_spent = resets && before.spent.swap(true, Ordering::Relaxed);
        if resets || !has_handler(action) {
            // "Restore the signal action to the default upon entry to the signal handler" (sigaction(2)).
            // SAFETY: the default action.
            unsafe {
                let default: libc::sigaction = zeroed();
                libc::sigaction(signal, &default, null_mut());
            }
        }
        if is_spent || !has_handler(action) {
            if !is_fault {
                // SAFETY: the kernel ends the process as it would have. After a fault the instruction does that.
                unsafe { libc::raise(signal) };
            }
            return;
        }
        let handler = action.sa_sigaction;
        if action.sa_flags & libc::SA_SIGINFO != 0 {
            // SAFETY: the program's handler, of the form that its flag says.
            unsafe { transmute::<usize, Full>(handler)(signal, info, context) };
        } else {
            // SAFETY: as above.
            unsafe { transmute::<usize, Simple>(handler)(signal) };
        }
    }
}
