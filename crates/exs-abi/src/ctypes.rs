//! The structures and numbers of `sys/exs.h`. `tests/header.rs` compares them with the header.

#![allow(missing_docs, non_camel_case_types, reason = "the names are the header's, which documents them")]

use libc::{c_int, c_short, c_void, off_t, size_t, sockaddr, socklen_t};

pub const VERSION: c_int = 1;
pub const INVALID: i32 = -1;
pub const UNREGISTERED: i32 = -2;

pub const EVT_POLL: c_int = 1;
pub const EVT_CONNECT: c_int = 2;
pub const EVT_ACCEPT: c_int = 3;
pub const EVT_SEND: c_int = 4;
pub const EVT_RECV: c_int = 5;
pub const EVT_SENDMSG: c_int = 6;
pub const EVT_RECVMSG: c_int = 7;
pub const EVT_SENDFILE: c_int = 8;
pub const EVT_SENDTIMEOUT: c_int = 9;
pub const EVT_RECVTIMEOUT: c_int = 10;
pub const EVT_SHUTDOWN: c_int = 11;
pub const EVT_CLOSE: c_int = 12;

pub const EVTVEC_MAX: usize = 1024;
pub const EOF: c_int = 0x1000_0000;
pub const PERSISTENT: c_int = 0x2000_0000;

pub const QATTR_DEPTH: c_int = 1;
pub const QATTR_SIGNAL: c_int = 2;
pub const QATTR_EVENTS: c_int = 3;
pub const QATTR_WAIT: c_int = 4;

pub const WAIT_ADAPTIVE: c_int = 1;
pub const WAIT_NOTIFY: c_int = 2;
pub const WAIT_BUSY_POLL: c_int = 3;

pub const F_GETSMALL: c_int = 0x4558_0001;
pub const F_SETSMALL: c_int = 0x4558_0002;
pub const F_GETCREDITS: c_int = 0x4558_0003;
pub const F_SETCREDITS: c_int = 0x4558_0004;
pub const F_GETTIMEOUT: c_int = 0x4558_0005;
pub const F_SETTIMEOUT: c_int = 0x4558_0006;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct exs_event {
    pub kind: c_int,
    pub fd: c_int,
    pub ahandle: isize,
    pub errno: c_int,
    pub flags: c_int,
    pub length: size_t,
    pub newfd: c_int,
    pub reserved: c_int,
    pub data: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct exs_acceptaddr {
    pub local: *mut sockaddr,
    pub local_len: socklen_t,
    pub peer_len: socklen_t,
    pub peer: *mut sockaddr,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct exs_iovec {
    pub base: *mut c_void,
    pub len: size_t,
    pub memory: i32,
    pub reserved: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct exs_msghdr {
    pub name: *mut c_void,
    pub name_len: socklen_t,
    pub iov_len: c_int,
    pub iov: *mut exs_iovec,
    pub control: *mut c_void,
    pub control_len: size_t,
    pub flags: c_int,
    pub reserved: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct exs_xferfile {
    pub header: *mut exs_iovec,
    pub trailer: *mut exs_iovec,
    pub header_len: c_int,
    pub trailer_len: c_int,
    pub fd: c_int,
    pub reserved: c_int,
    pub offset: off_t,
    pub length: size_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct exs_pollfd {
    pub fd: c_int,
    pub events: c_short,
    pub revents: c_short,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct exs_fdvec {
    pub fds: *mut exs_pollfd,
    pub count: c_int,
    pub reserved: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct exs_signal {
    pub signo: c_int,
    pub reserved: c_int,
    pub value: libc::sigval,
}

// As in the header, on machines with pointers of 8 bytes.
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<exs_event>() == 48 && offset_of!(exs_event, length) == 24 && offset_of!(exs_event, data) == 40);
    assert!(offset_of!(exs_event, ahandle) == 8 && offset_of!(exs_event, newfd) == 32);
    assert!(size_of::<exs_acceptaddr>() == 24 && offset_of!(exs_acceptaddr, peer) == 16);
    assert!(size_of::<exs_iovec>() == 24 && offset_of!(exs_iovec, memory) == 16);
    assert!(size_of::<exs_msghdr>() == 48 && offset_of!(exs_msghdr, iov) == 16 && offset_of!(exs_msghdr, flags) == 40);
    assert!(size_of::<exs_xferfile>() == 48 && offset_of!(exs_xferfile, fd) == 24);
    assert!(offset_of!(exs_xferfile, offset) == 32 && offset_of!(exs_xferfile, length) == 40);
    assert!(size_of::<exs_pollfd>() == 8 && size_of::<exs_fdvec>() == 16 && size_of::<exs_signal>() == 16);
};
