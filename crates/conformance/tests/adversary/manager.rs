//! Connection management of the honest pair, by calls of the library's C interface: a request, and its refusal.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

/// `struct rdma_event_channel`.
#[repr(C)]
struct Channel {
    fd: c_int,
}

/// The beginning of `struct rdma_cm_event`.
#[repr(C)]
struct Event {
    id: *mut c_void,
    listen_id: *mut c_void,
    event: u32,
    status: c_int,
}

/// `struct rdma_conn_param`.
#[repr(C)]
struct Param {
    private_data: *const c_void,
    /// private_data_len, responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq.
    numbers: [u8; 7],
    qp_num: u32,
}

const RDMA_PS_TCP: c_int = 0x0106;
const ADDR_RESOLVED: u32 = 0;
const ROUTE_RESOLVED: u32 = 2;
const CONNECT_REQUEST: u32 = 4;
const REJECTED: u32 = 8;
/// The reason in a refusal of the listener (IBTA vol. 1, 12.6.7.2: consumer reject).
const CONSUMER: c_int = 28;
/// The limit for each step of resolving, in milliseconds.
const RESOLVE: c_int = 2000;

type Id = *mut c_void;

struct Calls {
    create_event_channel: unsafe extern "C" fn() -> *mut Channel,
    create_id: unsafe extern "C" fn(*mut Channel, *mut Id, *mut c_void, c_int) -> c_int,
    destroy_id: unsafe extern "C" fn(Id) -> c_int,
    bind_addr: unsafe extern "C" fn(Id, *const libc::sockaddr_in) -> c_int,
    listen: unsafe extern "C" fn(Id, c_int) -> c_int,
    get_src_port: unsafe extern "C" fn(Id) -> u16,
    resolve_addr: unsafe extern "C" fn(Id, *const libc::sockaddr_in, *const libc::sockaddr_in, c_int) -> c_int,
    resolve_route: unsafe extern "C" fn(Id, c_int) -> c_int,
    connect: unsafe extern "C" fn(Id, *const Param) -> c_int,
    reject: unsafe extern "C" fn(Id, *const c_void, u8) -> c_int,
    get_cm_event: unsafe extern "C" fn(*mut Channel, *mut *mut Event) -> c_int,
    ack_cm_event: unsafe extern "C" fn(*mut Event) -> c_int,
}

/// A channel, and the functions that are called with it.
pub struct Manager {
    calls: Calls,
    channel: *mut Channel,
}

// SAFETY: the library's calls may come from any thread.
unsafe impl Send for Manager {}

fn address(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: if port == 0 { 0 } else { u32::from_be_bytes([127, 0, 0, 1]).to_be() } },
        sin_zero: [0; 8],
    }
}

fn good(what: &str, ret: c_int) {
    assert_eq!(ret, 0, "{what}: {}", std::io::Error::last_os_error());
}

impl Manager {
    pub fn new() -> Manager {
        let path = CString::new(conformance::library().path()).expect("a path");
        // SAFETY: a terminated string; the library has been loaded before.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "the library is not loaded");
        let find = |name: &CStr| {
            // SAFETY: a handle of dlopen, and a terminated string.
            let symbol = unsafe { libc::dlsym(handle, name.as_ptr().cast::<c_char>()) };
            assert!(!symbol.is_null(), "there is no {name:?}");
            symbol
        };
        macro_rules! call {
            ($name:literal) => {
                // SAFETY: the function of that name, whose declaration in rdma_cma.h is as the field's type.
                unsafe { std::mem::transmute_copy::<*mut c_void, _>(&find($name)) }
            };
        }
        let calls = Calls {
            create_event_channel: call!(c"rdma_create_event_channel"),
            create_id: call!(c"rdma_create_id"),
            destroy_id: call!(c"rdma_destroy_id"),
            bind_addr: call!(c"rdma_bind_addr"),
            listen: call!(c"rdma_listen"),
            get_src_port: call!(c"rdma_get_src_port"),
            resolve_addr: call!(c"rdma_resolve_addr"),
            resolve_route: call!(c"rdma_resolve_route"),
            connect: call!(c"rdma_connect"),
            reject: call!(c"rdma_reject"),
            get_cm_event: call!(c"rdma_get_cm_event"),
            ack_cm_event: call!(c"rdma_ack_cm_event"),
        };
        // SAFETY: the function takes nothing.
        let channel = unsafe { (calls.create_event_channel)() };
        assert!(!channel.is_null(), "rdma_create_event_channel");
        Manager { calls, channel }
    }

    fn id(&self) -> Id {
        let mut id = ptr::null_mut();
        // SAFETY: a live channel, and a place for the id.
        good("rdma_create_id", unsafe {
            (self.calls.create_id)(self.channel, &raw mut id, ptr::null_mut(), RDMA_PS_TCP)
        });
        id
    }

    /// The next event, which has to be of this kind: its id, and its status.
    fn event(&self, want: u32) -> (Id, c_int) {
        let mut event = ptr::null_mut();
        // SAFETY: a live channel, a place for the event; the event is read before it is given back.
        unsafe {
            good("rdma_get_cm_event", (self.calls.get_cm_event)(self.channel, &raw mut event));
            let Event { id, event: kind, status, .. } = ptr::read(event);
            good("rdma_ack_cm_event", (self.calls.ack_cm_event)(event));
            assert_eq!(kind, want, "an event of status {status}");
            (id, status)
        }
    }

    /// Listen at a port that the library chooses, and refuse every request, on a thread that runs until the process
    /// ends.
    pub fn serve(self) -> u16 {
        let (id, any) = (self.id(), address(0));
        // SAFETY: a live id, and an address of the right length for its family.
        let port = unsafe {
            good("rdma_bind_addr", (self.calls.bind_addr)(id, &raw const any));
            good("rdma_listen", (self.calls.listen)(id, 16));
            u16::from_be((self.calls.get_src_port)(id))
        };
        std::thread::spawn(move || {
            loop {
                let (id, _) = self.event(CONNECT_REQUEST);
                // SAFETY: the new id of the event, which is not used afterwards.
                unsafe {
                    good("rdma_reject", (self.calls.reject)(id, ptr::null(), 0));
                    good("rdma_destroy_id", (self.calls.destroy_id)(id));
                }
            }
        });
        port
    }

    /// Connect, and be refused.
    pub fn ask(&self, port: u16) {
        let id = self.id();
        // SAFETY: a live id, an address of the right length for its family, parameters without further pointers.
        unsafe {
            let dst = address(port);
            good("rdma_resolve_addr", (self.calls.resolve_addr)(id, ptr::null(), &raw const dst, RESOLVE));
            self.event(ADDR_RESOLVED);
            good("rdma_resolve_route", (self.calls.resolve_route)(id, RESOLVE));
            self.event(ROUTE_RESOLVED);
            let param = Param { private_data: ptr::null(), numbers: [0, 1, 1, 0, 7, 7, 0], qp_num: 0x12_3456 };
            good("rdma_connect", (self.calls.connect)(id, &raw const param));
            assert_eq!(self.event(REJECTED).1, CONSUMER);
            good("rdma_destroy_id", (self.calls.destroy_id)(id));
        }
    }
}
