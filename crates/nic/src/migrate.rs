//! Migration of registered memory that peers reach by plain stores and loads. At its registration the memory moves, at
//! its address, into memory that peers map too (`SOFTRNIC_MIGRATE`). At the deregistration of the last region upon it,
//! it moves back.
//!
//! It is off by default, because a program can tell the difference. A system call that writes to the memory while it
//! moves fails with EFAULT. madvise(MADV_DONTNEED) does not zero the memory while it is registered. A forked child gets
//! its copy in fork(2), not at the first write. Only whole pages inside a region move, only of the program's own
//! private memory, and only if it is readable and writable. Peers reach memory that does not move as before.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ::verbs::{Access, Errno, MrId};
use parking_lot::{Mutex, MutexGuard};
use window::Place;

use crate::Nic;
use crate::core::Core;
use crate::fork::{PATIENCE, Parted};

/// The greatest number of migrated places at one time; memory that is registered beyond it does not move.
const MOST: usize = 4096;
const PAGE: u64 = 4096;

/// True if the kernel can do it. Asked only where it is wanted: said on standard error, once, if not.
fn possible() -> bool {
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        let can = memory::migrate::possible();
        if !can {
            report::log(format_args!("SOFTRNIC_MIGRATE: without effect, because userfaultfd(2) cannot be had"));
        }
        can
    })
}

fn log_failure(what: &str, addr: u64, errno: Errno) {
    if report::logs() {
        report::log(format_args!("{what}: {addr:#x}: {errno}"));
    }
}

/// The places in the file, with their bytes, that have moved. A forked child looks at them without a lock.
pub(crate) struct Moved {
    /// The lock that is held while memory moves, and over fork(2).
    moving: Mutex<()>,
    /// The number of forks. `parted` counts the children that have made copies of their own.
    forks: AtomicU32,
    parted: Option<Parted>,
    file: AtomicI32,
    places: Box<[(AtomicU64, AtomicU64)]>,
}

impl Moved {
    /// Nothing yet. Memory moves only if that is `wanted` and possible.
    pub(crate) fn new(wanted: bool) -> Self {
        let migrates = wanted && possible();
        let places = if migrates { MOST } else { 0 };
        let places = (0..places).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect();
        let parted = if migrates { Parted::new() } else { None };
        Moved { moving: Mutex::new(()), forks: AtomicU32::new(0), parted, file: AtomicI32::new(-1), places }
    }

    /// True if memory moves.
    fn migrates(&self) -> bool {
        !self.places.is_empty()
    }

    /// Add a place. False if there are too many.
    fn insert(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> bool {
        self.file.store(file.as_raw_fd(), Ordering::Relaxed);
        let free = self.places.iter().find(|(_, bytes)| bytes.load(Ordering::Relaxed) == 0);
        if let Some((start, bytes)) = free {
            start.store(at, Ordering::Relaxed);
            bytes.store(len, Ordering::Release);
        }
        free.is_some()
    }

    fn remove(&self, at: u64) {
        let same = |(start, bytes): &&(AtomicU64, AtomicU64)| {
            bytes.load(Ordering::Relaxed) != 0 && start.load(Ordering::Relaxed) == at
        };
        if let Some((_, bytes)) = self.places.iter().find(same) {
            bytes.store(0, Ordering::Release);
        }
    }

    /// A guard during which no other memory moves and no thread forks.
    fn still(&self) -> MutexGuard<'_, ()> {
        self.moving.lock()
    }

    /// Take the lock before fork(2). False if the fork goes on without it, as it must in a signal handler that has
    /// interrupted a move.
    pub fn hold(&self) -> bool {
        let held = self.file().and_then(|_| self.moving.try_lock_for(PATIENCE));
        if held.is_some() {
            self.forks.fetch_add(1, Ordering::Relaxed);
        }
        held.map(std::mem::forget).is_some()
    }

    /// The lock that [`Moved::hold`] took.
    pub fn held(&self) -> &Mutex<()> {
        &self.moving
    }

    /// Wait until forked children have their copies: nothing of what they copy from may be freed before.
    fn let_part(&self) {
        let Some(parted) = &self.parted else { return };
        let until = Instant::now() + PATIENCE;
        while parted.count() != self.forks.load(Ordering::Relaxed) {
            if Instant::now() > until {
                // A child has died, or there was none, because fork(2) failed.
                self.forks.store(parted.count(), Ordering::Relaxed);
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// The file, once memory has moved there.
    pub fn file(&self) -> Option<RawFd> {
        Some(self.file.load(Ordering::Relaxed)).filter(|fd| *fd >= 0)
    }

    /// Make the memory the child's own, in a forked child. Async-signal-safe.
    pub fn part(&self, file: BorrowedFd<'_>) {
        for (start, bytes) in &self.places {
            let len = bytes.swap(0, Ordering::Acquire);
            if len != 0 && memory::migrate::copy_for_child(file, start.load(Ordering::Relaxed), len as usize).is_err() {
                crate::fork::complain();
            }
        }
        if let Some(parted) = &self.parted {
            parted.add();
        }
    }
}

/// The users of migrated memory.
#[derive(Default)]
pub(crate) struct Migration {
    /// The number of regions upon each place, by its address.
    users: HashMap<u64, usize>,
    /// The places that each region uses.
    held: HashMap<MrId, Vec<u64>>,
}

impl Nic {
    /// Move the memory of a region that is to be registered, if that is wanted and possible. The result is the places
    /// that the region uses: the caller gives them to [`Nic::keep_migrated`], or back to [`Nic::migrate_back`].
    pub(crate) fn migrate(&self, core: &mut Core, addr: u64, length: u64, access: Access) -> Vec<u64> {
        if !self.moved.migrates() {
            return Vec::new();
        }
        // Memory without rights for peers moves, too: messages that are sent from it are copied once, by the receiver.
        if access.intersects(Access::ON_DEMAND | Access::HUGETLB) {
            // Such a region does not use the places of others either: its addresses may mean something else later.
            return Vec::new();
        }
        let from = addr.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        let to = addr.saturating_add(length) & !(PAGE - 1);
        // Memory of an existing region does not move: peers may be writing to it by system calls, which do not wait for
        // a move.
        if from < to && !core.engine.has_region_at(from, to - from) {
            let len = to - from;
            let _still = self.moved.still();
            let moved = core.engine.env_mut().migrate_shared(from, len, |file, at| {
                // Added before the move: a fork may come in between.
                if !self.moved.insert(file, at, len) {
                    return Err(Errno::ENOMEM);
                }
                let moved = memory::migrate::migrate(file, at, from, len as usize);
                if moved.is_err() {
                    self.moved.remove(at);
                }
                moved
            });
            match moved {
                Ok(()) => drop(core.migration.users.insert(from, 0)),
                Err(errno) => log_failure("memory stays where it is", from, errno),
            }
        }
        // Places that other regions have moved count, too: they must stay as long as this region may be reached there.
        let places = core.engine.env().shared_places(addr, length);
        let used: Vec<u64> =
            places.iter().map(|place| place.addr).filter(|at| core.migration.users.contains_key(at)).collect();
        for at in &used {
            *core.migration.users.entry(*at).or_default() += 1;
        }
        used
    }

    /// Note that a region was registered upon these places.
    pub(crate) fn keep_migrated(&self, core: &mut Core, mr: MrId, places: Vec<u64>) {
        if !places.is_empty() {
            let before = core.migration.held.insert(mr, places);
            self.migrate_back(core, before.unwrap_or_default());
        }
    }

    /// Note that a region was deregistered.
    pub(crate) fn drop_migrated(&self, core: &mut Core, mr: MrId) {
        let places = core.migration.held.remove(&mr).unwrap_or_default();
        self.migrate_back(core, places);
    }

    /// Release one use of each of these places. A place without users goes back to the program.
    pub(crate) fn migrate_back(&self, core: &mut Core, places: Vec<u64>) {
        for addr in places {
            let Some(users) = core.migration.users.get_mut(&addr) else { continue };
            *users = users.saturating_sub(1);
            if *users > 0 {
                continue;
            }
            core.migration.users.remove(&addr);
            let _still = self.moved.still();
            self.moved.let_part();
            let back = core.engine.env_mut().return_shared(addr, |file, Place { len, at, .. }| {
                memory::migrate::migrate_back(file, at, len as usize)?;
                self.moved.remove(at);
                Ok(())
            });
            // On an error the memory stays shared memory, though no region is upon it. A forked child still gets its
            // copy.
            if let Err(errno) = back {
                log_failure("memory stays shared", addr, errno);
            }
        }
    }
}
