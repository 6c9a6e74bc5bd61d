//! Devices, contexts and domains.

use std::ffi::{CStr, c_char};
use std::mem::{offset_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::OFlags;
use sys::*;
use verbs::Gid;

use crate::error::{Error, Result, number, pointer};
use crate::{CompChannel, Library};

/// A list of devices as the library gave it; devices point into it.
struct DeviceList {
    library: Arc<Library>,
    list: NonNull<*mut ibv_device>,
}

// SAFETY: the library writes the list once, before any code of this crate sees it.
unsafe impl Send for DeviceList {}
// SAFETY: as above.
unsafe impl Sync for DeviceList {}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from ibv_get_device_list and is freed once; no Device remains.
        unsafe { (self.library.api.free_device_list)(self.list.as_ptr()) };
    }
}

/// An adapter.
#[derive(Clone)]
pub struct Device {
    library: Arc<Library>,
    // None: its context came from librdmacm, which keeps it open for the life of the process.
    list: Option<Arc<DeviceList>>,
    raw: NonNull<ibv_device>,
}

// SAFETY: `ibv_device` does not change while its list, or a context of it, lives.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Library {
    /// The adapters that the library knows.
    pub fn devices(self: &Arc<Self>) -> Result<Vec<Device>> {
        let mut count = 0;
        // SAFETY: `count` is a valid place for the result.
        let list = pointer("ibv_get_device_list", unsafe { (self.api.get_device_list)(&mut count) })?;
        let list = Arc::new(DeviceList { library: self.clone(), list });
        let devices = (0..usize::try_from(count).unwrap_or(0)).map_while(|i| {
            // SAFETY: the library put `count` pointers into the list.
            let raw = NonNull::new(unsafe { *list.list.as_ptr().add(i) })?;
            Some(Device { library: self.clone(), list: Some(list.clone()), raw })
        });
        Ok(devices.collect())
    }
}

impl Device {
    /// Its name, e.g. `softrnic0`.
    pub fn name(&self) -> String {
        // SAFETY: the device lives as long as its list, which this value holds, or as its open context.
        text(unsafe { &(*self.raw.as_ptr()).name })
    }

    /// Its directory in sysfs.
    pub fn sysfs_path(&self) -> String {
        // SAFETY: the device lives as long as its list, which this value holds, or as its open context.
        text(unsafe { &(*self.raw.as_ptr()).ibdev_path })
    }

    /// Node GUID, as the number whose big-endian bytes it is.
    pub fn guid(&self) -> u64 {
        // SAFETY: a live device.
        u64::from_be(unsafe { (self.library.api.get_device_guid)(self.raw.as_ptr()) })
    }

    /// True for an adapter of iWARP (`IBV_TRANSPORT_IWARP`).
    pub fn is_iwarp(&self) -> bool {
        // SAFETY: as above; the member never changes.
        unsafe { (*self.raw.as_ptr()).transport_type == IBV_TRANSPORT_IWARP }
    }

    /// Open the device.
    pub fn open(&self) -> Result<Arc<Context>> {
        // SAFETY: a live device.
        let raw = unsafe { (self.library.api.open_device)(self.raw.as_ptr()) };
        Ok(Arc::new(Context { device: self.clone(), raw: pointer("ibv_open_device", raw)? }))
    }
}

/// An open device.
pub struct Context {
    device: Device,
    raw: NonNull<ibv_context>,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for Context {}
// SAFETY: verbs are thread-safe.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        if self.device.list.is_none() {
            // librdmacm has it: "devices remain opened while the librdmacm library is loaded", rdma_get_devices(3).
            return;
        }
        // SAFETY: a live context, closed once; every object of it holds it, so none remains.
        unsafe { (self.library().api.close_device)(self.raw.as_ptr()) };
    }
}

/// An entry of the GID table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GidEntry {
    /// Its index.
    pub index: u32,
    /// The identifier.
    pub gid: Gid,
    /// `enum ibv_gid_type`: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2; `None` if the library cannot tell.
    pub kind: Option<u32>,
    /// Index of the network interface; 0 if unknown.
    pub ifindex: u32,
}

/// An event of a device or one of its objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncEvent {
    /// `enum ibv_event_type`.
    pub kind: u32,
    /// The object of the event.
    pub source: AsyncSource,
}

/// The object of an asynchronous event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncSource {
    /// A queue pair, by number.
    Qp(u32),
    /// A completion queue, by the cookie given at its creation.
    Cq(u64),
    /// A shared receive queue, by the cookie given at its creation.
    Srq(u64),
    /// A port.
    Port(u8),
    /// The whole device.
    Device,
}

/// A member of the extended context, if the library's context is large enough to have it.
macro_rules! extended {
    ($context:expr, $member:ident) => {{
        let context: *mut sys::ibv_context = $context;
        // SAFETY: the context is live; the marker says that it is embedded in an extended one, whose `sz` says
        // how far it reaches in front of it (verbs.h, verbs_get_ctx and verbs_get_ctx_op).
        unsafe {
            if (*context).abi_compat != sys::VERBS_ABI_IS_EXTENDED {
                None
            } else {
                let around: *mut sys::verbs_context =
                    context.wrapping_byte_sub(std::mem::offset_of!(sys::verbs_context, context)).cast();
                let needed = size_of::<sys::verbs_context>() - std::mem::offset_of!(sys::verbs_context, $member);
                if (*around).sz >= needed { (*around).$member } else { None }
            }
        }
    }};
}
pub(crate) use extended;

impl Context {
    /// A context that librdmacm opened and keeps open.
    ///
    /// # Safety
    /// `raw` is a context of librdmacm, over `library`.
    pub(crate) unsafe fn of_cm(library: &Arc<Library>, raw: NonNull<ibv_context>) -> Result<Arc<Self>> {
        // SAFETY: a live context; its device lives as long.
        let device = pointer("rdma_get_devices", unsafe { (*raw.as_ptr()).device })?;
        let device = Device { library: library.clone(), list: None, raw: device };
        Ok(Arc::new(Context { device, raw }))
    }

    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    pub(crate) fn library(&self) -> &Library {
        &self.device.library
    }

    /// True if both are one open device: objects of one can be used with the other.
    pub fn is_same(&self, other: &Context) -> bool {
        self.raw == other.raw
    }

    /// The device that was opened.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// `ibv_query_device(3)`.
    pub fn query_device(&self) -> Result<ibv_device_attr> {
        // SAFETY: a live context; the structure is plain data, for which zeroes are valid.
        unsafe {
            let mut attr = zeroed();
            number("ibv_query_device", (self.library().api.query_device)(self.raw(), &mut attr))?;
            Ok(attr)
        }
    }

    /// `ibv_query_port(3)`; ports count from 1.
    pub fn query_port(&self, port: u8) -> Result<ibv_port_attr> {
        let extended = extended!(self.raw(), query_port);
        // SAFETY: a live context and a structure of the stated size; the basic function fills a part of it.
        unsafe {
            let mut attr = zeroed();
            let ret = match extended {
                Some(query) => query(self.raw(), port, &mut attr, size_of::<ibv_port_attr>()),
                None => (self.library().api.query_port)(self.raw(), port, &mut attr),
            };
            number("ibv_query_port", ret)?;
            Ok(attr)
        }
    }

    /// One entry of a port's GID table; `None` for an entry that is empty.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>> {
        // SAFETY: a live context and structures of the stated sizes; zeroes are valid for them.
        let entry = unsafe {
            if let Some(query) = self.library().api.query_gid_ex {
                let mut entry: ibv_gid_entry = zeroed();
                let size = size_of::<ibv_gid_entry>();
                match number("ibv_query_gid_ex", query(self.raw(), port.into(), index, &mut entry, 0, size)) {
                    Err(Error { errno: verbs::Errno(libc::ENODATA), .. }) => return Ok(None),
                    other => other?,
                }
                let kind = Some(entry.gid_type);
                GidEntry { index, gid: Gid(entry.gid.raw), kind, ifindex: entry.ndev_ifindex }
            } else {
                let mut gid: ibv_gid = zeroed();
                number("ibv_query_gid", (self.library().api.query_gid)(self.raw(), port, index as i32, &mut gid))?;
                GidEntry { index, gid: Gid(gid.raw), kind: None, ifindex: 0 }
            }
        };
        Ok((entry.gid != Gid::ZERO).then_some(entry))
    }

    /// All entries of a port's GID table that are not empty.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>> {
        let len = u32::try_from(self.query_port(port)?.gid_tbl_len).unwrap_or(0);
        (0..len).filter_map(|index| self.query_gid(port, index).transpose()).collect()
    }

    /// One entry of a port's partition key table, in host order.
    pub fn query_pkey(&self, port: u8, index: u16) -> Result<u16> {
        let mut pkey = 0;
        // SAFETY: a live context and a place for the result.
        let ret = unsafe { (self.library().api.query_pkey)(self.raw(), port, index.into(), &mut pkey) };
        number("ibv_query_pkey", ret)?;
        Ok(u16::from_be(pkey))
    }

    /// `ibv_alloc_pd(3)`.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>> {
        // SAFETY: a live context.
        let raw = pointer("ibv_alloc_pd", unsafe { (self.library().api.alloc_pd)(self.raw()) })?;
        Ok(Arc::new(Pd { context: self.clone(), raw }))
    }

    /// `ibv_create_comp_channel(3)`.
    pub fn create_comp_channel(self: &Arc<Self>) -> Result<Arc<CompChannel>> {
        CompChannel::create(self)
    }

    /// `ibv_open_xrcd(3)`: a domain of this process alone.
    pub fn open_xrcd(self: &Arc<Self>) -> Result<Arc<Xrcd>> {
        let open = extended!(self.raw(), open_xrcd).ok_or(Error::new("ibv_open_xrcd", libc::EOPNOTSUPP))?;
        let mut attr = ibv_xrcd_init_attr {
            comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
            fd: -1,
            oflags: libc::O_CREAT,
        };
        // SAFETY: a live context and valid attributes.
        let raw = pointer("ibv_open_xrcd", unsafe { open(self.raw(), &mut attr) })?;
        Ok(Arc::new(Xrcd { context: self.clone(), raw }))
    }

    /// Make [`Context::async_event`] return EAGAIN instead of waiting.
    pub fn set_nonblocking(&self) -> Result<()> {
        set_nonblocking(self.as_fd())
    }

    /// The next asynchronous event, acknowledged. The call waits for one, unless [`Context::set_nonblocking`].
    pub fn async_event(&self) -> Result<AsyncEvent> {
        let api = &self.library().api;
        // SAFETY: a live context; zeroes are valid for the structure. What the event points at lives until the event is
        // acknowledged: destroying it waits for that.
        unsafe {
            let mut event: ibv_async_event = zeroed();
            number("ibv_get_async_event", (api.get_async_event)(self.raw(), &mut event))?;
            let source = match event.event_type {
                IBV_EVENT_CQ_ERR => AsyncSource::Cq((*event.element.cq).cq_context as u64),
                IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                    AsyncSource::Srq((*event.element.srq).srq_context as u64)
                }
                IBV_EVENT_QP_FATAL
                | IBV_EVENT_QP_REQ_ERR
                | IBV_EVENT_QP_ACCESS_ERR
                | IBV_EVENT_COMM_EST
                | IBV_EVENT_SQ_DRAINED
                | IBV_EVENT_PATH_MIG
                | IBV_EVENT_PATH_MIG_ERR
                | IBV_EVENT_QP_LAST_WQE_REACHED => AsyncSource::Qp((*event.element.qp).qp_num),
                IBV_EVENT_DEVICE_FATAL => AsyncSource::Device,
                _ => AsyncSource::Port(event.element.port_num as u8),
            };
            let kind = event.event_type;
            (api.ack_async_event)(&mut event);
            Ok(AsyncEvent { kind, source })
        }
    }
}

impl AsRawFd for Context {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for Context {
    /// Readable when an asynchronous event waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context owns the descriptor and closes it when dropped; it is not -1.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) }
    }
}

pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    rustix::fs::fcntl_getfl(fd)
        .and_then(|flags| rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK))
        .map_err(|errno| Error::new("fcntl", errno.raw_os_error()))
}

/// A protection domain.
pub struct Pd {
    pub(crate) context: Arc<Context>,
    pub(crate) raw: NonNull<ibv_pd>,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for Pd {}
// SAFETY: verbs are thread-safe.
unsafe impl Sync for Pd {}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: a live domain, freed once; every object in it holds it, so none remains.
        unsafe { (self.context.library().api.dealloc_pd)(self.raw.as_ptr()) };
    }
}

impl Pd {
    /// The context that it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

/// A domain of extended reliable connections.
pub struct Xrcd {
    pub(crate) context: Arc<Context>,
    pub(crate) raw: NonNull<ibv_xrcd>,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for Xrcd {}
// SAFETY: verbs are thread-safe.
unsafe impl Sync for Xrcd {}

impl Drop for Xrcd {
    fn drop(&mut self) {
        if let Some(close) = extended!(self.context.raw(), close_xrcd) {
            // SAFETY: a live domain, closed once; every object in it holds it, so none remains.
            unsafe { close(self.raw.as_ptr()) };
        }
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context({}, fd {})", self.device.name(), self.as_fd().as_raw_fd())
    }
}

// The size of the marker's neighbour is what `extended!` computes with.
const _: () = assert!(offset_of!(verbs_context, sz) + size_of::<usize>() == offset_of!(verbs_context, context));

impl Context {
    /// A name for a completion status, from the library.
    pub fn status_text(&self, status: crate::Status) -> String {
        // SAFETY: the function gives a constant string for any number.
        let text = unsafe { (self.library().api.wc_status_str)(status.0) };
        match text.is_null() {
            true => status.to_string(),
            // SAFETY: not null, hence a constant C string.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        }
    }
}
