//! The boundary between C and Rust: errors become those of the man pages, and no panic crosses.
//!
//! Three conventions exist among the verbs: NULL with errno set, the errno as the value, and -1 with errno set. Where
//! the value is the errno, the variable is set too, as it is behind a call that has gone through the kernel: programs
//! call perror(3). Posting and polling leave it alone.
//!
//! A thread is not cancelled inside ([`sys::cancel`]); the calls that wait for events are in [`crate::wait`]. A panic
//! (a bug of this library) becomes EIO where the build unwinds; the release profile aborts instead.

use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::c_int;
use sys::cancel::Uncancelled;
use verbs::{Errno, Result};

/// ENODATA, for which `verbs::Errno` has no name: there is nothing in this place.
pub const ENODATA: Errno = Errno(libc::ENODATA);

/// The C library's errno of this thread.
pub fn last_errno() -> Errno {
    // SAFETY: the C library gives a valid pointer to this thread's own variable.
    Errno(unsafe { *libc::__errno_location() })
}

/// Set the C library's errno of this thread.
pub fn set_errno(errno: Errno) {
    // SAFETY: the C library gives a valid pointer to this thread's own variable.
    unsafe { *libc::__errno_location() = errno.0 }
}

/// Run `call`; a panic becomes EIO. For posting, which reaches no cancellation point anyway (`syscalls.rs`).
pub fn caught<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno::EIO))
}

/// Run `call`, in which the thread is not cancelled; a panic becomes EIO.
pub fn shielded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    let _uncancelled = Uncancelled::new();
    caught(call)
}

/// Run `call` for a verb that returns a pointer: NULL and errno on failure; ENOMEM while memory is short.
pub fn pointer<T, F: FnOnce() -> Result<*mut T>>(call: F) -> *mut T {
    let _uncancelled = Uncancelled::new();
    let made = if crate::reserve::enough() { caught(call) } else { Err(Errno::ENOMEM) };
    made.unwrap_or_else(|errno| {
        if report::logs() {
            tell_lack(core::any::type_name::<F>(), errno);
        }
        set_errno(errno);
        core::ptr::null_mut()
    })
}

/// Log that the verb's closure of this name has failed because something is lacking. Mistakes of the program are logged
/// where they are seen.
fn tell_lack(closure: &str, errno: Errno) {
    const LACKS: [c_int; 8] =
        [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOSPC, libc::EFBIG, libc::EAGAIN, libc::EPERM, libc::EACCES];
    if LACKS.contains(&errno.0) {
        let verb = closure.split("::").find(|part| part.starts_with("ibv_") || part.starts_with("rdma_"));
        let why = std::io::Error::from_raw_os_error(errno.0);
        report::log(format_args!("{}: {why}", verb.unwrap_or(closure)));
    }
}

/// Run `call` for a verb that returns 0 or the errno; the variable is set then, too.
pub fn number(call: impl FnOnce() -> Result<()>) -> c_int {
    match shielded(call) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno.0
        }
    }
}

/// Run `call` for a verb that returns a value that is not negative, or -1 and errno.
pub fn minus_one(call: impl FnOnce() -> Result<c_int>) -> c_int {
    shielded(call).unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// Run `call` for a verb that returns nothing.
pub fn silent(call: impl FnOnce()) {
    let _uncancelled = Uncancelled::new();
    let _ = catch_unwind(AssertUnwindSafe(call));
}

/// A shared reference to an object of this library behind a pointer from the program; EINVAL for NULL.
///
/// # Safety
/// `pointer` is NULL or came from the function that makes `T` and has not been destroyed, as the man pages demand.
pub unsafe fn object<'a, T, C>(pointer: *mut C) -> Result<&'a T> {
    // SAFETY: every object begins with its C structure, so the addresses are the same; it is live (caller).
    unsafe { pointer.cast::<T>().as_ref() }.ok_or(Errno::EINVAL)
}

/// An object that has a handle, by which a kernel would look it up among the objects of one open file: of the context
/// in the C structure of the object that a call is about.
pub trait Handled {
    /// True if its C structure still has the handle that it was made with.
    fn is_itself(&self) -> bool;

    /// True if its C structure has the context that it was made in, or another one of that open device
    /// (ibv_import_device(3)).
    fn is_at_home(&self) -> bool;
}

/// The object behind a pointer, for a call that leads through the kernel with an adapter. ENOENT for an object whose
/// handle or context was changed: the kernel would find none there, or another one, and would leave this one as it is.
/// EINVAL for NULL.
///
/// # Safety
/// As [`object`]; its context is not closed.
pub unsafe fn looked_up<'a, T: Handled, C>(pointer: *mut C) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    let this = unsafe { by_handle::<T, C>(pointer) }?;
    if this.is_at_home() { Ok(this) } else { Err(Errno::ENOENT) }
}

/// [`looked_up`] for an argument of a call that is about another object: the argument's own context is not checked.
///
/// # Safety
/// As [`object`].
pub unsafe fn by_handle<'a, T: Handled, C>(pointer: *mut C) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    let this = unsafe { object::<T, C>(pointer) }?;
    if this.is_itself() { Ok(this) } else { Err(Errno::ENOENT) }
}

/// [`by_handle`] for an argument that may be missing: `None` for NULL.
///
/// # Safety
/// As [`object`].
pub unsafe fn by_handle_if_any<'a, T: Handled, C>(pointer: *mut C) -> Result<Option<&'a T>> {
    // SAFETY: the caller's promise.
    if pointer.is_null() { Ok(None) } else { unsafe { by_handle(pointer) }.map(Some) }
}

/// A reference to a plain argument; EINVAL for NULL.
///
/// # Safety
/// `pointer` is NULL or points to a `T` that no thread writes during the call.
pub unsafe fn argument<'a, T>(pointer: *const T) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(Errno::EINVAL)
}

/// A reference to a variable that the call fills in; EINVAL for NULL.
///
/// # Safety
/// `pointer` is NULL or points to a `T` that no other thread uses during the call.
pub unsafe fn output<'a, T>(pointer: *mut T) -> Result<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or(Errno::EINVAL)
}

/// A C structure for which zeros are a valid, empty value.
///
/// # Safety
/// Only for types made of integers, raw pointers and `Option`s of function pointers.
pub unsafe trait Zeroed: Sized {
    /// The value of zeros only: NULL pointers, missing functions, mutexes in the state of `PTHREAD_MUTEX_INITIALIZER`.
    fn zeroed() -> Self {
        // SAFETY: the trait's promise.
        unsafe { core::mem::zeroed() }
    }
}

macro_rules! zeroed {
    ($($ty:ty),* $(,)?) => {
        // SAFETY: generated from C structures; integers, raw pointers and optional function pointers only.
        $(unsafe impl Zeroed for $ty {})*
    };
}

zeroed!(
    sys::verbs_context,
    sys::ibv_device,
    sys::ibv_device_attr,
    sys::ibv_device_attr_ex,
    sys::ibv_port_attr,
    sys::ibv_pd,
    sys::ibv_mr,
    sys::ibv_dm,
    sys::ibv_cq_ex,
    sys::ibv_qp_ex,
    sys::ibv_qp_attr,
    sys::ibv_qp_init_attr_ex,
    sys::ibv_srq,
    sys::ibv_srq_init_attr_ex,
    sys::ibv_ah_attr,
);
