//! Completion queues that connections share, and the way from a completion to its connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};

use rdma::{CompChannel, Context, Cq, Wc};

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
    polling: Mutex<()>,
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
    sockets: RwLock<HashMap<u32, Arc<Socket>>>,
}

impl Completions {
    pub fn new(context: &Arc<Context>) -> rdma::Result<Completions> {
        let channel = context.create_comp_channel()?;
        channel.set_nonblocking()?;
        let most = usize::try_from(context.query_device()?.max_cqe).unwrap_or(0).min(ENTRIES);
        Ok(Completions { channel, most, shards: RwLock::default(), sockets: RwLock::default() })
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
        let shard = Arc::new(Shard { cq, entries, used: AtomicUsize::new(count), polling: Mutex::default() });
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
    }

    fn socket(&self, qp: u32) -> Option<Arc<Socket>> {
        self.sockets.read().unwrap_or_else(PoisonError::into_inner).get(&qp).cloned()
    }

    /// Hand completions on: a few, or with `arm` or `all` every one that is there; both also wait for a thread that is
    /// doing so. With `arm`, what comes later wakes the thread of the channel. True if there was one. No socket may be
    /// locked by the caller.
    pub fn poll(&self, arm: bool, all: bool, closed: &mut Vec<Arc<Socket>>) -> bool {
        let mut any = false;
        for shard in self.shards().iter() {
            let _polling = match shard.polling.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::WouldBlock) if !arm && !all => continue,
                _ => shard.polling.lock().unwrap_or_else(PoisonError::into_inner),
            };
            if arm {
                // Before the look: what comes in between would wake no thread. A device that is gone: rdma_cm says so.
                let _ = shard.cq.arm(false);
            }
            let mut wcs = [Wc::default(); FEW];
            while let Ok(count @ 1..) = shard.cq.poll(&mut wcs) {
                any = true;
                for wcs in wcs[..count].chunk_by(|a, b| a.qp_num() == b.qp_num()) {
                    let Some(socket) = self.socket(wcs[0].qp_num()) else { continue };
                    let mut inner = socket.inner();
                    if let Some(end) = &mut inner.end {
                        end.take(wcs);
                    }
                    socket.step(&mut inner);
                    if matches!(inner.stage, Stage::Closed) {
                        drop(inner);
                        closed.push(socket);
                    }
                }
                if !arm && !all {
                    break;
                }
            }
        }
        any
    }
}
