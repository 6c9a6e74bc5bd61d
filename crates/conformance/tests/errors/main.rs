//! The error matrix: every error over every path, with the completions of both sides in order, the states of both queue
//! pairs and the asynchronous events.
//!
//! `table` says what must happen, `play` makes it happen. `unreliable`, `posts`, `lost` and `overrun` are what does not fit into the
//! table: other services, errors of the post itself, peers that vanish, completion queues that overrun.

mod lost;
mod overrun;
mod pair;
mod play;
mod posts;
mod table;
mod unreliable;
mod windows;

use std::os::unix::net::UnixStream;

use conformance::{Bed, Far, Wire};
use play::Path;

/// The ways that data take.
const PATHS: &[Path] = &[
    Path { name: "inline through the ring", far: true, straight: true, len: 64, inline: true },
    Path { name: "small through the ring", far: true, straight: true, len: 64, inline: false },
    Path { name: "large through the window", far: true, straight: false, len: 300_000, inline: false },
    Path { name: "large straight", far: true, straight: true, len: 300_000, inline: false },
    Path { name: "small in one process", far: false, straight: true, len: 64, inline: false },
    Path { name: "large in one process", far: false, straight: true, len: 300_000, inline: false },
];

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
fn run(path: &Path) {
    let bed = Bed::open();
    let mut thread = None;
    let (mut far, mut wire);
    let wire = if path.far {
        let straight = if path.straight { "1" } else { "0" };
        far = Far::start("far_side", "target", &[("SOFTRNIC_STRAIGHT", straight)]);
        &mut far.wire
    } else {
        let (here, there) = UnixStream::pair().expect("a pair of sockets");
        thread = Some(std::thread::spawn(|| play::serve(&Bed::open(), Wire::new(there))));
        wire = Wire::new(here);
        &mut wire
    };
    let (mut tried, mut wrong) = (0, Vec::new());
    for (number, case) in table::cases().iter().enumerate() {
        if path.inline && !case.can_be_inline() {
            continue;
        }
        wire.tell(&Some(play::Order { case: number, len: path.len }));
        tried += 1;
        for what in play::initiator(&bed, case, path, wire) {
            wrong.push(format!("{}, {case}: {what}", path.name));
        }
    }
    wire.tell(&None::<play::Order>);
    if let Some(thread) = thread {
        thread.join().expect("the target");
    }
    println!("{}: {tried} cases", path.name);
    assert!(wrong.is_empty(), "{} of {tried} cases:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn inline() {
    run(&PATHS[0]);
}

#[test]
fn small() {
    run(&PATHS[1]);
}

#[test]
fn through_the_window() {
    run(&PATHS[2]);
}

#[test]
fn straight() {
    run(&PATHS[3]);
}

#[test]
fn small_in_one_process() {
    run(&PATHS[4]);
}

#[test]
fn large_in_one_process() {
    run(&PATHS[5]);
}
