//! What a process lacks: descriptors, memory, room for files, system calls. Every verb that cannot do its work says so
//! with an errno, and with a line on standard error when SOFTRNIC_LOG asks for it; connections that cannot be made end
//! in RETRY_EXC_ERR; nothing crashes, hangs or is lost; what was connected before goes on; and when there is enough
//! again, everything works.
//!
//! Each case is a process of its own, with two peers: this test, which it is connected to before anything lacks (or not
//! at all), and a friend, to whom it connects when something does.

mod attempt;
mod child;
mod friend;
mod lack;
mod table;

use std::collections::BTreeSet;

use conformance::side::{self, Place, RECV, Side};
use conformance::{Fixture, Remote, Wire};
use serde::{Deserialize, Serialize};

use attempt::Attempt;
use friend::Friend;
use lack::Lack;

/// One case.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Case {
    lack: Lack,
    /// It is connected to the test before it lacks something.
    connected: bool,
    /// The friend begins to connect; otherwise the process does.
    passive: bool,
}

/// What a process under test asks of the test.
#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// To tell the friend where it is; it wants to know where the friend is.
    Meet(Place),
    /// The friend's part of the message: to wait for it and to answer (true), or nothing any more.
    Friend(bool),
    /// A message in each direction with the test.
    Old,
    /// The end.
    Report(Report),
}

/// What a process under test has found.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    /// How far it got in need.
    lacking: Attempt,
    /// The verbs that refused to make something beside the connection that was there, and their errnos.
    refused: Vec<(String, i32)>,
    /// Descriptors lost by tries.
    lost: i64,
    /// How far it got when there was enough again; `None`: what was forbidden stays so.
    enough: Option<Attempt>,
}

/// The other processes of these tests.
#[test]
#[ignore = "started by the other tests, as their second process"]
fn remote_side() {
    let Some((part, wire)) = Wire::to_test() else { return };
    match part.as_str() {
        "friend" => friend::remote(wire),
        case => child::run(wire, &serde_json::from_str(case).expect("a case")),
    }
}

/// What a case came to.
struct Outcome {
    report: Report,
    /// What it said on standard error.
    said: String,
}

/// Runs one case.
fn run(case: &Case, friend: &mut Friend) -> Result<Outcome, String> {
    let part = serde_json::to_string(case).expect("plain data");
    let mut remote = Remote::start_heard("remote_side", &part, &[("SOFTRNIC_LOG", "error"), ("RUST_BACKTRACE", "0")]);
    let fixture = Fixture::open();
    let mut old = None;
    if case.connected {
        let side = Side::new(&fixture);
        let peer: Place = remote.wire.exchange(&side::place(&fixture, &side.qp));
        side::up(&side.qp, &peer);
        old = Some((side, peer));
    }
    let report = loop {
        match remote.wire.try_hear::<Ask>() {
            Some(Ask::Report(report)) => break report,
            Some(Ask::Meet(place)) => remote.wire.tell(&friend.meet(&place, case.passive)),
            Some(Ask::Friend(on)) => remote.wire.tell(&friend.play(on)),
            Some(Ask::Old) => {
                let Some((side, peer)) = &old else { return Err("there is no old connection".into()) };
                side::recv(&side.qp, RECV, &[side.mr.sge(side::LEN, side::LEN)]);
                let () = remote.wire.exchange(&());
                side.message(peer.qpn);
                let () = remote.wire.exchange(&());
            }
            None => return Err(format!("it died: {}", remote.errors())),
        }
    };
    remote.wire.tell(&());
    let well = remote.ended_well();
    let said = remote.errors();
    if well { Ok(Outcome { report, said }) } else { Err(format!("{report:?}; it did not end well: {said}")) }
}

/// Looks at what a case came to.
fn judge(case: &Case, outcome: &Outcome, errnos: &[i32]) -> Result<(), String> {
    let Outcome { report, said } = outcome;
    let mut seen: BTreeSet<i32> = report.refused.iter().map(|(_, errno)| *errno).collect();
    match &report.lacking {
        Attempt::Refused(_, errno) => drop(seen.insert(*errno)),
        // Its peer would not know from a dead one.
        Attempt::Failed(status) if status == "IBV_WC_RETRY_EXC_ERR" => {}
        Attempt::Failed(status) => return Err(format!("the message: {status}")),
        Attempt::Done => {}
    }
    if let Some(errno) = seen.iter().find(|errno| !errnos.contains(errno)) {
        return Err(format!("{}", std::io::Error::from_raw_os_error(*errno)));
    }
    // Not what the test itself needs.
    let verb = |call: &str| call.contains("ibv_");
    let lacked = match &report.lacking {
        Attempt::Done => false,
        Attempt::Refused(call, _) => verb(call),
        Attempt::Failed(_) => true,
    };
    if (lacked || report.refused.iter().any(|(call, _)| verb(call)))
        && !case.passive
        && !errnos.iter().any(|errno| said.contains(&text(*errno)))
    {
        return Err(format!("no line on standard error: {said:?}"));
    }
    if report.lost != 0 {
        return Err(format!("{} descriptors lost", report.lost));
    }
    match &report.enough {
        None | Some(Attempt::Done) => Ok(()),
        Some(attempt) => Err(format!("with enough again: {attempt:?}")),
    }
}

/// As the C library says it, without Rust's number behind it.
fn text(errno: i32) -> String {
    let all = std::io::Error::from_raw_os_error(errno).to_string();
    all.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Runs cases; prints a line for each of them, and fails at the end if one did.
fn all(cases: impl IntoIterator<Item = (Case, &'static [i32])>) -> Vec<Report> {
    let mut friend = Friend::start();
    let mut wrong = Vec::new();
    let mut reports = Vec::new();
    for (case, errnos) in cases {
        let Case { lack, connected, passive } = case;
        let name = format!(
            "{lack}{}{}",
            if connected { ", connected before" } else { "" },
            if passive { ", passive" } else { "" }
        );
        match run(&case, &mut friend) {
            Ok(outcome) => {
                let Report { lacking, refused, .. } = &outcome.report;
                let refused: Vec<String> =
                    refused.iter().map(|(verb, errno)| format!("{verb}: {}", text(*errno))).collect();
                println!("{name}: {lacking}; {}", if refused.is_empty() { "-".into() } else { refused.join(", ") });
                if let Err(error) = judge(&case, &outcome, errnos) {
                    wrong.push(format!("{name}: {error}"));
                }
                reports.push(outcome.report);
            }
            // The C library ends a process that cannot make a note of a thread's destructors. That is beyond us.
            Err(error) if error.contains("Fatal glibc error") => {
                println!("{name}: {error}");
                friend = Friend::start();
            }
            Err(error) => {
                println!("{name}: {error}");
                wrong.push(format!("{name}: {error}"));
                friend = Friend::start(); // it may be in the middle of something
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    reports
}
