//! The arrows between the crates: the dependencies that each may have. They are declared here and nowhere else, and
//! compared with those that cargo sees.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Every crate of the workspace and the crates of the workspace that it may name, from the bottom to the top. Arrows
/// point upwards in this list only, so there can be no cycle.
#[rustfmt::skip]
const ARROWS: &[(&str, &[&str])] = &[
    // The vocabulary: it knows no other crate.
    ("softrnic-verbs",  &[]),
    // Timing two methods by turns: arithmetic, nothing else.
    ("softrnic-trial",  &[]),
    // Packets, links and the environment of an engine; headers as they are on a wire.
    ("softrnic-wire",   &["softrnic-verbs"]),
    // The protocols of iWARP: bytes and time in, bytes and placements out.
    ("softrnic-iwarp",  &["softrnic-verbs", "softrnic-wire"]),
    // Direct data placement on TCP sockets, for programs without verbs.
    ("softrnic-ddp",    &["softrnic-verbs", "softrnic-wire", "softrnic-iwarp"]),
    // Reports of an adapter, and their explanation.
    ("softrnic-report", &["softrnic-verbs"]),
    // The C structures of verbs.h, for both sides of the ABI.
    ("softrnic-sys",    &[]),
    // The semantics: no socket, no thread, no clock.
    ("softrnic-engine", &["softrnic-verbs", "softrnic-trial", "softrnic-wire", "softrnic-iwarp", "softrnic-report"]),
    // All unsafe access to memory, for the engine's environment.
    ("softrnic-memory", &["softrnic-verbs", "softrnic-trial", "softrnic-wire"]),
    // Asking other processes for their reports.
    ("softrnic-ask",    &["softrnic-report", "softrnic-memory"]),
    // Connections of TCP programs on shared memory, and the rules that select them: no system call.
    ("softrnic-sock",   &["softrnic-verbs", "softrnic-memory"]),
    // The library that is preloaded into such programs.
    ("softrnic-sock-preload", &["softrnic-verbs", "softrnic-memory", "softrnic-sock"]),
    // Middleware on the message path: taps and faults, for every wire.
    ("softrnic-taps",   &["softrnic-verbs", "softrnic-wire", "softrnic-report"]),
    // The wire between processes of one host.
    ("softrnic-window", &["softrnic-verbs", "softrnic-wire", "softrnic-report", "softrnic-memory", "softrnic-taps"]),
    // The host as a device shows it: GIDs, GUID, sysfs.
    ("softrnic-view",   &["softrnic-verbs", "softrnic-report"]),
    // The answers to programs that ask NETLINK_RDMA.
    ("softrnic-netlink", &["softrnic-verbs", "softrnic-report", "softrnic-ask", "softrnic-view"]),
    // Device, contexts, events, progress.
    ("softrnic-nic",    &["softrnic-verbs", "softrnic-wire", "softrnic-iwarp", "softrnic-report", "softrnic-engine", "softrnic-memory", "softrnic-window", "softrnic-taps", "softrnic-view"]),
    // The connection manager: ids, ports, handshakes.
    ("softrnic-cm",     &["softrnic-verbs", "softrnic-wire", "softrnic-iwarp", "softrnic-report", "softrnic-memory", "softrnic-nic"]),
    // The answers to programs that look at /sys and /dev, and at NETLINK_RDMA.
    ("softrnic-hooks",  &["softrnic-sys", "softrnic-view", "softrnic-netlink"]),
    // Safe verbs over the C ABI: the same code on this device and on an adapter.
    ("softrnic-rdma",   &["softrnic-verbs", "softrnic-sys"]),
    // Extended sockets: their protocol, and sockets on verbs.
    ("softrnic-exs",    &["softrnic-memory", "softrnic-rdma"]),
    // Group operations along a chain of replicas, on verbs and managed queues.
    ("softrnic-group",  &["softrnic-rdma"]),
    // What the C libraries above verbs share: errno, forks, memory of the program.
    ("softrnic-cabi",   &["softrnic-verbs"]),
    // The C ABI of extended sockets, thin: libexs.so.
    ("softrnic-exs-abi", &["softrnic-rdma", "softrnic-exs", "softrnic-cabi"]),
    // The C ABI of group operations, thin: libhyperclient.so.
    ("softrnic-group-abi", &["softrnic-rdma", "softrnic-group", "softrnic-cabi"]),
    // The C ABI of direct data placement, thin: libsoftrnic-ddp.so.
    ("softrnic-ddp-abi", &["softrnic-verbs", "softrnic-ddp", "softrnic-cabi"]),
    // The library: the C ABI, thin.
    ("softrnic-abi",    &["softrnic-verbs", "softrnic-report", "softrnic-sys", "softrnic-engine", "softrnic-nic", "softrnic-cm", "softrnic-view", "softrnic-netlink", "softrnic-hooks"]),
    // The libraries that stand in for libibverbs and librdmacm, as files: they know nothing of this device but its
    // symbols.
    ("softrnic-dropin", &[]),
    // The limits of the machine itself: code that knew the device would measure no limit.
    ("softrnic-limits", &[]),
    // The program.
    ("softrnic-cli",    &["softrnic-verbs", "softrnic-report", "softrnic-ask", "softrnic-rdma", "softrnic-group", "softrnic-sys", "softrnic-view", "softrnic-taps", "softrnic-dropin", "softrnic-limits", "softrnic-sock", "softrnic-exs"]),
    // Tests of the library through its C ABI.
    ("softrnic-conformance", &["softrnic-verbs", "softrnic-rdma"]),
    // Development commands, which use no other crate.
    ("xtask",           &[]),
];

/// Development dependencies that may point elsewhere: tests may use crates below.
const TEST_ARROWS: &[(&str, &[&str])] = &[
    // A test that forges messages and windows takes their formats from where they are defined.
    ("softrnic-conformance", &["softrnic-memory", "softrnic-window", "softrnic-exs", "softrnic-group"]),
];

/// True if arrows lead from the first crate to the second one, those of tests included.
#[cfg(test)]
pub fn reaches(from: &str, to: &str) -> bool {
    let uses = ARROWS.iter().chain(TEST_ARROWS).filter(|(name, _)| *name == from).flat_map(|(_, uses)| *uses);
    from == to || uses.into_iter().any(|used| reaches(used, to))
}

/// # Errors
/// Every undeclared arrow and every undeclared crate, one per line.
pub fn check() -> Result<(), String> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(crate::root())
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !out.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&out.stderr)));
    }
    let metadata = serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let problems = problems(&metadata);
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

fn problems(metadata: &Value) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let tests: BTreeMap<&str, &[&str]> = TEST_ARROWS.iter().copied().collect();
    let mut problems = Vec::new();
    let mut below = BTreeSet::new();
    for (name, uses) in ARROWS {
        for used in uses.iter().filter(|used| !below.contains(*used)) {
            problems.push(format!("the table itself: {name} -> {used} points up"));
        }
        below.insert(*name);
    }
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let names: BTreeSet<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(allowed) = allowed.get(name) else {
            problems.push(format!("{name} is not declared"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().unwrap_or_default();
            let for_tests = dependency["kind"] == "dev" && tests.get(name).is_some_and(|t| t.contains(&to));
            // A crate may name itself in tests, and a crate outside the workspace makes no arrow.
            if names.contains(to) && to != name && !allowed.contains(&to) && !for_tests {
                problems.push(format!("{name} -> {to} is not declared"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_obeys_the_table() {
        check().unwrap_or_else(|e| panic!("{e}"));
    }

    #[test]
    fn arrows_lead_on() {
        assert!(reaches("softrnic-cm", "softrnic-window") && reaches("softrnic-conformance", "softrnic-window"));
        assert!(!reaches("softrnic-taps", "softrnic-window"));
    }

    #[test]
    fn an_undeclared_arrow_is_found() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "softrnic-verbs", "dependencies": [{ "name": "softrnic-nic", "kind": null }] },
            { "name": "softrnic-nic", "dependencies": [{ "name": "libc", "kind": null }] },
            { "name": "stranger", "dependencies": [] },
        ]});
        assert_eq!(problems(&metadata), ["softrnic-verbs -> softrnic-nic is not declared", "stranger is not declared"]);
    }
}
