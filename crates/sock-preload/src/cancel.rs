//! Cancellation of threads (pthreads(7)): a call of this library is a cancellation point where the C library's is one.
//!
//! A thread that is cancelled while it waits is unwound from there. That must not cross frames of Rust, so it is caught
//! at once: the wait is called between the two functions that pthread_cleanup_push(3) and pthread_cleanup_pop(3) are
//! made of. It then returns EINTR, everything is left in the usual way, and the call's entry, where no frame of Rust is
//! left, goes on unwinding. What is pending when a call begins acts in its entry, too (pthread_testcancel(3)).

use core::cell::Cell;
use core::ffi::c_char;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::next;

/// `__pthread_unwind_buf_t` of `pthread.h`: a buffer of setjmp(3), the word that says that there is no mask, and four
/// words of the C library's, of which the first is the buffer that was there before.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Buffer {
    registers: [usize; 9],
    before: usize,
    others: [usize; 3],
}

impl Buffer {
    const EMPTY: Buffer = Buffer { registers: [0; 9], before: 0, others: [0; 3] };
}

/// `__sigsetjmp`, `__pthread_register_cancel`, `__pthread_unregister_cancel`. 0: the C library has them not.
static FUNCTIONS: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
/// `__pthread_unwind_next`.
pub static UNWIND: AtomicUsize = AtomicUsize::new(0);
/// Not 0: a wait of some thread was cancelled.
pub static ANY: AtomicU32 = AtomicU32::new(0);
/// `__libc_single_threaded` of `sys/single_threaded.h`; 0: there is none.
static SINGLE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The buffer from which this thread goes on unwinding; `before` is it, and `others[0]` says that it is there.
    /// Initialized statically and without a destructor, as the next one.
    static CAUGHT: Cell<Buffer> = const { Cell::new(Buffer::EMPTY) };
    /// The address of the last wait's buffer, and the one before it.
    static LAST: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Looks the functions up.
pub fn start() {
    let find = |name: &core::ffi::CStr| {
        // SAFETY: a C string, and a handle that is valid.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
    };
    UNWIND.store(find(c"__pthread_unwind_next"), Ordering::Relaxed);
    SINGLE.store(find(c"__libc_single_threaded"), Ordering::Relaxed);
    let names = [c"__sigsetjmp", c"__pthread_register_cancel", c"__pthread_unregister_cancel"];
    for (place, name) in FUNCTIONS.iter().zip(names) {
        place.store(find(name), Ordering::Relaxed);
    }
}

/// Whether no other thread can cancel this one.
fn is_alone() -> bool {
    let single = SINGLE.load(Ordering::Relaxed) as *const c_char;
    // SAFETY: a variable of the C library, one byte long, which stays.
    !single.is_null() && unsafe { single.read_volatile() } != 0
}

/// Calls a function between the two that register a buffer and take it back. 1: it was cancelled.
#[unsafe(naked)]
unsafe extern "C" fn call(
    function: usize,
    arguments: *const [usize; 6],
    buffer: *mut Buffer,
    functions: *const [usize; 3],
    result: *mut isize,
) -> i32 {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbx, 0",
        "push r12",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r12, 0",
        "push r13",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r13, 0",
        "push r14",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r14, 0",
        "push r15",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r15, 0",
        "mov rbx, rdi",
        "mov r12, rsi",
        "mov r13, rdx",
        "mov r14, rcx",
        "mov r15, r8",
        "mov rdi, r13",
        "xor esi, esi",
        "call [r14]",
        "test eax, eax",
        "jne 2f",
        "mov rdi, r13",
        "call [r14 + 8]",
        "mov rdi, [r12]",
        "mov rsi, [r12 + 8]",
        "mov rdx, [r12 + 16]",
        "mov rcx, [r12 + 24]",
        "mov r8, [r12 + 32]",
        "mov r9, [r12 + 40]",
        "call rbx",
        "mov [r15], rax",
        "mov rdi, r13",
        "call [r14 + 16]",
        "xor eax, eax",
        "jmp 3f",
        // The registers above are as setjmp has found them.
        "2: mov rdi, r13",
        "call [r14 + 16]",
        "mov eax, 1",
        "3: pop r15",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r15",
        "pop r14",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r14",
        "pop r13",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r13",
        "pop r12",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r12",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbx",
        "ret",
        ".cfi_endproc",
    )
}

/// Calls a function that is a cancellation point, with up to six arguments. If the thread is cancelled in it, the
/// result is -1 with EINTR, and the entry that has led here goes on with it: no call may lead here that has none of
/// those entries ([`points`]).
///
/// # Safety
///
/// The function takes these arguments, all of which fit into registers, and its result does.
pub unsafe fn point(function: usize, arguments: [usize; 6]) -> isize {
    type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;
    let functions: [usize; 3] = core::array::from_fn(|n| FUNCTIONS[n].load(Ordering::Relaxed));
    if is_alone() || functions.contains(&0) || UNWIND.load(Ordering::Relaxed) == 0 {
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: the caller's promise; more arguments in registers than a function takes are ignored.
        return next::uncancelled(|| unsafe { core::mem::transmute::<usize, Function>(function)(a, b, c, d, e, f) });
    }
    let mut buffer = Buffer::EMPTY;
    let before = before(&mut buffer, &functions);
    let outer = LAST.replace((&raw const buffer as usize, before));
    let mut result = 0;
    // SAFETY: the caller's promise; the other pointers are to live locals, and the functions are those of these names.
    let is_cancelled =
        unsafe { call(function, &raw const arguments, &raw mut buffer, &raw const functions, &raw mut result) } != 0;
    LAST.set(outer);
    if is_cancelled {
        CAUGHT.set(Buffer { before, others: [1, 0, 0], ..Buffer::EMPTY });
        ANY.store(1, Ordering::Relaxed);
        next::set_errno(libc::EINTR);
        return -1;
    }
    result
}

/// The buffer that is registered. If it is one of a wait that a signal's handler has left by longjmp(3), the one before
/// that is registered again.
fn before(buffer: &mut Buffer, functions: &[usize; 3]) -> usize {
    type Function = unsafe extern "C" fn(*mut Buffer);
    // SAFETY: the two functions of the C library, which take a buffer.
    let [register, unregister] =
        [functions[1], functions[2]].map(|address| unsafe { core::mem::transmute::<usize, Function>(address) });
    // SAFETY: a live buffer, which is taken back at once.
    unsafe {
        register(buffer);
        unregister(buffer);
    }
    let (last, before_last) = LAST.get();
    // What is on the stack below this frame is gone.
    if last != 0 && buffer.before == last && last < &raw const *buffer as usize {
        buffer.before = before_last;
        // SAFETY: it takes nothing but `before` from the buffer.
        unsafe { unregister(buffer) };
    }
    buffer.before
}

/// Whether this thread was cancelled in a wait, and is on its way out.
pub fn is_caught() -> bool {
    ANY.load(Ordering::Relaxed) != 0 && CAUGHT.with(|caught| caught.get().others[0] != 0)
}

/// For the entries' assembly: the buffer with which unwinding goes on; null: the thread was not cancelled.
pub unsafe extern "C" fn caught() -> *mut core::ffi::c_void {
    CAUGHT.with(|caught| if caught.get().others[0] != 0 { caught.as_ptr().cast() } else { core::ptr::null_mut() })
}

unsafe extern "C" {
    /// Ends the thread if it was cancelled.
    pub fn pthread_testcancel();
}

/// The part of an entry that calls a function of Rust which may be cancelled in a wait. The arguments are in their
/// registers; the stack is as at the entry's begin.
macro_rules! entry_point {
    () => {
        concat!(
            "sub rsp, 56\n.cfi_adjust_cfa_offset 56\n",
            "mov [rsp], rdi\nmov [rsp + 8], rsi\nmov [rsp + 16], rdx\n",
            "mov [rsp + 24], rcx\nmov [rsp + 32], r8\nmov [rsp + 40], r9\n",
            "call {testcancel}\n",
            "mov rdi, [rsp]\nmov rsi, [rsp + 8]\nmov rdx, [rsp + 16]\n",
            "mov rcx, [rsp + 24]\nmov r8, [rsp + 32]\nmov r9, [rsp + 40]\n",
            "call {function}\n",
            "cmp dword ptr [rip + {any}], 0\njne 8f\n",
            "7: add rsp, 56\n.cfi_adjust_cfa_offset -56\nret\n",
            "8: .cfi_adjust_cfa_offset 56\n",
            "mov [rsp], rax\ncall {caught}\ntest rax, rax\njne 9f\nmov rax, [rsp]\njmp 7b\n",
            "9: mov rdi, rax\ncall [rip + {unwind}]\nud2",
        )
    };
}

/// As [`points`], for calls that move bytes: most of those of a connection that waits for its other end go to the
/// kernel ([`crate::table::QUIET`]). They are counted as inside, and the tag is looked at again behind that. A thread
/// that is unwound from there stays counted, and its connection with TCP.
macro_rules! quiet_points {
    ($($name:ident $offset:ident $function:path;)*) => { $(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "cmp edi, {limit}", "jae 2f",
                "mov r10d, edi", "lea r11, [rip + {tags}]", "cmp dword ptr [r11 + r10 * 4], 0", "jne 3f",
                "2: mov r11, [rip + {next} + {offset}]", "test r11, r11", "je 4f", "jmp r11",
                "4: push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "mov edi, {offset}", "call {resolve}", "mov r11, rax",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi", "jmp r11",
                "3: lea rax, [rip + {quiet}]", "cmp byte ptr [rax + r10], 0", "je 6f",
                "dec byte ptr [rax + r10]",
                "lea rax, [rip + {inside}]", "lock inc word ptr [rax + r10 * 2]",
                "cmp byte ptr [r11 + r10 * 4], {waiting}", "jne 5f",
                "mov r11, [rip + {next} + {offset}]", "test r11, r11", "je 5f",
                "push rdi", ".cfi_adjust_cfa_offset 8",
                "call r11",
                "pop rdi", ".cfi_adjust_cfa_offset -8",
                "mov r10d, edi", "lea r11, [rip + {inside}]", "lock dec word ptr [r11 + r10 * 2]",
                "ret",
                "5: lock dec word ptr [rax + r10 * 2]",
                "6:", $crate::cancel::entry_point!(),
                ".cfi_endproc",
                limit = const crate::table::LIMIT,
                tags = sym crate::table::TAGS,
                quiet = sym crate::table::QUIET,
                inside = sym crate::table::INSIDE,
                waiting = const crate::table::WAITING,
                next = sym crate::next::NEXT,
                resolve = sym crate::next::resolve,
                offset = const crate::next::offset::$offset,
                function = sym $function,
                testcancel = sym $crate::cancel::pthread_testcancel,
                any = sym $crate::cancel::ANY,
                caught = sym $crate::cancel::caught,
                unwind = sym $crate::cancel::UNWIND,
            )
        }
    )* };
}

/// As [`crate::next::entries`], for cancellation points.
macro_rules! points {
    ($($name:ident $offset:ident $function:path;)*) => { $(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "cmp edi, {limit}", "jae 2f",
                "mov r10d, edi", "lea r11, [rip + {tags}]", "cmp dword ptr [r11 + r10 * 4], 0", "jne 3f",
                "2: mov r11, [rip + {next} + {offset}]", "test r11, r11", "je 4f", "jmp r11",
                "4: push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "mov edi, {offset}", "call {resolve}", "mov r11, rax",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi", "jmp r11",
                "3:", $crate::cancel::entry_point!(),
                ".cfi_endproc",
                limit = const crate::table::LIMIT,
                tags = sym crate::table::TAGS,
                next = sym crate::next::NEXT,
                resolve = sym crate::next::resolve,
                offset = const crate::next::offset::$offset,
                function = sym $function,
                testcancel = sym $crate::cancel::pthread_testcancel,
                any = sym $crate::cancel::ANY,
                caught = sym $crate::cancel::caught,
                unwind = sym $crate::cancel::UNWIND,
            )
        }
    )* };
}

/// As [`crate::next::entries_if`], for cancellation points.
macro_rules! points_if {
    ($($name:ident $offset:ident $needs:path, $function:path;)*) => { $(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "call {needs}",
                "test eax, eax", "jne 2f",
                "mov edi, {offset}", "call {resolve}", "mov r11, rax",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi", "jmp r11",
                "2: pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                $crate::cancel::entry_point!(),
                ".cfi_endproc",
                needs = sym $needs,
                resolve = sym crate::next::resolve,
                function = sym $function,
                offset = const crate::next::offset::$offset,
                testcancel = sym $crate::cancel::pthread_testcancel,
                any = sym $crate::cancel::ANY,
                caught = sym $crate::cancel::caught,
                unwind = sym $crate::cancel::UNWIND,
            )
        }
    )* };
}

/// Cancellation points that are always this library's.
macro_rules! points_always {
    ($($name:ident $function:path;)*) => { $(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                $crate::cancel::entry_point!(),
                ".cfi_endproc",
                function = sym $function,
                testcancel = sym $crate::cancel::pthread_testcancel,
                any = sym $crate::cancel::ANY,
                caught = sym $crate::cancel::caught,
                unwind = sym $crate::cancel::UNWIND,
            )
        }
    )* };
}

/// Calls the next definition of a function at a cancellation point: [`point`].
macro_rules! point_at {
    ($name:ident, $($argument:expr),*) => {{
        let (mut arguments, mut n) = ([0usize; 6], 0);
        $(
            arguments[n] = ($argument) as usize;
            n += 1;
        )*
        let _ = n;
        $crate::cancel::point($crate::next::$name() as usize, arguments)
    }};
}

pub(crate) use {entry_point, point_at, points, points_always, points_if, quiet_points};
