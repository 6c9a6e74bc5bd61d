//! The functions.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::{TcpListener, ToSocketAddrs as _};
use std::os::fd::{BorrowedFd, IntoRawFd as _};
use std::ptr::{NonNull, null_mut};

use cabi::{call, call_or, read, watch_forks};
use ddp::{Access, Error, Indication, Notify, Options, Socket, Tag};
use verbs::Errno;

use crate::ctypes::{CAddress, CIndication, COptions, CSizes, DDP_MESSAGE, DDP_TAGGED, access};
use crate::failure::{fail, of};
use crate::{memory, sockets};

fn null<T>(what: &str) -> Result<T, Errno> {
    fail(libc::EFAULT, &format!("{what} is null"))
}

/// The text of an address. EFAULT: null. EINVAL: it is not UTF-8.
///
/// # Safety
/// `at` is null or a string of C.
unsafe fn place<'a>(at: *const c_char) -> Result<&'a str, Errno> {
    if at.is_null() {
        return null("the address");
    }
    // SAFETY: the caller's promise. The string is used during the call only.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().or_else(|_| fail(libc::EINVAL, "an address that is not UTF-8"))
}

/// The terms of a connection; null: the default ones.
///
/// # Safety
/// `at` is null or points to a structure.
unsafe fn terms(at: *const COptions) -> Result<Options, Errno> {
    if at.is_null() {
        return COptions::default().options();
    }
    // SAFETY: the caller's promise.
    unsafe { read(at) }?.options()
}

/// `ddp_listen`.
///
/// # Safety
/// The address is null or a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_listen(host_port: *const c_char) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let text = unsafe { place(host_port) }?;
        let addresses = resolve(text)?;
        Ok(TcpListener::bind(&*addresses).map_err(|error| of(&Error::Io(error)))?.into_raw_fd())
    })
}

/// The addresses of a "HOST:PORT". EINVAL: there is none.
fn resolve(text: &str) -> Result<Vec<std::net::SocketAddr>, Errno> {
    match text.to_socket_addrs() {
        Ok(found) => Ok(found.collect()),
        Err(error) => fail(libc::EINVAL, &format!("{text}: {error}")),
    }
}

/// `ddp_accept`.
///
/// # Safety
/// The options are null or a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_accept(listener: c_int, options: *const COptions) -> *mut c_void {
    watch_forks();
    call_or(null_mut, || {
        // SAFETY: the caller's promise.
        let options = unsafe { terms(options) }?;
        if listener < 0 {
            return fail(libc::EBADF, "no descriptor");
        }
        // SAFETY: a descriptor that is not -1; it is duplicated, and one that the program has not is EBADF there.
        let own = unsafe { BorrowedFd::borrow_raw(listener) }.try_clone_to_owned();
        let own = TcpListener::from(own.map_err(|error| of(&Error::Io(error)))?);
        let socket = Socket::accept(&own, &options).map_err(|error| of(&error))?;
        Ok(sockets::add(socket))
    })
}

/// `ddp_connect`.
///
/// # Safety
/// The address is null or a string of C, the options are null or a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_connect(host_port: *const c_char, options: *const COptions) -> *mut c_void {
    watch_forks();
    call_or(null_mut, || {
        // SAFETY: the caller's promise.
        let (text, options) = unsafe { (place(host_port)?, terms(options)?) };
        let addresses = resolve(text)?;
        let socket = Socket::connect(&*addresses, &options).map_err(|error| of(&error))?;
        Ok(sockets::add(socket))
    })
}

/// `ddp_close`.
#[unsafe(no_mangle)]
pub extern "C" fn ddp_close(socket: *mut c_void) -> c_int {
    call(|| {
        sockets::close(socket)?;
        memory::prune();
        Ok(0)
    })
}

/// `ddp_send`.
///
/// # Safety
/// The message is null or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_send(socket: *mut c_void, message: *const c_void, length: usize) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { memory::message(message, length) }?;
        sockets::with(socket, |socket| socket.send(&bytes).map(|()| 0))
    })
}

/// `softrnic_rdma_send`.
///
/// # Safety
/// As [`ddp_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrnic_rdma_send(socket: *mut c_void, message: *const c_void, length: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ddp_send(socket, message, length) }
}

/// `ddp_send_ddp`.
///
/// # Safety
/// The message is null or has `length` bytes; the address and the id are null or point to values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_send_ddp(
    socket: *mut c_void,
    message: *const c_void,
    length: usize,
    to: *const CAddress,
    notify: *const u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let (to, bytes) = unsafe { (address(to)?, memory::message(message, length)?) };
        let notify = match notify.is_null() {
            true => Notify::No,
            // SAFETY: the caller's promise.
            false => Notify::Id(unsafe { read(notify) }?),
        };
        sockets::with(socket, |socket| socket.write(&bytes, to.into(), notify).map(|()| 0))
    })
}

/// `softrnic_rdma_write`.
///
/// # Safety
/// As [`ddp_send_ddp`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrnic_rdma_write(
    socket: *mut c_void,
    message: *const c_void,
    length: usize,
    to: *const CAddress,
    notify: *const u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ddp_send_ddp(socket, message, length, to, notify) }
}

/// An address of a side. EFAULT: null.
///
/// # Safety
/// `at` is null or points to a structure.
unsafe fn address(at: *const CAddress) -> Result<CAddress, Errno> {
    if at.is_null() {
        return null("an address");
    }
    // SAFETY: the caller's promise.
    unsafe { read(at) }
}

/// `softrnic_rdma_read`.
///
/// # Safety
/// The addresses are null or point to structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrnic_rdma_read(
    socket: *mut c_void,
    from: *const CAddress,
    length: usize,
    to: *const CAddress,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let (from, to) = unsafe { (address(from)?, address(to)?) };
        sockets::with(socket, |socket| socket.read(from.into(), length, to.into()).map(|()| 0))
    })
}

/// `ddp_post_recv`.
///
/// # Safety
/// The buffer is null or has `length` bytes, until a message has taken it or all sockets that have it are closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_post_recv(socket: *mut c_void, buffer: *mut c_void, length: usize) -> c_int {
    call(|| {
        if buffer.is_null() {
            return null("the buffer");
        }
        sockets::with(socket, |socket| {
            // SAFETY: the caller's promise.
            let receive = unsafe { memory::receive(buffer, length) };
            Ok(receive.map(|receive| socket.post_recv(&receive)))
        })?
        .and_then(|posted| posted.map_err(|error| of(&error)))
        .map(|()| 0)
    })
}

/// `softrnic_rdma_post_recv`.
///
/// # Safety
/// As [`ddp_post_recv`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrnic_rdma_post_recv(socket: *mut c_void, buffer: *mut c_void, length: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ddp_post_recv(socket, buffer, length) }
}

/// `ddp_recv`.
///
/// # Safety
/// `came` is null or has room for a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_recv(socket: *mut c_void, came: *mut CIndication) -> c_int {
    call(|| {
        let Some(room) = NonNull::new(came) else { return null("the indication") };
        let Some(indication) = sockets::with(socket, Socket::recv)? else { return Ok(0) };
        let made = match indication {
            Indication::Message { receive, len, solicited, invalidated } => CIndication {
                kind: DDP_MESSAGE,
                solicited: solicited.into(),
                buffer: memory::delivered(&receive),
                length: len,
                id: 0,
                tag: invalidated.map_or(0, |tag| tag.0),
                reserved: 0,
            },
            Indication::Tagged { tag, id } => CIndication {
                kind: DDP_TAGGED,
                solicited: 0,
                buffer: null_mut(),
                length: 0,
                id,
                tag: tag.0,
                reserved: 0,
            },
        };
        // SAFETY: the caller's promise; it may be unaligned.
        unsafe { room.as_ptr().write_unaligned(made) };
        Ok(1)
    })
}

/// `softrnic_rdma_recv`.
///
/// # Safety
/// As [`ddp_recv`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrnic_rdma_recv(socket: *mut c_void, came: *mut CIndication) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ddp_recv(socket, came) }
}

/// Register a buffer.
///
/// # Safety
/// The buffer is null or has `length` bytes, until the registration or the connection ends; `tag` is null or has room.
unsafe fn register(
    socket: *mut c_void,
    buffer: *mut c_void,
    length: usize,
    access: Access,
    tag: *mut u32,
) -> Result<c_int, Errno> {
    let Some(room) = NonNull::new(tag) else { return null("the tag") };
    // SAFETY: the caller's promise.
    let buffer = unsafe { memory::buffer(buffer, length) }?;
    let made = sockets::with(socket, |socket| Ok(socket.register(&buffer, access)))?;
    // SAFETY: the caller's promise; it may be unaligned.
    unsafe { room.as_ptr().write_unaligned(made.0) };
    Ok(0)
}

/// `ddp_register`.
///
/// # Safety
/// The buffer is null or has `length` bytes, until the registration or the connection ends; `tag` is null or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_register(socket: *mut c_void, buffer: *mut c_void, length: usize, tag: *mut u32) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { register(socket, buffer, length, Access::WRITE, tag) })
}

/// `softrnic_rdma_register`.
///
/// # Safety
/// As [`ddp_register`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrnic_rdma_register(
    socket: *mut c_void,
    buffer: *mut c_void,
    length: usize,
    mode: c_int,
    tag: *mut u32,
) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { register(socket, buffer, length, access(mode)?, tag) })
}

/// `ddp_deregister`.
#[unsafe(no_mangle)]
pub extern "C" fn ddp_deregister(socket: *mut c_void, tag: u32) -> c_int {
    call(|| sockets::with(socket, |socket| socket.deregister(Tag(tag)).map(|()| 0)))
}

/// `softrnic_rdma_deregister`.
#[unsafe(no_mangle)]
pub extern "C" fn softrnic_rdma_deregister(socket: *mut c_void, tag: u32) -> c_int {
    ddp_deregister(socket, tag)
}

/// `ddp_max_msizes`.
///
/// # Safety
/// `sizes` is null or has room for a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_max_msizes(socket: *mut c_void, sizes: *mut CSizes) -> c_int {
    call(|| {
        let Some(room) = NonNull::new(sizes) else { return null("the sizes") };
        let found = sockets::with(socket, |socket| Ok(socket.max_sizes()))?;
        let made = CSizes { untagged: found.untagged, tagged: found.tagged };
        // SAFETY: the caller's promise; it may be unaligned.
        unsafe { room.as_ptr().write_unaligned(made) };
        Ok(0)
    })
}

/// `softrnic_rdma_max_msizes`.
///
/// # Safety
/// As [`ddp_max_msizes`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softrnic_rdma_max_msizes(socket: *mut c_void, sizes: *mut CSizes) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ddp_max_msizes(socket, sizes) }
}
