//! The device of an [`super::Exs`].

use std::net::SocketAddr;
use std::sync::Arc;

use rdma::{CmId, Context, Errno, EventChannel, Library, Pd};

use super::completions::Completions;
use super::keys::Keys;

/// A device with what is made of it once.
pub(super) struct Device {
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
    pub completions: Completions,
    /// It has memory windows of type 2.
    pub windows: bool,
    /// It reaches ON_DEMAND regions through the kernel, and binds windows to them.
    pub vanishing: bool,
    /// It is an adapter of iWARP: there is no WRITE with an immediate value (RFC 5040, section 5.1), and ESTABLISHED
    /// brings the reply to the active side.
    pub iwarp: bool,
    /// Held once by this device, and once by each end whose ring, or places for notices, peers are to map.
    rings: Arc<()>,
}

/// Rings that peers map, at most. A peer has 64 pieces of this process's memory mapped at a time; with more rings than
/// that it would map one for each transfer.
const RINGS: usize = 32;

impl Device {
    /// Open the device of 127.0.0.1, or the first one that librdmacm knows: Linux ties no device of iWARP to a loopback
    /// address. ENODEV: there is none.
    pub fn open(library: &Arc<Library>, channel: &Arc<EventChannel>) -> rdma::Result<Device> {
        let id = channel.create_id(0)?;
        let of_loopback = id.bind(SocketAddr::from(([127, 0, 0, 1], 0))).and_then(|()| id.context());
        let first = || library.cm_contexts().ok()?.into_iter().next();
        let context = of_loopback.or_else(|error| first().ok_or(error))?;
        let (pd, completions) = (context.alloc_pd()?, Completions::new(&context)?);
        let (windows, iwarp) = (Keys::exist(&pd), context.device().is_iwarp());
        Ok(Device { context, pd, completions, windows, vanishing: library.is_softrnic(), iwarp, rings: Arc::default() })
    }

    /// A place among the rings that peers map. `packets`: it is for notices alone, which leave half of all to streams.
    /// None: there is none, or no peer could map any.
    pub fn ring_place(&self, packets: bool) -> Option<Arc<()>> {
        let most = if packets { RINGS / 2 } else { RINGS };
        (!self.iwarp && Arc::strong_count(&self.rings) <= most).then(|| self.rings.clone())
    }

    /// Check that a connection goes over this device. ENODEV: it goes over another one.
    pub fn check(&self, id: &CmId) -> rdma::Result<()> {
        let is_same = id.context()?.is_same(&self.context);
        is_same.then_some(()).ok_or(rdma::Error { call: "rdma_cm_id.verbs", errno: Errno(libc::ENODEV) })
    }
}
