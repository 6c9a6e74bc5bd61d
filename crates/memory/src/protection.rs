//! Memory that no thread of this process can write for a while: userfaultfd(2) in write-protect mode. A thread that
//! tries waits until it is over. Numbers and structures are those of `<linux/userfaultfd.h>`, see ioctl_userfaultfd(2).

use core::mem::MaybeUninit;
use core::ptr;
use std::os::fd::OwnedFd;

use rustix::ioctl::{Opcode, Updater, opcode};
use rustix::mm::UserfaultfdFlags;
use verbs::Errno;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

const _: () = assert!(
    size_of::<Api>() == 24
        && size_of::<Range>() == 16
        && size_of::<Register>() == 32
        && size_of::<WriteProtect>() == 24
);

/// `UFFDIO`.
const GROUP: u8 = 0xaa;
/// `_UFFDIO_WRITEPROTECT`, also the number of its bit in [`Register::ioctls`].
const WRITEPROTECT_NUMBER: u8 = 0x06;
const UFFDIO_API: Opcode = opcode::read_write::<Api>(GROUP, 0x3f);
const UFFDIO_REGISTER: Opcode = opcode::read_write::<Register>(GROUP, 0x00);
// These two are read by the kernel, although their numbers say otherwise.
const UFFDIO_UNREGISTER: Opcode = opcode::read::<Range>(GROUP, 0x01);
const UFFDIO_WAKE: Opcode = opcode::read::<Range>(GROUP, 0x02);
const UFFDIO_WRITEPROTECT: Opcode = opcode::read_write::<WriteProtect>(GROUP, WRITEPROTECT_NUMBER);

/// `UFFD_API`.
const API: u64 = 0xaa;
/// `UFFD_FEATURE_PAGEFAULT_FLAG_WP`.
const WRITE_PROTECT: u64 = 1 << 0;
/// `UFFD_FEATURE_WP_HUGETLBFS_SHMEM`: shared memory too, pages that are not there yet included. Linux 5.19.
const WRITE_PROTECT_SHARED: u64 = 1 << 12;
/// `UFFDIO_REGISTER_MODE_WP`.
const REGISTER_WP: u64 = 1 << 1;
/// `UFFDIO_WRITEPROTECT_MODE_WP`.
const PROTECT: u64 = 1 << 0;
/// `UFFD_USER_MODE_ONLY`.
const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);

/// The writes that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whose {
    /// All writes, those of the kernel included. Needs CAP_SYS_PTRACE, or the sysctl `vm.unprivileged_userfaultfd`.
    All,
    /// Those of programs. A system call that is to write there fails with EFAULT meanwhile, or stops short.
    Programs,
}

/// A write-protected range. Dropping it ends the protection, whatever lies there by then.
///
/// The thread that holds it takes no signals: a handler that wrote to the range would wait for this thread, which is
/// itself. For the same reason the holder must not use the heap, nor take a lock that a thread may hold that does.
pub(crate) struct Protection {
    fd: OwnedFd,
    range: Range,
    mask: libc::sigset_t,
}

impl Protection {
    /// Protects whole pages, which must be mapped: private anonymous memory, with every page present, or a memfd.
    ///
    /// # Errors
    /// `EBUSY` if part of it belongs to another userfaultfd, `EPERM` or `ENOSYS` if the system call is forbidden, or
    /// what else the kernel answers.
    pub(crate) fn new(addr: u64, len: usize) -> Result<Self, Errno> {
        // Better if the kernel's writes wait as well: no system call of the program fails then.
        let fd = open(Whose::All).or_else(|_| open(Whose::Programs))?;
        Self::with(fd, addr, len)
    }

    pub(crate) fn with(fd: OwnedFd, addr: u64, len: usize) -> Result<Self, Errno> {
        let range = Range { start: addr, len: len as u64 };
        let mut register = Register { range, mode: REGISTER_WP, ioctls: 0 };
        call::<UFFDIO_REGISTER, _>(&fd, &mut register)?;
        // From here on it is undone by drop.
        let held = Protection { fd, range, mask: block_signals() };
        if register.ioctls & (1 << WRITEPROTECT_NUMBER) == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        call::<UFFDIO_WRITEPROTECT, _>(&held.fd, &mut WriteProtect { range, mode: PROTECT })?;
        Ok(held)
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        // Closing the descriptor would do all this, were it not for a child forked meanwhile that has the descriptor
        // too. UNREGISTER fails if another mapping lies there by now, which needs no undoing. WAKE, for the threads
        // that wait for the old memory, does not fail then.
        let _ = call::<UFFDIO_UNREGISTER, _>(&self.fd, &mut { self.range });
        let _ = call::<UFFDIO_WAKE, _>(&self.fd, &mut { self.range });
        // SAFETY: `mask` is what `block_signals` got.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, ptr::null_mut()) };
    }
}

/// A userfaultfd that can write-protect private and shared memory.
///
/// # Errors
/// The kernel's errno: `EPERM` or `ENOSYS` if it is forbidden, `EINVAL` if the kernel is too old.
pub(crate) fn open(whose: Whose) -> Result<OwnedFd, Errno> {
    let flags = match whose {
        Whose::All => UserfaultfdFlags::CLOEXEC,
        Whose::Programs => UserfaultfdFlags::CLOEXEC | USER_MODE_ONLY,
    };
    #[cfg(test)]
    if whose == Whose::All && UNPRIVILEGED.get() {
        return Err(Errno::EPERM);
    }
    // SAFETY: it does nothing by itself; what is done with it is in this file.
    let fd = unsafe { rustix::mm::userfaultfd(flags) }.map_err(errno)?;
    call::<UFFDIO_API, _>(&fd, &mut Api { api: API, features: WRITE_PROTECT | WRITE_PROTECT_SHARED, ioctls: 0 })?;
    Ok(fd)
}

#[cfg(test)]
std::thread_local! {
    /// This thread is to be treated as an ordinary user's.
    pub(crate) static UNPRIVILEGED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// One of the calls above, whose argument is a `T`.
fn call<const OPCODE: Opcode, T>(fd: &OwnedFd, argument: &mut T) -> Result<(), Errno> {
    // SAFETY: every opcode above is made from the type that its calls pass (UNREGISTER and WAKE take a range too); what
    // they do to memory is to make it wait, never to change it.
    unsafe { rustix::ioctl::ioctl(fd, Updater::<OPCODE, T>::new(argument)) }.map_err(errno)
}

/// Blocks every signal for this thread, and gives what was blocked before.
fn block_signals() -> libc::sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::<libc::sigset_t>::zeroed());
    // SAFETY: both are written before they are read, and all zeroes is a set (the empty one).
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}
