//! Real adapters beside softrnic0, for programs that ask for them (`SOFTRNIC_WITH_HARDWARE`).
//!
//! rdma-core's own libibverbs is loaded, and its devices follow softrnic0 in `ibv_get_device_list`. Contexts of these
//! devices, and all objects made from them, are rdma-core's, with rdma-core's tables: the inline functions of verbs.h
//! go there by themselves. Calls of the exported functions come to this library first, by interposition. So each
//! function finds the owner of its first argument (`owners.txt` says how), and jumps on. That happens in the
//! trampolines that `build.rs` makes, and only once adapters have been looked for: before, they look at [`PRESENT`]
//! only.
//!
//! librdmacm's functions are not routed: they know softrnic0 only. But their trampolines lead here, too, as all do
//! while a fault specification stands: then calls can fail deliberately ([`crate::faults`]).

use core::ffi::CStr;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::OnceLock;

use libc::{c_char, c_int, c_void};
use sys::{ibv_async_event, ibv_context, ibv_device};
use verbs::Errno;

use crate::device;
use crate::entry::set_errno;

/// True if trampolines have to come here: there may be an adapter, or calls may fail deliberately, or neither has been
/// looked for yet.
pub static PRESENT: AtomicBool = AtomicBool::new(true);

/// The kind of a first argument, by which its owner is found.
#[derive(Clone, Copy)]
pub enum Owner {
    /// An `ibv_device`.
    Device,
    /// An `ibv_context`, which begins with a pointer to its device.
    Context,
    /// An object that begins with a pointer to its context, as every object of verbs.h does.
    Object,
    /// An `ibv_async_event`.
    Event,
    /// An argument of any kind that is never an adapter's.
    Nobody,
}

/// How a function fails.
#[derive(Clone, Copy)]
pub enum Fails {
    /// It returns the errno.
    Number,
    /// It returns NULL and sets errno.
    Pointer,
    /// It returns -1 and sets errno.
    MinusOne,
}

/// A function that may be rdma-core's to answer.
pub struct Route {
    name: &'static CStr,
    version: &'static CStr,
    owner: Owner,
    fails: Fails,
    never: bool,
    found: AtomicPtr<c_void>,
}

// `ROUTES`, in the order of the trampolines' numbers.
include!(concat!(env!("OUT_DIR"), "/routes.rs"));

/// rdma-core's library.
struct Real {
    list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
    free: unsafe extern "C" fn(*mut *mut ibv_device),
    fork_init: unsafe extern "C" fn() -> c_int,
    handle: usize,
}

/// The library, if adapters are asked for and it is there.
fn real() -> Option<&'static Real> {
    static REAL: OnceLock<Option<Real>> = OnceLock::new();
    REAL.get_or_init(|| report::Settings::of_process().with_hardware.then(load).flatten()).as_ref()
}

type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

fn load() -> Option<Real> {
    // The next dlopen, for this library's own gives itself to any program that asks for libibverbs. Behind a drop-in
    // library there is none.
    // SAFETY: a valid handle and a name.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
    if next.is_null() {
        return None;
    }
    // SAFETY: dlopen's signature.
    let open = unsafe { core::mem::transmute::<*mut c_void, Open>(next) };
    // SAFETY: a name and flags. The constructors of rdma-core's library do nothing to this one.
    let handle = unsafe { open(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return None;
    }
    let find = |name: &CStr, version: &CStr| {
        // SAFETY: an open handle and two names.
        let found = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    // A drop-in library is not rdma-core's: it would lead back here.
    if find(c"ibv_open_device", c"SOFTRNIC_IBVERBS_1.1").is_some() {
        return None;
    }
    // SAFETY: the functions have these signatures since version 1.1 of the ABI.
    unsafe {
        Some(Real {
            list: core::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device>(find(
                c"ibv_get_device_list",
                c"IBVERBS_1.1",
            )?),
            free: core::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut *mut ibv_device)>(find(
                c"ibv_free_device_list",
                c"IBVERBS_1.1",
            )?),
            fork_init: core::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(find(
                c"ibv_fork_init",
                c"IBVERBS_1.1",
            )?),
            handle: handle as usize,
        })
    }
}

/// rdma-core's devices: its list, to be given back with [`free`], and the number of devices on it. Null if there are
/// none.
pub fn list() -> (*mut *mut ibv_device, usize) {
    let Some(real) = real() else { return (null_mut(), 0) };
    crate::faults::setup(); // faults are looked for before `PRESENT` is set
    // Set from here on: calls of exported functions by that library arrive here, too.
    PRESENT.store(true, Ordering::Release);
    let mut count = 0;
    // That library asks NETLINK_RDMA, and must find what the kernel has.
    // SAFETY: the man page's contract.
    let devices = netlink::host_only(|| unsafe { (real.list)(&raw mut count) });
    let count = usize::try_from(count).unwrap_or(0);
    (devices, if devices.is_null() { 0 } else { count })
}

/// Give a list back.
///
/// # Safety
/// `devices` came from [`list`] and was not given back.
pub unsafe fn free(devices: *mut *mut ibv_device) {
    if let (false, Some(real)) = (devices.is_null(), real()) {
        // SAFETY: the caller's promise.
        unsafe { (real.free)(devices) };
    }
}

/// The result of `ibv_fork_init` of rdma-core's library; 0 without one.
pub fn fork_init() -> c_int {
    // SAFETY: no arguments; safe at any time (man page).
    real().map_or(0, |real| unsafe { (real.fork_init)() })
}

/// The function that a trampoline calls if there may be an adapter or a fault. The trampoline's number is in `eax` or
/// `w16`. The target of its jump comes back in `r11` or `x16`: 0 for this library's own function. All registers that
/// hold arguments stay as they are.
#[unsafe(naked)]
pub unsafe extern "C" fn enter() {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        ".cfi_adjust_cfa_offset 48",
        "mov esi, eax",
        "call {route}",
        "mov r11, rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        ".cfi_adjust_cfa_offset -48",
        "ret",
        ".cfi_endproc",
        route = sym route,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        ".cfi_startproc",
        "stp x30, x0, [sp, #-80]!",
        ".cfi_adjust_cfa_offset 80",
        ".cfi_rel_offset x30, 0",
        "stp x1, x2, [sp, #16]",
        "stp x3, x4, [sp, #32]",
        "stp x5, x6, [sp, #48]",
        "str x7, [sp, #64]",
        "mov w1, w16",
        "bl {route}",
        "mov x16, x0",
        "ldr x7, [sp, #64]",
        "ldp x5, x6, [sp, #48]",
        "ldp x3, x4, [sp, #32]",
        "ldp x1, x2, [sp, #16]",
        "ldp x30, x0, [sp], #80",
        ".cfi_adjust_cfa_offset -80",
        ".cfi_restore x30",
        "ret",
        ".cfi_endproc",
        route = sym route,
    );
}

/// The target of the trampoline with this number: null for this library's own function.
///
/// # Safety
/// `first` is a valid first argument of the function.
pub unsafe extern "C" fn route(first: *const c_void, number: usize) -> *const c_void {
    let _uncancelled = sys::cancel::Uncancelled::new();
    let Some(route) = ROUTES.get(number) else { return crate::faults::verdict_on_member(number - ROUTE_COUNT) };
    let failure = crate::faults::verdict(route.name);
    if !failure.is_null() {
        return failure;
    }
    // SAFETY: the caller's promise.
    if unsafe { is_ours(first, route.owner) } {
        return null();
    }
    let known = route.found.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = match real() {
        // SAFETY: an open handle and two names.
        Some(real) if !route.never => unsafe {
            libc::dlvsym(real.handle as *mut c_void, route.name.as_ptr(), route.version.as_ptr())
        },
        _ => null_mut(),
    };
    let found = match (found.is_null(), route.fails) {
        (false, _) => found,
        (true, Fails::Number) => number_fails as *mut c_void,
        (true, Fails::Pointer) => pointer_fails as *mut c_void,
        (true, Fails::MinusOne) => minus_one_fails as *mut c_void,
    };
    route.found.store(found, Ordering::Relaxed);
    found
}

extern "C" fn number_fails() -> c_int {
    set_errno(Errno::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

extern "C" fn pointer_fails() -> *mut c_void {
    set_errno(Errno::EOPNOTSUPP);
    null_mut()
}

extern "C" fn minus_one_fails() -> c_int {
    set_errno(Errno::EOPNOTSUPP);
    -1
}

/// True if an object that a function of librdmacm got is this device's, whose ids are the only ones; also for NULL.
///
/// # Safety
/// `object` is NULL, or a live object that begins with a pointer to its context.
pub unsafe fn is_object_of_ours<T>(object: *mut T) -> bool {
    // SAFETY: the caller's promise.
    unsafe { is_ours(object.cast_const().cast(), Owner::Object) }
}

/// True if an argument is this library's. NULL is: this library reports the error.
///
/// # Safety
/// `first` is NULL, or a live object of the kind that `owner` says.
unsafe fn is_ours(first: *const c_void, owner: Owner) -> bool {
    if first.is_null() {
        return true;
    }
    // SAFETY: the caller's promise; each structure begins with the pointer that leads on (verbs.h).
    unsafe {
        match owner {
            Owner::Nobody => true,
            Owner::Device => device::is_ours(first.cast()),
            Owner::Context => {
                let context = first.cast::<ibv_context>();
                device::is_ours((*context).device)
            }
            Owner::Object => is_ours((*first.cast::<*const ibv_context>()).cast(), Owner::Context),
            Owner::Event => {
                let event = first.cast::<ibv_async_event>();
                // Events of a port or of the device name no object, and count nothing.
                !is_of_object((*event).event_type) || is_ours((*event).element.cq.cast(), Owner::Object)
            }
        }
    }
}

/// True if an event's element is a pointer to an object (ibv_get_async_event(3)).
fn is_of_object(kind: u32) -> bool {
    matches!(
        kind,
        sys::IBV_EVENT_CQ_ERR
            | sys::IBV_EVENT_QP_FATAL
            | sys::IBV_EVENT_QP_REQ_ERR
            | sys::IBV_EVENT_QP_ACCESS_ERR
            | sys::IBV_EVENT_COMM_EST
            | sys::IBV_EVENT_SQ_DRAINED
            | sys::IBV_EVENT_PATH_MIG
            | sys::IBV_EVENT_PATH_MIG_ERR
            | sys::IBV_EVENT_QP_LAST_WQE_REACHED
            | sys::IBV_EVENT_SRQ_ERR
            | sys::IBV_EVENT_SRQ_LIMIT_REACHED
            | sys::IBV_EVENT_WQ_FATAL
    )
}
