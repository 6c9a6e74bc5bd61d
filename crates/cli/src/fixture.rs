//! The objects that bench and selftest are built on: a library, a device, a port, an address.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use rdma::{Connect, Context, Cq, Device, Gid, Library, Pd, QpCap, Wc};
use serde::{Deserialize, Serialize};

use crate::locate;

/// The port; adapters with several ports appear as several devices nowadays.
pub const PORT: u8 = 1;

/// How long a completion may take before it counts as lost.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Which device to use.
#[derive(Args, Clone, Debug)]
pub struct DeviceOptions {
    /// The verbs library, instead of the libsoftrnic.so beside this program; libibverbs.so.1 for a real adapter
    #[arg(long, value_name = "PATH")]
    pub lib: Option<PathBuf>,
    /// The device, instead of the library's first
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Index of the address to use, as devinfo shows it, instead of the first RoCE v2 one
    #[arg(long, value_name = "INDEX")]
    pub gid: Option<u32>,
}

impl DeviceOptions {
    /// These options as arguments for the other process.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = Vec::new();
        let mut push = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                args.extend([name.to_owned(), value]);
            }
        };
        push("--lib", self.lib.as_ref().map(|path| path.display().to_string()));
        push("--device", self.device.clone());
        push("--gid", self.gid.map(|index| index.to_string()));
        args
    }

    /// Load the library and find the device.
    pub fn find(&self) -> Result<(Arc<Library>, Device), String> {
        let library = Library::load(&locate::library(self.lib.as_deref())?)?;
        let devices = library.devices().map_err(|error| format!("{error} ({})", library.path()))?;
        let names: Vec<String> = devices.iter().map(Device::name).collect();
        let mut devices = devices.into_iter();
        let found = match &self.device {
            None => devices.next(),
            Some(name) => devices.find(|device| device.name() == *name),
        };
        let found = found.ok_or_else(|| match (&self.device, names.is_empty()) {
            (_, true) => format!("{} knows no RDMA device", library.path()),
            (Some(name), _) => format!("there is no device {name}; {} has {}", library.path(), names.join(", ")),
            (None, false) => unreachable!("the first of a list that is not empty"),
        })?;
        Ok((library, found))
    }

    /// Open the device.
    pub fn open(&self) -> Result<Fixture, String> {
        let (_, device) = self.find()?;
        let context = device.open().map_err(text)?;
        let pd = context.alloc_pd().map_err(text)?;
        let port = context.query_port(PORT).map_err(text)?;
        let gids = context.gids(PORT).map_err(text)?;
        let gid = match self.gid {
            Some(index) => gids.iter().find(|entry| entry.index == index),
            None => gids.iter().find(|entry| entry.kind == Some(2)).or(gids.first()),
        };
        let gid = gid.ok_or_else(|| match self.gid {
            Some(index) => format!("{} has no address with index {index}", device.name()),
            None => format!("port {PORT} of {} has no address", device.name()),
        })?;
        Ok(Fixture { pd, gid_index: gid.index as u8, gid: gid.gid, lid: port.lid, mtu: port.active_mtu as u8, context })
    }
}

/// An open device.
pub struct Fixture {
    /// The context.
    pub context: Arc<Context>,
    /// A protection domain for everything.
    pub pd: Arc<Pd>,
    /// The index of this side's address.
    pub gid_index: u8,
    /// This side's address.
    pub gid: Gid,
    /// This side's LID; 0 on Ethernet.
    pub lid: u16,
    /// `enum ibv_mtu` of the path.
    pub mtu: u8,
}

/// One end of a connection, as the two ends describe it to each other.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub struct Endpoint {
    /// The queue pair that receives.
    pub qpn: u32,
    /// For extended reliable connections: the queue pair that sends. Otherwise equal to `qpn`.
    pub sender_qpn: u32,
    /// Its address.
    pub gid: [u8; 16],
    /// Its LID.
    pub lid: u16,
    /// The first sequence number that it sends.
    pub psn: u32,
    /// The region that peers may use.
    pub addr: u64,
    /// Its key.
    pub rkey: u32,
    /// For extended reliable connections: the number of the shared receive queue.
    pub srqn: u32,
}

impl Fixture {
    /// The parameters of a connection to `peer`.
    pub fn connect(&self, psn: u32, peer: &Endpoint) -> Connect {
        Connect {
            qpn: peer.qpn,
            gid: Gid(peer.gid),
            lid: peer.lid,
            rq_psn: peer.psn,
            sq_psn: psn,
            sgid_index: self.gid_index,
            port: PORT,
            mtu: self.mtu,
            access: rdma::Access::empty(),
            rd_atomic: 16,
            // More than a second: on a busy machine the peer may not run for a while.
            timeout: 18,
            rnr_retry: 7,
        }
    }

    /// The sizes of a queue pair, cut to those of the device.
    pub fn cap(&self, wanted: QpCap) -> Result<QpCap, String> {
        let attr = self.context.query_device().map_err(text)?;
        let limit = |wanted: u32, most: i32| wanted.min(u32::try_from(most).unwrap_or(u32::MAX));
        Ok(QpCap {
            max_send_wr: limit(wanted.max_send_wr, attr.max_qp_wr),
            max_recv_wr: limit(wanted.max_recv_wr, attr.max_qp_wr),
            max_send_sge: limit(wanted.max_send_sge, attr.max_sge),
            max_recv_sge: limit(wanted.max_recv_sge, attr.max_sge),
            max_inline_data: wanted.max_inline_data,
        })
    }
}

/// Poll until a completion comes.
pub fn wait(cq: &Cq, patience: Duration) -> Result<Wc, String> {
    let mut out = [Wc::default()];
    let deadline = Instant::now() + patience;
    loop {
        // The clock is read now and then only: that costs more than polling.
        for _ in 0..1024 {
            if cq.poll(&mut out).map_err(text)? == 1 {
                return Ok(out[0]);
            }
            std::hint::spin_loop();
        }
        if Instant::now() > deadline {
            return Err(format!("no completion within {} s", patience.as_secs_f32()));
        }
        // On a machine with one core the peer must run.
        std::thread::yield_now();
    }
}

/// An error as text.
pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
