//! The structures and numbers of `softrnic/ddp.h`.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use ddp::{Access, Address, Options, Tag};
use verbs::Errno;

use crate::failure::fail;

pub const DDP_NO_CRC: u32 = 1;
pub const DDP_MARKERS: u32 = 2;
pub const DDP_READ: c_int = 1;
pub const DDP_WRITE: c_int = 2;
pub const DDP_MESSAGE: c_int = 1;
pub const DDP_TAGGED: c_int = 2;

/// The shortest segment: that of TCP without options (RFC 9293, section 3.7.1), rounded.
const MIN_SEGMENT: u32 = 512;

/// `struct ddp_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct COptions {
    pub flags: u32,
    pub reads: u32,
    pub segment: u32,
    pub timeout: u32,
}

/// `struct ddp_address`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CAddress {
    pub tag: u32,
    pub offset: u64,
}

/// `struct ddp_indication`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CIndication {
    pub kind: c_int,
    pub solicited: c_int,
    pub buffer: *mut c_void,
    pub length: usize,
    pub id: u64,
    pub tag: u32,
    pub reserved: u32,
}

/// `struct ddp_msizes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CSizes {
    pub untagged: usize,
    pub tagged: usize,
}

// As in the header; tests/c/arguments.c asserts it for C.
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<COptions>() == 16 && size_of::<CSizes>() == 16);
    assert!(size_of::<CAddress>() == 16 && offset_of!(CAddress, offset) == 8);
    assert!(size_of::<CIndication>() == 40 && offset_of!(CIndication, tag) == 32);
};

impl COptions {
    /// The terms of a connection. EINVAL: a flag that is none, or a number outside of its range.
    pub fn options(self) -> Result<Options, Errno> {
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        let (reads, segment) = (or(self.reads, 1), or(self.segment, 1448));
        if self.flags & !(DDP_NO_CRC | DDP_MARKERS) != 0 {
            return fail(libc::EINVAL, "a flag that is none");
        }
        if reads > 255 || !(MIN_SEGMENT..=0xffff).contains(&segment) {
            return fail(libc::EINVAL, "reads are 1 to 255, a segment has 512 to 65535 bytes");
        }
        Ok(Options {
            crc: self.flags & DDP_NO_CRC == 0,
            markers: self.flags & DDP_MARKERS != 0,
            depth: reads as u16,
            segment: segment as usize,
            patience: Duration::from_millis(or(self.timeout, 60_000).into()),
        })
    }
}

impl From<CAddress> for Address {
    fn from(at: CAddress) -> Address {
        Address { tag: Tag(at.tag), offset: at.offset }
    }
}

/// The rights of a mode. EINVAL: none, or one that is not known.
pub fn access(mode: c_int) -> Result<Access, Errno> {
    if mode == 0 || mode & !(DDP_READ | DDP_WRITE) != 0 {
        return fail(libc::EINVAL, "a mode is DDP_READ, DDP_WRITE, or both");
    }
    Ok(Access { read: mode & DDP_READ != 0, write: mode & DDP_WRITE != 0 })
}
