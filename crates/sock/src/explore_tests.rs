//! The search through all states of the model, and what must hold in each of them.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::*;

/// Whether two steps of one end may be done at one time: senders exclude each other, and so do receivers.
fn may_overlap(one: Step, other: Step) -> bool {
    let kind = |step: Step| match step {
        Step::Send(_) | Step::Serve | Step::SendByTcp | Step::Shut => 1,
        Step::Receive(_) | Step::Look(_) | Step::GoOnPlainly | Step::Ready => 2,
        _ => 3,
    };
    kind(one) != kind(other) || kind(one) == 3
}

/// What happens in the middle of steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    Deaths,
    DeathsAndSteps,
}

struct Explorer {
    seen: HashSet<u128>,
    next: VecDeque<State>,
    steps: u64,
    depth: Depth,
}

fn fingerprint(state: &State) -> u128 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let hash = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        state.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    hash(1) << 64 | hash(2)
}

impl Explorer {
    /// Does a step, and gives the number of its points.
    fn step(&mut self, from: &State, side: usize, step: Step, middle: Option<Middle>) -> u32 {
        let world = World::new(from);
        world.middle.set(middle);
        self.steps += 1;
        let done = catch_unwind(AssertUnwindSafe(|| world.whole(side, step)));
        if let Err(why) = done {
            if !why.is::<Died>() {
                eprintln!("{from:?}\n{side} {step:?} {middle:?}");
                resume_unwind(why);
            }
            world.aside(|| world.lose_holder(side));
        }
        let points = world.points.get();
        if let Some(wrong) = world.wrong.borrow().as_ref() {
            panic!("{wrong}: end {side} does {step:?}, in the middle {middle:?}, from {from:#?}");
        }
        let state = world.state();
        if self.seen.insert(fingerprint(&state)) {
            finish(&state);
            self.next.push_back(state);
        }
        points
    }

    fn all_from(&mut self, from: &State) {
        let world = World::new(from);
        let steps = |side: usize| STEPS.into_iter().chain([Step::Deliver]).map(move |step| (side, step));
        let possible: Vec<(usize, Step)> =
            steps(0).chain(steps(1)).filter(|(side, step)| world.aside(|| world.may(*side, *step))).collect();
        for &(side, step) in &possible {
            let points = self.step(from, side, step, None);
            if matches!(step, Step::Die | Step::Deliver) {
                continue;
            }
            for at in 0..points {
                self.step(from, side, step, Some(Middle { at, what: None }));
                if self.depth == Depth::DeathsAndSteps {
                    for (who, other) in steps(0).chain(steps(1)) {
                        let is_other = who != side || other == Step::Deliver;
                        let has_other = from.programs[side].holders > 1 && may_overlap(step, other);
                        if is_other || has_other && other != Step::Die {
                            self.step(from, side, step, Some(Middle { at, what: Some((who, other)) }));
                        }
                    }
                }
            }
        }
    }
}

/// Everybody who lives goes on: all that was sent arrives, and so does the end of what has ended.
fn finish(state: &State) {
    let world = World::new(state);
    let mut before = None;
    while before.as_ref() != Some(&world.state()) {
        before = Some(world.state());
        for side in [0, 1] {
            for step in [Step::Deliver, Step::Serve, Step::Receive(3)] {
                world.whole(side, step);
            }
        }
    }
    if let Some(wrong) = world.wrong.borrow().as_ref() {
        panic!("{wrong}: in the end, from {state:#?}");
    }
    let last = world.state();
    for side in [0, 1] {
        let (own, other) = (&last.programs[side], &last.programs[1 - side]);
        if own.holders > 0 {
            let has_ended = other.is_shut || other.holders == 0;
            assert_eq!(own.is_over, has_ended, "end {side} is told the end, or not, from {state:#?} to {last:#?}");
            let is_all = own.got + own.maybe_got >= other.sent;
            assert!(is_all || other.holders == 0, "end {side} does not get all, from {state:#?} to {last:#?}");
        }
    }
}

/// Every state that a connection can reach whose ends have so many holders, and send at most so many bytes.
fn explore(holders: [u8; 2], lengths: [u8; 2], depth: Depth) {
    let program = |holders| Program { holders, ..Program::default() };
    let first = State {
        words: Default::default(),
        rings: [[0; ROOM]; 2],
        owns: [[0; 6]; 2],
        pipes: Default::default(),
        programs: holders.map(program),
        lengths,
    };
    let (seen, next) = (HashSet::from([fingerprint(&first)]), VecDeque::from([first]));
    let mut explorer = Explorer { seen, next, steps: 0, depth };
    while let Some(state) = explorer.next.pop_back() {
        explorer.all_from(&state);
    }
    let (states, steps) = (explorer.seen.len(), explorer.steps);
    println!("counted: {states} states of a connection of {lengths:?} bytes and {holders:?} holders, {steps} steps");
}

/// Two ends, and either of them with two holders.
const HOLDERS: [[u8; 2]; 3] = [[1, 1], [2, 1], [1, 2]];

#[test]
fn every_state_of_a_connection_keeps_its_bytes() {
    explore([1, 1], [1, 0], Depth::DeathsAndSteps);
    for holders in HOLDERS {
        explore(holders, [1, 0], Depth::Deaths);
    }
}

#[test]
#[ignore = "minutes"]
fn every_state_of_a_longer_connection_keeps_its_bytes() {
    for holders in HOLDERS {
        explore(holders, [3, 0], Depth::DeathsAndSteps);
        explore(holders, [1, 1], Depth::Deaths);
    }
}
