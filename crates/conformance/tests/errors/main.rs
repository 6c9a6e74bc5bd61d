//! The error matrix: every error over every path, with the completions of both sides in order, the states of both queue
//! pairs and the asynchronous events.
//!
//! `table` has the expected results, `play` produces the actual ones. `posts`, `under_way`, `lists`, `lost`, `overrun`
//! and `unreliable` are the tests that do not fit into the table: errors of the post itself, regions and peers that
//! vanish, lists of which one request is wrong, completion queues that overrun, send queues that go on after an error.

mod built;
mod fate;
mod faults;
mod lists;
mod lost;
mod overrun;
mod pair;
mod play;
mod posts;
mod side;
mod table;
mod under_way;
mod unreliable;

use std::os::unix::net::UnixStream;

use conformance::{Fixture, Remote, Wire};
/// A path that data take.
struct Path {
    name: &'static str,
    ends: Ends,
    /// The bytes of the message in question.
    len: usize,
    /// True if the data are in the request.
    inline: bool,
    /// True if the SEND in front is complete before the rest is posted. Then a request can be executed without the
    /// target's processor.
    settled: bool,
}

/// The ends of the connection.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ends {
    /// Two processes; whether single copies between them are allowed.
    Processes {
        single_copy: bool,
    },
    Threads,
    /// One queue pair, connected to itself.
    One,
}

const NEAR: Ends = Ends::Processes { single_copy: true };
const APART: Ends = Ends::Processes { single_copy: false };
const SMALL: usize = 64;
const LARGE: usize = 300_000;
/// The number of failures that are reported: waiting for results that do not come takes long.
const ENOUGH: usize = 10;

/// The other processes of these tests.
#[test]
#[ignore = "started by the other tests, as their second process"]
fn remote_side() {
    let Some((part, wire)) = Wire::to_test() else { return };
    play_part(&part, wire);
}

fn play_part(part: &str, wire: Wire) {
    match part {
        "target" => play::serve(&Fixture::open(), wire),
        "lists" => lists::remote(wire),
        "lost" => lost::remote(wire),
        "overrun" => overrun::remote(wire),
        "under way" => under_way::remote(wire),
        "reader" => under_way::reader(wire),
        other => panic!("no such part: {other}"),
    }
}

/// Run a function with a peer that plays a part, in another process or in another thread.
fn with_peer<R>(ends: Ends, part: &'static str, act: impl FnOnce(&mut Wire) -> R) -> R {
    match ends {
        Ends::Processes { single_copy } => {
            let single_copy = if single_copy { "1" } else { "0" };
            let mut remote = Remote::start("remote_side", part, &[("SOFTRNIC_SINGLE_COPY", single_copy)]);
            let result = act(&mut remote.wire);
            assert!(remote.ended_well(), "the part {part}");
            result
        }
        Ends::Threads | Ends::One => {
            let (here, there) = UnixStream::pair().expect("a pair of sockets");
            let thread = std::thread::spawn(move || play_part(part, Wire::new(there)));
            let result = act(&mut Wire::new(here));
            thread.join().expect("the part");
            result
        }
    }
}

/// Run the whole table over one path, at full speed.
fn run(name: &'static str, ends: Ends, len: usize, inline: bool) {
    run_path(Path { name, ends, len, inline, settled: false });
}

/// Run the whole table over one path.
fn run_path(path: Path) {
    let cases = table::cases();
    let numbers = (0..cases.len()).filter(|number| !path.inline || cases[*number].can_be_inline());
    let (mut tried, mut wrong) = (0, Vec::new());
    // The result says whether to go on.
    let mut note = |number: usize, found: Vec<String>| {
        tried += 1;
        wrong.extend(found.iter().map(|what| format!("{}, {}: {what}", path.name, cases[number])));
        wrong.len() < ENOUGH
    };
    let fixture = Fixture::open();
    if path.ends == Ends::One {
        let mut numbers = numbers.filter(|number| play::can_be_alone(&cases[*number], &path));
        numbers.all(|number| note(number, play::alone(&fixture, &cases[number], &path)));
    } else {
        with_peer(path.ends, "target", |wire| {
            let mut numbers = numbers;
            numbers.all(|number| {
                wire.tell(&Some(play::Order { case: number, len: path.len }));
                note(number, play::initiator(&fixture, &cases[number], &path, wire))
            });
            wire.tell(&None::<play::Order>);
        });
    }
    println!("{}: {tried} cases", path.name);
    assert!(wrong.is_empty(), "{} of {tried} cases:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn inline() {
    run("inline through the ring", NEAR, SMALL, true);
}

#[test]
fn small() {
    run("small through the ring", NEAR, SMALL, false);
}

#[test]
fn through_the_window() {
    run("large through the window", APART, LARGE, false);
}

#[test]
fn single_copy() {
    run("large by single copy", NEAR, LARGE, false);
}

#[test]
fn inline_without_the_target() {
    run_path(Path { name: "inline without the target", ends: NEAR, len: SMALL, inline: true, settled: true });
}

#[test]
fn small_without_the_target() {
    run_path(Path { name: "small without the target", ends: NEAR, len: SMALL, inline: false, settled: true });
}

#[test]
fn large_without_the_target() {
    run_path(Path { name: "large without the target", ends: NEAR, len: LARGE, inline: false, settled: true });
}

#[test]
fn inline_in_one_process() {
    run("inline in one process", Ends::Threads, SMALL, true);
}

#[test]
fn small_in_one_process() {
    run("small in one process", Ends::Threads, SMALL, false);
}

#[test]
fn large_in_one_process() {
    run("large in one process", Ends::Threads, LARGE, false);
}

#[test]
fn inline_to_itself() {
    run("inline to itself", Ends::One, SMALL, true);
}

#[test]
fn small_to_itself() {
    run("small to itself", Ends::One, SMALL, false);
}

#[test]
fn large_to_itself() {
    run("large to itself", Ends::One, LARGE, false);
}
