//! The environment variables that the library obeys. No other file of a library crate reads the environment
//! (`xtask/src/environment.rs` holds them to it), and this one reads it once.
//!
//! The roots ask [`Settings::of_process`]: exported functions, the adapter, the connection manager, the view. What they
//! make gets the values, or the whole [`Settings`], as arguments. A value that makes no sense counts as not set, except
//! where the field says otherwise.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The names of the variables that begin with `SOFTRNIC_`.
pub mod variable {
    /// [`Settings::log`](super::Settings::log).
    pub const LOG: &str = "SOFTRNIC_LOG";
    /// [`Settings::any_user`](super::Settings::any_user).
    pub const PEERS: &str = "SOFTRNIC_PEERS";
    /// [`Settings::single_copy`](super::Settings::single_copy).
    pub const SINGLE_COPY: &str = "SOFTRNIC_SINGLE_COPY";
    /// [`Settings::single_copy_above`](super::Settings::single_copy_above).
    pub const SINGLE_COPY_ABOVE: &str = "SOFTRNIC_SINGLE_COPY_ABOVE";
    /// [`Settings::migrate`](super::Settings::migrate).
    pub const MIGRATE: &str = "SOFTRNIC_MIGRATE";
    /// [`Settings::signal`](super::Settings::signal).
    pub const SIGNAL: &str = "SOFTRNIC_SIGNAL";
    /// [`Settings::fault`](super::Settings::fault).
    pub const FAULT: &str = "SOFTRNIC_FAULT";
    /// [`Settings::infiniband`](super::Settings::infiniband).
    pub const LINK_LAYER: &str = "SOFTRNIC_LINK_LAYER";
    /// [`Settings::devices`](super::Settings::devices).
    pub const DEVICE: &str = "SOFTRNIC_DEVICE";
    /// [`Settings::mpa_crc`](super::Settings::mpa_crc).
    pub const MPA_CRC: &str = "SOFTRNIC_MPA_CRC";
    /// [`Settings::mpa_fpdu`](super::Settings::mpa_fpdu).
    pub const MPA_FPDU: &str = "SOFTRNIC_MPA_FPDU";
    /// [`Settings::tcp_timeout`](super::Settings::tcp_timeout).
    pub const TCP_TIMEOUT: &str = "SOFTRNIC_TCP_TIMEOUT";
    /// [`Settings::pcap`](super::Settings::pcap).
    pub const PCAP: &str = "SOFTRNIC_PCAP";
    /// [`Settings::pcap_snaplen`](super::Settings::pcap_snaplen).
    pub const PCAP_SNAPLEN: &str = "SOFTRNIC_PCAP_SNAPLEN";
    /// [`Settings::permit_ptrace`](super::Settings::permit_ptrace).
    pub const PERMIT_PTRACE: &str = "SOFTRNIC_PERMIT_PTRACE";
    /// [`Settings::view`](super::Settings::view).
    pub const VIEW: &str = "SOFTRNIC_VIEW";
    /// [`Settings::with_hardware`](super::Settings::with_hardware).
    pub const WITH_HARDWARE: &str = "SOFTRNIC_WITH_HARDWARE";
}

/// The value of [`variable::LINK_LAYER`] for InfiniBand.
pub const INFINIBAND: &str = "infiniband";

/// The value of [`variable::DEVICE`] for iWARP.
pub const IWARP: &str = "iwarp";

/// The value of [`variable::DEVICE`] for both devices.
pub const ALL_DEVICES: &str = "all";

/// A device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// softrnic0, whose peers are processes of this host.
    #[default]
    Roce,
    /// softiw0, whose connections are TCP connections.
    Iwarp,
}

impl Device {
    /// Its name, as in `/sys/class/infiniband`.
    pub const fn name(self) -> &'static str {
        match self {
            Device::Roce => "softrnic0",
            Device::Iwarp => "softiw0",
        }
    }

    /// True for [`Device::Iwarp`].
    pub const fn is_iwarp(self) -> bool {
        matches!(self, Device::Iwarp)
    }
}

/// The devices that programs see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// softrnic0.
    #[default]
    Roce,
    /// softiw0.
    Iwarp,
    /// softrnic0 and softiw0.
    All,
}

impl Devices {
    /// The devices, in the order in which they are listed.
    pub const fn list(self) -> &'static [Device] {
        match self {
            Devices::Roce => &[Device::Roce],
            Devices::Iwarp => &[Device::Iwarp],
            Devices::All => &[Device::Roce, Device::Iwarp],
        }
    }

    /// The first device: that of ids with an address of this host and no peer yet.
    pub const fn first(self) -> Device {
        match self {
            Devices::Roce | Devices::All => Device::Roce,
            Devices::Iwarp => Device::Iwarp,
        }
    }

    /// Their names, for people.
    pub fn names(self) -> String {
        let names: Vec<&str> = self.list().iter().map(|device| device.name()).collect();
        names.join(" and ")
    }

    /// True if a device is one of them.
    pub fn has(self, device: Device) -> bool {
        self.list().contains(&device)
    }

    /// The devices that a value of [`variable::DEVICE`] asks for.
    pub fn of_text(text: Option<&str>) -> Self {
        match text {
            Some(IWARP) => Devices::Iwarp,
            Some(ALL_DEVICES) => Devices::All,
            _ => Devices::Roce,
        }
    }
}

/// Sizes of FPDUs that can be asked for: the shortest has the 128 bytes that every MULPDU has (RFC 5044, section 3.2),
/// with length, padding and CRC.
pub const FPDUS: std::ops::RangeInclusive<u16> = 136..=u16::MAX;

/// Which lines the library writes on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// None of what programs can go on without.
    Off,
    /// What keeps programs from each other, once of each kind.
    #[default]
    Obstacles,
    /// Also which request failed and which rule it broke.
    Errors,
}

/// What the environment asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `SOFTRNIC_LOG`: `0` and `off` are [`LogLevel::Off`], any other text but the empty one is [`LogLevel::Errors`].
    /// Default: [`LogLevel::Obstacles`].
    pub log: LogLevel,
    /// `SOFTRNIC_PEERS`: processes of any user may connect if it is `any`. Default: those of this process's user only.
    pub any_user: bool,
    /// `SOFTRNIC_SINGLE_COPY`: `0` forbids copies between processes, `1` asks for them wherever the kernel permits
    /// them. Default, `None`: they are made where they are quicker.
    pub single_copy: Option<bool>,
    /// `SOFTRNIC_SINGLE_COPY_ABOVE`: a number of bytes; longer messages go by single copy, whatever is quicker.
    /// Default: `None`.
    pub single_copy_above: Option<u32>,
    /// `SOFTRNIC_MIGRATE`: registered memory moves to where peers map it if this is `1`. Default: it stays.
    pub migrate: bool,
    /// `SOFTRNIC_SIGNAL`: SIGUSR1 is left alone if this is `0`. Default: it prints a report where it would end the
    /// process.
    pub signal: bool,
    /// `SOFTRNIC_FAULT`: a specification of faults; the device cannot be opened if it is none (`taps::fault::spec` has
    /// its grammar). Default, and for the empty text: `None`.
    pub fault: Option<String>,
    /// `SOFTRNIC_LINK_LAYER`: the port's link layer is InfiniBand if this is [`INFINIBAND`]. Default: Ethernet.
    pub infiniband: bool,
    /// `SOFTRNIC_DEVICE`: the device is softiw0 if this is [`IWARP`], and both are there if it is [`ALL_DEVICES`].
    /// Default: softrnic0.
    pub devices: Devices,
    /// `SOFTRNIC_MPA_CRC`: softiw0 does not ask for CRCs if this is `0`; they are used all the same if the peer asks
    /// (RFC 5044, section 7.1.1). Default: it asks.
    pub mpa_crc: bool,
    /// `SOFTRNIC_MPA_FPDU`: bytes of the longest FPDU that softiw0 sends, [`FPDUS`]. Default, `None`: the longest that
    /// there are, which cost fewer calls than those of a TCP segment.
    pub mpa_fpdu: Option<u16>,
    /// `SOFTRNIC_TCP_TIMEOUT`: seconds, 1 to 86400, after which a connection of softiw0 ends whose peer acknowledges
    /// nothing, or whose window stays closed while data wait. Default, `None`: TCP's own times, as Linux's siw has
    /// them.
    pub tcp_timeout: Option<u32>,
    /// `SOFTRNIC_PCAP`: the file to which every packet is written. Default, and for the empty path: `None`.
    pub pcap: Option<PathBuf>,
    /// `SOFTRNIC_PCAP_SNAPLEN`: bytes kept of each packet, 0 for all. An error, in words for the user, if it is text
    /// and no number: then nothing is captured. Default: 0.
    pub pcap_snaplen: Result<u32, String>,
    /// `SOFTRNIC_PERMIT_PTRACE`: every process of this user may trace this one if this is anything but empty and `0`.
    /// Default: no.
    pub permit_ptrace: bool,
    /// `SOFTRNIC_VIEW`: the directory that stands for `/sys/class/infiniband` and its like. Default: `None`; whether
    /// it can be used is found out where it is used.
    pub view: Option<PathBuf>,
    /// `SOFTRNIC_WITH_HARDWARE`: programs see the host's adapters, too, if this is anything but empty and `0`.
    /// Default: no.
    pub with_hardware: bool,
    /// `XDG_RUNTIME_DIR` (XDG Base Directory Specification), if it is an absolute path, as that demands.
    pub runtime_dir: Option<PathBuf>,
    /// `TMPDIR` (POSIX, XBD 8.3), if it is an absolute path.
    pub temporary_dir: Option<PathBuf>,
    /// `SYSFS_PATH`, which rdma-core's `ibv_get_sysfs_path` obeys. Default, and for the empty path: `None`.
    pub sysfs: Option<OsString>,
}

impl Default for Settings {
    /// The settings of an environment without any of these variables.
    fn default() -> Self {
        Self::from_lookup(|_| None)
    }
}

impl Settings {
    /// The settings of this process, read at the first call. None of the variables has a value in a program that runs
    /// with more rights than its caller (setuid, setgid, file capabilities; getauxval(3), AT_SECURE): the caller
    /// chooses such a program's environment, and would choose the files that it writes.
    pub fn of_process() -> &'static Settings {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        if let Some(settings) = SETTINGS.get() {
            return settings;
        }
        // Read outside of the initialization: a child that is forked in the middle of one would wait for it for ever.
        let read = if is_privileged() { Settings::default() } else { Self::from_lookup(|name| std::env::var_os(name)) };
        SETTINGS.get_or_init(|| read)
    }

    /// The settings of an environment in which `get` finds the values of variables.
    pub fn from_lookup(get: impl Fn(&str) -> Option<OsString>) -> Self {
        let text = |name| get(name)?.into_string().ok();
        let is = |name, wanted: &str| get(name).is_some_and(|value| value == wanted);
        let is_on = |name| get(name).is_some_and(|value| !value.is_empty() && value != "0");
        let not_empty = |name| get(name).filter(|value| !value.is_empty());
        let absolute = |name| get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Settings {
            log: match text(variable::LOG).as_deref() {
                None | Some("") => LogLevel::Obstacles,
                Some("0" | "off") => LogLevel::Off,
                Some(_) => LogLevel::Errors,
            },
            any_user: is(variable::PEERS, "any"),
            single_copy: match text(variable::SINGLE_COPY).as_deref() {
                Some("0") => Some(false),
                Some("1") => Some(true),
                _ => None,
            },
            single_copy_above: text(variable::SINGLE_COPY_ABOVE).and_then(|bytes| bytes.trim().parse().ok()),
            migrate: is(variable::MIGRATE, "1"),
            signal: !is(variable::SIGNAL, "0"),
            fault: text(variable::FAULT).filter(|spec| !spec.is_empty()),
            infiniband: is(variable::LINK_LAYER, INFINIBAND),
            mpa_crc: !is(variable::MPA_CRC, "0"),
            mpa_fpdu: text(variable::MPA_FPDU)
                .and_then(|bytes| bytes.trim().parse().ok())
                .filter(|n| FPDUS.contains(n)),
            tcp_timeout: text(variable::TCP_TIMEOUT)
                .and_then(|seconds| seconds.trim().parse().ok())
                .filter(|seconds| (1..=86_400).contains(seconds)),
            devices: Devices::of_text(text(variable::DEVICE).as_deref()),
            pcap: not_empty(variable::PCAP).map(PathBuf::from),
            pcap_snaplen: text(variable::PCAP_SNAPLEN).map_or(Ok(0), |text| {
                text.trim().parse().map_err(|_| format!("{}={text} is not a number of bytes", variable::PCAP_SNAPLEN))
            }),
            permit_ptrace: is_on(variable::PERMIT_PTRACE),
            view: get(variable::VIEW).map(PathBuf::from),
            with_hardware: is_on(variable::WITH_HARDWARE),
            runtime_dir: absolute("XDG_RUNTIME_DIR"),
            temporary_dir: absolute("TMPDIR"),
            sysfs: not_empty("SYSFS_PATH"),
        }
    }
}

/// True if this process's settings ask for diagnostics on standard error ([`LogLevel::Errors`]).
pub fn logs() -> bool {
    Settings::of_process().log == LogLevel::Errors
}

#[allow(unsafe_code)]
fn is_privileged() -> bool {
    // Miri has no auxiliary vector.
    // SAFETY: getauxval only looks into the vector that the kernel gave the process, and takes any number.
    !cfg!(miri) && unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
