//! An open device, and the state that its imports share.

use core::cell::UnsafeCell;
use core::mem::{offset_of, size_of};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use nic::{Nic, Waited as _};
use parking_lot::Mutex;
use report::Device;
use sys::{ibv_context, verbs_context};
use verbs::{CtxId, Errno, MrId, PdId, Result};

use crate::dm::Memory;
use crate::entry::Zeroed;
use crate::per_nic::PerNic;
use crate::{device, table};

/// The number of completion vectors. On hardware they spread interrupts over processors; programs choose among them,
/// here without an effect.
pub const COMP_VECTORS: c_int = 2;

/// The objects that can be imported by their handle (`ibv_import_pd(3)` and its siblings), and the data needed for
/// that.
#[derive(Default)]
pub struct Handles {
    /// Protection domains.
    pub pds: HashMap<u32, PdId>,
    /// Regions, with their keys and lengths.
    pub mrs: HashMap<u32, (MrId, u32, u32, usize)>,
    /// Device memory.
    pub dms: HashMap<u32, Arc<Memory>>,
    /// The last handle of device memory that was given out.
    pub last_dm: u32,
}

/// The part of an open device that all its `ibv_context`s have in common.
pub struct Shared {
    /// The context of the NIC.
    pub context: Arc<nic::Context>,
    /// Objects by handle.
    pub handles: Mutex<Handles>,
    /// The number of `ibv_context`s.
    opens: AtomicU32,
}

/// The open devices of this process, for `ibv_import_device`.
static OPEN: PerNic<Mutex<Vec<Arc<Shared>>>> = PerNic::new();

/// An `ibv_context` and this library's members around it. Reached from C by the address of `v.context`.
#[repr(C)]
pub struct Context {
    v: UnsafeCell<verbs_context>,
    /// Space where some providers keep private data; programs that are built against one provider's direct verbs read
    /// it.
    private: [u64; 64],
    nic: &'static Nic,
    /// The state that imports share.
    pub shared: Arc<Shared>,
    /// The command descriptor that `ibv_import_device` was given, and that this context owns since then.
    imported_fd: Option<c_int>,
}

impl Context {
    /// Open a device.
    pub fn open(kind: Device) -> Result<*mut ibv_context> {
        let nic = Nic::get()?;
        let context = nic.open(kind)?;
        let shared = Arc::new(Shared { context, handles: Mutex::default(), opens: AtomicU32::new(1) });
        OPEN.of(nic).lock().push(shared.clone());
        Ok(Self::create(nic, shared, None))
    }

    /// Make a second `ibv_context` for the open device that this command descriptor belongs to. EINVAL if there is none
    /// in this process.
    pub fn import(cmd_fd: c_int) -> Result<*mut ibv_context> {
        let nic = Nic::get()?;
        // SAFETY: fcntl(2) reads no memory, whatever the number is.
        if unsafe { libc::syscall(libc::SYS_fcntl, cmd_fd, libc::F_GETFD) } < 0 {
            return Err(Errno::EBADF);
        }
        // SAFETY: open, as just seen, and the caller's for the duration of the call.
        let fd = unsafe { BorrowedFd::borrow_raw(cmd_fd) };
        let open = OPEN.of(nic).lock();
        let shared = open.iter().find(|s| s.context.is_cmd_fd(fd)).ok_or(Errno::EINVAL)?.clone();
        shared.opens.fetch_add(1, Ordering::Relaxed);
        Ok(Self::create(nic, shared, Some(cmd_fd)))
    }

    fn create(nic: &'static Nic, shared: Arc<Shared>, imported_fd: Option<c_int>) -> *mut ibv_context {
        let (cmd_fd, async_fd) = (imported_fd.unwrap_or(shared.context.cmd_fd()), shared.context.fd());
        let mut v = verbs_context::zeroed();
        table::fill(&mut v);
        v.sz = size_of::<verbs_context>();
        v.context.device = device::device(shared.context.device);
        v.context.cmd_fd = cmd_fd;
        v.context.async_fd = async_fd;
        v.context.num_comp_vectors = COMP_VECTORS;
        v.context.abi_compat = sys::VERBS_ABI_IS_EXTENDED;
        let this =
            Box::into_raw(Box::new(Context { v: UnsafeCell::new(v), private: [0; 64], nic, shared, imported_fd }));
        // SAFETY: just made; no other thread has it.
        unsafe {
            (*(*this).v.get()).priv_ = (&raw mut (*this).private).cast();
            &raw mut (*(*this).v.get()).context
        }
    }

    /// The context around a pointer of the program; EINVAL for NULL.
    ///
    /// # Safety
    /// `context` is NULL or came from here and is not closed.
    pub unsafe fn of<'a>(context: *mut ibv_context) -> Result<&'a Context> {
        if context.is_null() {
            return Err(Errno::EINVAL);
        }
        let this = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<Context>();
        // SAFETY: `create` made it with the verbs_context first; live (caller).
        Ok(unsafe { &*this })
    }

    /// True if `context` is a context of this open device: this one, or one that shares its descriptor.
    ///
    /// # Safety
    /// As [`Context::of`].
    pub unsafe fn shares(&self, context: *mut ibv_context) -> bool {
        // SAFETY: the caller's promise.
        context == self.c() || unsafe { Self::of(context) }.is_ok_and(|other| Arc::ptr_eq(&self.shared, &other.shared))
    }

    /// The NIC; ENODEV in a forked child, which owns nothing of its parent's device.
    pub fn nic(&self) -> Result<&'static Nic> {
        alive(self.nic)
    }

    /// The NIC, for facts that never change (names, limits, addresses): a forked child may ask, too.
    pub fn facts(&self) -> &'static Nic {
        self.nic
    }

    /// The device.
    pub fn kind(&self) -> Device {
        self.shared.context.device
    }

    /// The NIC's number for this context.
    pub fn id(&self) -> CtxId {
        self.shared.context.id
    }

    /// The pointer that the program has.
    pub fn c(&self) -> *mut ibv_context {
        // SAFETY: within our own structure.
        unsafe { &raw mut (*self.v.get()).context }
    }

    /// Close a context; the last one closes the device.
    ///
    /// # Safety
    /// As for [`Context::of`]; the pointer is dead afterwards.
    pub unsafe fn close(context: *mut ibv_context) -> Result<()> {
        // SAFETY: the caller's promise.
        let this = unsafe { Context::of(context) }?;
        let nic = this.nic()?;
        if this.shared.opens.fetch_sub(1, Ordering::AcqRel) == 1 {
            OPEN.of(nic).lock().retain(|s| !Arc::ptr_eq(s, &this.shared));
            nic.close(&this.shared.context)?;
        }
        if let Some(fd) = this.imported_fd {
            // SAFETY: this library's since the import; no code uses it any more.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
        let raw = core::ptr::from_ref(this).cast_mut();
        // SAFETY: made by Box::into_raw, and dead from here on (caller).
        drop(unsafe { Box::from_raw(raw) });
        Ok(())
    }
}

/// The NIC, unless it is a parent's: ENODEV in a forked child.
pub fn alive(nic: &'static Nic) -> Result<&'static Nic> {
    if nic.alive() { Ok(nic) } else { Err(Errno::ENODEV) }
}
