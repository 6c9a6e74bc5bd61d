//! Processes: fork, and programs that take the place of this one.

use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use sock::status::State;

use crate::kernel::borrow;
use crate::next::{self, entries_after};
use crate::table::{self, Tag};
use crate::work::using;
use crate::{cancel, descriptors, epoll, heap, holders, link, meet, rules, sdp, sets, spin, status, work};

/// The process whose tables these are. The child of vfork(2) has them, too, and must not change them.
static OWN: AtomicI32 = AtomicI32::new(0);
const PAGE: usize = 4096;

fn pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Whether the tables are this process's.
pub fn is_own() -> bool {
    OWN.load(Ordering::Relaxed) == pid()
}

/// A page that the kernel gives to no child but those that share all memory, as vfork(2)'s does: madvise(2),
/// MADV_WIPEONFORK. Its first word is 1 where the tables are this process's, or those of the process that waits for
/// this one. Null: there is none.
static MARK: AtomicPtr<AtomicI32> = AtomicPtr::new(core::ptr::null_mut());

fn make_mark() {
    let (all, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
    let Ok(page) = (unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), PAGE, all, private) }) else { return };
    // SAFETY: the whole of that mapping, which holds nothing yet.
    if unsafe { rustix::mm::madvise(page, PAGE, rustix::mm::Advice::LinuxWipeOnFork) }.is_ok() {
        MARK.store(page.cast(), Ordering::Release);
        mark();
    }
}

fn mark() {
    let mark = MARK.load(Ordering::Acquire);
    if !mark.is_null() {
        // SAFETY: a word of the mapping of `make_mark`, which stays as long as the process, and is aligned to pages.
        unsafe { &*mark }.store(1, Ordering::Relaxed);
    }
}

/// As [`is_own`], without a system call, and true in the child of vfork(2), too: for what is as true of the parent. An
/// epoll set, and what is in it, is the same for both.
pub fn has_tables() -> bool {
    let mark = MARK.load(Ordering::Relaxed);
    // SAFETY: as in `mark`.
    if mark.is_null() { is_own() } else { unsafe { &*mark }.load(Ordering::Relaxed) != 0 }
}

/// Most connections without memory that a fork counts; the others stay with TCP.
const COUNTED: u32 = 64;

/// Before fork(2): a connection that has no memory yet has two holders who know nothing of each other. It may move when
/// there is only one again. One that has an entry in a set, which both processes have, stays with TCP.
extern "C" fn before_fork() {
    sdp::before_fork();
    let mut counted = 0;
    let mut share = |fd| {
        counted += 1;
        counted <= COUNTED && is_own() && !epoll::is_registered(fd) && holders::share(fd)
    };
    for fd in table::all() {
        match table::tag(fd) {
            Tag::Fresh(_) if share(fd) => {}
            Tag::Fresh(_) | Tag::Waiting(_) => descriptors::untrack(fd, State::Forked),
            Tag::Shared(_) => {
                if let Some(connection) = using(fd) {
                    connection.held().forked.store(1, Ordering::SeqCst);
                    if let Some(link) = connection.slot.link() {
                        link.theirs().set_forked();
                    }
                    sets::before_fork();
                }
            }
            _ => {}
        }
    }
}

extern "C" fn in_child() {
    OWN.store(pid(), Ordering::Relaxed);
    mark();
    work::forget_thread();
    sets::in_child();
    link::in_child();
    status::in_child();
    meet::in_child();
    sdp::in_child();
    holders::in_child();
    for fd in table::all().filter(|fd| matches!(table::tag(*fd), Tag::Fresh(_))) {
        table::reset_inside(fd);
    }
    for number in table::used() {
        // Only this thread has come along.
        table::slot(number).users.store(0, Ordering::SeqCst);
        table::slot(number).waiters.store(0, Ordering::SeqCst);
    }
}

/// A connection that somebody will use who does not know of the ring.
pub fn leave_to_tcp(fd: i32) {
    descriptors::untrack(fd, State::Given);
    if let Some(connection) = using(fd) {
        connection.demote(true, true, true);
    }
}

/// Before a program takes the place of this one, or is started beside it: the connections that it inherits.
extern "C" fn before_exec() {
    let error = next::errno();
    for fd in table::all() {
        if matches!(table::tag(fd), Tag::Fresh(_) | Tag::Waiting(_) | Tag::Shared(_))
            && rustix::io::fcntl_getfd(borrow(fd)).is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC))
        {
            leave_to_tcp(fd);
        }
    }
    next::set_errno(error);
}

/// Before a function of the C library that uses the descriptor by itself.
extern "C" fn before_stdio(fd: i32) {
    let error = next::errno();
    leave_to_tcp(fd);
    next::set_errno(error);
}

/// Before a descriptor is put into the list of those that a program will be started with.
extern "C" fn before_gift(_actions: usize, fd: i32) {
    before_stdio(fd);
}

entries_after! {
    posix_spawn_file_actions_adddup2 add_dup2 before_gift;
    fdopen fdopen before_stdio;
    dprintf dprintf before_stdio;
    vdprintf vdprintf before_stdio;
    __dprintf_chk dprintf_chk before_stdio;
    __vdprintf_chk vdprintf_chk before_stdio;
    execve execve before_exec;
    execv execv before_exec;
    execvp execvp before_exec;
    execvpe execvpe before_exec;
    execl execl before_exec;
    execlp execlp before_exec;
    execle execle before_exec;
    fexecve fexecve before_exec;
    execveat execveat before_exec;
    posix_spawn posix_spawn before_exec;
    posix_spawnp posix_spawnp before_exec;
    system system before_exec;
    popen popen before_exec;
}

/// What the kernel sends by itself goes by TCP, and all that follows.
pub fn send_by_tcp(fd: i32) {
    if let Some(connection) = using(fd) {
        connection.demote(true, false, true);
    } else {
        descriptors::untrack(fd, State::Given);
    }
}

/// Runs before the program does.
extern "C" fn start() {
    OWN.store(pid(), Ordering::Relaxed);
    make_mark();
    next::resolve_all();
    cancel::start();
    rules::read();
    sdp::inherit();
    spin::start();
    // SAFETY: three functions that stay as long as the process.
    unsafe { libc::pthread_atfork(Some(before_fork_hook), None, Some(in_child_hook)) };
    heap::open();
}

unsafe extern "C" fn before_fork_hook() {
    before_fork();
}

unsafe extern "C" fn in_child_hook() {
    in_child();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
