//! The device, opened when it is first needed.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use exs::socket::Exs;
use rdma::{Errno, Library};

static DEVICE: OnceLock<Exs> = OnceLock::new();

/// The device. ENOSYS: there is no verbs library. ENODEV and others: it has no device for this host.
///
/// It lasts as long as the process: connections end when the process does.
pub fn device() -> Result<&'static Exs, Errno> {
    static OPENING: Mutex<()> = Mutex::new(());
    if let Some(device) = DEVICE.get() {
        return Ok(device);
    }
    let _one = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = DEVICE.get() {
        return Ok(device);
    }
    crate::entry::watch_forks();
    let library: Arc<Library> = Library::this_process().map_err(|_| Errno(libc::ENOSYS))?;
    // The device's own threads look at nothing.
    let exs = crate::entry::without_signals(|| Exs::begin(&library, crate::pages::let_faults_in))?;
    Ok(DEVICE.get_or_init(|| exs))
}
