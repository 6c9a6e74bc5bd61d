//! The error matrix: every error over every path, with the completions of both sides in order, the states of both queue
//! pairs and the asynchronous events.
//!
//! `table` says what must happen, `play` makes it happen. `unreliable`, `posts`, `lost` and `overrun` are what does not fit into the
//! table: other services, errors of the post itself, peers that vanish, completion queues that overrun.

mod fate;
mod faults;
mod lost;
mod overrun;
mod pair;
mod play;
mod posts;
mod side;
mod table;
mod unreliable;

use std::os::unix::net::UnixStream;

use conformance::{Bed, Far, Wire};
/// A way that data take.
struct Path {
    name: &'static str,
    ends: Ends,
    /// Bytes of the message in question.
    len: usize,
    /// The data are in the request.
    inline: bool,
}

/// Who is connected to whom.
#[derive(Clone, Copy, PartialEq)]
enum Ends {
    /// Two processes; whether straight copies between them are allowed.
    Processes {
        straight: bool,
    },
    Threads,
    /// One queue pair, connected to itself.
    One,
}

const NEAR: Ends = Ends::Processes { straight: true };
const APART: Ends = Ends::Processes { straight: false };
const SMALL: usize = 64;
const LARGE: usize = 300_000;

/// The other processes of these tests.
#[test]
#[ignore = "started by the other tests, as their second process"]
fn far_side() {
    let Some((part, wire)) = Wire::to_test() else { return };
    match part.as_str() {
        "target" => play::serve(&Bed::open(), wire),
        "lost" => lost::far(wire),
        other => panic!("no such part: {other}"),
    }
}

/// Runs the whole table over one path.
fn run(name: &'static str, ends: Ends, len: usize, inline: bool) {
    let path = Path { name, ends, len, inline };
    let cases = table::cases();
    let numbers = (0..cases.len()).filter(|number| !path.inline || cases[*number].can_be_inline());
    let (mut tried, mut wrong) = (0, Vec::new());
    let mut note = |number: usize, found: Vec<String>| {
        tried += 1;
        wrong.extend(found.iter().map(|what| format!("{}, {}: {what}", path.name, cases[number])));
    };
    let bed = Bed::open();
    let mut serving = None;
    let (mut far, mut near);
    let wire = match path.ends {
        Ends::One => {
            for number in numbers.filter(|number| play::can_be_alone(&cases[*number], &path)) {
                note(number, play::alone(&bed, &cases[number], &path));
            }
            println!("{}: {tried} cases", path.name);
            assert!(wrong.is_empty(), "{} of {tried} cases:\n{}", wrong.len(), wrong.join("\n"));
            return;
        }
        Ends::Processes { straight } => {
            let straight = if straight { "1" } else { "0" };
            far = Far::start("far_side", "target", &[("SOFTRNIC_STRAIGHT", straight)]);
            &mut far.wire
        }
        Ends::Threads => {
            let (here, there) = UnixStream::pair().expect("a pair of sockets");
            serving = Some(std::thread::spawn(|| play::serve(&Bed::open(), Wire::new(there))));
            near = Wire::new(here);
            &mut near
        }
    };
    for number in numbers {
        wire.tell(&Some(play::Order { case: number, len: path.len }));
        note(number, play::initiator(&bed, &cases[number], &path, wire));
    }
    wire.tell(&None::<play::Order>);
    if let Some(thread) = serving {
        thread.join().expect("the target");
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
fn straight() {
    run("large straight", NEAR, LARGE, false);
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
