//! The port as one of InfiniBand: programs address by LIDs, as they do when no option gives them a GID. qperf's tests
//! are in the suite `programs`.

use std::time::Duration;

use crate::Options;
use crate::report::Suite;

use super::pair::{Order, Pair};
use super::programs::{Record, run_client_servers};
use super::{DEVICE, GID, Mode, check_one, pairs, perftest, pingpong, rdmacm, record};

/// `cargo xtask infiniband`.
pub fn infiniband(suite: &mut Suite, options: &Options) {
    let Some(sandbox) = Mode::InfiniBand.sandbox(suite) else {
        return;
    };
    check_one(suite, &sandbox, "ibv_devinfo", &["-v"], |out| {
        let missing = [DEVICE, "InfiniBand", "GID[  0]", "fe80:"].into_iter().find(|want| !out.contains(want));
        let no_lid = out.lines().any(|line| line.contains("port_lid") && line.split_whitespace().last() == Some("0"));
        match missing {
            Some(want) => (false, format!("the output has no `{want}`")),
            None => (!no_lid, "the port has no LID".to_owned()),
        }
    });
    let port = format!("/sys/class/infiniband/{DEVICE}/ports/1");
    let files = ["link_layer", "lid", "gid_attrs/types/0"].map(|file| format!("{port}/{file}"));
    let done = sandbox.program("cat", "cat", &files).run(Duration::from_secs(20));
    record(suite, "sysfs", done, |out| {
        let lines: Vec<&str> = out.lines().collect();
        let right = matches!(lines[..], ["InfiniBand", lid, "IB/RoCE v1"] if lid.starts_with("0x") && lid != "0x0");
        (right, format!("sysfs says {lines:?}"))
    });
    let done = sandbox.softrnic("selftest", &["selftest", "--quick"]).run(Duration::from_secs(300));
    record(suite, "softrnic selftest --quick (InfiniBand)", done, |_| (true, String::new()));
    pairs(suite, options, Mode::InfiniBand, cases());
    // docs/conformance.md has the outcomes of these programs with the other link layer.
    run_client_servers(suite, options, &sandbox, &mut Record::default(), rdmacm::some());
}

fn cases() -> Vec<Pair> {
    let mut cases = Vec::new();
    for program in ["rc", "uc", "ud", "srq", "xsrq"] {
        let name = format!("ibv_{program}_pingpong");
        let check = if program == "xsrq" { "" } else { "-c" };
        cases.push(pingpong::one(&name, &format!("-n 200 {check}"), Order::ServerFirst));
        cases.push(pingpong::one(&name, &format!("-n 200 -e {check}"), Order::ClientFirst));
    }
    cases.extend(perftest::transports("-n 500"));
    cases.extend(perftest::some(&["send_lat"], "-n 500"));
    for case in &mut cases {
        without_gid(&mut case.args);
    }
    // With a GRH as well as the LID.
    for program in ["rc", "ud"] {
        cases.push(pingpong::one(&format!("ibv_{program}_pingpong"), "-n 200 -c -s 1024", Order::ServerFirst));
    }
    cases
}

/// Remove `-g 0` or `-x 0`.
fn without_gid(args: &mut Vec<String>) {
    if let Some(at) = args.windows(2).position(|pair| ["-g", "-x"].contains(&pair[0].as_str()) && pair[1] == GID) {
        args.drain(at..at + 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_most_give_no_gid() {
        let cases = cases();
        let global = cases.iter().filter(|case| case.args.iter().any(|arg| arg == "-g" || arg == "-x")).count();
        assert_eq!(global, 2);
        let mut names: Vec<String> = cases.into_iter().map(|case| case.name).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
