//! The watch over a peer that says nothing while this end waits for it.
//!
//! Everything that the peer sends is a sign that its library runs. After half of the timeout without one, this end asks
//! (PING), and the library of the peer answers (PONG), whatever its program does. Without a sign until the timeout the
//! peer is taken for stopped. An acknowledgement of the wire is no such sign: an adapter gives it for a process that is
//! stopped.
//!
//! Time comes in as an argument, in pieces: the caller counts a piece that was longer than it should be as one piece.
//! So an end that was stopped itself does not take its peer for stopped.

use std::time::Duration;

use super::table::Reset;

/// What an end has to do at a piece of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beat {
    Nothing,
    /// Send PING.
    Ask,
    /// The peer has not answered.
    Stopped,
}

/// The watch of one end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Pulse {
    /// The peer has sent something since the last piece of time.
    heard: bool,
    /// Something waited for the peer at the last piece of time.
    waited: bool,
    /// PING is sent, and PONG has not come.
    asked: bool,
    /// Time without a sign.
    silent: Duration,
}

impl Pulse {
    /// The peer has sent something.
    pub fn hear(&mut self) {
        self.heard = true;
    }

    /// Ask now. False: PONG for another PING has not come, and the peer takes one at a time.
    pub fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// PONG has come. An error: nothing was asked.
    pub fn answered(&mut self) -> Result<(), Reset> {
        if std::mem::take(&mut self.asked) { Ok(()) } else { Err(Reset::Protocol) }
    }

    /// A piece of time has passed. `waits`: this end waits for the peer.
    pub fn tick(&mut self, passed: Duration, timeout: Duration, waits: bool) -> Beat {
        let waited = std::mem::replace(&mut self.waited, waits);
        if std::mem::take(&mut self.heard) || !waits || !waited {
            self.silent = Duration::ZERO;
            return Beat::Nothing;
        }
        self.silent += passed;
        if self.silent < timeout / 2 {
            return Beat::Nothing;
        }
        if !self.asked {
            // The peer has half of the timeout for its answer, however long this piece was.
            (self.asked, self.silent) = (true, timeout / 2);
            return Beat::Ask;
        }
        if self.silent < timeout { Beat::Nothing } else { Beat::Stopped }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    const TIMEOUT: u64 = 6;

    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    enum Sent {
        Ping,
        Pong,
        Data,
    }

    /// One end as the surroundings keep it.
    #[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
    struct End {
        pulse: Pulse,
        waits: bool,
        stopped: bool,
        /// It is stopped, or was.
        unsteady: bool,
        /// Messages under way to this end.
        inbox: VecDeque<Sent>,
        /// A piece of time has passed since the first of them came.
        late: bool,
        /// Pieces of time for which the end has waited without a sign.
        silence: u64,
        gone: bool,
    }

    type World = [End; 2];

    /// A piece of time passes at an end. `None`: the end takes a message in before.
    fn tick(world: &World, i: usize) -> Option<World> {
        let mut next = world.clone();
        let end = &mut next[i];
        if end.stopped || end.gone || end.late && !end.inbox.is_empty() {
            return None;
        }
        end.late = !end.inbox.is_empty();
        end.silence = if end.waits { end.silence + 1 } else { 0 };
        let (waits, silence) = (end.waits, end.silence);
        match end.pulse.tick(Duration::from_secs(1), Duration::from_secs(TIMEOUT), waits) {
            Beat::Nothing => assert!(silence <= TIMEOUT + 2, "a silent peer is waited for: {world:?}"),
            Beat::Ask => {
                assert!(waits, "a PING for nothing: {world:?}");
                next[1 - i].inbox.push_back(Sent::Ping);
            }
            Beat::Stopped => {
                assert!(world[1 - i].unsteady, "a running peer is taken for stopped: {world:?}");
                assert!(silence >= TIMEOUT, "too early: {world:?}");
                next[i].gone = true;
            }
        }
        Some(next)
    }

    /// A message arrives. One slot each is enough for PING and PONG.
    fn deliver(world: &World, i: usize) -> Option<World> {
        let mut next = world.clone();
        let end = &mut next[i];
        if end.stopped || end.gone {
            return None;
        }
        let message = end.inbox.pop_front()?;
        (end.late, end.silence) = (false, 0);
        end.pulse.hear();
        match message {
            Sent::Ping => next[1 - i].inbox.push_back(Sent::Pong),
            Sent::Pong => end.pulse.answered().expect("it was asked"),
            Sent::Data => {}
        }
        for end in &next {
            let of = |what| end.inbox.iter().filter(|sent| **sent == what).count();
            assert!(of(Sent::Ping) <= 1 && of(Sent::Pong) <= 1, "one slot each: {next:?}");
        }
        Some(next)
    }

    /// The states behind a state. The clocks of the two ends go together: both tick, or the one that runs.
    fn next(world: &World) -> Vec<World> {
        let runs = |i: usize| !world[i].stopped;
        let ticked = match (runs(0), runs(1)) {
            (true, true) => tick(world, 0).and_then(|world| tick(&world, 1)),
            (true, false) => tick(world, 0),
            (false, true) => tick(world, 1),
            (false, false) => None,
        };
        let mut all: Vec<World> =
            ticked.into_iter().chain([0, 1].into_iter().filter_map(|i| deliver(world, i))).collect();
        for i in [0, 1] {
            let mut with = |change: fn(&mut End)| {
                let mut next = world.clone();
                change(&mut next[i]);
                all.push(next);
            };
            with(|end| end.waits = !end.waits);
            // An end that goes on takes in what has come before it looks at the clock.
            with(|end| (end.stopped, end.unsteady, end.late) = (!end.stopped, true, end.stopped));
            // The question of an end that closes, at any time.
            let mut next = world.clone();
            if runs(i) && !world[i].gone && next[i].pulse.ask() {
                next[1 - i].inbox.push_back(Sent::Ping);
                all.push(next);
            }
            if runs(i) && !world[1 - i].inbox.contains(&Sent::Data) {
                let mut next = world.clone();
                next[1 - i].inbox.push_back(Sent::Data);
                all.push(next);
            }
        }
        all
    }

    #[test]
    fn every_state_of_two_ends() {
        let start = World::default();
        let (mut seen, mut open) = (HashSet::from([start.clone()]), vec![start]);
        let (mut gone, mut asked) = (0, 0);
        while let Some(world) = open.pop() {
            asked += usize::from(world.iter().any(|end| end.inbox.contains(&Sent::Ping)));
            // Behind the end of a connection there is nothing.
            if world.iter().any(|end| end.gone) {
                gone += 1;
                continue;
            }
            for world in next(&world) {
                if seen.insert(world.clone()) {
                    open.push(world);
                }
            }
        }
        assert!(seen.len() > 1000 && gone > 0 && asked > 0, "{} states, {gone}, {asked}", seen.len());
    }

    #[test]
    fn an_answer_without_a_question_is_a_breach() {
        assert_eq!(Pulse::default().answered(), Err(Reset::Protocol));
    }

    #[test]
    fn a_long_piece_of_time_leaves_time_for_the_answer() {
        let (mut pulse, long, timeout) = (Pulse::default(), Duration::from_secs(1000), Duration::from_secs(6));
        assert_eq!(pulse.tick(long, timeout, true), Beat::Nothing);
        assert_eq!(pulse.tick(long, timeout, true), Beat::Ask);
        assert_eq!(pulse.tick(Duration::from_secs(2), timeout, true), Beat::Nothing);
        assert_eq!(pulse.tick(Duration::from_secs(1), timeout, true), Beat::Stopped);
    }
}
