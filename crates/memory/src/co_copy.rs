//! Single copies that both processes make together.
//!
//! The target of a request copies its data from or to the initiator ([`crate::single_copy`]); it *leads*. The initiator
//! mostly has nothing to do meanwhile but to wait, and a processor copies no faster than the kernel lets it: so the
//! initiator may *help*. The leader takes parts from the front, the follower from the back, and where they meet the
//! copy is done. So the same memory, message after message, has each of its halves copied by the same processor. A part
//! is a third of what is left: few system calls, and both are done at nearly the same time.
//!
//! ```text
//!  claims  u64       number of the copy (32 bits), first unclaimed unit (16), unit behind the last unclaimed one (16)
//!  helped  u64       number of the copy, units that the follower has done (16), bit 16: some of them failed
//!  terms   5 x u64   what is copied: ticket (address, value), follower's memory, leader's, length, direction
//! ```
//!
//! The terms are written before the copy's number appears in `claims`, and not changed until all its units are claimed:
//! a process that claims some has read the terms of its copy.
//!
//! **Last bytes last.** A program may watch the end of the memory that a peer writes to. The last [`TAIL`] bytes are no
//! part of any unit: the leader copies them when everything else is there.
//!
//! **Trust.** The words are input to both. The follower copies from and to what its own request names, and nothing else
//! ([`Offer`] is what to hold against it). What the leader is told of was copied is the peer's word, as the data are.

pub use wire::SHORTEST;

use wire::{SingleCopyError, TicketRef};

use crate::sync::{AtomicU64, Ordering};

/// The unit of claims, in bytes.
const UNIT: u32 = 16 << 10;
/// The least that is claimed at once, in units: a system call for less would take as long as its copy.
const LEAST: u16 = 2;
/// Bytes at the end of the data that the leader copies when the rest is done.
pub const TAIL: u32 = 4096;
/// The longest copy in bytes, as long as a piece of a message that goes by reference. A peer can keep a follower at
/// work for no longer than that.
pub const LONGEST: u32 = 1 << 20;
/// Copies that the leader makes alone after a follower was waited for so long that it must have lost its processor.
/// After the next such follower they are twice as many, and so on, this often.
const ALONE: u32 = 64;
const DOUBLED: u32 = 12;

/// The shared words of one leader and one follower.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    /// See the module's page.
    pub claims: &'a AtomicU64,
    /// See the module's page.
    pub followed: &'a AtomicU64,
    /// See the module's page.
    pub terms: [&'a AtomicU64; 5],
}

/// The terms of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The request's ticket, of the follower.
    pub ticket: TicketRef,
    /// Where the data are, or go, in the follower.
    pub followers: u64,
    /// Address of the memory in the leader.
    pub leaders: u64,
    /// Bytes, at most [`LONGEST`].
    pub len: u32,
    /// The data go to the follower (a READ), and come from it otherwise.
    pub to_follower: bool,
}

/// `claims`, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claims {
    number: u32,
    front: u16,
    back: u16,
}

impl Claims {
    fn pack(self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.front) << 16 | u64::from(self.back)
    }

    fn unpack(raw: u64) -> Claims {
        Claims { number: (raw >> 32) as u32, front: (raw >> 16) as u16, back: raw as u16 }
    }
}

const FAILED: u64 = 1 << 16;

/// The units of so many bytes, without the tail.
fn units(len: u32) -> u16 {
    len.saturating_sub(TAIL).div_ceil(UNIT).min(u32::from(u16::MAX)) as u16
}

/// Where these units begin, and how many bytes they are.
fn bytes(from: u16, to: u16, len: u32) -> (u32, u32) {
    let whole = len.saturating_sub(TAIL);
    let start = (u32::from(from) * UNIT).min(whole);
    (start, (u32::from(to) * UNIT).min(whole) - start)
}

/// The units that are claimed of so many that are left.
fn share(left: u16) -> u16 {
    (left / 3).max(LEAST).min(left)
}

/// The leader's side.
#[derive(Default)]
pub struct Leader {
    number: u32,
    /// So many units of an earlier copy were not finished by the follower. It may finish them at any time.
    stalled: Option<u16>,
    /// The follower was given up: it is not asked again.
    gave_up: bool,
    /// So many copies are to be made alone.
    alone: u32,
    /// How often the follower was slow.
    slow: u32,
}

/// The reason why a copy failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// An own copy failed.
    Copy(SingleCopyError),
    /// The follower has not come to an end, and may still do so: until then, [`Leader::is_stalled`].
    Stalled,
}

impl Leader {
    /// True if the next copy may be made with help.
    pub fn asks(&mut self) -> bool {
        self.alone = self.alone.saturating_sub(1);
        !self.gave_up && self.alone == 0
    }

    /// The follower was slow: the next copies are made alone, more of them each time.
    pub fn avoid(&mut self) {
        self.alone = (ALONE << self.slow) + 1;
        self.slow = (self.slow + 1).min(DOUBLED);
    }

    /// True if a follower has not come to its end, so that it is not asked again.
    pub fn has_given_up(&self) -> bool {
        self.gave_up
    }

    /// True while a follower that was not waited for any more may still be copying.
    pub fn is_stalled(&mut self, words: &Words<'_>) -> bool {
        if let Some(units) = self.stalled
            && done(words, self.number).is_some_and(|(count, _)| count >= units)
        {
            self.stalled = None;
        }
        self.stalled.is_some()
    }

    /// Forgets that the follower has not finished. The copy that the peer had marked when it was given up is over, as
    /// is known from the peer's mark ([`crate::copying`]).
    pub fn forget_late_writer(&mut self) {
        self.stalled = None;
    }

    /// Makes a copy of [`SHORTEST`] to [`LONGEST`] bytes, with help if there is any. Only if [`Leader::asks`]. `copy`
    /// copies so many bytes from such an offset on. `waits` is asked again and again while the follower is at its last
    /// part, with the number of times, whether to go on waiting for it.
    ///
    /// # Errors
    /// See [`Failed`].
    pub fn lead(
        &mut self,
        words: &Words<'_>,
        terms: &Terms,
        mut copy: impl FnMut(u32, u32) -> Result<(), SingleCopyError>,
        waits: impl FnMut(u32) -> bool,
    ) -> Result<(), Failed> {
        let all = units(terms.len);
        self.number = self.number.wrapping_add(1).max(1);
        words.followed.store(u64::from(self.number) << 32, Ordering::Relaxed);
        let named = [
            terms.ticket.addr,
            terms.ticket.value,
            terms.followers,
            terms.leaders,
            u64::from(terms.len) | u64::from(terms.to_follower) << 32,
        ];
        for (word, value) in words.terms.iter().zip(named) {
            word.store(value, Ordering::Relaxed);
        }
        let mut seen = Claims { number: self.number, front: 0, back: all };
        // Release: a follower that sees the number sees the terms.
        words.claims.store(seen.pack(), Ordering::Release);
        let mut result = Ok(());
        while seen.front < seen.back {
            // After a failure nothing more is to be done: all that is left is claimed.
            let left = seen.back - seen.front;
            let front = seen.front + if result.is_ok() { share(left) } else { left };
            let next = Claims { front, ..seen };
            // Acquire: the follower has read the terms before they are written anew.
            match words.claims.compare_exchange(seen.pack(), next.pack(), Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    if result.is_ok() {
                        let (start, len) = bytes(seen.front, front, terms.len);
                        result = copy(start, len);
                    }
                    seen = next;
                }
                Err(raw) => {
                    let now = Claims::unpack(raw);
                    let followed = (now.number, now.front) == (seen.number, seen.front);
                    if !followed || now.back >= seen.back || now.back < seen.front {
                        // A follower takes from the back, and does nothing else. This one breaks the rules.
                        self.gave_up = true;
                        words.claims.store(0, Ordering::Relaxed);
                        result.map_err(Failed::Copy)?;
                        let (start, _) = bytes(seen.front, all, terms.len);
                        return copy(start, terms.len - start).map_err(Failed::Copy);
                    }
                    seen = now;
                }
            }
        }
        let failed = self.finish(words, all - seen.back, waits)?;
        result.map_err(Failed::Copy)?;
        if failed {
            // Alone, to see the reason.
            let (start, len) = bytes(seen.back, all, terms.len);
            copy(start, len).map_err(Failed::Copy)?;
        }
        let tail = terms.len.min(TAIL);
        copy(terms.len - tail, tail).map_err(Failed::Copy)
    }

    /// Waits until the follower has done so many units. True if some of them failed.
    fn finish(&mut self, words: &Words<'_>, given: u16, mut waits: impl FnMut(u32) -> bool) -> Result<bool, Failed> {
        if given == 0 {
            return Ok(false);
        }
        let finished = || done(words, self.number).filter(|(count, _)| *count >= given).map(|(_, failed)| failed);
        let mut turn = 0;
        loop {
            if let Some(failed) = finished() {
                return Ok(failed);
            }
            if !waits(turn) {
                break;
            }
            turn = turn.saturating_add(1);
        }
        // It may have come to its end since.
        if let Some(failed) = finished() {
            return Ok(failed);
        }
        (self.stalled, self.gave_up) = (Some(given), true);
        Err(Failed::Stalled)
    }
}

/// The follower's word on this copy: the number of units that it has done, and whether some failed.
fn done(words: &Words<'_>, number: u32) -> Option<(u16, bool)> {
    // Acquire: what it has copied is there.
    let raw = words.followed.load(Ordering::Acquire);
    (raw >> 32 == u64::from(number)).then_some((raw as u16, raw & FAILED != 0))
}

/// A copy that a peer leads, and of which there is something left. To be held against one's own requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    number: u32,
    all: u16,
    /// What is copied.
    pub terms: Terms,
}

/// The follower's side.
#[derive(Default)]
pub struct Follower {
    /// Of the copy that was helped with last.
    number: u32,
    /// Units of it that are done.
    count: u16,
    /// Some of them failed.
    failed: bool,
}

impl Follower {
    /// The copy to help with, if there is one.
    #[inline]
    pub fn offer(words: &Words<'_>) -> Option<Offer> {
        // Acquire: with the store in `lead`.
        let claims = Claims::unpack(words.claims.load(Ordering::Acquire));
        if claims.number == 0 || claims.front >= claims.back {
            return None;
        }
        let [ticket, value, followers, leaders, rest] = words.terms.map(|word| word.load(Ordering::Relaxed));
        let len = rest as u32;
        let terms = Terms {
            ticket: TicketRef { addr: ticket, value },
            followers,
            leaders,
            len,
            to_follower: rest >> 32 & 1 != 0,
        };
        let fits = (SHORTEST..=LONGEST).contains(&len) && claims.back <= units(len);
        fits.then_some(Offer { number: claims.number, all: units(len), terms })
    }

    /// Copies parts of it, at most so many: `copy` is as [`Leader::lead`]'s. Gives the bytes.
    pub fn follow(
        &mut self,
        words: &Words<'_>,
        offer: &Offer,
        most: u32,
        mut copy: impl FnMut(u32, u32) -> Result<(), SingleCopyError>,
    ) -> u64 {
        let mut copied = 0;
        if self.number != offer.number {
            *self = Follower { number: offer.number, ..Follower::default() };
        }
        for _ in 0..most {
            let raw = words.claims.load(Ordering::Relaxed);
            let claims = Claims::unpack(raw);
            // The last of these cannot be unless the leader has written nonsense, and the terms with it.
            if claims.number != offer.number || claims.front >= claims.back || claims.back > offer.all {
                break;
            }
            let next = Claims { back: claims.back - share(claims.back - claims.front), ..claims };
            // Release: the terms have been read.
            if words.claims.compare_exchange(raw, next.pack(), Ordering::Release, Ordering::Relaxed).is_err() {
                continue;
            }
            let (start, len) = bytes(next.back, claims.back, offer.terms.len);
            self.failed |= copy(start, len).is_err();
            self.count = self.count.saturating_add(claims.back - next.back);
            copied += u64::from(len);
            let failed = if self.failed { FAILED } else { 0 };
            // Release: a leader that sees the count sees what was copied.
            words.followed.store(u64::from(self.number) << 32 | failed | u64::from(self.count), Ordering::Release);
        }
        copied
    }
}

#[cfg(all(test, not(loom)))]
#[path = "co_copy_tests.rs"]
mod tests;
