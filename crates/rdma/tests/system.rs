//! A test with the verbs library of the host; without one it passes.

use std::path::Path;

use rdma::Library;

#[test]
fn the_system_library_lists_devices() {
    let Ok(library) = Library::load(Path::new(Library::SYSTEM)) else { return };
    // A kernel without RDMA answers ENOSYS.
    for device in library.devices().unwrap_or_default() {
        assert!(!device.name().is_empty());
    }
}

#[test]
fn a_library_without_verbs_is_refused() {
    let error = Library::load(Path::new("libc.so.6")).unwrap_err();
    assert!(error.contains("ibv_get_device_list"), "{error}");
    let error = Library::load(Path::new("/nonexistent/libibverbs.so")).unwrap_err();
    assert!(error.contains("/nonexistent/libibverbs.so"), "{error}");
}
