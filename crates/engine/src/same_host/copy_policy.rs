//! The policy for long messages: by reference, or through the link. Both sides copy in both ways. By reference each
//! side makes half of a copy by the kernel. Through the link each side makes a whole copy, which caches make quick on
//! some machines and not on others.

use verbs::Opcode;
use wire::SHORTEST;
use wire::{Env, LinkId, Nanos, PIECE};

use crate::Engine;
use crate::wq::inflight::Inflight;
use trial::AbTrial;

/// Bytes that are timed together.
const STRETCH: u64 = 8 << 20;
/// Time after the last message from which on the program counts as pausing, although it has not polled all messages
/// before.
const PAUSE: Nanos = 200_000;
/// Stretches between two trials, at first and later: as many requests as are under way by reference belong to a trial.
const APART: [u32; 2] = [64, 512];

/// The ways of the long messages on one link in one direction. All queue pairs share them: if some of them used one way
/// and some the other, the peer's time would not be shared fairly.
#[derive(Debug, Default)]
pub(crate) struct CopyPolicy {
    /// Trials of messages that are waited for, and of messages in a queue: the best way of the one kind is not that of
    /// the other.
    kinds: [Kind; 2],
    /// When the last message completed.
    last: Nanos,
}

#[derive(Debug)]
struct Kind {
    /// A trial that starts with the way through the link.
    ab_trial: AbTrial,
    /// Bytes of the stretch so far.
    bytes: u64,
    nanos: Nanos,
}

impl Default for Kind {
    fn default() -> Self {
        Kind { ab_trial: AbTrial::new(APART[0], APART[1]), bytes: 0, nanos: 0 }
    }
}

impl CopyPolicy {
    /// True if the next message is best sent by reference. `queued`: the message was posted behind others.
    pub fn by_ref(&self, queued: bool) -> bool {
        self.kinds[usize::from(queued)].ab_trial.second()
    }

    /// Counts a message that is complete, and that began at `since`. Its wait for the messages before it does not
    /// count.
    pub fn completed(&mut self, len: u32, by_ref: bool, queued: bool, since: Nanos, now: Nanos) {
        let last = std::mem::replace(&mut self.last, now);
        let kind = &mut self.kinds[usize::from(queued)];
        if by_ref != kind.ab_trial.second() {
            return; // sent before the way changed
        }
        kind.bytes += u64::from(len);
        // A message in a queue begins when there is room, so the time in between belongs to the way.
        let began = if queued && since < last + PAUSE { last } else { last.max(since) };
        kind.nanos += now.saturating_sub(began);
        if kind.bytes >= STRETCH {
            kind.ab_trial.over(Some((u128::from(kind.nanos) * u128::from(STRETCH) / u128::from(kind.bytes)) as u64));
            (kind.bytes, kind.nanos) = (0, 0);
        }
    }
}

/// The policies of a link: of SENDs and WRITEs, and of READs.
pub(crate) type CopyPolicies = Vec<(LinkId, [CopyPolicy; 2])>;

impl<P: Env> Engine<P> {
    fn copy_policy(&mut self, link: LinkId, read: bool) -> &mut CopyPolicy {
        let known = self.copy_policies.iter().position(|(id, _)| *id == link);
        let at = known.unwrap_or_else(|| {
            self.copy_policies.push((link, Default::default()));
            self.copy_policies.len() - 1
        });
        &mut self.copy_policies[at].1[usize::from(read)]
    }

    /// True if a message that may go either way is best sent by reference.
    pub(crate) fn best_by_ref(&mut self, link: LinkId, e: &Inflight) -> bool {
        self.copy_policy(link, e.opcode == Opcode::RdmaRead).by_ref(e.queued)
    }

    /// Times a request that was executed and is the oldest. `alone`: no request is behind it.
    pub(crate) fn time_copy(&mut self, link: LinkId, e: &Inflight, alone: bool, now: Nanos) {
        let sent = e.psns > 0 && e.executed == 0;
        let short = e.len < SHORTEST;
        if (short || e.len > PIECE) && alone && sent && matches!(e.opcode, Opcode::RdmaWrite | Opcode::RdmaRead) {
            self.env.answered(link, e.len, now.saturating_sub(e.since), e.refused);
        }
        if short {
            return;
        }
        let read = e.opcode == Opcode::RdmaRead;
        if sent {
            self.copy_policy(link, read).completed(e.len, e.by_ref, e.queued, e.since, now);
        } else {
            self.executed_here(link, e.len, read, now);
        }
    }

    /// Notes a request that was executed here, so by neither way.
    #[inline]
    pub(crate) fn executed_here(&mut self, link: LinkId, len: u32, read: bool, now: Nanos) {
        if len >= SHORTEST {
            self.copy_policy(link, read).last = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of messages of 1 MiB. `depth` of them are under way. Each message `takes` so long, and the program
    /// makes such a `pause` before it posts the next. Gives the parts that went by reference, in hundredths, of each
    /// thousand.
    fn stream(depth: usize, thousands: usize, pause: Nanos, takes: impl Fn(usize, bool) -> Nanos) -> Vec<usize> {
        let (mut copy_policy, mut now, mut under_way) = (CopyPolicy::default(), 1, std::collections::VecDeque::new());
        let mut thousand = |at: usize| {
            let done = (0..1000).filter(|i| {
                if under_way.is_empty() {
                    now += pause;
                }
                while under_way.len() < depth {
                    let queued = depth > 2;
                    under_way.push_back((now, queued, copy_policy.by_ref(queued)));
                }
                let (since, queued, by_ref) = under_way.pop_front().unwrap();
                now += takes(at * 1000 + i, by_ref);
                copy_policy.completed(1 << 20, by_ref, queued, since, now);
                by_ref
            });
            done.count() / 10
        };
        (0..thousands).map(&mut thousand).collect()
    }

    #[test]
    fn the_faster_way_is_found_whatever_is_under_way() {
        let by = |link, by_ref| move |_, is_by_ref| if is_by_ref { by_ref } else { link };
        for (depth, pause) in [(1, 0), (1, 700_000), (16, 0), (128, 0)] {
            let link = stream(depth, 20, pause, by(30_000, 60_000));
            assert!(link.iter().sum::<usize>() <= 20 * 5, "{depth} {link:?}");
            let single_copy = stream(depth, 20, pause, by(130_000, 60_000));
            assert!(single_copy.iter().sum::<usize>() >= 20 * 95, "{depth} {single_copy:?}");
        }
    }

    #[test]
    fn what_is_waited_for_goes_its_own_way() {
        let mut copy_policy = CopyPolicy::default();
        let (mut now, mut parts) = (1_000, [0; 2]);
        for _ in 0..2000 {
            // One message alone is quicker through the link. Then two go at once, and the second is not.
            let alone = copy_policy.by_ref(false);
            parts[0] += u32::from(alone);
            let took = if alone { 90_000 } else { 60_000 };
            copy_policy.completed(1 << 20, alone, false, now, now + took);
            now += took + 10_000;
            let (since, ways) = (now, [copy_policy.by_ref(false), copy_policy.by_ref(true)]);
            parts[1] += u32::from(ways[1]);
            for (at, way) in ways.into_iter().enumerate() {
                now += [[60_000, 90_000], [130_000, 60_000]][at][usize::from(way)];
                copy_policy.completed(1 << 20, way, at > 0, since, now);
            }
            now += 10_000;
        }
        assert!(parts[0] < 100 && parts[1] > 1800, "{parts:?}");
    }

    #[test]
    fn a_machine_that_changes_is_followed() {
        let parts = stream(128, 40, 0, |i, by_ref| {
            if by_ref {
                60_000
            } else if i < 15_000 {
                130_000
            } else {
                30_000
            }
        });
        assert!(
            parts[1..15].iter().sum::<usize>() >= 14 * 95 && parts[25..].iter().sum::<usize>() <= 15 * 5,
            "{parts:?}"
        );
    }
}
