//! The view: a small directory tree that looks to a program as sysfs and `/dev/infiniband` do on a host with one
//! adapter, or two.
//!
//! The view is made of plain files, so a program that opens them (the user's own, `cat`, `find`, a shell's redirection)
//! needs nothing but the path; the crate `hooks` replaces the path. Names and formats are those of
//! `Documentation/ABI/stable/sysfs-class-infiniband` in Linux.

use std::path::Path;

use report::{Device, Devices, Settings};
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io;

use verbs::{Gid, LinkLayer};

use crate::hostaddr::{self, HostGid};
use crate::port;

/// Firmware version: the version of this software.
pub const FW_VER: &str = env!("CARGO_PKG_VERSION");
/// Identifier of the board.
pub const BOARD_ID: &str = "softrnic";
/// `ibv_port_attr.active_speed`: EDR, 25 Gb/s a lane.
pub const ACTIVE_SPEED: u8 = 32;
/// `ibv_port_attr.active_width`: four lanes.
pub const ACTIVE_WIDTH: u8 = 2;
/// That speed and width as sysfs has them.
const RATE: &str = "100 Gb/sec (4X EDR)";
/// `IB_USER_VERBS_ABI_VERSION` of Linux.
pub const UVERBS_ABI: u32 = 6;
/// Major number of uverbs devices.
pub const UVERBS_MAJOR: u32 = 231;
/// Minor number of the first of them.
pub const UVERBS_MINOR: u32 = 192;

/// The target of an attribute of an empty GID entry. Linux shows a file for every index and fails the read with EINVAL
/// (`_show_port_gid_attr` in drivers/infiniband/core/sysfs.c). A plain file cannot do that, but this one does: nsfs has
/// no read, and every process may open its own.
const UNREADABLE: &str = "/proc/self/ns/net";

/// Port counters that monitoring programs read; they stay 0, because nothing in a file can count.
const COUNTERS: [&str; 21] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
];

/// Counters of the adapter, named as Linux's own software adapters name them.
const HW_COUNTERS: [&str; 8] = [
    "duplicate_request",
    "lifespan",
    "out_of_seq_request",
    "rcvd_pkts",
    "rcvd_seq_err",
    "retry_exceeded_err",
    "send_err",
    "sent_pkts",
];

/// The facts about a device that the view shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ViewInfo {
    /// The device.
    pub device: Device,
    /// The number of this software's devices in front of it.
    pub place: u32,
    /// The node GUID: the number whose big-endian bytes it is.
    pub guid: u64,
    /// The port's link layer.
    pub link_layer: LinkLayer,
    /// The port's GID table.
    pub gids: Vec<HostGid>,
    /// The network interfaces that the device serves.
    pub interfaces: Vec<String>,
    /// The host's name, part of the node description.
    pub hostname: String,
    /// `/sys/devices/system/cpu/online`: the CPUs that are near to the device.
    pub cpus: String,
    /// Real adapters, listed beside this device; empty hides them.
    pub hardware: Hardware,
}

/// The names of the host's real adapters, by directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hardware {
    /// The names in `/sys/class/infiniband`.
    pub devices: Vec<String>,
    /// The names in `/sys/class/infiniband_verbs`.
    pub verbs: Vec<String>,
    /// The names in `/sys/class/infiniband_mad`.
    pub mad: Vec<String>,
    /// The names in `/dev/infiniband`.
    pub nodes: Vec<String>,
}

impl Hardware {
    /// Read the four directories; those that do not exist count as empty. This uses system calls directly, so that no
    /// hook answers instead of the kernel.
    pub fn probe() -> Self {
        Hardware {
            devices: names(Path::new("/sys/class/infiniband")),
            verbs: names(Path::new("/sys/class/infiniband_verbs")),
            mad: names(Path::new("/sys/class/infiniband_mad")),
            nodes: names(Path::new("/dev/infiniband")),
        }
    }
}

impl ViewInfo {
    /// The facts of this host and of the settings (`SOFTRNIC_DEVICE`, `SOFTRNIC_LINK_LAYER`,
    /// `SOFTRNIC_WITH_HARDWARE`), device by device.
    pub fn probe(settings: &Settings) -> Vec<Self> {
        Self::of(settings.devices, port::link_layer(settings), settings.with_hardware)
    }

    /// The facts of this host for these devices. softrnic0's port has this link layer. The host's adapters are beside
    /// them, or not.
    pub fn of(devices: Devices, link_layer: LinkLayer, with_hardware: bool) -> Vec<Self> {
        let line = |path: &str| read_line(Path::new(path));
        let hardware = if with_hardware { Hardware::probe() } else { Hardware::default() };
        let first = ViewInfo {
            device: devices.first(),
            place: 0,
            guid: hostaddr::guid_of(devices.first()),
            link_layer,
            gids: Vec::new(),
            interfaces: hostaddr::interfaces_with_address(),
            hostname: line("/proc/sys/kernel/hostname").unwrap_or_default(),
            cpus: line("/sys/devices/system/cpu/online").unwrap_or_else(|| "0".into()),
            hardware,
        };
        let one = |(place, device): (u32, Device)| {
            let link_layer = if device.is_iwarp() { LinkLayer::Ethernet } else { link_layer };
            let (guid, gids) = (hostaddr::guid_of(device), port::gids(device, link_layer));
            ViewInfo { device, place, guid, link_layer, gids, ..first.clone() }
        };
        (0..).zip(devices.list().iter().copied()).map(one).collect()
    }

    /// The number N of `uverbsN` that this device has: 0, or the first that no listed adapter has, nor a device in
    /// front of this one.
    pub fn uverbs_index(&self) -> u32 {
        let taken = |n: u32| {
            let name = format!("uverbs{n}");
            self.hardware.verbs.contains(&name) || self.hardware.nodes.contains(&name)
        };
        (0..).filter(|n| !taken(*n)).nth(self.place as usize).expect("a free number")
    }
}

/// One entry of the tree; its parents come before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The path, relative to the tree's root.
    pub path: String,
    /// The kind of entry.
    pub kind: Kind,
}

/// A kind of entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A directory.
    Dir,
    /// A file with this text, ended by a newline as in sysfs.
    File(String),
    /// A symbolic link.
    Link(String),
}

#[derive(Default)]
struct Builder(Vec<Entry>);

impl Builder {
    fn dir(&mut self, path: &str) {
        self.0.push(Entry { path: path.into(), kind: Kind::Dir });
    }
    fn file(&mut self, path: &str, text: impl std::fmt::Display) {
        self.0.push(Entry { path: path.into(), kind: Kind::File(format!("{text}\n")) });
    }
    fn link(&mut self, path: &str, target: &str) {
        self.0.push(Entry { path: path.into(), kind: Kind::Link(target.into()) });
    }
}

/// The entries of the whole tree.
pub fn entries(infos: &[ViewInfo]) -> Vec<Entry> {
    let mut b = Builder::default();
    let none = Hardware::default();
    let hardware = infos.first().map_or(&none, |info| &info.hardware);
    b.file(crate::TSAN_FILE, crate::TSAN_SUPPRESSIONS.to_string_lossy().trim_end());
    b.dir("class");
    b.dir("class/infiniband");
    let is_ours = |name: &String| infos.iter().any(|info| name == info.device.name());
    for name in hardware.devices.iter().filter(|name| !is_ours(name)) {
        b.link(&format!("class/infiniband/{name}"), &format!("/sys/class/infiniband/{name}"));
    }
    for info in infos {
        adapter(&mut b, info);
    }
    character_devices(&mut b, infos, hardware);
    b.0
}

/// The files of an adapter.
fn adapter(b: &mut Builder, info: &ViewInfo) {
    let name = info.device.name();
    let dev = format!("class/infiniband/{name}");
    let guid = format_guid(info.guid);
    b.dir(&dev);
    for (name, text) in [
        ("node_type", if info.device.is_iwarp() { "4: RNIC" } else { "1: CA" }),
        ("node_guid", &guid),
        ("sys_image_guid", &guid),
        ("fw_ver", FW_VER),
        ("hca_type", BOARD_ID),
        ("hw_rev", "0x0"),
        ("board_id", BOARD_ID),
        ("node_desc", format!("{} {name}", info.hostname).trim_start()),
    ] {
        b.file(&format!("{dev}/{name}"), text);
    }
    device(b, &format!("{dev}/device"), info);
    b.dir(&format!("{dev}/ports"));
    port(b, &format!("{dev}/ports/1"), info);
}

/// The files of an adapter's PCI device. There is no `modalias`, so that no driver claims it.
fn device(b: &mut Builder, at: &str, info: &ViewInfo) {
    b.dir(at);
    b.dir(&format!("{at}/net"));
    for ifname in &info.interfaces {
        b.link(&format!("{at}/net/{ifname}"), &format!("/sys/class/net/{ifname}"));
    }
    b.dir(&format!("{at}/infiniband"));
    b.dir(&format!("{at}/infiniband/{}", info.device.name()));
    b.file(&format!("{at}/numa_node"), "-1");
    b.file(&format!("{at}/local_cpus"), cpu_mask(&info.cpus));
    b.file(&format!("{at}/local_cpulist"), &info.cpus);
    b.file(&format!("{at}/vendor"), format_args!("{:#06x}", verbs::limits::VENDOR_ID));
    b.file(&format!("{at}/device"), format_args!("{:#06x}", verbs::limits::VENDOR_PART_ID));
}

fn port(b: &mut Builder, at: &str, info: &ViewInfo) {
    let infiniband = info.link_layer.is_infiniband();
    let (lid, sm_lid) = (format!("{:#x}", info.link_layer.lid()), if infiniband { port::SM_LID } else { 0 });
    b.dir(at);
    for (name, text) in [
        ("state", "4: ACTIVE"),
        ("phys_state", "5: LinkUp"),
        ("rate", RATE),
        ("link_layer", if infiniband { "InfiniBand" } else { "Ethernet" }),
        ("lid", &lid),
        ("lid_mask_count", "0"),
        ("sm_lid", &format!("{sm_lid:#x}")),
        ("sm_sl", "0"),
        // CM, and on Ethernet IP-based GIDs
        ("cap_mask", if infiniband { "0x00010000" } else { "0x04010000" }),
    ] {
        b.file(&format!("{at}/{name}"), text);
    }
    for dir in ["gids", "gid_attrs", "gid_attrs/types", "gid_attrs/ndevs", "pkeys", "counters", "hw_counters"] {
        b.dir(&format!("{at}/{dir}"));
    }
    for (n, entry) in info.gids.iter().enumerate() {
        b.file(&format!("{at}/gids/{n}"), entry.gid);
        // GIDs of InfiniBand and iWARP share a name with RoCE's first ones (ib_cache_gid_type_str in Linux).
        let is_roce = !infiniband && !info.device.is_iwarp();
        b.file(&format!("{at}/gid_attrs/types/{n}"), if is_roce { "RoCE v2" } else { "IB/RoCE v1" });
        let ndev = format!("{at}/gid_attrs/ndevs/{n}");
        match entry.ifname.is_empty() {
            true => b.link(&ndev, UNREADABLE),
            false => b.file(&ndev, &entry.ifname),
        }
    }
    // Empty entries have a zero GID, and attributes that cannot be read.
    for n in info.gids.len()..port::table_len(info.device, info.gids.len()) {
        b.file(&format!("{at}/gids/{n}"), Gid::ZERO);
        b.link(&format!("{at}/gid_attrs/types/{n}"), UNREADABLE);
        b.link(&format!("{at}/gid_attrs/ndevs/{n}"), UNREADABLE);
    }
    for n in 0..verbs::limits::PKEYS {
        b.file(&format!("{at}/pkeys/{n}"), format_args!("{:#06x}", verbs::limits::DEFAULT_PKEY));
    }
    for name in COUNTERS {
        b.file(&format!("{at}/counters/{name}"), "0");
    }
    for name in HW_COUNTERS {
        b.file(&format!("{at}/hw_counters/{name}"), if name == "lifespan" { "10" } else { "0" });
    }
}

/// `infiniband_verbs`, `infiniband_mad` and the nodes in `/dev`.
fn character_devices(b: &mut Builder, infos: &[ViewInfo], hardware: &Hardware) {
    b.dir("class/infiniband_verbs");
    b.file("class/infiniband_verbs/abi_version", UVERBS_ABI);
    for name in hardware.verbs.iter().filter(|name| *name != "abi_version") {
        b.link(&format!("class/infiniband_verbs/{name}"), &format!("/sys/class/infiniband_verbs/{name}"));
    }
    for info in infos {
        let n = info.uverbs_index();
        let at = format!("class/infiniband_verbs/uverbs{n}");
        b.dir(&at);
        b.file(&format!("{at}/ibdev"), info.device.name());
        b.file(&format!("{at}/dev"), format_args!("{UVERBS_MAJOR}:{}", UVERBS_MINOR + n));
        b.file(&format!("{at}/abi_version"), 1);
        b.link(&format!("{at}/device"), &format!("../../infiniband/{}/device", info.device.name()));
    }
    // There are no management datagrams here; the directory shows that, and hides the host's.
    b.dir("class/infiniband_mad");
    b.file("class/infiniband_mad/abi_version", 5);
    for name in hardware.mad.iter().filter(|name| *name != "abi_version") {
        b.link(&format!("class/infiniband_mad/{name}"), &format!("/sys/class/infiniband_mad/{name}"));
    }
    b.dir("dev");
    b.dir("dev/infiniband");
    for name in &hardware.nodes {
        b.link(&format!("dev/infiniband/{name}"), &format!("/dev/infiniband/{name}"));
    }
    // Programs check that the nodes are character devices that they may open (UCX does); no program reads or writes
    // them.
    let mut nodes: Vec<String> = infos.iter().map(|info| format!("uverbs{}", info.uverbs_index())).collect();
    nodes.push("rdma_cm".to_owned());
    for name in nodes.iter().filter(|name| !hardware.nodes.contains(name)) {
        b.link(&format!("dev/infiniband/{name}"), "/dev/null");
    }
}

/// A name for this content: equal trees have equal names.
pub fn content_hash(entries: &[Entry]) -> u64 {
    let mut text = String::new();
    for entry in entries {
        // `Debug` quotes, so no two different lists give the same text.
        text.push_str(&format!("{:?} {:?}\n", entry.path, entry.kind));
    }
    hostaddr::fnv1a(text.as_bytes())
}

/// Write the tree into the empty directory `root`. Modes are set regardless of the umask: the owner can read and write
/// files (a program opens its device node for both), and enter directories.
pub fn write(root: &Path, entries: &[Entry]) -> std::io::Result<()> {
    for Entry { path, kind } in entries {
        let path = root.join(path);
        match kind {
            Kind::Dir => {
                fs::mkdir(&path, Mode::RWXU)?;
                fs::chmod(&path, Mode::RWXU)?;
            }
            Kind::File(text) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let file = fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
                fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
                let mut left = text.as_bytes();
                while !left.is_empty() {
                    left = &left[io::write(&file, left)?..];
                }
            }
            Kind::Link(target) => fs::symlink(target.as_str(), &path)?,
        }
    }
    Ok(())
}

/// True if every entry is there: a cleaner of `/tmp` may have taken some away.
pub fn is_complete(root: &Path, entries: &[Entry]) -> bool {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = fs::open(root, how, Mode::empty()) else { return false };
    entries.iter().all(|entry| {
        fs::statat(&dir, entry.path.as_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| match &entry.kind {
            Kind::File(text) => stat.st_size as usize == text.len(),
            Kind::Dir | Kind::Link(_) => true,
        })
    })
}

/// A GUID in the format of sysfs: four groups of four hexadecimal digits.
pub fn format_guid(guid: u64) -> String {
    let [a, b, c, d, e, f, g, h] = guid.to_be_bytes();
    format!("{a:02x}{b:02x}:{c:02x}{d:02x}:{e:02x}{f:02x}:{g:02x}{h:02x}")
}

/// The mask (comma-separated groups of 32 bits, highest first) of a list such as `0-3,8`.
fn cpu_mask(list: &str) -> String {
    let mut groups: Vec<u32> = vec![0];
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
        for cpu in first..=last.min(first.saturating_add(1 << 16)) {
            if groups.len() <= cpu / 32 {
                groups.resize(cpu / 32 + 1, 0);
            }
            groups[cpu / 32] |= 1 << (cpu % 32);
        }
    }
    let mut text = format!("{:x}", groups.pop().expect("at least one group"));
    while let Some(group) = groups.pop() {
        text.push_str(&format!(",{group:08x}"));
    }
    text
}

/// The first line of a small file, by system calls.
fn read_line(path: &Path) -> Option<String> {
    let file = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buf = [0u8; 4096];
    let len = io::read(&file, &mut buf).ok()?;
    let text = String::from_utf8_lossy(&buf[..len]);
    text.lines().next().map(str::to_owned)
}

/// Sorted names in a directory, by system calls; empty if it cannot be read.
fn names(path: &Path) -> Vec<String> {
    let Ok(fd) = fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else {
        return Vec::new();
    };
    let mut buf = Vec::with_capacity(8192);
    let mut dir = fs::RawDir::new(fd, buf.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(Ok(entry)) = dir.next() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    names.sort();
    names
}

#[cfg(test)]
#[path = "tree_tests.rs"]
pub(crate) mod tests;
