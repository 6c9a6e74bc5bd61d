//! `softrnic group serve`: replicas of a chain.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use group::{Server, ServerOptions};

use super::place::PlaceOptions;
use super::resolve;
use crate::fixture::DeviceOptions;
use crate::out::say;

/// Options of the replicas.
#[derive(Args)]
pub struct Options {
    /// TCP port that clients, and replicas before this one, connect to; 0 lets the system choose
    #[arg(long, value_name = "PORT", default_value_t = 50000)]
    port: u16,
    /// The replica behind this one, which was started before; without it this is the last one
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
    /// Bytes of the region; as many on all replicas of a chain
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    region: usize,
    /// Replicas that this process is, one behind the other
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    replicas: u32,
    /// The region is this file, which applications may map; of several replicas PATH.0, which is the first, and so on
    ///
    /// A file that is there keeps its bytes, and is made longer if it has fewer than the region.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Move the regions into memory that clients and other servers map too: their WRITEs, atomics and READs then need
    /// no system call (see docs/migrate.md)
    #[arg(long)]
    migrate: bool,
    /// Several replicas are no chain, but have a port each
    #[arg(long, hide = true)]
    apart: bool,
    #[command(flatten)]
    place: PlaceOptions,
    #[command(flatten)]
    device: DeviceOptions,
}

fn open(path: &PathBuf, len: usize) -> Result<File, String> {
    let named = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(named)?;
    if file.metadata().map_err(named)?.len() < len as u64 {
        file.set_len(len as u64).map_err(named)?;
    }
    Ok(file)
}

/// Be replicas until the process is ended.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    if options.migrate {
        super::migrate()?;
    }
    // Before the device is opened: its thread inherits it.
    let got = options.place.take();
    let fixture = options.device.open()?;
    let mut next = options.connect.as_deref().map(resolve).transpose()?;
    let mut servers = Vec::new();
    for hop in (0..options.replicas).rev() {
        // Only the first of the chain has the port; the others are reached by it.
        let (host, port) = if hop == 0 { ([0, 0, 0, 0], options.port) } else { ([127, 0, 0, 1], 0) };
        let listen = SocketAddr::from((host, port));
        let settings = ServerOptions { listen, next, region: options.region };
        let server = match &options.file {
            None => Server::start(&fixture.context, &settings),
            Some(path) => {
                let mut path = path.clone();
                if options.replicas > 1 {
                    path.as_mut_os_string().push(format!(".{hop}"));
                }
                Server::start_on(&fixture.context, &settings, open(&path, options.region)?.as_fd())
            }
        };
        let server = server.map_err(|error| format!("cannot serve at {listen}: {error}"))?;
        if !options.apart {
            next = Some(server.addr());
        }
        servers.push(server);
    }
    let ports: Vec<String> = servers.iter().rev().map(|server| server.addr().port().to_string()).collect();
    let ports = if options.apart { &ports[..] } else { &ports[..1] };
    say!("replicas: {}, of {} bytes; {got}; port {}", options.replicas, options.region, ports.join(","));
    loop {
        std::thread::park();
    }
}
