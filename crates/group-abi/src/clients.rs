//! The clients of the process, by the numbers that stand for their addresses.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cabi::without_signals;
use group::{Client, ClientOptions, Done, MOST_WINDOW, Wait};
use rdma::{Access, Context, Errno, Library};

use crate::failure::{fail, keep, of};

/// A client, and what its last operations brought.
pub struct Entry {
    pub client: Client,
    pub how: Wait,
    pub done: Vec<Done>,
}

#[derive(Default)]
struct Table {
    last: usize,
    clients: HashMap<usize, Arc<Mutex<Entry>>>,
}

fn table() -> MutexGuard<'static, Table> {
    static TABLE: OnceLock<Mutex<Table>> = OnceLock::new();
    TABLE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Use a client. EINVAL: there is none of this number.
pub fn with<T>(number: *mut c_void, body: impl FnOnce(&mut Entry) -> Result<T, Errno>) -> Result<T, Errno> {
    let found = table().clients.get(&number.addr()).cloned();
    let Some(entry) = found else { return fail(libc::EINVAL, "no such client") };
    let mut entry = entry.lock().unwrap_or_else(PoisonError::into_inner);
    body(&mut entry)
}

/// End a client; an operation of another thread ends first. EINVAL: there is none of this number.
pub fn remove(number: *mut c_void) -> Result<(), Errno> {
    // The table is free again before the client's objects are destroyed.
    let found = table().clients.remove(&number.addr());
    match found {
        Some(entry) => {
            drop(entry.lock().unwrap_or_else(PoisonError::into_inner));
            Ok(())
        }
        None => fail(libc::EINVAL, "no such client"),
    }
}

/// The device; an empty name is any.
fn open(name: &str) -> Result<Arc<Context>, Errno> {
    let library = Library::this_process().or_else(|why| fail(libc::ENOSYS, &why))?;
    let verb = |error: rdma::Error| {
        keep(&error.to_string());
        error.errno
    };
    let devices = library.devices().map_err(verb)?;
    match devices.iter().find(|device| name.is_empty() || device.name() == name) {
        Some(device) => without_signals(|| device.open()).map_err(verb),
        None => fail(libc::ENODEV, &format!("no device {name}")),
    }
}

/// Connect to a chain.
///
/// # Safety
/// As of `Pd::reg_mr_caller`: the buffer stays mapped until the client is removed, and its bytes may change meanwhile.
pub unsafe fn connect(device: &str, to: &str, start: NonNull<u8>, len: usize) -> Result<*mut c_void, Errno> {
    use std::net::ToSocketAddrs as _;
    let found = to.to_socket_addrs().map(|mut found| found.next());
    let to = match found {
        Ok(Some(to)) => to,
        Ok(None) => return fail(libc::EINVAL, &format!("{to} has no address")),
        Err(error) => return fail(libc::EINVAL, &format!("{to}: {error}")),
    };
    let context = open(device)?;
    let verb = |error: rdma::Error| of(&error.into());
    let pd = context.alloc_pd().map_err(verb)?;
    // Nothing is written there, so the buffer may be read-only memory.
    // SAFETY: the caller's promise. No right to write is asked for, and the client does not write.
    let buffer = unsafe { pd.reg_mr_caller(start, len, Access::empty()) }.map_err(verb)?;
    let options = ClientOptions { window: MOST_WINDOW, ..ClientOptions::default() };
    let client = without_signals(|| Client::connect(&context, &pd, to, buffer, &options)).map_err(|e| of(&e))?;
    let entry = Arc::new(Mutex::new(Entry { client, how: Wait::Poll, done: Vec::new() }));
    let mut table = table();
    // Numbers look like addresses, and no address of the program is one.
    table.last += 1;
    let number = table.last;
    table.clients.insert(number, entry);
    Ok(std::ptr::without_provenance_mut(number))
}
