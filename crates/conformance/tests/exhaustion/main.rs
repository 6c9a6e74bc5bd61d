//! Processes that lack a resource: descriptors, memory, room for files, system calls. Every verb that cannot do its
//! work returns an errno, and logs a line on standard error when SOFTRNIC_LOG asks for it. Connections that cannot be
//! made end in RETRY_EXC_ERR. No process crashes or hangs, and nothing is lost. Connections from before go on. When
//! there is enough again, everything works.
//!
//! Each case is a process of its own, with two peers: this test, which it is connected to before the resource is
//! lacking (or not at all), and a friend, to which it connects when the resource is lacking.

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
    /// True if it is connected to the test before the resource is lacking.
    connected: bool,
    /// True if the friend begins to connect; otherwise the process does.
    passive: bool,
}

/// A request of a process under test to the test.
#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// Tell the friend this place, and return the friend's place.
    Meet(Place),
    /// Have the friend play its part: wait for the message and answer (true), or nothing any more.
    Friend(bool),
    /// Exchange a message in each direction with the test.
    Old,
    /// The end.
    Report(Report),
}

/// The report of a process under test.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    /// How far it got while the resource was lacking.
    lacking: Attempt,
    /// The verbs that refused to make an object beside the connection that was there, and their errnos.
    refused: Vec<(String, i32)>,
    /// The number of descriptors lost by attempts.
    lost: i64,
    /// How far it got when there was enough again; `None`: the lack could not be lifted.
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

/// The outcome of a case.
struct Outcome {
    report: Report,
    /// Its standard error.
    said: String,
}

/// Run one case.
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

/// Check the outcome of a case.
fn judge(case: &Case, outcome: &Outcome, errnos: &[i32]) -> Result<(), String> {
    let Outcome { report, said } = outcome;
    let mut seen: BTreeSet<i32> = report.refused.iter().map(|(_, errno)| *errno).collect();
    match &report.lacking {
        Attempt::Refused(_, errno) => drop(seen.insert(*errno)),
        // Its peer would not know it from a dead one.
        Attempt::Failed(status) if status == "IBV_WC_RETRY_EXC_ERR" => {}
        Attempt::Failed(status) => return Err(format!("the message: {status}")),
        Attempt::Done => {}
    }
    if let Some(errno) = seen.iter().find(|errno| !errnos.contains(errno)) {
        return Err(format!("{}", std::io::Error::from_raw_os_error(*errno)));
    }
    // Only the library's calls count, not what the test itself needs.
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

/// The C library's text of an errno, without Rust's number behind it.
fn text(errno: i32) -> String {
    let all = std::io::Error::from_raw_os_error(errno).to_string();
    all.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Run cases; print a line for each of them, and fail at the end if one did.
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
            // The C library ends a process that cannot register a thread's destructors, or has no memory for the
            // thread's own variables of a library that was opened; the library under test cannot prevent that.
            Err(error)
                if ["Fatal glibc error", "cannot allocate memory for thread-local data"]
                    .iter()
                    .any(|words| error.contains(words)) =>
            {
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
