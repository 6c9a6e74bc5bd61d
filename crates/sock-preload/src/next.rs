//! The functions that would have been called without this library, and how a call comes to them or to ours.
//!
//! Most calls are not about a connection of ours. Their entry is a few instructions that look at
//! [`crate::table::TAGS`] and jump to the next definition: no frame of this library is on the stack, so cancellation,
//! unwinding and longjmp(3) are as they were.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Declares the functions: a number and an address for each.
macro_rules! next {
    ($($index:ident $name:ident $text:literal ($($arg:ty),*) -> $result:ty;)*) => {
        #[repr(usize)]
        enum Index { $($index),* }
        /// How many there are.
        const COUNT: usize = [$($text),*].len();
        static NAMES: [&CStr; COUNT] = [$($text),*];
        /// Numbers for the entries' assembly.
        #[allow(non_upper_case_globals, reason = "they are called like the functions")]
        #[allow(dead_code, reason = "an entry is in assembly, or calls the function, or both")]
        pub mod offset { $(pub const $name: usize = super::Index::$index as usize * 8;)* }
        $(
            /// The next definition.
            #[allow(dead_code, reason = "an entry is in assembly, or calls the function, or both")]
            #[inline]
            pub fn $name() -> unsafe extern "C" fn($($arg),*) -> $result {
                let address = address(Index::$index as usize);
                // SAFETY: the address is that of the function of this name, whose type in the C library this is.
                unsafe { core::mem::transmute::<usize, unsafe extern "C" fn($($arg),*) -> $result>(address) }
            }
        )*
    };
}

type Buf = *mut c_void;
type Ptr = *const c_void;

next! {
    Read read c"read" (i32, Buf, usize) -> isize;
    Readv readv c"readv" (i32, *const libc::iovec, i32) -> isize;
    Recv recv c"recv" (i32, Buf, usize, i32) -> isize;
    Recvfrom recvfrom c"recvfrom" (i32, Buf, usize, i32, Buf, Buf) -> isize;
    Recvmsg recvmsg c"recvmsg" (i32, *mut libc::msghdr, i32) -> isize;
    Recvmmsg recvmmsg c"recvmmsg" (i32, Buf, u32, i32, Buf) -> i32;
    Write write c"write" (i32, Ptr, usize) -> isize;
    Writev writev c"writev" (i32, *const libc::iovec, i32) -> isize;
    Send send c"send" (i32, Ptr, usize, i32) -> isize;
    Sendto sendto c"sendto" (i32, Ptr, usize, i32, Ptr, u32) -> isize;
    Sendmsg sendmsg c"sendmsg" (i32, *const libc::msghdr, i32) -> isize;
    Sendmmsg sendmmsg c"sendmmsg" (i32, *mut libc::mmsghdr, u32, i32) -> i32;
    Poll poll c"poll" (*mut libc::pollfd, u64, i32) -> i32;
    Ppoll ppoll c"ppoll" (*mut libc::pollfd, u64, *const libc::timespec, *const libc::sigset_t) -> i32;
    PollChk poll_chk c"__poll_chk" () -> i32;
    PpollChk ppoll_chk c"__ppoll_chk" () -> i32;
    Select select c"select" (i32, Buf, Buf, Buf, *mut libc::timeval) -> i32;
    Pselect pselect c"pselect" (i32, Buf, Buf, Buf, *const libc::timespec, *const libc::sigset_t) -> i32;
    EpollCtl epoll_ctl c"epoll_ctl" (i32, i32, i32, *mut libc::epoll_event) -> i32;
    EpollWait epoll_wait c"epoll_wait" (i32, *mut libc::epoll_event, i32, i32) -> i32;
    EpollPwait epoll_pwait c"epoll_pwait" (i32, *mut libc::epoll_event, i32, i32, *const libc::sigset_t) -> i32;
    EpollPwait2 epoll_pwait2 c"epoll_pwait2"
        (i32, *mut libc::epoll_event, i32, *const libc::timespec, *const libc::sigset_t) -> i32;
    Close close c"close" (i32) -> i32;
    CloseRange close_range c"close_range" (u32, u32, i32) -> i32;
    Shutdown shutdown c"shutdown" (i32, i32) -> i32;
    Dup dup c"dup" (i32) -> i32;
    Dup2 dup2 c"dup2" (i32, i32) -> i32;
    Dup3 dup3 c"dup3" (i32, i32, i32) -> i32;
    PidfdGetfd pidfd_getfd c"pidfd_getfd" (i32, i32, u32) -> i32;
    Fcntl fcntl c"fcntl" (i32, i32, usize) -> i32;
    Ioctl ioctl c"ioctl" (i32, u64, usize) -> i32;
    Setsockopt setsockopt c"setsockopt" (i32, i32, i32, Ptr, u32) -> i32;
    Getsockopt getsockopt c"getsockopt" (i32, i32, i32, Buf, *mut libc::socklen_t) -> i32;
    Socket socket c"socket" (i32, i32, i32) -> i32;
    Setuid setuid c"setuid" (u32) -> i32;
    Seteuid seteuid c"seteuid" (u32) -> i32;
    Setreuid setreuid c"setreuid" (u32, u32) -> i32;
    Setresuid setresuid c"setresuid" (u32, u32, u32) -> i32;
    Bind bind c"bind" (i32, Ptr, u32) -> i32;
    Listen listen c"listen" (i32, i32) -> i32;
    Connect connect c"connect" (i32, Ptr, u32) -> i32;
    Accept accept c"accept" (i32, Buf, Buf) -> i32;
    Accept4 accept4 c"accept4" (i32, Buf, Buf, i32) -> i32;
    Sendfile sendfile c"sendfile" (i32, i32, Buf, usize) -> isize;
    Splice splice c"splice" (i32, Buf, i32, Buf, usize, u32) -> isize;
    Fdopen fdopen c"fdopen" (i32, *const c_char) -> Buf;
    Dprintf dprintf c"dprintf" (i32) -> i32;
    Vdprintf vdprintf c"vdprintf" (i32, Ptr, Buf) -> i32;
    DprintfChk dprintf_chk c"__dprintf_chk" (i32) -> i32;
    VdprintfChk vdprintf_chk c"__vdprintf_chk" (i32) -> i32;
    Execve execve c"execve" () -> i32;
    Execv execv c"execv" () -> i32;
    Execvp execvp c"execvp" () -> i32;
    Execvpe execvpe c"execvpe" () -> i32;
    Execl execl c"execl" () -> i32;
    Execlp execlp c"execlp" () -> i32;
    Execle execle c"execle" () -> i32;
    Fexecve fexecve c"fexecve" () -> i32;
    Execveat execveat c"execveat" () -> i32;
    PosixSpawn posix_spawn c"posix_spawn" () -> i32;
    PosixSpawnp posix_spawnp c"posix_spawnp" () -> i32;
    AddDup2 add_dup2 c"posix_spawn_file_actions_adddup2" () -> i32;
    System system c"system" () -> i32;
    Popen popen c"popen" () -> Buf;
}

/// The addresses that are known; 0: not yet.
pub static NEXT: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

/// Looks all of them up.
pub fn resolve_all() {
    for index in 0..COUNT {
        address(index);
    }
}

#[inline]
fn address(index: usize) -> usize {
    match NEXT.get(index).map_or(0, |next| next.load(Ordering::Relaxed)) {
        0 => look_up(index),
        found => found,
    }
}

/// What a function does that the C library does not have.
unsafe extern "C" fn missing() -> i32 {
    set_errno(libc::ENOSYS);
    -1
}

#[cold]
fn look_up(index: usize) -> usize {
    let (Some(name), Some(next)) = (NAMES.get(index), NEXT.get(index)) else { return 0 };
    // SAFETY: the name is a C string; RTLD_NEXT is a valid handle.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    let found = if found == 0 { missing as *const () as usize } else { found };
    next.store(found, Ordering::Relaxed);
    found
}

/// For the entries' assembly: the address of the function whose place in [`NEXT`] lies so many bytes behind its
/// start.
pub extern "C" fn resolve(offset: usize) -> usize {
    address(offset / 8)
}

/// Sets errno.
pub fn set_errno(value: i32) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = value };
}

/// This thread's errno.
pub fn errno() -> i32 {
    // SAFETY: as in `set_errno`.
    unsafe { *libc::__errno_location() }
}

/// What a function of C returns that fails.
pub fn fail(value: i32) -> isize {
    set_errno(value);
    -1
}

/// Entries of functions whose first argument is a descriptor: `function` only if the table knows that one.
macro_rules! entries {
    ($($name:ident $offset:ident $function:path;)*) => { $(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "cmp edi, {limit}", "jae 2f",
                "mov r10d, edi", "lea r11, [rip + {tags}]", "cmp dword ptr [r11 + r10 * 4], 0", "jne 3f",
                "2: mov r11, [rip + {next} + {offset}]", "test r11, r11", "je 4f", "jmp r11",
                "3: jmp {function}",
                // All registers of arguments are kept; al says how many of vectors a variadic function has, which are
                // not touched.
                "4: push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "mov edi, {offset}", "call {resolve}", "mov r11, rax",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi", "jmp r11",
                limit = const crate::table::LIMIT,
                tags = sym crate::table::TAGS,
                next = sym crate::next::NEXT,
                resolve = sym crate::next::resolve,
                offset = const crate::next::offset::$offset,
                function = sym $function,
            )
        }
    )* };
}

/// Entries of functions of any kind, variadic ones among them: `before` is called with the first argument, then the
/// next definition.
macro_rules! entries_after {
    ($($name:ident $offset:ident $before:path;)*) => { $(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "call {before}",
                "mov edi, {offset}", "call {resolve}", "mov r11, rax",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi", "jmp r11",
                before = sym $before,
                resolve = sym crate::next::resolve,
                offset = const crate::next::offset::$offset,
            )
        }
    )* };
}

/// Entries of functions that look at their arguments first: `function` if `needs` says so, else the next definition,
/// without a frame of this library.
macro_rules! entries_if {
    ($($name:ident $offset:ident $needs:path, $function:path;)*) => { $(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "call {needs}",
                "test eax, eax", "jne 2f",
                "mov edi, {offset}", "call {resolve}", "mov r11, rax", "jmp 3f",
                "2: lea r11, [rip + {function}]",
                "3: pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi", "jmp r11",
                needs = sym $needs,
                resolve = sym crate::next::resolve,
                function = sym $function,
                offset = const crate::next::offset::$offset,
            )
        }
    )* };
}

/// What a function of [`entries_before`] returns if the next definition is to be called again.
pub const AGAIN: i32 = -2;
/// Nothing has to be there again.
pub const NO_LENGTH: i64 = -1;

/// Entries of functions like accept(2), whose result is looked at: `then` gets it and the first argument, and gives
/// what the caller gets, or [`AGAIN`]. The third argument is a place for a length; `len` tells what is there and has to
/// be there again if the function is called again, or [`NO_LENGTH`]. The thread may be cancelled in the next
/// definition: no frame of Rust is on the stack then.
macro_rules! entries_before {
    ($($name:ident $offset:ident $len:path, $then:path;)*) => { $(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "push rdi", ".cfi_adjust_cfa_offset 8", "push rsi", ".cfi_adjust_cfa_offset 8",
                "push rdx", ".cfi_adjust_cfa_offset 8", "push rcx", ".cfi_adjust_cfa_offset 8",
                "push r8", ".cfi_adjust_cfa_offset 8",
                "call {len}", "mov [rsp], rax",
                "2: mov edi, {offset}", "call {resolve}", "mov r11, rax",
                "mov rdi, [rsp + 32]", "mov rsi, [rsp + 24]", "mov rdx, [rsp + 16]", "mov rcx, [rsp + 8]",
                "call r11",
                "mov edi, eax", "mov esi, [rsp + 32]", "call {then}",
                "cmp eax, {again}", "jne 3f",
                "mov rax, [rsp]", "cmp rax, {none}", "je 2b",
                "mov rdx, [rsp + 16]", "mov [rdx], eax", "jmp 2b",
                "3: add rsp, 40", ".cfi_adjust_cfa_offset -40",
                "ret",
                ".cfi_endproc",
                again = const crate::next::AGAIN,
                none = const crate::next::NO_LENGTH,
                resolve = sym crate::next::resolve,
                len = sym $len,
                then = sym $then,
                offset = const crate::next::offset::$offset,
            )
        }
    )* };
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
}

/// Does something in which the thread is not cancelled: unwinding must not cross frames of Rust. A cancellation that
/// comes meanwhile waits for the thread's next cancellation point.
pub fn uncancelled<R>(work: impl FnOnce() -> R) -> R {
    const DISABLE: i32 = 1;
    let (mut before, mut now) = (0, 0);
    // SAFETY: a state that exists, and a live local.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    let result = work();
    // SAFETY: the state as it was.
    unsafe { pthread_setcancelstate(before, &raw mut now) };
    result
}

pub(crate) use {entries, entries_after, entries_before, entries_if};
