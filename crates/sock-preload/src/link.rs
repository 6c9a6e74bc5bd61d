//! The links of this process to those that it has moved connections with: a page (`memory::link`) and bells for each.
//!
//! The pages lie side by side in a range of addresses that is never given back: a thread that still looks at the page
//! of a link that has gone finds zeroes, or another link's news, and looks at some connection in vain.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use memory::backing::Memfd;
use memory::link::{self, BELLS, CONNECTIONS, Side};
use rustix::event::EventfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use sock::hello::Hello;

use crate::kernel::{self, borrow};
use crate::{descriptors, epoll, meet, sets};

/// Links that a process may have at the same time.
pub const LINKS: usize = 256;

/// What a bell is used for: by one epoll set, edge-triggered and never emptied; or by calls, which empty it.
const FREE: i32 = 0;
const CALLS: i32 = -1;

/// How often a thread looks whether a bell is empty now, before it takes another one.
const TRIES: u32 = 32;
/// In the count of threads that sleep by a bell: one of them is emptying it.
const EMPTYING: u32 = 1 << 31;
/// In [`Link::refs`]: the link is being given back.
const GOING: u32 = u32::MAX;

struct Bell {
    /// Wakes this process.
    mine: AtomicI32,
    /// Wakes the other one.
    theirs: AtomicI32,
    /// [`FREE`], [`CALLS`], or 1 + the number of the set that has it.
    used: AtomicI32,
    inside: AtomicU32,
}

/// A link.
pub struct Link {
    /// Connections on it; 0: there is none, and the link is not.
    refs: AtomicU32,
    /// The number by which both processes know it.
    token: AtomicU64,
    /// The other process, as the kernel tells it; 0: not known, or not to be used for new connections.
    pid: AtomicI32,
    is_maker: AtomicU32,
    /// Not 0: this process has it from its parent, with the sets.
    inherited: AtomicU32,
    /// The socket by which the two processes have met, and whose other end nobody uses: a hang-up says that no process
    /// has the other end of the link any more, a forked child of the other process included; -1.
    life: AtomicI32,
    /// The page's descriptor, until the other process is known to have it; -1.
    page: AtomicI32,
    /// The bells that are there, one bit each.
    bells: AtomicU32,
    each: [Bell; BELLS],
    /// The slots of connections, + 1; 0: the number is free.
    slots: [AtomicU16; CONNECTIONS as usize],
}

/// In [`Link::slots`]: a forked child still has the connection of this number.
const TAKEN: u16 = u16::MAX;

static ALL: [Link; LINKS] = [const {
    Link {
        refs: AtomicU32::new(0),
        token: AtomicU64::new(0),
        pid: AtomicI32::new(0),
        is_maker: AtomicU32::new(0),
        inherited: AtomicU32::new(0),
        life: AtomicI32::new(-1),
        page: AtomicI32::new(-1),
        bells: AtomicU32::new(0),
        each: [const {
            Bell {
                mine: AtomicI32::new(-1),
                theirs: AtomicI32::new(-1),
                used: AtomicI32::new(FREE),
                inside: AtomicU32::new(0),
            }
        }; BELLS],
        slots: [const { AtomicU16::new(0) }; CONNECTIONS as usize],
    }
}; LINKS];

/// The range of the pages.
static PAGES: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// A link by its number.
pub fn link(number: usize) -> &'static Link {
    &ALL[number % LINKS]
}

/// Reserves the addresses of the pages. To be called under the lock of [`meet`].
fn pages() -> Option<*mut u8> {
    let there = PAGES.load(Ordering::Acquire);
    if !there.is_null() {
        return Some(there);
    }
    let all = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
    let made = unsafe {
        rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            LINKS * link::LEN,
            all,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    let made = made.ok()?.cast();
    PAGES.store(made, Ordering::Release);
    Some(made)
}

impl Link {
    /// Its number.
    pub fn number(&self) -> usize {
        (core::ptr::from_ref(self).addr() - (&raw const ALL).addr()) / size_of::<Link>()
    }

    fn side(&self, makers: bool) -> &'static Side {
        let page = PAGES.load(Ordering::Acquire).wrapping_add(self.number() * link::LEN);
        assert!(!page.is_null(), "a link is made after the range of the pages");
        let at = if makers { 0 } else { size_of::<Side>() };
        // SAFETY: the range is mapped for ever, and a page in it is only ever replaced by another one. A side is
        // nothing but atomics, is aligned to 64 bytes, and both lie in a page.
        unsafe { &*page.add(at).cast::<Side>() }
    }

    /// What is told this process.
    pub fn mine(&self) -> &'static Side {
        self.side(self.is_maker.load(Ordering::Relaxed) != 0)
    }

    /// What this process tells.
    pub fn theirs(&self) -> &'static Side {
        self.side(self.is_maker.load(Ordering::Relaxed) == 0)
    }

    /// Whether it has the page of a link: under the lock of [`meet`].
    fn map(&self, file: impl AsFd) -> Option<()> {
        // It is what a peer's memory must be: of this size for ever.
        drop(Memfd::open(&file, link::LEN).ok()?);
        let page = pages()?.wrapping_add(self.number() * link::LEN);
        let (all, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the page of this link in the range, which nobody else replaces while the lock is held and the link is
        // not given back.
        unsafe { rustix::mm::mmap(page.cast(), link::LEN, all, flags, file, 0) }.ok()?;
        Some(())
    }

    /// The socket that hangs up when no process has the other end of the link any more; -1: none.
    pub fn life(&self) -> i32 {
        self.life.load(Ordering::Relaxed)
    }

    /// Keeps a socket for that. Under the lock of [`meet`].
    pub fn keep(&self, life: i32) {
        self.life.store(life, Ordering::SeqCst);
    }

    /// Whether no process has the other end of the link any more. All connections that have not gone back to TCP are
    /// then over: what they still have to say is said by their sockets.
    pub fn has_died(&self) -> bool {
        let life = self.life();
        life >= 0 && kernel::look(life, 0) & libc::POLLHUP != 0
    }

    /// The slots of its connections.
    pub fn all_slots(&self) -> impl Iterator<Item = usize> {
        (0..CONNECTIONS).filter_map(|number| self.slot(number))
    }

    /// Adds a bell.
    fn add(&self, bell: usize, mine: OwnedFd, theirs: OwnedFd) -> Option<()> {
        let each = self.each.get(bell)?;
        let mine = meet::out_of_the_way(mine)?;
        let Some(theirs) = meet::out_of_the_way(theirs) else {
            descriptors::close_own(&AtomicI32::new(mine));
            return None;
        };
        each.used.store(FREE, Ordering::Relaxed);
        each.inside.store(0, Ordering::Relaxed);
        each.mine.store(mine, Ordering::Relaxed);
        each.theirs.store(theirs, Ordering::Relaxed);
        self.bells.fetch_or(1 << bell, Ordering::SeqCst);
        Some(())
    }

    /// The bells that this process adds, or the other one.
    fn parity(&self, mine: bool) -> u32 {
        if mine == (self.is_maker.load(Ordering::Relaxed) != 0) { 0x5555_5555 } else { 0xAAAA_AAAA }
    }

    /// The bells by which the other process can wake this one for a connection: those that it has made, those that it
    /// is known to have, and those that it gets with the connection itself.
    pub fn usable(&self, with_connection: u32) -> u32 {
        self.bells.load(Ordering::SeqCst) & (self.mine().known() | self.parity(false) | with_connection)
    }

    /// The bells that are there.
    pub fn bells(&self) -> u32 {
        self.bells.load(Ordering::SeqCst)
    }

    fn claim_number(&self, slot: usize) -> Option<u32> {
        let first = if self.is_maker.load(Ordering::Relaxed) != 0 { 0 } else { 1 };
        let free =
            (first..CONNECTIONS).step_by(2).find(|number| self.slots[*number as usize].load(Ordering::Relaxed) == 0)?;
        self.slots[free as usize].store(slot as u16 + 1, Ordering::SeqCst);
        Some(free)
    }

    /// The slot of a connection that has news.
    pub fn slot(&self, number: u32) -> Option<usize> {
        match self.slots.get(number as usize)?.load(Ordering::Acquire) {
            0 | TAKEN => None,
            slot => Some(usize::from(slot) - 1),
        }
    }

    /// Tells the other process of a connection.
    ///
    /// How many bells were rung.
    pub fn tell(&self, number: u32, bells: u32) -> u64 {
        let mut rung = 0;
        self.theirs().tell(number, bells, |bell| {
            rung += 1;
            let fd = self.each.get(bell).map_or(-1, |bell| bell.theirs.load(Ordering::Relaxed));
            // Full: it wakes already.
            let _ = rustix::io::write(borrow(fd), &1u64.to_ne_bytes());
        });
        rung
    }

    /// Wakes a thread of this process that sleeps by one of these bells.
    pub fn ring_own(&self, bells: u32) {
        for (number, bell) in self.each.iter().enumerate().filter(|(number, _)| bells >> number & 1 != 0) {
            if self.bells.load(Ordering::Relaxed) >> number & 1 != 0 {
                let _ = rustix::io::write(borrow(bell.mine.load(Ordering::Relaxed)), &1u64.to_ne_bytes());
            }
        }
    }

    /// Wakes a thread of each of this process's sets that has connections of the link.
    pub fn ring_sets(&self) {
        let of_sets = |bell: &Bell| bell.used.load(Ordering::SeqCst) > 0;
        let bells = self.each.iter().enumerate().filter(|(_, bell)| of_sets(bell));
        self.ring_own(bells.fold(0, |bells, (number, _)| bells | 1 << number));
    }

    /// Announces that a thread of a set is about to sleep.
    pub fn announce_for_set(&self, set: usize) {
        let used = || self.each.iter().map(|bell| bell.used.load(Ordering::SeqCst)).enumerate();
        let own = used().find(|(_, used)| *used == set as i32 + 1);
        for (bell, _) in used().filter(|(bell, used)| own.map_or(*used > 0, |(own, _)| own == *bell)) {
            self.mine().announce(bell);
        }
    }

    /// Whether a descriptor is one of its bells; if so `new` takes its place.
    pub fn replace(&self, fd: i32, new: impl FnOnce() -> Option<i32>) -> bool {
        let bells = self.each.iter().flat_map(|bell| [&bell.mine, &bell.theirs]).chain([&self.page, &self.life]);
        let Some(place) = bells.into_iter().find(|place| place.load(Ordering::Relaxed) == fd) else { return false };
        if let Some(new) = new() {
            place.store(new, Ordering::SeqCst);
        }
        true
    }

    /// The bell for a set, of those that are usable, and its descriptor.
    pub fn bell_for_set(&self, set: usize, usable: u32) -> Option<(usize, i32)> {
        let mine = set as i32 + 1;
        let there = || self.each.iter().enumerate().filter(|(number, _)| usable >> number & 1 != 0);
        let used = |bell: &Bell| bell.used.load(Ordering::SeqCst);
        let claim = |bell: &Bell, from: i32| bell.used.compare_exchange(from, mine, Ordering::SeqCst, Ordering::SeqCst);
        let (number, bell) = there()
            .find(|(_, bell)| used(bell) == mine)
            .or_else(|| there().find(|(_, bell)| claim(bell, FREE).is_ok()))
            .or_else(|| {
                there().find(|(_, bell)| {
                    // One that calls have used and none sleeps by now. A call looks again once it is counted.
                    let idle = bell.inside.load(Ordering::SeqCst) == 0 && claim(bell, CALLS).is_ok();
                    fence(Ordering::SeqCst);
                    let is_mine = idle && bell.inside.load(Ordering::SeqCst) == 0;
                    if idle && !is_mine {
                        bell.used.store(CALLS, Ordering::SeqCst);
                    }
                    is_mine
                })
            })
            // Several sets share one.
            .or_else(|| there().find(|(_, bell)| used(bell) > 0))?;
        Some((number, bell.mine.load(Ordering::Relaxed)))
    }

    /// A set is gone.
    pub fn forget_set(&self, set: usize) {
        for bell in &self.each {
            let _ = bell.used.compare_exchange(set as i32 + 1, FREE, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Begins to sleep by a bell, one of those that are usable, in a call; `preferred` spreads connections over bells.
    /// `None`: all are for sets.
    pub fn enter(&'static self, preferred: usize, usable: u32) -> Option<Inside> {
        for number in (0..BELLS).map(|number| (preferred + number) % BELLS).filter(|number| usable >> number & 1 != 0) {
            let bell = self.each.get(number)?;
            if bell.used.load(Ordering::SeqCst) > 0 {
                continue;
            }
            if !bell.go_inside() {
                continue;
            }
            let _ = bell.used.compare_exchange(FREE, CALLS, Ordering::SeqCst, Ordering::SeqCst);
            let inside = Inside { link: self, number };
            if bell.used.load(Ordering::SeqCst) == CALLS {
                return Some(inside);
            }
        }
        None
    }
}

/// A thread that sleeps by a bell, until this is dropped.
pub struct Inside {
    link: &'static Link,
    /// The bell's number.
    pub number: usize,
}

impl Bell {
    /// Counts this thread among those that sleep by the bell. False: it is being emptied all the time. That may be by
    /// a frame of this very thread that a signal's handler has interrupted or left, so no call waits for the end of it.
    fn go_inside(&self) -> bool {
        for _ in 0..TRIES {
            if self.inside.fetch_add(1, Ordering::SeqCst) & EMPTYING == 0 {
                return true;
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
            rustix::thread::sched_yield();
        }
        false
    }
}

impl Inside {
    fn bell(&self) -> &'static Bell {
        &self.link.each[self.number]
    }

    /// The link.
    pub fn link(&self) -> &'static Link {
        self.link
    }

    /// Its descriptor.
    pub fn fd(&self) -> i32 {
        self.bell().mine.load(Ordering::Relaxed)
    }

    /// The bell was rung: it is emptied if no other thread has to be woken by it any more. It stays rung until then, so
    /// all come out.
    pub fn leave(self, rung: bool) {
        let bell = self.bell();
        drop(self);
        if rung {
            match bell.inside.compare_exchange(0, EMPTYING, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    let _ = rustix::io::read(borrow(bell.mine.load(Ordering::Relaxed)), &mut [0u8; 8]);
                    bell.inside.fetch_sub(EMPTYING, Ordering::SeqCst);
                }
                Err(_) => rustix::thread::sched_yield(),
            }
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.bell().inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// In the child of fork(2): the links are the parent's, too, so new connections get new ones.
pub fn in_child() {
    for link in &ALL {
        link.pid.store(0, Ordering::Relaxed);
        link.inherited.store(1, Ordering::Relaxed);
        link.each.iter().for_each(|bell| bell.inside.store(0, Ordering::Relaxed));
    }
}

/// All that may be there.
pub fn all() -> impl Iterator<Item = &'static Link> {
    ALL.iter().filter(|link| !matches!(link.refs.load(Ordering::Relaxed), 0 | GOING))
}

/// One more connection on a link that is there.
fn hold(link: &Link) -> bool {
    let more = |refs: u32| (refs != 0 && refs != GOING).then(|| refs + 1);
    link.refs.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
}

/// A connection leaves its link. `keeps_number`: a forked child may still have it.
pub fn leave(number: usize, connection: u32, slot: usize, keeps_number: bool) {
    let link = link(number);
    if let Some(place) = link.slots.get(connection as usize) {
        let after = if keeps_number { TAKEN } else { 0 };
        // Another connection may have the number by now, if the other process has given it anew.
        let _ = place.compare_exchange(slot as u16 + 1, after, Ordering::SeqCst, Ordering::SeqCst);
    }
    let less = |refs: u32| if refs == 1 { Some(GOING) } else { Some(refs - 1) };
    if link.refs.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) == Ok(1) {
        give_back(link);
    }
}

fn give_back(link: &Link) {
    link.pid.store(0, Ordering::Relaxed);
    link.bells.store(0, Ordering::SeqCst);
    if link.life() >= 0 && link.inherited.load(Ordering::Relaxed) == 0 {
        sets::with_link(link).for_each(|set| epoll::remove(set, link.life()));
    }
    descriptors::close_own(&link.life);
    descriptors::close_own(&link.page);
    for bell in &link.each {
        // The other process has the bell, too: the kernel would keep it in the set.
        let set = bell.used.load(Ordering::SeqCst);
        if set > 0 && link.inherited.load(Ordering::Relaxed) == 0 {
            epoll::remove(sets::set(set as usize - 1), bell.mine.load(Ordering::Relaxed));
        }
        descriptors::close_own(&bell.mine);
        descriptors::close_own(&bell.theirs);
        bell.used.store(FREE, Ordering::Relaxed);
    }
    link.slots
        .iter()
        .filter(|place| place.load(Ordering::Relaxed) != 0)
        .for_each(|place| place.store(0, Ordering::Relaxed));
    let pages = PAGES.load(Ordering::Acquire);
    if !pages.is_null() {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let page = pages.wrapping_add(link.number() * link::LEN);
        // SAFETY: the page of this link in the range of the pages; it is replaced by one of zeroes.
        let _ =
            unsafe { rustix::mm::mmap_anonymous(page.cast(), link::LEN, ProtFlags::READ | ProtFlags::WRITE, flags) };
    }
    link.refs.store(0, Ordering::SeqCst);
}

/// What goes to the other process with a connection.
pub struct Offer {
    pub link: &'static Link,
    /// The connection's number on the link.
    pub number: u32,
    /// The bells that the other process may not have yet.
    pub bells: u32,
}

impl Offer {
    /// What to say of the link: its token, and whether this process has made it.
    pub fn token(&self) -> (u64, bool) {
        (self.link.token.load(Ordering::Relaxed), self.link.is_maker.load(Ordering::Relaxed) != 0)
    }

    /// The descriptors to send: the page, if the other process may not have it yet, and two for each bell.
    pub fn files(&self) -> impl Iterator<Item = i32> {
        let page = self.link.page.load(Ordering::Relaxed);
        let each = self.link.each.iter().enumerate().filter(|(number, _)| self.bells >> number & 1 != 0);
        let bells = each.flat_map(|(_, bell)| [bell.theirs.load(Ordering::Relaxed), bell.mine.load(Ordering::Relaxed)]);
        (page >= 0).then_some(page).into_iter().chain(bells)
    }
}

/// A new link, with one connection on it. Under the lock of [`meet`], as all that follows.
fn make(token: u64, is_maker: bool, pid: i32, page: &OwnedFd) -> Option<&'static Link> {
    let link = ALL.iter().find(|link| link.refs.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok())?;
    link.token.store(token, Ordering::Relaxed);
    link.is_maker.store(u32::from(is_maker), Ordering::Relaxed);
    link.bells.store(0, Ordering::Relaxed);
    link.inherited.store(0, Ordering::Relaxed);
    link.pid.store(pid, Ordering::Relaxed);
    if link.map(page).is_none() {
        leave(link.number(), u32::MAX, 0, false);
        return None;
    }
    Some(link)
}

fn eventfd() -> Option<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()
}

/// The link to a process, a new one if need be, and a number on it for the connection of a slot.
pub fn offer(pid: i32, slot: usize) -> Option<Offer> {
    let link = match all().find(|link| pid != 0 && link.pid.load(Ordering::Relaxed) == pid && hold(link)) {
        Some(link) => link,
        None => {
            let mut token = [0; 8];
            rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty()).ok()?;
            let (memory, page) = Memfd::create(link::LEN).ok()?;
            drop(memory);
            let link = make(u64::from_ne_bytes(token), true, pid, &page)?;
            link.page.store(meet::out_of_the_way(page).unwrap_or(-1), Ordering::Relaxed);
            link
        }
    };
    let made = (|| {
        let known = link.mine().known();
        if known != 0 {
            // The other process has the page.
            descriptors::close_own(&link.page);
        } else if link.is_maker.load(Ordering::Relaxed) != 0 && link.page.load(Ordering::Relaxed) < 0 {
            return None;
        }
        let bells = || link.bells.load(Ordering::Relaxed);
        if bells() & link.parity(true) & !known == 0
            && let Some(free) = (0..BELLS).find(|bell| (link.parity(true) & !bells()) >> bell & 1 != 0)
        {
            link.add(free, eventfd()?, eventfd()?)?;
        }
        let number = link.claim_number(slot)?;
        Some(Offer { link, number, bells: bells() & link.parity(true) & !known })
    })();
    if made.is_none() {
        leave(link.number(), u32::MAX, slot, false);
    }
    made
}

/// The link of a connection that another process, `pid`, has made memory for. `None`: it is not to be believed.
pub fn accept(said: &Hello, pid: i32, slot: usize, mut files: impl Iterator<Item = OwnedFd>) -> Option<&'static Link> {
    let known = all().find(|link| link.token.load(Ordering::Relaxed) == said.link && hold(link));
    let bells = (0..BELLS).filter(|bell| said.bells >> bell & 1 != 0);
    // The page comes along for as long as its maker does not know that we have it.
    let mut files: Vec<OwnedFd> = files.by_ref().collect();
    let page = if files.len() > 2 * bells.clone().count() { Some(files.remove(0)) } else { None };
    let link = match known {
        Some(link) => link,
        None if said.is_maker => make(said.link, false, pid, &page?)?,
        None => return None,
    };
    let done = (|| {
        let is_other_side = said.is_maker != (link.is_maker.load(Ordering::Relaxed) != 0);
        let is_of_sender = said.number < CONNECTIONS && said.number.is_multiple_of(2) == said.is_maker;
        if !is_other_side || !is_of_sender || said.bells & !link.parity(false) != 0 {
            return None;
        }
        let mut files = files.into_iter();
        for bell in bells {
            let (mine, theirs) = (files.next()?, files.next()?);
            if link.bells.load(Ordering::Relaxed) >> bell & 1 == 0 {
                if !meet::is_bell(&mine) || !meet::is_bell(&theirs) {
                    return None;
                }
                link.add(bell, mine, theirs)?;
            }
        }
        link.theirs().set_known(said.bells);
        link.slots.get(said.number as usize)?.store(slot as u16 + 1, Ordering::SeqCst);
        Some(link)
    })();
    if done.is_none() {
        leave(link.number(), u32::MAX, slot, false);
    }
    done
}
