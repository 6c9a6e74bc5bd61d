//! The library's functions.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use sys::*;

/// A loaded verbs library. It stays loaded for the life of the process: adapters' libraries leave threads and exit handlers
/// behind.
pub struct Library {
    pub(crate) api: Api,
    path: String,
}

macro_rules! api {
    ($($(#[$optional:ident])? $field:ident = $symbol:literal($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// Pointers to the functions, as `verbs.h` declares them.
        pub(crate) struct Api {
            $(pub(crate) $field: api!(@type $($optional)? unsafe extern "C" fn($($arg),*) $(-> $ret)?),)*
        }

        impl Api {
            /// # Safety
            /// `handle` is a library whose functions of these names have these signatures.
            unsafe fn look_up(handle: *mut c_void) -> Result<Api, String> {
                $(
                    let address = symbol(handle, $symbol);
                    // SAFETY: a function pointer, or an Option of one, has the size of an address; the type is the
                    // header's. Null occurs only for the optional ones, where it means None.
                    let $field = unsafe { api!(@take $($optional)? address, $symbol) };
                )*
                Ok(Api { $($field),* })
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

/// The versions that libibverbs gives its functions. An unversioned request could be answered by the functions of
/// 2006, which keep other structures.
const VERSIONS: [&CStr; 3] = [c"IBVERBS_1.1", c"IBVERBS_1.6", c"IBVERBS_1.11"];

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

impl Library {
    /// What the dynamic linker finds for a program that was linked with `-libverbs`.
    pub const SYSTEM: &'static str = "libibverbs.so.1";

    /// Opens the library at `path`; a name without a slash is searched for, as `dlopen(3)` says. The error is the dynamic
    /// linker's, for people.
    pub fn load(path: &Path) -> Result<Arc<Library>, String> {
        let describe = |error: String| format!("cannot use the verbs library {}: {error}", path.display());
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| describe(error.to_string()))?;
        // SAFETY: a C string. Running the initialisers of a library that the user named is what was asked for.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(describe(linker_message()));
        }
        // SAFETY: functions named `ibv_*` have the signatures of verbs.h; that is what the name promises.
        let api = unsafe { Api::look_up(handle) }.map_err(describe)?;
        Ok(Arc::new(Library { api, path: path.display().to_string() }))
    }

    /// The path that it was loaded from.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Library({})", self.path)
    }
}
