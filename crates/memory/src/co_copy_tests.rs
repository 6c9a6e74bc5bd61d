use std::cell::{Cell, RefCell};

use super::*;

#[derive(Default)]
struct Shared {
    claims: AtomicU64,
    followed: AtomicU64,
    terms: [AtomicU64; 5],
}

impl Shared {
    fn words(&self) -> Words<'_> {
        Words { claims: &self.claims, followed: &self.followed, terms: self.terms.each_ref() }
    }

    /// A follower claims three units of 1 MiB, once.
    fn claim_three(&self) -> Result<(), SingleCopyError> {
        let raw = self.claims.load(Ordering::Relaxed);
        if raw as u16 == units(1 << 20) {
            self.claims.store(raw - 3, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn terms(len: u32) -> Terms {
    Terms { ticket: TicketRef { addr: 8, value: 9 }, followers: 1 << 30, leaders: 2 << 30, len, to_follower: false }
}

const LENGTHS: [u32; 6] = [SHORTEST, SHORTEST + 1, 200_000, 500_000, LONGEST - 1, LONGEST];

/// The parts that were copied, and the side that copied each, in order.
#[derive(Default)]
struct Log(RefCell<Vec<(bool, u32, u32)>>);

impl Log {
    fn put(&self, followed: bool, at: u32, len: u32) -> Result<(), SingleCopyError> {
        self.0.borrow_mut().push((followed, at, len));
        Ok(())
    }

    /// Everything once, and the end last.
    fn check(&self, len: u32) {
        let mut log = self.0.borrow_mut();
        let &(followed, at, tail) = log.last().unwrap();
        assert!(!followed && at + tail == len && tail == TAIL, "{log:?}");
        log.sort_by_key(|(_, at, _)| *at);
        let mut end = 0;
        for &(_, at, len) in log.iter() {
            assert!(at == end && len > 0, "{log:?}");
            end += len;
        }
        assert_eq!(end, len);
    }
}

#[test]
fn who_has_no_help_copies_all() {
    let (shared, mut leader) = (Shared::default(), Leader::default());
    for len in LENGTHS {
        let log = Log::default();
        leader.lead(&shared.words(), &terms(len), |at, len| log.put(false, at, len), |_| unreachable!()).unwrap();
        log.check(len);
        assert_eq!(Follower::offer(&shared.words()), None);
    }
}

#[test]
fn each_byte_is_copied_once_and_the_end_last() {
    let (shared, mut leader, mut follower) = (Shared::default(), Leader::default(), Follower::default());
    for (len, most) in LENGTHS.into_iter().flat_map(|len| [0, 1, 2, 100].map(|most| (len, most))) {
        let log = Log::default();
        let own = |at, part| {
            log.put(false, at, part)?;
            if let Some(offer) = Follower::offer(&shared.words()) {
                assert_eq!(offer.terms, terms(len));
                follower.follow(&shared.words(), &offer, most, |at, part| log.put(true, at, part));
            }
            Ok(())
        };
        leader.lead(&shared.words(), &terms(len), own, |_| unreachable!("it does all at once")).unwrap();
        log.check(len);
        assert_eq!(log.0.borrow().iter().any(|(followed, ..)| *followed), most > 0, "{len}");
    }
}

#[test]
fn what_the_follower_could_not_copy_the_leader_does() {
    let (shared, mut leader, mut follower, log) =
        (Shared::default(), Leader::default(), Follower::default(), Log::default());
    let own = |at, part| {
        log.put(false, at, part)?;
        if let Some(offer) = Follower::offer(&shared.words()) {
            follower.follow(&shared.words(), &offer, 1, |_, _| Err(SingleCopyError::Remote));
        }
        Ok(())
    };
    leader.lead(&shared.words(), &terms(1 << 20), own, |_| unreachable!()).unwrap();
    log.check(1 << 20);
}

#[test]
fn a_copy_that_fails_is_waited_for_and_leaves_nothing_to_do() {
    let (shared, mut leader, mut follower) = (Shared::default(), Leader::default(), Follower::default());
    let (calls, begun) = (Cell::new(0), RefCell::new(None));
    let own = |_, _| {
        calls.set(calls.get() + 1);
        // The follower has claimed a part, and is at it.
        *begun.borrow_mut() = Follower::offer(&shared.words());
        let raw = shared.claims.load(Ordering::Relaxed);
        shared.claims.store(raw - 3, Ordering::Relaxed);
        Err(SingleCopyError::Local)
    };
    let waits = |turn| {
        assert_eq!(Follower::offer(&shared.words()), None, "nothing more is claimed");
        if turn == 10 {
            shared.followed.store(1 << 32 | 3, Ordering::Relaxed);
        }
        turn < 20
    };
    let result = leader.lead(&shared.words(), &terms(1 << 20), own, waits);
    assert_eq!((result, calls.get()), (Err(Failed::Copy(SingleCopyError::Local)), 1));
    let late = begun.borrow_mut().take().unwrap();
    follower.follow(&shared.words(), &late, 5, |_, _| unreachable!("it is over"));
    assert!(leader.asks());
}

#[test]
fn who_is_not_waited_for_any_more_is_not_asked_again() {
    let (shared, mut leader) = (Shared::default(), Leader::default());
    assert!(leader.asks() && !leader.is_stalled(&shared.words()));
    let result = leader.lead(&shared.words(), &terms(1 << 20), |_, _| shared.claim_three(), |turn| turn < 5);
    assert_eq!(result, Err(Failed::Stalled));
    assert!(!leader.asks() && leader.is_stalled(&shared.words()));
    shared.followed.store(1 << 32 | 2, Ordering::Relaxed);
    assert!(leader.is_stalled(&shared.words()));
    shared.followed.store(1 << 32 | 3, Ordering::Relaxed);
    assert!(!leader.is_stalled(&shared.words()) && !leader.asks());
}

#[test]
fn who_was_slow_is_asked_again_after_some_copies() {
    let mut leader = Leader::default();
    leader.avoid();
    assert_eq!((0..1000).take_while(|_| !leader.asks()).count(), ALONE as usize);
    assert!(leader.asks());
}

/// The follower comes to its end just when it is given up.
#[test]
fn who_ends_at_the_last_moment_has_ended() {
    let (shared, mut leader) = (Shared::default(), Leader::default());
    let waits = |_| {
        shared.followed.store(1 << 32 | 3, Ordering::Relaxed);
        false
    };
    assert_eq!(leader.lead(&shared.words(), &terms(1 << 20), |_, _| shared.claim_three(), waits), Ok(()));
    assert!(leader.asks());
}

/// Whatever the other side writes, a copy comes to an end, and touches nothing outside of its memory.
#[test]
fn nonsense_harms_nobody() {
    let mut seed = 88172645463325252u64;
    let mut dice = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let (shared, mut leader, mut follower) = (Shared::default(), Leader::default(), Follower::default());
    for turn in 0..if cfg!(miri) { 50 } else { 20_000 } {
        let len = SHORTEST + dice() as u32 % (LONGEST - SHORTEST + 1);
        let number = leader.number.wrapping_add(1).max(1);
        let nonsense = |dice: u64| {
            let word = [dice, u64::from(number) << 32 | dice >> 32, u64::from(number) << 32 | (dice >> 32 & 0x7f_007f)];
            word[(dice % 3) as usize]
        };
        let mut inside = |at: u32, part: u32| {
            assert!(u64::from(at) + u64::from(part) <= u64::from(len), "{turn}: {at} {part} of {len}");
            shared.claims.store(nonsense(dice()), Ordering::Relaxed);
            shared.followed.store(nonsense(dice()), Ordering::Relaxed);
            Ok(())
        };
        let _ = leader.lead(&shared.words(), &terms(len), &mut inside, |turn| turn < 3);
        for word in [&shared.claims, &shared.followed].into_iter().chain(&shared.terms) {
            word.store(nonsense(dice()), Ordering::Relaxed);
        }
        shared.terms[4].store(u64::from(len), Ordering::Relaxed);
        if let Some(offer) = Follower::offer(&shared.words()) {
            follower.follow(&shared.words(), &offer, 1000, |at, part| {
                let end = u64::from(at) + u64::from(part);
                assert!(end <= u64::from(offer.terms.len), "{turn}: {at} {part} of {}", offer.terms.len);
                Ok(())
            });
        }
    }
}

/// Two threads make many copies, and every byte is checked.
#[test]
#[cfg_attr(miri, ignore = "long; the model under loom has the orders")]
fn two_threads_make_it_together() {
    const LEN: usize = SHORTEST as usize + 70_000;
    let shared = Shared::default();
    let from: Vec<_> = (0..LEN / 8).map(|_| AtomicU64::new(0)).collect();
    let to: Vec<_> = (0..LEN / 8).map(|_| AtomicU64::new(0)).collect();
    let (over, followed) = (AtomicU64::new(0), AtomicU64::new(0));
    let copy = |at: u32, part: u32| {
        for i in at as usize / 8..(at + part) as usize / 8 {
            to[i].store(from[i].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut follower = Follower::default();
            while over.load(Ordering::Relaxed) == 0 {
                if let Some(offer) = Follower::offer(&shared.words()) {
                    follower.follow(&shared.words(), &offer, 4, |at, part| {
                        followed.fetch_add(1, Ordering::Relaxed);
                        copy(at, part)
                    });
                }
            }
        });
        let mut leader = Leader::default();
        let mut round = 0;
        // Until there was help often enough, however the threads are run.
        while round < 2000 || followed.load(Ordering::Relaxed) < 100 {
            round += 1;
            from.iter().for_each(|word| word.store(round, Ordering::Relaxed));
            let waits = |_| {
                std::thread::yield_now();
                true
            };
            leader.lead(&shared.words(), &terms(LEN as u32), copy, waits).unwrap();
            assert!(to.iter().all(|word| word.load(Ordering::Relaxed) == round), "{round}");
        }
        over.store(1, Ordering::Relaxed);
    });
}
