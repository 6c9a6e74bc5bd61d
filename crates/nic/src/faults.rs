//! Deliberate faults (`SOFTRNIC_FAULT`): the rules of the process, and what becomes of the device.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use ::verbs::{Errno, EventKind, EventSource, Result};
pub use taps::fault::calls::CALLS;
use taps::fault::calls::{CallFaults, Fails, Failure};
use taps::fault::spec::{DeviceFault, Spec};
use taps::fault::{Faults, Order, errno_name, tell_on_stderr};

use crate::core::Core;
use crate::now;

/// The rules of the process.
pub struct Setup {
    text: String,
    spec: Spec,
    seed: u64,
    calls: CallFaults,
    started: u64,
    removed: AtomicBool,
    port_down: AtomicBool,
}

static SETUP: OnceLock<Result<Option<Setup>>> = OnceLock::new();

/// The rules of the process; `None`: there are none. The specification is read at the first call.
///
/// # Errors
/// EINVAL: the specification has an error. The first call says on stderr which.
pub fn setup() -> Result<Option<&'static Setup>> {
    // Read outside of the initialization: a child that is forked in the middle of one would wait for it for ever.
    let setup = SETUP.get().unwrap_or_else(|| {
        let read = read();
        SETUP.get_or_init(|| read)
    });
    match setup {
        Ok(setup) => Ok(setup.as_ref()),
        Err(errno) => Err(*errno),
    }
}

fn read() -> Result<Option<Setup>> {
    let Some(text) = &report::Settings::of_process().fault else { return Ok(None) };
    let spec: Spec = text.parse().map_err(|error| {
        tell_on_stderr(&format!("{}: {error}", report::settings::variable::FAULT));
        Errno::EINVAL
    })?;
    let seed = spec.seed.unwrap_or_else(random);
    let again = if spec.seed.is_none() { format!("; seed={seed} repeats them") } else { String::new() };
    tell_on_stderr(&format!("faults: {text}{again}"));
    Ok(Some(Setup {
        text: format!("{text}; seed {seed}"),
        calls: CallFaults::new(&spec, seed),
        spec,
        seed,
        started: now(),
        removed: AtomicBool::new(false),
        port_down: AtomicBool::new(false),
    }))
}

/// A seed of few digits, because a user is to type it.
fn random() -> u64 {
    let mut bytes = [0u8; 4];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(4) => u32::from_ne_bytes(bytes).into(),
        _ => now() & 0xffff_ffff,
    }
}

impl Setup {
    /// The faults of packets and of the device, for a new device.
    pub(crate) fn faults(&self) -> Option<Faults> {
        Faults::new(&self.spec, self.seed, now, tell_on_stderr)
    }

    /// True if a rule may make this function fail.
    pub fn watches(&self, name: &str) -> bool {
        self.calls.watches(name)
    }

    /// The error with which this call is to fail, if it is. A failure is logged on stderr.
    pub fn call(&self, name: &str) -> Option<Errno> {
        let failure = self.calls.call(name, now().saturating_sub(self.started))?;
        let errno = failure.errno();
        if let Failure::Struck(n, _) = failure {
            tell_on_stderr(&format!("fault errno (seed {}), {n}: {name}: {}", self.seed, errno_name(errno)));
        }
        Some(errno)
    }
}

/// The functions that can fail deliberately.
pub fn calls() -> &'static [(&'static str, Fails)] {
    CALLS
}

/// True once the device was removed.
pub fn is_removed() -> bool {
    current().is_some_and(|setup| setup.removed.load(Ordering::Relaxed))
}

/// True while the port is down.
pub fn port_is_down() -> bool {
    current().is_some_and(|setup| setup.port_down.load(Ordering::Relaxed))
}

/// Count calls anew, in a forked child. Async-signal-safe.
pub(crate) fn begin_anew() {
    if let Some(setup) = current() {
        setup.calls.begin_anew();
    }
}

/// Log the calls that were to fail and have not.
pub(crate) fn sum_up() {
    if let Some(setup) = current() {
        setup.calls.sum_up(tell_on_stderr);
    }
}

/// The specification and the seed.
pub(crate) fn told() -> Option<String> {
    current().map(|setup| setup.text.clone())
}

fn current() -> Option<&'static Setup> {
    SETUP.get()?.as_ref().ok()?.as_ref()
}

impl Core {
    /// Carry out the orders of faults.
    #[cold]
    pub(crate) fn obey(&mut self) {
        const PORT: EventSource = EventSource::Port(1);
        let now = self.time();
        for order in self.engine.env_mut().take_orders() {
            match order {
                Order::FailQp(qpn) => self.engine.fail_qp(qpn, now),
                Order::FailQps => self.engine.fail_qps(true, now),
                Order::Device(fault) => {
                    match fault {
                        DeviceFault::Fatal | DeviceFault::Removal => {
                            if let Some(setup) = current() {
                                setup.calls.break_device();
                                setup.removed.fetch_or(fault == DeviceFault::Removal, Ordering::Relaxed);
                            }
                            self.engine.fail_qps(false, now);
                            self.engine.tell_all(EventKind::DeviceFatal, EventSource::Device);
                        }
                        DeviceFault::PortDown => self.port(true),
                        DeviceFault::GidChange => self.engine.tell_all(EventKind::GidChange, PORT),
                        DeviceFault::AddrChange => {}
                    }
                    self.incidents.push(fault);
                }
                Order::PortUp => self.port(false),
            }
        }
    }

    fn port(&mut self, down: bool) {
        if let Some(setup) = current() {
            setup.port_down.store(down, Ordering::Relaxed);
        }
        let kind = if down { EventKind::PortErr } else { EventKind::PortActive };
        self.engine.tell_all(kind, EventSource::Port(1));
    }

    /// The next deadline of the engine, of a fault, or of a TCP connection.
    pub(crate) fn next_deadline(&mut self) -> Option<u64> {
        let at = match (self.engine.next_deadline(), self.engine.env().tap_deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if self.streams.is_empty() {
            return at;
        }
        let streams = Some(self.streams.deadline()).filter(|at| *at != u64::MAX);
        at.into_iter().chain(streams).min()
    }
}
