//! Registered memory that peers reach by plain stores and loads: at its registration it moves, where it is, into memory
//! that they map too (`SOFTRNIC_ADOPT`), and at the deregistration of the last region upon it, back.
//!
//! Off at first, because a program can tell the difference: a system call that writes to the memory while it moves fails
//! with EFAULT, madvise(MADV_DONTNEED) does not zero it while it is registered, and a forked child gets its copy in fork(2), not at the first
//! write. Only whole pages inside a region move, only the program's own private memory, and only if it is readable and writable. What does not
//! move is reached as before.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use ::verbs::{Access, Errno, MrId};
use window::Place;

use crate::Nic;
use crate::core::Core;

/// Places at one time; what is registered beyond does not move.
const MOST: usize = 4096;
const PAGE: u64 = 4096;

/// True if the environment asks for it (`SOFTRNIC_ADOPT=1`) and the kernel can do it.
pub(crate) fn wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let asked = std::env::var_os("SOFTRNIC_ADOPT").is_some_and(|value| value == "1");
        let can = asked && memory::adopt::possible();
        if asked && !can {
            eprintln!("softrnic: SOFTRNIC_ADOPT: without effect, because userfaultfd(2) cannot be had");
        }
        can
    })
}

/// What has moved, for a forked child, which may look at it without a lock: places in the file, and their bytes.
pub(crate) struct Moved {
    file: AtomicI32,
    places: Box<[(AtomicU64, AtomicU64)]>,
}

impl Default for Moved {
    fn default() -> Self {
        let places = if wanted() { MOST } else { 0 };
        let places = (0..places).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect();
        Moved { file: AtomicI32::new(-1), places }
    }
}

impl Moved {
    /// False if there are too many.
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

    /// The file, once something has moved there.
    pub fn file(&self) -> Option<RawFd> {
        Some(self.file.load(Ordering::Relaxed)).filter(|fd| *fd >= 0)
    }

    /// In a forked child: its memory becomes its own. Async-signal-safe.
    pub fn part(&self, file: BorrowedFd<'_>) {
        for (start, bytes) in &self.places {
            let len = bytes.swap(0, Ordering::Acquire);
            if len != 0 {
                let _ = memory::adopt::copy_for_child(file, start.load(Ordering::Relaxed), len as usize);
            }
        }
    }
}

/// Who uses what has moved.
#[derive(Default)]
pub(crate) struct Adoption {
    /// Regions upon each place, by its address.
    users: HashMap<u64, usize>,
    /// The places that a region uses.
    held: HashMap<MrId, Vec<u64>>,
}

impl Nic {
    /// Moves the memory of a region that is to be registered, if that is wanted and possible. Gives the places that the
    /// region uses: to be kept by [`Nic::keep_adopted`], or to be given back.
    pub(crate) fn adopt(&self, core: &mut Core, addr: u64, length: u64, access: Access) -> Vec<u64> {
        if !wanted() {
            return Vec::new();
        }
        // Also what peers have no right to: messages that are sent from it are copied once, by the receiver.
        let suits = !access.intersects(Access::ON_DEMAND | Access::HUGETLB);
        let from = addr.next_multiple_of(PAGE);
        let to = (addr + length) & !(PAGE - 1);
        if suits && from < to {
            let len = to - from;
            let moved = core.engine.platform_mut().adopt_shared(from, len, |file, at| {
                // Before it moves: a fork may come in between.
                if !self.moved.insert(file, at, len) {
                    return Err(Errno::ENOMEM);
                }
                let moved = memory::adopt::adopt(file, at, from, len as usize);
                if moved.is_err() {
                    self.moved.remove(at);
                }
                moved
            });
            match moved {
                Ok(()) => drop(core.adoption.users.insert(from, 0)),
                Err(errno) if crate::logs() => {
                    let pid = std::process::id();
                    eprintln!("softrnic[{pid}]: {len} bytes at {from:#x} stay where they are: {errno}");
                }
                Err(_) => {}
            }
        }
        // Also what others have moved: it must stay as long as this region may be reached there.
        let places = core.engine.platform().shared_places(addr, length);
        let used: Vec<u64> =
            places.iter().map(|place| place.addr).filter(|at| core.adoption.users.contains_key(at)).collect();
        for at in &used {
            *core.adoption.users.entry(*at).or_default() += 1;
        }
        used
    }

    /// A region was registered upon these places.
    pub(crate) fn keep_adopted(&self, core: &mut Core, mr: MrId, places: Vec<u64>) {
        if !places.is_empty() {
            let before = core.adoption.held.insert(mr, places);
            self.give_back(core, before.unwrap_or_default());
        }
    }

    /// A region was deregistered.
    pub(crate) fn drop_adopted(&self, core: &mut Core, mr: MrId) {
        let places = core.adoption.held.remove(&mr).unwrap_or_default();
        self.give_back(core, places);
    }

    /// These places are used by one region less. What nobody uses goes back to the program.
    pub(crate) fn give_back(&self, core: &mut Core, places: Vec<u64>) {
        for addr in places {
            let Some(users) = core.adoption.users.get_mut(&addr) else { continue };
            *users = users.saturating_sub(1);
            if *users > 0 {
                continue;
            }
            let back = core.engine.platform_mut().return_shared(addr, |file, Place { len, at, .. }| {
                memory::adopt::give_back(file, at, len as usize)?;
                self.moved.remove(at);
                Ok(())
            });
            // Otherwise it stays where it is, for the next region upon it.
            if back.is_ok() {
                core.adoption.users.remove(&addr);
            }
        }
    }
}
