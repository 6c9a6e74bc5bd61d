//! The functions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr::{NonNull, null_mut};
use std::time::Instant;

use cabi::{call, call_or, read, read_array, watch_forks};
use group::{MOST_REPLICAS, MOST_WINDOW, Operation, Wait};
use rdma::Errno;

use crate::clients;
use crate::ctypes::COperation;
use crate::failure::{fail, of};

/// What `compat_hyperclient_do_operations` returns for an error.
const FAILED: c_ulong = c_ulong::MAX;

/// The text of a name; null is empty. EINVAL: it is not UTF-8.
///
/// # Safety
/// `at` is null or a string of C.
unsafe fn name<'a>(at: *const c_char) -> Result<&'a str, Errno> {
    if at.is_null() {
        return Ok("");
    }
    // SAFETY: the caller's promise. The string is used during the call only.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().or_else(|_| fail(libc::EINVAL, "a name is not UTF-8"))
}

fn null<T>(what: &str) -> Result<T, Errno> {
    fail(libc::EFAULT, &format!("{what} is null"))
}

/// `compat_hyperclient_connect`.
///
/// # Safety
/// The names are null or strings of C. The buffer stays mapped until the client is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn compat_hyperclient_connect(
    device_name: *const c_char,
    device_port: c_int,
    server_ip_port: *const c_char,
    buffer_address: *const c_void,
    buffer_size: usize,
) -> *mut c_void {
    watch_forks();
    call_or(null_mut, || {
        // SAFETY: the caller's promise.
        let (device, to) = unsafe { (name(device_name)?, name(server_ip_port)?) };
        if server_ip_port.is_null() {
            return null("server_ip_port");
        }
        if device_port != 1 {
            return fail(libc::EINVAL, "the device has port 1 only");
        }
        if buffer_size == 0 {
            return fail(libc::EINVAL, "a buffer of 0 bytes");
        }
        let Some(start) = NonNull::new(buffer_address.cast_mut().cast()) else { return null("buffer_address") };
        // SAFETY: the caller's promise.
        unsafe { clients::connect(device, to, start, buffer_size) }
    })
}

/// `compat_hyperclient_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn compat_hyperclient_destroy(client: *mut c_void) -> c_int {
    call(|| clients::remove(client).map(|()| 0))
}

/// `compat_hyperclient_destory`.
#[unsafe(no_mangle)]
pub extern "C" fn compat_hyperclient_destory(client: *mut c_void) -> c_int {
    compat_hyperclient_destroy(client)
}

/// `compat_hyperclient_send_print_buffer`.
#[unsafe(no_mangle)]
pub extern "C" fn compat_hyperclient_send_print_buffer(client: *mut c_void, offset: u64, length: usize) -> c_int {
    call(|| {
        clients::with(client, |entry| {
            entry.client.print_buffer(offset, length as u64).map(|()| 0).map_err(|error| of(&error))
        })
    })
}

fn operation(op: &COperation) -> Result<Operation, Errno> {
    let Some(op) = op.operation() else { return fail(libc::EINVAL, "a type that is no operation's") };
    Ok(op)
}

/// `compat_hyperclient_do_operations`.
///
/// # Safety
/// `ops` is null or has `ops_num` structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn compat_hyperclient_do_operations(
    client: *mut c_void,
    ops: *const COperation,
    ops_num: c_uint,
    op_window_size: c_uint,
) -> c_ulong {
    call_or(
        || FAILED,
        || {
            if op_window_size == 0 {
                return fail(libc::EINVAL, "a window is 1 to 2000");
            }
            if ops.is_null() && ops_num > 0 {
                return null("ops");
            }
            let Ok(count) = c_int::try_from(ops_num) else { return fail(libc::EINVAL, "too many operations") };
            // SAFETY: the caller's promise.
            let copies = unsafe { read_array(ops, count, count as usize) }?;
            let list = copies.iter().map(operation).collect::<Result<Vec<_>, _>>()?;
            let window = op_window_size.min(MOST_WINDOW);
            if window != op_window_size {
                eprintln!("libhyperclient: the window is {window}, not {op_window_size}");
            }
            clients::with(client, |entry| {
                entry.done.clear();
                let start = Instant::now();
                let done = entry.client.run_within(&list, window, entry.how).map_err(|error| of(&error))?;
                let took = start.elapsed().as_micros();
                entry.done = done;
                Ok(c_ulong::try_from(took).unwrap_or(FAILED - 1))
            })
        },
    )
}

/// `compat_hyperclient_result`.
///
/// # Safety
/// `values` is null or has room for [`MOST_REPLICAS`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn compat_hyperclient_result(client: *mut c_void, index: c_uint, values: *mut u64) -> c_int {
    call(|| {
        let Some(place) = NonNull::new(values) else { return null("values") };
        clients::with(client, |entry| {
            let found = entry.done.get(index as usize).and_then(|done| done.values.as_ref());
            let Some(found) = found else { return fail(libc::EINVAL, "no gCAS of the last operations") };
            for (i, value) in found.iter().take(MOST_REPLICAS).enumerate() {
                // SAFETY: the caller's promise; a chain has at most that many replicas.
                unsafe { place.as_ptr().wrapping_add(i).write_unaligned(*value) };
            }
            Ok(found.len() as c_int)
        })
    })
}

/// `compat_hyperclient_undo`.
///
/// # Safety
/// `op` is null or points to a structure, `values` is null or has a value for each replica, `undo` is null or has room
/// for a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn compat_hyperclient_undo(
    client: *mut c_void,
    op: *const COperation,
    values: *const u64,
    undo: *mut COperation,
) -> c_int {
    call(|| {
        if op.is_null() || values.is_null() || undo.is_null() {
            return null("an argument");
        }
        let replicas = clients::with(client, |entry| Ok(entry.client.replicas()))?;
        // SAFETY: the caller's promise.
        let (copy, values) = unsafe { (read(op)?, read_array(values, replicas as c_int, MOST_REPLICAS)?) };
        let op = operation(&copy)?;
        if !matches!(op, Operation::CompareSwap { .. }) {
            return fail(libc::EINVAL, "no gCAS");
        }
        let Some(made) = op.undo(&values).and_then(|op| COperation::of_cas(&op)) else { return Ok(0) };
        // SAFETY: the caller's promise.
        unsafe { undo.write_unaligned(made) };
        Ok(1)
    })
}

/// `compat_hyperclient_use_notify`.
#[unsafe(no_mangle)]
pub extern "C" fn compat_hyperclient_use_notify(client: *mut c_void, sleeps: c_int) -> c_int {
    call(|| {
        clients::with(client, |entry| {
            entry.how = if sleeps == 0 { Wait::Poll } else { Wait::Event };
            Ok(0)
        })
    })
}

/// `compat_hyperclient_replicas`.
#[unsafe(no_mangle)]
pub extern "C" fn compat_hyperclient_replicas(client: *mut c_void) -> c_int {
    call(|| clients::with(client, |entry| Ok(entry.client.replicas() as c_int)))
}

/// `compat_hyperclient_region_size`.
#[unsafe(no_mangle)]
pub extern "C" fn compat_hyperclient_region_size(client: *mut c_void) -> i64 {
    call(|| clients::with(client, |entry| Ok(i64::try_from(entry.client.region()).unwrap_or(i64::MAX))))
}
