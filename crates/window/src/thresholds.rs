//! The thresholds above which large messages go directly from process to process, and not through the window.
//!
//! By single copy, the target copies once, by a system call that looks up every page on the other side. Through the
//! window both sides copy, at the same time and piece by piece, each on its own processor, so that one copy's time is
//! seen and much of it stays in caches. Which is faster depends on how much longer the kernel takes than a plain copy,
//! which differs from machine to machine (docs/lab/large-messages.md).

use std::sync::atomic::{AtomicU8, Ordering};

use memory::ring::RingMemory;
use memory::single_copy::Costs;
use memory::{Half, co_copy};
use wire::{LinkCaps, LinkId, SingleCopyCaps, Span};

use crate::WindowEnv;
use crate::config::{SINGLE_COPY_ABOVE, SINGLE_COPY_INSIDE};
use crate::export_table::coarse_time;
use crate::link::Link;

/// The number of plain copies that take as long as the way through the window (docs/lab/constants.md).
const PLAIN_COPIES: u32 = 4;

/// Of the room that is left in the window, messages to or from a side that sleeps take at most this part: when it is
/// full a side has to be woken to go on, which takes as long as copying it all.
const ASLEEP_PART: u32 = 2;

/// True if the way through the window is quicker by these costs.
fn favour_window(costs: Costs) -> bool {
    costs.kernel > costs.plain * PLAIN_COPIES
}

/// True if the way through the window is faster on this machine, between two programs that are awake. The first call
/// measures it ([`Costs::measure`]).
pub(crate) fn window_is_quicker() -> bool {
    const UNKNOWN: u8 = 2;
    // Two threads may both find out. A lock would be held for ever in a child that is forked meanwhile.
    static QUICKER: AtomicU8 = AtomicU8::new(UNKNOWN);
    match QUICKER.load(Ordering::Relaxed) {
        UNKNOWN => {
            let quicker = Costs::measure().is_ok_and(favour_window);
            QUICKER.store(u8::from(quicker), Ordering::Relaxed);
            quicker
        }
        known => known == 1,
    }
}

/// The length above which messages go by single copy, if the settings do not say. `room`: bytes that are left in the
/// window.
fn single_copy_above(window_is_quicker: bool, asleep: bool, room: impl FnOnce() -> u32) -> u32 {
    match (window_is_quicker, asleep) {
        (false, _) => SINGLE_COPY_ABOVE,
        (true, true) => SINGLE_COPY_ABOVE.max(room() / ASLEEP_PART),
        (true, false) => u32::MAX,
    }
}

impl WindowEnv {
    pub(crate) fn caps_of(&self, link: LinkId) -> LinkCaps {
        let wanted = self.config.single_copy_above;
        let shared_above = wanted.unwrap_or(SINGLE_COPY_ABOVE);
        let single_copy = match self.link(link) {
            // Inside one process a single copy is a plain one, and saves one. Below 1 KiB the span list costs as much.
            Some(Link { remote: None, .. }) if self.config.single_copy => {
                let above = shared_above.min(SINGLE_COPY_INSIDE);
                let either_from = u32::MAX;
                Some(SingleCopyCaps { above, flowing_above: above, either_from, shared_above: above })
            }
            Some(link @ Link { remote: Some(remote), .. }) if remote.we_permitted && remote.it_permitted => {
                let by_itself = |asleep| single_copy_above(remote.favours_window, asleep, || link.producer.bulk_left());
                // A peer that wants to be rung is at work all the same, or soon will be, where something is under way.
                // So is this process, unless the program waits for events: a program that has just begun to post polls
                // next.
                let flowing = || by_itself(self.asleep && self.awaits_events);
                let alone = || by_itself(self.asleep || link.producer.peer_sleeps());
                let streams = link.streams_until != 0 && coarse_time() <= link.streams_until;
                Some(SingleCopyCaps {
                    above: wanted.unwrap_or_else(|| if streams { flowing() } else { alone() }),
                    flowing_above: wanted.unwrap_or_else(flowing),
                    // The peer makes a part of the copy where it polls.
                    either_from: match wanted {
                        None if remote.favours_window => co_copy::SHORTEST,
                        _ => u32::MAX,
                    },
                    shared_above,
                })
            }
            _ => None,
        };
        LinkCaps { segment: Half::SEGMENT, single_copy }
    }

    /// True if peers can map the beginning of this memory.
    pub(crate) fn is_shared(&self, span: &Span) -> bool {
        self.shared.shows(span.addr)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "system calls")]
    fn a_slow_kernel_is_avoided() {
        let costs = |kernel, plain| Costs { kernel: Duration::from_nanos(kernel), plain: Duration::from_nanos(plain) };
        assert!(favour_window(costs(5060, 530)) && !favour_window(costs(3250, 1620)));
        let costs = Costs::measure().unwrap();
        assert!(!costs.kernel.is_zero() && costs.kernel < Duration::MAX && costs.plain < Duration::MAX, "{costs:?}");
        assert_eq!(window_is_quicker(), window_is_quicker());
    }

    #[test]
    fn who_sleeps_is_not_to_find_the_window_full() {
        let above = |quicker, asleep, room| single_copy_above(quicker, asleep, || room);
        assert_eq!([true, false].map(|asleep| above(false, asleep, Half::BULK)), [SINGLE_COPY_ABOVE; 2]);
        assert_eq!(
            [Half::BULK, 100_000, 20_000, 0].map(|room| above(true, true, room)),
            [128 << 10, 50_000, 16384, 16384]
        );
        assert_eq!(above(true, false, 0), u32::MAX);
    }
}
