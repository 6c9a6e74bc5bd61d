//! The library's functions.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use sys::cma::*;
use sys::*;

use crate::dv::DvApi;

/// A loaded verbs library. It stays loaded for the life of the process: adapters' libraries leave threads and exit
/// handlers behind.
pub struct Library {
    pub(crate) api: Api,
    cm: Result<CmApi, String>,
    pub(crate) dv: Option<DvApi>,
    pub(crate) near: Option<NearApi>,
    pub(crate) faults: Option<FaultsApi>,
    path: String,
}

macro_rules! api {
    ($name:ident; $($(#[$optional:ident])? $field:ident = $symbol:literal($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// Pointers to the functions, as their header declares them.
        pub(crate) struct $name {
            $(pub(crate) $field: api!(@type $($optional)? unsafe extern "C" fn($($arg),*) $(-> $ret)?),)*
        }

        impl $name {
            /// # Safety
            /// `handle` is a library whose functions of these names have these signatures.
            unsafe fn look_up(handle: *mut c_void) -> Result<Self, String> {
                $(
                    let address = symbol(handle, $symbol);
                    // SAFETY: a function pointer, or an Option of one, has the size of an address; the type is the
                    // header's. Null occurs only for the optional ones, where it means None.
                    let $field = unsafe { api!(@take $($optional)? address, $symbol) };
                )*
                Ok(Self { $($field),* })
            }
        }
    };
    (@type optional $ty:ty) => { Option<$ty> };
    (@type $ty:ty) => { $ty };
    (@take optional $address:ident, $symbol:literal) => { transmute_copy(&$address) };
    (@take $address:ident, $symbol:literal) => {
        match $address.is_null() {
            true => return Err(format!("it has no function {}", $symbol.to_string_lossy())),
            false => transmute_copy(&$address),
        }
    };
}

api! {
    Api;
    get_device_list = c"ibv_get_device_list"(*mut c_int) -> *mut *mut ibv_device;
    free_device_list = c"ibv_free_device_list"(*mut *mut ibv_device);
    get_device_guid = c"ibv_get_device_guid"(*mut ibv_device) -> u64;
    open_device = c"ibv_open_device"(*mut ibv_device) -> *mut ibv_context;
    close_device = c"ibv_close_device"(*mut ibv_context) -> c_int;
    query_device = c"ibv_query_device"(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    query_port = c"ibv_query_port"(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    query_gid = c"ibv_query_gid"(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    #[optional]
    query_gid_ex = c"_ibv_query_gid_ex"(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
    query_pkey = c"ibv_query_pkey"(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    get_async_event = c"ibv_get_async_event"(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ack_async_event = c"ibv_ack_async_event"(*mut ibv_async_event);
    alloc_pd = c"ibv_alloc_pd"(*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd = c"ibv_dealloc_pd"(*mut ibv_pd) -> c_int;
    reg_mr = c"ibv_reg_mr"(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    dereg_mr = c"ibv_dereg_mr"(*mut ibv_mr) -> c_int;
    create_comp_channel = c"ibv_create_comp_channel"(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel = c"ibv_destroy_comp_channel"(*mut ibv_comp_channel) -> c_int;
    create_cq = c"ibv_create_cq"(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    destroy_cq = c"ibv_destroy_cq"(*mut ibv_cq) -> c_int;
    resize_cq = c"ibv_resize_cq"(*mut ibv_cq, c_int) -> c_int;
    get_cq_event = c"ibv_get_cq_event"(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_cq_events = c"ibv_ack_cq_events"(*mut ibv_cq, c_uint);
    create_srq = c"ibv_create_srq"(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    modify_srq = c"ibv_modify_srq"(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    query_srq = c"ibv_query_srq"(*mut ibv_srq, *mut ibv_srq_attr) -> c_int;
    destroy_srq = c"ibv_destroy_srq"(*mut ibv_srq) -> c_int;
    create_qp = c"ibv_create_qp"(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp = c"ibv_modify_qp"(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    query_qp = c"ibv_query_qp"(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    destroy_qp = c"ibv_destroy_qp"(*mut ibv_qp) -> c_int;
    #[optional]
    qp_to_qp_ex = c"ibv_qp_to_qp_ex"(*mut ibv_qp) -> *mut ibv_qp_ex;
    create_ah = c"ibv_create_ah"(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    destroy_ah = c"ibv_destroy_ah"(*mut ibv_ah) -> c_int;
    attach_mcast = c"ibv_attach_mcast"(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
    detach_mcast = c"ibv_detach_mcast"(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
    wc_status_str = c"ibv_wc_status_str"(ibv_wc_status) -> *const c_char;
}

api! {
    CmApi;
    create_event_channel = c"rdma_create_event_channel"() -> *mut rdma_event_channel;
    destroy_event_channel = c"rdma_destroy_event_channel"(*mut rdma_event_channel);
    get_devices = c"rdma_get_devices"(*mut c_int) -> *mut *mut ibv_context;
    free_devices = c"rdma_free_devices"(*mut *mut ibv_context);
    create_id = c"rdma_create_id"(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
    destroy_id = c"rdma_destroy_id"(*mut rdma_cm_id) -> c_int;
    bind_addr = c"rdma_bind_addr"(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
    resolve_addr = c"rdma_resolve_addr"(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    resolve_route = c"rdma_resolve_route"(*mut rdma_cm_id, c_int) -> c_int;
    listen = c"rdma_listen"(*mut rdma_cm_id, c_int) -> c_int;
    connect = c"rdma_connect"(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    accept = c"rdma_accept"(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    establish = c"rdma_establish"(*mut rdma_cm_id) -> c_int;
    reject = c"rdma_reject"(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    disconnect = c"rdma_disconnect"(*mut rdma_cm_id) -> c_int;
    init_qp_attr = c"rdma_init_qp_attr"(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
    get_cm_event = c"rdma_get_cm_event"(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    ack_cm_event = c"rdma_ack_cm_event"(*mut rdma_cm_event) -> c_int;
}

api! {
    NearApi;
    alloc = c"softrnic_dv_alloc"(*mut ibv_context, usize) -> *mut c_void;
    free = c"softrnic_dv_free"(*mut ibv_context, *mut c_void) -> c_int;
}

api! {
    FaultsApi;
    catch = c"softrnic_dv_catch_faults"(*mut ibv_mr) -> c_int;
    fault = c"softrnic_dv_fault"(*mut c_void) -> c_int;
}

/// The versions that libibverbs gives its functions, and librdmacm those above. For an unversioned request the linker
/// could find the functions of 2006, whose structures differ.
const VERSIONS: [&CStr; 6] =
    [c"IBVERBS_1.1", c"IBVERBS_1.6", c"IBVERBS_1.11", c"RDMACM_1.0", c"RDMACM_1.1", c"RDMACM_1.2"];

fn symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    for version in VERSIONS {
        // SAFETY: a live handle and two C strings.
        let found = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            return found;
        }
    }
    // SAFETY: a live handle and a C string.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// The message of the last failure of the dynamic linker.
fn linker_message() -> String {
    // SAFETY: dlerror gives null or a C string that is valid until this thread's next call of the linker.
    unsafe {
        let text = libc::dlerror();
        match text.is_null() {
            true => "unknown error".into(),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    }
}

/// Open a library for good: its handle is never closed.
fn open(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: a C string. Running the initialisers of a library that the user named is what was asked for.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() { Err(linker_message()) } else { Ok(handle) }
}

impl Library {
    /// The name of the library that the dynamic linker loads for a program that was linked with `-libverbs`.
    pub const SYSTEM: &'static str = "libibverbs.so.1";

    /// Load the library at `path`; a name without a slash is searched for, as `dlopen(3)` says. The error is the
    /// dynamic linker's message.
    pub fn load(path: &Path) -> Result<Arc<Library>, String> {
        let describe = |error: String| format!("cannot use the verbs library {}: {error}", path.display());
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| describe(error.to_string()))?;
        let handle = open(&name).map_err(describe)?;
        Self::of_handle(handle, path.display().to_string(), !name.to_bytes().contains(&b'/')).map_err(describe)
    }

    /// The library that this process has already (it was linked, or preloaded by `softrnic run`); without one, the
    /// library that the dynamic linker finds as [`Library::SYSTEM`]. No path is needed.
    pub fn this_process() -> Result<Arc<Library>, String> {
        let describe = |error: String| format!("cannot use the verbs library of this process: {error}");
        let present = !symbol(libc::RTLD_DEFAULT, c"ibv_get_device_list").is_null();
        let handle = if present { libc::RTLD_DEFAULT } else { open(c"libibverbs.so.1").map_err(describe)? };
        Self::of_handle(handle, Self::SYSTEM.into(), true).map_err(describe)
    }

    /// A library from its handle. With `system`, connections may come from the system's librdmacm, which is built on
    /// the verbs library named [`Library::SYSTEM`]. A library that was loaded by its path must have them itself,
    /// because contexts of one verbs library mean nothing to another.
    fn of_handle(handle: *mut c_void, path: String, system: bool) -> Result<Arc<Library>, String> {
        // SAFETY: functions named `ibv_*` have the signatures of verbs.h; that is what the name promises.
        let api = unsafe { Api::look_up(handle) }?;
        // SAFETY: likewise for `rdma_*` and rdma_cma.h.
        let own = unsafe { CmApi::look_up(handle) };
        let cm = match own {
            // SAFETY: as above.
            Err(_) if system => open(c"librdmacm.so.1").and_then(|handle| unsafe { CmApi::look_up(handle) }),
            own => own,
        };
        // SAFETY: likewise for `softrnic_dv_*` and softrnic/dv_queues.h.
        let dv = unsafe { DvApi::look_up(|name| symbol(handle, name)) };
        // SAFETY: likewise, and softrnic/dv.h.
        let near = unsafe { NearApi::look_up(handle) }.ok();
        // SAFETY: as above.
        let faults = unsafe { FaultsApi::look_up(handle) }.ok();
        Ok(Arc::new(Library { api, cm, dv, near, faults, path }))
    }

    /// The functions of connections. ENOSYS: there is no librdmacm, or it is too old.
    pub(crate) fn cm(&self) -> crate::Result<&CmApi> {
        self.cm.as_ref().map_err(|_| crate::Error::new("rdma_create_event_channel", libc::ENOSYS))
    }

    /// The path that it was loaded from.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// True if it is softrnic's: it has the functions of `softrnic/dv_queues.h`.
    pub fn is_softrnic(&self) -> bool {
        self.dv.is_some()
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Library({})", self.path)
    }
}
