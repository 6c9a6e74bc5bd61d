//! The ring under loom: every interleaving (up to a bound of preemptions) of a producer and a consumer, with the
//! payload in cells of which loom reports every race.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p softrnic-memory --release loom`

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Notify};
use loom::thread;

use wire::{Fault, Payload};

use crate::co_copy::{self, Follower, Leader, Terms, Words};
use crate::copying::{Copier, under_way};
use crate::export_table::{ROW, Reader, TableMemory, VALUES, Writer};
use crate::ring::{Consumer, Place, Producer, PushError, RingMemory, wake_fence};
use crate::store_policy::Stores;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A ring of `SLOTS` slots and `BULK / 64` grains.
struct Model<const SLOTS: u32, const BULK: u32> {
    stamps: Vec<AtomicU64>,
    bodies: Vec<UnsafeCell<[u64; 7]>>,
    /// The first bytes of each grain.
    grains: Vec<UnsafeCell<u64>>,
    consumed: AtomicU64,
    sleeping: AtomicU32,
    waiting: AtomicU32,
    /// The doorbells of consumer and producer.
    wake_consumer: Notify,
    wake_producer: Notify,
}

impl<const SLOTS: u32, const BULK: u32> Model<SLOTS, BULK> {
    fn new() -> Arc<Self> {
        Arc::new(Model {
            stamps: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            bodies: (0..SLOTS).map(|_| UnsafeCell::new([0; 7])).collect(),
            grains: (0..BULK / 64).map(|_| UnsafeCell::new(0)).collect(),
            consumed: AtomicU64::new(0),
            sleeping: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            wake_consumer: Notify::new(),
            wake_producer: Notify::new(),
        })
    }
}

impl<const SLOTS: u32, const BULK: u32> RingMemory for Arc<Model<SLOTS, BULK>> {
    const SLOTS: u32 = SLOTS;
    const BULK: u32 = BULK;
    const SEGMENT: u32 = 64;
    const CLAIM: u32 = 1;

    fn stamp(&self, slot: u32) -> &AtomicU64 {
        &self.stamps[slot as usize]
    }
    fn consumed(&self) -> &AtomicU64 {
        &self.consumed
    }
    fn sleeping(&self) -> &AtomicU32 {
        &self.sleeping
    }
    fn waiting(&self) -> &AtomicU32 {
        &self.waiting
    }
    fn load_body(&self, slot: u32) -> [u64; 7] {
        // SAFETY: loom checks that no thread writes meanwhile.
        self.bodies[slot as usize].with(|body| unsafe { *body })
    }
    fn store_body(&self, slot: u32, first: usize, words: &[u64]) {
        // SAFETY: loom checks that no thread reads or writes meanwhile.
        self.bodies[slot as usize]
            .with_mut(|body| unsafe { (&mut (*body))[first..first + words.len()].copy_from_slice(words) });
    }
    fn claim_bulk(&self, at: u32) {
        // SAFETY: loom checks that no thread reads or writes meanwhile.
        self.grains[at as usize / 64].with_mut(|grain| unsafe { *grain = 0 });
    }
    fn store_bulk(&self, at: u32, payload: &Payload<'_>, stores: Stores) -> Result<(), Fault> {
        let mut eight = [0; 8];
        eight.copy_from_slice(&payload.prefix[..8]);
        // SAFETY: loom checks that no thread reads or writes meanwhile.
        self.grains[at as usize / 64].with_mut(|grain| unsafe { *grain = u64::from_ne_bytes(eight) });
        Ok(())
    }
}

/// The `n`th record: its number in the header, and in the payload, which every `bulk_every`th time is bulk.
fn push<M: RingMemory>(producer: &mut Producer<M>, n: u64, bulk: bool) -> Result<(), PushError> {
    // Too long for a slot, and shorter than a segment: the grain of the next one is claimed behind it.
    let mut bytes = [0u8; 40];
    bytes[..8].copy_from_slice(&(n ^ 0xff).to_ne_bytes());
    let prefix = if bulk { &bytes[..] } else { &bytes[..8] };
    producer.push(&[n, 0, 0, 0, 0, 0, 0], 3, &Payload { prefix, spans: &[] }).map(drop)
}

/// Takes a record if there is one, checks that it is the `n`th, and says whether the producer must be rung.
fn take<const S: u32, const B: u32>(consumer: &mut Consumer<Arc<Model<S, B>>>, n: u64) -> Option<bool> {
    let record = consumer.peek().expect("the producer is honest").copied()?;
    assert_eq!(record.header()[0], n);
    let payload = match record.place {
        Place::Body(_) => record.body[3],
        // SAFETY: loom checks that no thread writes meanwhile.
        Place::Bulk(at) => consumer.memory().grains[at as usize / 64].with(|grain| unsafe { *grain }),
    };
    assert_eq!(payload, n ^ 0xff);
    Some(consumer.release())
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    if builder.preemption_bound.is_none() {
        builder.preemption_bound = Some(preemptions);
    }
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Producer and consumer that sleep whenever they have nothing to do. A wake-up that is lost is a deadlock.
fn both_sleep<const S: u32, const B: u32>(preemptions: usize, records: u64, bulk: fn(u64) -> bool) {
    explore(preemptions, move || {
        let memory = Model::<S, B>::new();
        let theirs = memory.clone();
        let other = thread::spawn(move || {
            let mut producer = Producer::new(theirs.clone());
            for n in 0..records {
                while let Err(error) = push(&mut producer, n, bulk(n)) {
                    assert_eq!(error, PushError::Full);
                    theirs.wake_producer.wait();
                }
                wake_fence();
                if producer.must_ring() {
                    theirs.wake_consumer.notify();
                }
            }
        });
        let mut consumer = Consumer::new(memory.clone());
        let mut n = 0;
        while n < records {
            match take(&mut consumer, n) {
                Some(ring) => {
                    n += 1;
                    if ring {
                        memory.wake_producer.notify();
                    }
                }
                None => {
                    consumer.announce_sleep();
                    if consumer.settle() {
                        memory.wake_producer.notify();
                    }
                    wake_fence();
                    if !consumer.ready() {
                        memory.wake_consumer.wait();
                    }
                    consumer.retract_sleep();
                }
            }
        }
        other.join().expect("no panic");
    });
}

/// A target copies for a ticket; the initiator makes it void, waits, and then uses the memory: loom sees every race.
#[test]
fn loom_no_copy_is_under_way_when_the_initiator_goes_on() {
    struct Shared {
        mark: AtomicU64,
        ticket: AtomicU64,
        memory: UnsafeCell<u64>,
    }
    explore(4, || {
        let shared =
            Arc::new(Shared { mark: AtomicU64::new(0), ticket: AtomicU64::new(7), memory: UnsafeCell::new(0) });
        let theirs = shared.clone();
        let target = thread::spawn(move || {
            let mut copier = Copier::default();
            for _ in 0..2 {
                copier.marked(&theirs.mark, || {
                    if theirs.ticket.load(Ordering::Relaxed) == 7 {
                        // SAFETY: loom checks that no thread uses it meanwhile.
                        theirs.memory.with_mut(|memory| unsafe { *memory += 1 });
                    }
                });
            }
        });
        shared.ticket.store(8, Ordering::Relaxed);
        if let Some(copy) = under_way(&shared.mark) {
            while copy.lasts(&shared.mark) {
                thread::yield_now();
            }
        }
        // SAFETY: loom checks that no thread uses it meanwhile.
        let copies = shared.memory.with_mut(|memory| unsafe { std::mem::replace(&mut *memory, 100) });
        assert!(copies <= 2);
        target.join().expect("no panic");
    });
}

#[test]
fn loom_records_arrive_in_order_and_whole() {
    explore(3, || {
        let memory = Model::<4, 512>::new();
        let theirs = memory.clone();
        let other = thread::spawn(move || {
            let mut producer = Producer::new(theirs);
            for n in 0..3 {
                push(&mut producer, n, n % 2 == 0).expect("it fits");
            }
        });
        let mut consumer = Consumer::new(memory);
        let mut n = 0;
        for _ in 0..4 {
            n += u64::from(take(&mut consumer, n).is_some());
        }
        other.join().expect("no panic");
        while n < 3 {
            take(&mut consumer, n).expect("all are there");
            n += 1;
        }
    });
}

/// A peer patches an entry of a managed queue by plain stores, and sends a message behind them. The consumer that has
/// taken the message finds the entry as patched: that message's completion is what a WAIT in front of the entry waits
/// for.
#[test]
fn loom_a_patch_is_whole_before_the_message_behind_it() {
    explore(3, || {
        let memory = Model::<4, 512>::new();
        let entry: Arc<[AtomicU64; 2]> = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (theirs, patched) = (memory.clone(), entry.clone());
        let other = thread::spawn(move || {
            let mut producer = Producer::new(theirs);
            for n in 0..2 {
                for word in patched.iter() {
                    word.store(n + 1, Ordering::Relaxed);
                }
                push(&mut producer, n, false).expect("it fits");
            }
        });
        let mut consumer = Consumer::new(memory);
        let mut n = 0;
        for _ in 0..3 {
            if take(&mut consumer, n).is_some() {
                n += 1;
                // The patch of the next message may be there, too.
                assert!(entry.iter().all(|word| word.load(Ordering::Relaxed) >= n), "message {n} overtook its patch");
            }
        }
        other.join().expect("no panic");
    });
}

#[test]
fn loom_no_wake_up_of_a_sleeping_consumer_is_lost() {
    both_sleep::<4, 512>(4, 3, |_| false);
}

#[test]
fn loom_a_full_ring_wraps_and_no_wake_up_of_its_producer_is_lost() {
    both_sleep::<4, 512>(2, 7, |_| false);
}

#[test]
fn loom_publications_without_a_fence_lose_no_wake_up() {
    // A quarter is two slots: every other publication is without.
    both_sleep::<8, 512>(2, 11, |_| false);
}

#[test]
fn loom_a_full_bulk_area_wraps_and_no_wake_up_is_lost() {
    both_sleep::<32, 512>(2, 11, |n| n % 5 != 4);
}

/// One row.
struct HeapTable(Vec<AtomicU64>);

impl TableMemory for Arc<HeapTable> {
    const ROWS: usize = 1;
    const PROBES: usize = 1;
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }
}

fn table_memory() -> Arc<HeapTable> {
    Arc::new(HeapTable((0..ROW).map(|_| AtomicU64::new(0)).collect()))
}

#[test]
fn loom_rows_of_an_export_table_do_not_tear() {
    explore(2, || {
        let table_memory = table_memory();
        let mut writer = Writer::new(table_memory.clone());
        assert!(writer.publish(5, &[1; VALUES]));
        let other = thread::spawn(move || {
            if let Some(row) = Reader::new(table_memory).find(5) {
                assert!(row.iter().all(|v| *v == row[0]));
            }
        });
        assert!(writer.publish(5, &[2; VALUES]));
        other.join().expect("no panic");
    });
}

/// A process that takes a row back and waits has the memory behind the row for itself.
#[test]
fn loom_nobody_reaches_what_was_taken_back() {
    explore(2, || {
        let table_memory = table_memory();
        let word = Arc::new(AtomicU64::new(0));
        let region = Arc::new(UnsafeCell::new(0u64));
        let mut writer = Writer::new(table_memory.clone());
        assert!(writer.publish(5, &[1; VALUES]));
        let other = {
            let (word, region) = (word.clone(), region.clone());
            thread::spawn(move || {
                let reader = Reader::new(table_memory);
                let mut copier = Copier::default();
                for _ in 0..2 {
                    copier.marked(&word, || {
                        if reader.find(5).is_some() {
                            // SAFETY: what the model is to show: loom reports a race with the owner's access.
                            region.with_mut(|p| unsafe { *p += 1 });
                        }
                    });
                }
            })
        };
        assert!(writer.retract(5));
        if let Some(copy) = under_way(&word) {
            while copy.lasts(&word) {
                thread::yield_now();
            }
        }
        // SAFETY: as above.
        region.with_mut(|p| unsafe { *p += 1 });
        other.join().expect("no panic");
    });
}

/// The words of a cooperative copy, and what is copied to: a cell for each unit, and one for the tail.
struct CoCopy {
    claims: AtomicU64,
    followed: AtomicU64,
    terms: [AtomicU64; 5],
    cells: Vec<UnsafeCell<u64>>,
}

impl CoCopy {
    const LEN: u32 = co_copy::SHORTEST;
    const UNIT: u32 = 16 << 10;
    const UNITS: u32 = Self::LEN / Self::UNIT;

    fn words(&self) -> Words<'_> {
        Words { claims: &self.claims, followed: &self.followed, terms: self.terms.each_ref() }
    }

    /// Copies these bytes of the copy with this name.
    fn copy(&self, name: u64, at: u32, len: u32) -> Result<(), wire::SingleCopyError> {
        let units = if at + len == Self::LEN {
            Self::UNITS..Self::UNITS + 1
        } else {
            at / Self::UNIT..(at + len).div_ceil(Self::UNIT)
        };
        for unit in units {
            // SAFETY: loom checks that no thread reads or writes meanwhile.
            self.cells[unit as usize].with_mut(|cell| unsafe { *cell = name });
        }
        Ok(())
    }
}

/// Two copies, one behind the other, with help at any time: what the leader finds is whole, and what the follower
/// copies is what it has read of.
#[test]
fn loom_a_cooperative_copy_is_whole_and_of_its_own_terms() {
    explore(2, || {
        let co_copy = Arc::new(CoCopy {
            claims: AtomicU64::new(0),
            followed: AtomicU64::new(0),
            terms: std::array::from_fn(|_| AtomicU64::new(0)),
            cells: (0..=CoCopy::UNITS).map(|_| UnsafeCell::new(0)).collect(),
        });
        let theirs = co_copy.clone();
        let other = thread::spawn(move || {
            let mut follower = Follower::default();
            for _ in 0..2 {
                if let Some(offer) = Follower::offer(&theirs.words()) {
                    let name = offer.terms.followers;
                    follower.follow(&theirs.words(), &offer, 1, |at, len| theirs.copy(name, at, len));
                }
            }
        });
        let mut leader = Leader::default();
        for name in 1..=2 {
            let ticket = wire::TicketRef { addr: 0, value: 0 };
            let terms = Terms { ticket, followers: name, leaders: 0, len: CoCopy::LEN, to_follower: false };
            let waits = |_| {
                thread::yield_now();
                true
            };
            leader.lead(&co_copy.words(), &terms, |at, len| co_copy.copy(name, at, len), waits).unwrap();
            for cell in &co_copy.cells {
                // SAFETY: loom checks that no thread writes meanwhile.
                assert_eq!(cell.with(|cell| unsafe { *cell }), name);
            }
        }
        other.join().unwrap();
    });
}
