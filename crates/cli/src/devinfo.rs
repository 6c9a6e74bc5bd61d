//! `softrnic devinfo`: the attributes of the device.

use std::process::ExitCode;

use clap::Args;
use rdma::sys;
use report::Settings;
use report::settings::variable;
use view::ptrace::Obstacle;

use crate::fixture::{DeviceOptions, PORT, text};
use crate::out::say;

/// Options of the command.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    device: DeviceOptions,
}

/// Print the attributes.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let (library, device) = options.device.find()?;
    let context = device.open().map_err(text)?;
    let attr = context.query_device().map_err(text)?;
    let port = context.query_port(PORT).map_err(text)?;
    let chars: Vec<u8> = attr.fw_ver.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();

    say!("device          {}", device.name());
    row("library", library.path());
    row("node GUID", view::tree::format_guid(device.guid()));
    row("firmware", String::from_utf8_lossy(&chars));
    row("vendor, part", format_args!("{:#08x}, {:#x}", attr.vendor_id, attr.vendor_part_id));
    row("sysfs", device.sysfs_path());

    say!("\nport {PORT}");
    row("state", port_state(port.state));
    let infiniband = u32::from(port.link_layer) != sys::IBV_LINK_LAYER_ETHERNET;
    row("link layer", if infiniband { "InfiniBand" } else { "Ethernet (RoCE)" });
    if infiniband {
        row("LID", format_args!("{:#x}, its subnet manager {:#x}", port.lid, port.sm_lid));
    }
    row("MTU", format_args!("{} (largest {})", mtu(port.active_mtu), mtu(port.max_mtu)));
    row("speed", speed(port.active_speed, port.active_width));
    row("largest message", bytes(port.max_msg_sz.into()));

    say!("\naddresses (index, GID, type, interface)");
    for gid in context.gids(PORT).map_err(text)? {
        let kind = match gid.kind {
            Some(0) => "IB",
            Some(1) => "RoCE v1",
            Some(2) => "RoCE v2",
            _ => "?",
        };
        let ifname = interface(gid.ifindex).unwrap_or_default();
        say!("  {:<3} {}  {kind}  {ifname:<8} {}", gid.index, gid.gid, gid.gid.ip());
    }

    say!("\nlimits");
    row("queue pairs", attr.max_qp);
    row("requests", format_args!("{} a queue, {} entries each", attr.max_qp_wr, attr.max_sge));
    row("CQs", format_args!("{} of {} entries", attr.max_cq, attr.max_cqe));
    row("SRQs", format_args!("{} of {} requests", attr.max_srq, attr.max_srq_wr));
    row("regions", format_args!("{}, domains {}, windows {}", attr.max_mr, attr.max_pd, attr.max_mw));
    row("READs, atomics", format_args!("{} outstanding a queue pair", attr.max_qp_rd_atom));
    row("atomics", ["none", "within the device", "with the CPU, too"].get(attr.atomic_cap as usize).unwrap_or(&"?"));
    row("multicast", format_args!("{} groups of {}", attr.max_mcast_grp, attr.max_mcast_qp_attach));
    let can: Vec<&str> =
        CAPABILITIES.iter().filter(|(bit, _)| attr.device_cap_flags & bit != 0).map(|(_, name)| *name).collect();
    row("can", can.join(", "));

    say!("\ndata between processes of this machine");
    say!("  small and medium messages go through shared memory.");
    say!("  large ones {}", single_copy());
    Ok(ExitCode::SUCCESS)
}

const CAPABILITIES: [(u32, &str); 7] = [
    (sys::IBV_DEVICE_XRC, "XRC"),
    (sys::IBV_DEVICE_MEM_WINDOW, "memory windows"),
    (sys::IBV_DEVICE_MEM_WINDOW_TYPE_2A, "type 2A windows"),
    (sys::IBV_DEVICE_MEM_WINDOW_TYPE_2B, "type 2B windows"),
    (sys::IBV_DEVICE_MEM_MGT_EXTENSIONS, "SEND with invalidate, local invalidate"),
    (sys::IBV_DEVICE_SRQ_RESIZE, "SRQ resize"),
    (sys::IBV_DEVICE_RC_RNR_NAK_GEN, "RNR NAK"),
];

fn row(name: &str, value: impl std::fmt::Display) {
    say!("  {name:<15} {value}");
}

fn port_state(state: u32) -> &'static str {
    match state {
        1 => "down",
        2 => "init",
        3 => "armed",
        4 => "active",
        5 => "active, deferred",
        _ => "unknown",
    }
}

/// The bytes of an `enum ibv_mtu`.
fn mtu(mtu: u32) -> u32 {
    128u32.checked_shl(mtu).unwrap_or(0)
}

/// The speed as text: Gb/s of a lane, by `active_speed` (IBTA vol. 1, table 146), times lanes, by `active_width`.
fn speed(speed: u8, width: u8) -> String {
    let lane = match speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        _ => return "unknown".into(),
    };
    let lanes = match width {
        1 => 1.0,
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => return "unknown".into(),
    };
    format!("{} Gb/s nominal", lane * lanes)
}

fn bytes(n: u64) -> String {
    match n {
        n if n >= 1 << 30 && n % (1 << 30) == 0 => format!("{} GiB", n >> 30),
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n => format!("{n} bytes"),
    }
}

/// The name of a network interface.
fn interface(index: u32) -> Option<String> {
    view::hostaddr::gids().into_iter().find(|gid| gid.ifindex == index).map(|gid| gid.ifname)
}

/// A line about copies of large messages out of and into other processes, and about their cost if there are none.
fn single_copy() -> String {
    const COST: &str = "go through shared memory, too, with two copies instead of one";
    let settings = Settings::of_process();
    if settings.single_copy == Some(false) {
        return format!("{COST}: {} is 0.", variable::SINGLE_COPY);
    }
    match Obstacle::here() {
        None => {
            "go directly from process to process, in one copy, or through shared memory where that is quicker.".into()
        }
        Some(obstacle) if obstacle.is_lifted_by_permission() && settings.permit_ptrace => {
            format!(
                "go directly from process to process, in one copy, where both have set {}.",
                variable::PERMIT_PTRACE
            )
        }
        Some(obstacle) => format!("{COST}: {obstacle}."),
    }
}
