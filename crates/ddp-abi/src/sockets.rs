//! The sockets of the process, by the numbers that stand for their addresses.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ddp::{Error, Socket};
use verbs::Errno;

use crate::failure::{fail, of};

#[derive(Default)]
struct Table {
    last: usize,
    sockets: HashMap<usize, Arc<Mutex<Socket>>>,
}

fn table() -> MutexGuard<'static, Table> {
    static TABLE: OnceLock<Mutex<Table>> = OnceLock::new();
    TABLE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a new socket.
pub fn add(socket: Socket) -> *mut c_void {
    let mut table = table();
    // Numbers look like addresses, and no address of the program is one.
    table.last += 1;
    let number = table.last;
    table.sockets.insert(number, Arc::new(Mutex::new(socket)));
    std::ptr::without_provenance_mut(number)
}

/// Use a socket; a call of another thread ends first. EINVAL: there is none of this number.
pub fn with<T>(number: *mut c_void, body: impl FnOnce(&mut Socket) -> Result<T, Error>) -> Result<T, Errno> {
    let found = table().sockets.get(&number.addr()).cloned();
    let Some(socket) = found else { return fail(libc::EINVAL, "no such socket") };
    let mut socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
    body(&mut socket).map_err(|error| of(&error))
}

/// Close a socket; a call of another thread ends first. EINVAL: there is none of this number.
pub fn close(number: *mut c_void) -> Result<(), Errno> {
    // The table is free again before the socket waits for its peer.
    let found = table().sockets.remove(&number.addr());
    let Some(socket) = found else { return fail(libc::EINVAL, "no such socket") };
    // A thread that waits for the lock has the socket until its call has ended, and then drops it.
    drop(socket.lock().unwrap_or_else(PoisonError::into_inner));
    drop(socket);
    Ok(())
}
