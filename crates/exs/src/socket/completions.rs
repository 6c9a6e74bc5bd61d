//! Completion queues that connections share, and the way from a completion to its connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use memory::biased::{Mutex, MutexGuard};
use rdma::{CompChannel, Context, Cq, Wc};

use super::end::End;
use super::queue::Taker;
use super::{Socket, Stage};

/// Entries of a completion queue: hundreds of connections share one. A device may allow fewer.
const ENTRIES: usize = 1 << 15;

/// Completions that are taken at a time. A program that looks goes on to its events then, and posts new receives, while
/// the peer still has open ones.
const FEW: usize = 8;

/// A completion queue, with places for the completions of several connections.
pub(super) struct Shard {
    cq: Arc<Cq>,
    entries: usize,
    used: AtomicUsize,
    /// Held while completions are taken and handed on: those of a queue pair stay in their order.
    polling: Mutex<Polling>,
    /// A thread of the program looks. Written with `polling`.
    looking: AtomicBool,
    /// Threads that wait for `polling`: a thread that holds it while nothing comes gives it up.
    waits: AtomicUsize,
}

/// What the thread has that takes completions.
#[derive(Default)]
struct Polling {
    ends: Ends,
    /// The place of those that were taken last: a new one would be cleared for each look.
    wcs: [Wc; FEW],
}

/// The connections that completions are handed to.
#[derive(Default)]
struct Ends {
    last: Last,
    /// Those that look at notices: while threads look, and none sleeps.
    looking: Vec<Looking>,
    /// Messages about long transfers that were found by looks since the queue was armed.
    eager: u32,
}

/// A connection that looks at notices.
struct Looking {
    socket: Arc<Socket>,
    /// Looks in a row that have found none.
    idle: u32,
}

/// So many messages about long transfers must be found by looks alone before a connection looks at notices: to begin
/// and to end it takes three messages.
const EAGER: u32 = 16;

/// After so many looks that have found none, a connection looks at notices no more.
const IDLE: u32 = 1 << 14;

/// The connection of the last completion, and the number of its queue pair: most completions follow one of their own
/// connection.
type Last = Option<(u32, Arc<Socket>)>;

/// How completions are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Up to so many times for the first one, and a few are taken. A queue at which another thread looks is left to it.
    Look(u32),
    /// All that are there are taken.
    All,
    /// As `All`, and what comes later wakes the thread of the channel.
    Arm,
}

impl Shard {
    /// The turn of this thread, which may wait for others.
    fn turn(&self) -> MutexGuard<'_, Polling> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let turn = self.polling.lock();
        self.waits.fetch_sub(1, Ordering::Relaxed);
        turn
    }
}

/// Entries that a connection may fill.
pub(super) struct Places {
    shard: Arc<Shard>,
    count: usize,
}

impl Places {
    /// The completion queue.
    pub fn cq(&self) -> &Arc<Cq> {
        &self.shard.cq
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.shard.used.fetch_sub(self.count, Ordering::Relaxed);
    }
}

type Shards = Arc<Vec<Arc<Shard>>>;

/// All completion queues, and whose queue pair is which.
pub(super) struct Completions {
    pub channel: Arc<CompChannel>,
    most: usize,
    shards: RwLock<Shards>,
    /// The first of them, for as long as there are not several.
    first: OnceLock<Arc<Shard>>,
    several: AtomicBool,
    sockets: RwLock<HashMap<u32, Arc<Socket>>>,
}

impl Completions {
    pub fn new(context: &Arc<Context>) -> rdma::Result<Completions> {
        let channel = context.create_comp_channel()?;
        channel.set_nonblocking()?;
        let most = usize::try_from(context.query_device()?.max_cqe).unwrap_or(0).min(ENTRIES);
        let (shards, sockets, first) = (RwLock::default(), RwLock::default(), OnceLock::new());
        Ok(Completions { channel, most, shards, first, several: AtomicBool::new(false), sockets })
    }

    fn shards(&self) -> Shards {
        self.shards.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Places for a connection, in a queue that has them, or in a new one.
    pub fn places(&self, context: &Arc<Context>, count: usize) -> rdma::Result<Places> {
        let mut shards = self.shards.write().unwrap_or_else(PoisonError::into_inner);
        let fits = |shard: &&Arc<Shard>| {
            let take = |used: usize| used.checked_add(count).filter(|used| *used <= shard.entries);
            shard.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
        };
        if let Some(shard) = shards.iter().find(fits) {
            return Ok(Places { shard: shard.clone(), count });
        }
        let entries = self.most.max(count);
        let cq = context.create_cq(entries as u32, Some(&self.channel), 0)?;
        // Nothing is in it yet, so the thread need not look first.
        cq.arm(false)?;
        let (used, waits) = (AtomicUsize::new(count), AtomicUsize::new(0));
        let shard =
            Arc::new(Shard { cq, entries, used, polling: Mutex::default(), looking: AtomicBool::new(false), waits });
        if self.first.set(shard.clone()).is_err() {
            self.several.store(true, Ordering::Release);
        }
        *shards = Arc::new(shards.iter().chain([&shard]).cloned().collect());
        Ok(Places { shard, count })
    }

    /// Completions of this queue pair are the socket's.
    pub fn enter(&self, qp: u32, socket: &Arc<Socket>) {
        self.sockets.write().unwrap_or_else(PoisonError::into_inner).insert(qp, socket.clone());
    }

    /// The queue pair is gone.
    pub fn leave(&self, qp: u32) {
        self.sockets.write().unwrap_or_else(PoisonError::into_inner).remove(&qp);
        for shard in self.shards().iter() {
            let Ends { last, looking, .. } = &mut shard.turn().ends;
            if last.as_ref().is_some_and(|(of, _)| *of == qp) {
                *last = None;
            }
            looking.retain(|looking| looking.socket.qp.load(Ordering::Relaxed) != qp);
        }
    }

    /// True if a thread of the program looks at one of them.
    pub fn is_looked_at(&self) -> bool {
        let looks = |shard: &Arc<Shard>| shard.looking.load(Ordering::Relaxed);
        self.first.get().is_some_and(looks) || self.several.load(Ordering::Acquire) && self.shards().iter().any(looks)
    }

    fn socket(&self, qp: u32) -> Option<Arc<Socket>> {
        self.sockets.read().unwrap_or_else(PoisonError::into_inner).get(&qp).cloned()
    }

    /// Hand completions and notices on; true if there was one. No socket may be locked by the caller. `alone`: no
    /// thread waits for the channel; one that begins to wait makes it false, and then comes with [`How::Arm`].
    #[inline(always)]
    pub fn poll(
        &self,
        how: How,
        alone: &dyn Fn() -> bool,
        closed: &mut Vec<Arc<Socket>>,
        taker: Option<&mut Taker<'_>>,
    ) -> bool {
        match (self.first.get(), how) {
            _ if self.several.load(Ordering::Acquire) => self.poll_several(how, alone, closed, taker),
            (None, _) => false,
            (Some(shard), How::Look(turns)) => self.look_at(shard, turns, alone, closed, taker),
            (Some(shard), How::All | How::Arm) => self.take_all(shard, how == How::Arm, closed),
        }
    }

    /// As [`Completions::poll`], where there are several queues: a look goes on to the next one at once.
    #[inline(never)]
    fn poll_several(
        &self,
        how: How,
        alone: &dyn Fn() -> bool,
        closed: &mut Vec<Arc<Socket>>,
        mut taker: Option<&mut Taker<'_>>,
    ) -> bool {
        let mut any = false;
        for shard in self.shards().iter() {
            any |= match how {
                How::Look(_) => self.look_at(shard, 1, alone, closed, taker.as_deref_mut()),
                How::All | How::Arm => self.take_all(shard, how == How::Arm, closed),
            };
        }
        any
    }

    /// [`How::Look`].
    #[inline(never)]
    fn look_at(
        &self,
        shard: &Shard,
        mut turns: u32,
        alone: &dyn Fn() -> bool,
        closed: &mut Vec<Arc<Socket>>,
        taker: Option<&mut Taker<'_>>,
    ) -> bool {
        if shard.polling.is_locked() {
            return false;
        }
        // Not by try_lock, with which the mutex would lean to no thread.
        let mut polling = shard.polling.lock();
        let Polling { ends, wcs } = &mut *polling;
        shard.looking.store(true, Ordering::Relaxed);
        // A look that must wait is for one completion, which costs the device less.
        let mut most = FEW;
        let came = loop {
            match shard.cq.poll(&mut wcs[..most]) {
                Ok(1) => {
                    // A way of its own, without loops: a program that waits mostly has one message.
                    let wc = &wcs[0];
                    self.hand_to(ends, wc.qp_num(), Some(alone), closed, |end| end.take_one(wc, taker));
                    break true;
                }
                Ok(count @ 2..) => {
                    self.hand_on(ends, &wcs[..count], Some(alone), closed, taker);
                    break true;
                }
                _ => {}
            }
            if !ends.looking.is_empty() && ends.look_at_notices(closed) {
                break true;
            }
            (turns, most) = (turns - 1, 1);
            if turns == 0 || shard.waits.load(Ordering::Relaxed) > 0 {
                break false;
            }
        };
        shard.looking.store(false, Ordering::Relaxed);
        came
    }

    /// [`How::All`] and [`How::Arm`].
    #[inline(never)]
    fn take_all(&self, shard: &Shard, arm: bool, closed: &mut Vec<Arc<Socket>>) -> bool {
        let mut polling = shard.turn();
        let Polling { ends, wcs } = &mut *polling;
        if arm {
            // Before the look: what comes in between would wake no thread. A device that is gone: rdma_cm says so.
            let _ = shard.cq.arm(false);
        }
        let mut any = false;
        loop {
            if let Ok(count @ 1..) = shard.cq.poll(wcs) {
                self.hand_on(ends, &wcs[..count], None, closed, None);
            } else if ends.looking.is_empty() || !ends.look_at_notices(closed) {
                break;
            }
            any = true;
        }
        if arm {
            ends.stop_looking();
        }
        any
    }

    /// Hand completions on. `alone`: this is a look of a thread of the program; as in [`Completions::poll`].
    #[inline(never)]
    fn hand_on(
        &self,
        ends: &mut Ends,
        wcs: &[Wc],
        alone: Option<&dyn Fn() -> bool>,
        closed: &mut Vec<Arc<Socket>>,
        mut taker: Option<&mut Taker<'_>>,
    ) {
        for wcs in wcs.chunk_by(|a, b| a.qp_num() == b.qp_num()) {
            let take = |end: &mut End| end.take(wcs, taker.as_deref_mut());
            self.hand_to(ends, wcs[0].qp_num(), alone, closed, take);
        }
    }

    /// Have the end of a queue pair take its completions.
    #[inline(always)]
    fn hand_to(
        &self,
        ends: &mut Ends,
        qp: u32,
        alone: Option<&dyn Fn() -> bool>,
        closed: &mut Vec<Arc<Socket>>,
        take: impl FnOnce(&mut End),
    ) {
        if ends.last.as_ref().is_none_or(|(of, _)| *of != qp) {
            ends.last = self.socket(qp).map(|socket| (qp, socket));
        }
        let Some((_, socket)) = &ends.last else { return };
        let mut inner = socket.inner();
        if let Some(end) = &mut inner.end {
            take(end);
            if let Some(alone) = alone
                && end.wants_to_look()
            {
                ends.eager += 1;
                if ends.eager > EAGER && alone() {
                    end.begin_to_look();
                    ends.looking.push(Looking { socket: socket.clone(), idle: 0 });
                }
            }
        }
        socket.step(&mut inner);
        if matches!(inner.stage, Stage::Closed) {
            drop(inner);
            closed.push(socket.clone());
        }
    }
}

impl Ends {
    /// Take notices in; true if there was one.
    fn look_at_notices(&mut self, closed: &mut Vec<Arc<Socket>>) -> bool {
        let mut any = false;
        self.looking.retain_mut(|Looking { socket, idle }| {
            let mut inner = socket.inner();
            let Some(end) = &mut inner.end else { return false };
            if !end.look_at_notices() {
                *idle += 1;
                if *idle > IDLE {
                    end.stop_looking();
                }
                return *idle <= IDLE && !end.is_dead();
            }
            (any, *idle) = (true, 0);
            socket.step(&mut inner);
            if matches!(inner.stage, Stage::Closed) {
                closed.push(socket.clone());
            }
            true
        });
        any
    }

    /// Messages are waited for from now on.
    fn stop_looking(&mut self) {
        self.eager = 0;
        for Looking { socket, .. } in self.looking.drain(..) {
            let mut inner = socket.inner();
            if let Some(end) = &mut inner.end {
                end.stop_looking();
            }
            socket.step(&mut inner);
        }
    }
}
