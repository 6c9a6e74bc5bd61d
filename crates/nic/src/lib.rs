//! The adapter of this process: one engine over the window wire, one lock around both, one thread that works while no
//! thread of the program polls.
//!
//! * [`Nic::get`] makes it at the first verb; until then nothing exists.
//! * A verb takes the lock ([`Nic::lock`]) and does its work. The release of the lock delivers what follows from it:
//!   notices to channels, doorbells to peers.
//! * The NIC thread (`progress.rs`) sleeps on the doorbell whenever a program is not polling, and wakes a program that
//!   waits for an event.
#![deny(unsafe_code)]

mod adaptive_interval;
mod channel;
mod context;
mod core;
mod doctor;
mod exit;
mod facts;
mod fast_poll;
pub mod faults;
pub mod fork;
mod idle_monitor;
mod migrate;
mod progress;
mod rings;
mod signal;
mod sleep;
mod streams;
mod tapped_streams;
mod thread;
mod verbs_calls;
mod waiters;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use ::verbs::{Errno, Gid, LinkLayer, Result};
use memory::biased;
use parking_lot::{Condvar, Mutex};
use report::{Device, LogLevel, Settings};
use window::WindowEnv;

pub use channel::{Bell, CompChannel};
pub use context::{Context, EventTarget};
pub use core::{Core, Guard};
pub use engine::{CqOpts, Managed, ManagedQueue, MrInfo, MwKind, QueueRules, QueueState, Side, array_bytes};
/// For sections of the C interface that mostly one thread enters.
pub use memory::biased::RawBiased;
pub use memory::caught;
pub use taps::StreamTap;
pub use taps::fault::calls::Fails;
pub use taps::fault::spec::DeviceFault;
pub use thread::spawn;
pub use waiters::{Outlived, Waited, Waiters, this_thread};
pub use window::Mapped;
pub use wire::{EntryArray, TOGETHER};

/// A row of the GID table.
#[derive(Clone, Debug)]
pub struct GidEntry {
    /// The identifier.
    pub gid: Gid,
    /// Index of its network interface.
    pub ifindex: u32,
    /// Name of its network interface.
    pub ifname: String,
}

/// The adapter of this process.
pub struct Nic {
    /// The lock is biased to the thread that calls the verbs; see [`memory::biased`].
    core: biased::Mutex<Core>,
    /// The eventfd that wakes the NIC thread.
    wake: rustix::fd::OwnedFd,
    /// The timer of the NIC thread's deadlines.
    timer: rustix::fd::OwnedFd,
    settings: &'static Settings,
    link_layer: LinkLayer,
    /// The GID tables of softrnic0 and softiw0; a device that is not there has none.
    gids: [Vec<GidEntry>; 2],
    /// The node GUIDs of softrnic0 and softiw0.
    guids: [u64; 2],
    captures: bool,
    alive: AtomicBool,
    /// Events that the program has got and not yet acknowledged.
    unacked: Mutex<context::Unacked>,
    acked: Condvar,
    /// What was destroyed while threads waited at it.
    outlived: (Outlived<CompChannel>, Outlived<Context>),
    fds: Arc<memory::fds::FdSet>,
    moved: migrate::Moved,
    doctor: doctor::Doctor,
    attendants: Mutex<Vec<Attendant>>,
    /// Ends of TCP connections, if this is a device of iWARP.
    ends: Option<Arc<streams::Ends>>,
}

/// The function that is told what happens to the device.
type Attendant = Box<dyn Fn(DeviceFault) + Send>;

static NIC: AtomicPtr<Nic> = AtomicPtr::new(std::ptr::null_mut());

impl Nic {
    /// The adapter, made at the first call. A forked child gets one of its own.
    ///
    /// # Errors
    /// EMFILE, ENOMEM, ...: sockets, memory or the thread could not be made.
    pub fn get() -> Result<&'static Nic> {
        if let Some(nic) = fork::load(&NIC) {
            return Ok(nic);
        }
        fork::whole(|| {
            // Another thread may have been faster.
            if let Some(nic) = fork::load(&NIC) {
                return Ok(nic);
            }
            let nic = Nic::new(Settings::of_process())?;
            biased::permit_early();
            // All that can fail has been done before the adapter exists for ever: its thread waits for it.
            let thread = nic.prepare()?;
            let nic = Box::leak(Box::new(nic));
            if NIC.compare_exchange(std::ptr::null_mut(), nic, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // Another thread made one, without the flag. This adapter has claimed nothing, and its thread ends.
                return fork::load(&NIC).ok_or(Errno::ENODEV);
            }
            if faults::setup().is_ok_and(|told| told.is_some()) {
                exit::watch();
            }
            nic.start(&thread);
            Ok(nic)
        })
    }

    fn new(settings: &'static Settings) -> Result<Nic> {
        let link_layer = view::port::link_layer(settings);
        let gids = [Device::Roce, Device::Iwarp]
            .map(|device| if settings.devices.has(device) { gid_table(device, link_layer) } else { Vec::new() });
        // The engine knows the first device's: a connection of iWARP needs none.
        let table: Vec<Gid> = gids.iter().find(|gids| !gids.is_empty()).into_iter().flatten().map(|g| g.gid).collect();
        let faults = faults::setup()?.and_then(faults::Setup::faults);
        let mut env = WindowEnv::new(window::Config::of(settings))?;
        env.set_local_gids(table.clone());
        let log = settings.log == LogLevel::Errors;
        env.set_diagnostics(log);
        let fds = env.fd_set();
        let taps = taps::Taps::of(settings, &env, faults);
        let tapped = taps.is_some();
        let captures = taps.as_ref().is_some_and(|taps| taps.pcap.is_some());
        let mut engine = engine::Engine::new(taps::Tapped::new(env, taps));
        engine.set_gids(table);
        engine.set_fast_path(!tapped); // taps count each attempt to send
        engine.set_link_layer(link_layer);
        engine.set_diagnostics(log);
        if settings.permit_ptrace {
            view::ptrace::permit();
        }
        if log && let Some(obstacle) = view::ptrace::Obstacle::here() {
            let lifted = obstacle.is_lifted_by_permission() && settings.permit_ptrace;
            if !lifted {
                report::log(format_args!(
                    "large messages go through shared memory, with two copies instead of one: {obstacle}"
                ));
            }
        }
        let wake =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)
                .map_err(errno)?;
        let (monotonic, flags) = (rustix::time::TimerfdClockId::Monotonic, rustix::time::TimerfdFlags::CLOEXEC);
        let timer = rustix::time::timerfd_create(monotonic, flags).map_err(errno)?;
        let has_iwarp = settings.devices.has(Device::Iwarp);
        if has_iwarp {
            let copied = engine.env().taps_streams();
            engine.set_streams_copied(copied);
        }
        let ends = if has_iwarp { Some(Arc::new(streams::Ends::new()?)) } else { None };
        let mut core = Core::new(engine);
        core.ends.clone_from(&ends);
        if tapped {
            core.want_exact_time(); // packets are dated, and delays are counted
        }
        Ok(Nic {
            core: biased::Mutex::new(core),
            wake,
            timer,
            settings,
            link_layer,
            gids,
            guids: [Device::Roce, Device::Iwarp].map(view::hostaddr::guid_of),
            captures,
            alive: AtomicBool::new(true),
            unacked: Mutex::default(),
            acked: Condvar::new(),
            outlived: (Outlived::new(), Outlived::new()),
            fds,
            moved: migrate::Moved::new(settings.migrate),
            doctor: doctor::Doctor::default(),
            attendants: Mutex::default(),
            ends,
        })
    }

    /// False in a forked child for the adapter that it inherited: nothing of it may be used.
    pub fn alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// What the environment asks for.
    pub fn settings(&self) -> &'static Settings {
        self.settings
    }

    /// The link layer of a device's port, and with it its LID. Fixed for the life of the process.
    pub fn link_layer(&self, device: Device) -> LinkLayer {
        if device.is_iwarp() { LinkLayer::Ethernet } else { self.link_layer }
    }

    /// The GID table of a device's port. Fixed for the life of the process.
    pub fn gids(&self, device: Device) -> &[GidEntry] {
        &self.gids[usize::from(device.is_iwarp())]
    }

    /// The descriptors that a forked child closes: sockets whose closing tells a peer that this process is gone.
    pub fn fd_set(&self) -> &Arc<memory::fds::FdSet> {
        &self.fds
    }

    /// The node GUID of a device.
    pub fn guid(&self, device: Device) -> u64 {
        self.guids[usize::from(device.is_iwarp())]
    }

    /// True if packets are captured. Fixed for the life of the process.
    pub fn captures(&self) -> bool {
        self.captures
    }

    /// Capture a management datagram, which is about to be sent by another way than the wire.
    pub fn capture_mad(&self, source: &Gid, dest: &Gid, mad: &[u8; 256]) {
        self.lock().engine.env_mut().managed(source, dest, mad);
    }

    /// Set the function that is told what happens to the device. The NIC thread calls it without a lock.
    pub fn on_incident(&self, attendant: impl Fn(DeviceFault) + Send + 'static) {
        self.attendants.lock().push(Box::new(attendant));
    }

    pub(crate) fn attend(&self, incident: DeviceFault) {
        for attendant in self.attendants.lock().iter() {
            attendant(incident);
        }
    }

    /// Take the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_> {
        Guard::new(self, self.core.lock())
    }
}

fn gid_table(device: Device, link_layer: LinkLayer) -> Vec<GidEntry> {
    let gids = view::port::gids(device, link_layer).into_iter();
    gids.map(|g| GidEntry { gid: g.gid, ifindex: g.ifindex, ifname: g.ifname }).collect()
}

/// The [`Errno`] of a system's error.
pub(crate) fn errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
