//! Memory of this process that peers map too: the addresses that lie in its arena, and their places there.

use std::os::fd::BorrowedFd;

use memory::arena::{Arena, Mapped};
use verbs::Errno;

use crate::WindowEnv;

/// Addresses of this process that are in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The first.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Where the first one is in the arena.
    pub at: u64,
}

/// Places that are shown by themselves, at most.
pub(crate) const PLACES: usize = 64;

/// The arena, once there is one, and what it holds.
#[derive(Default)]
pub(crate) struct SharedMemory {
    arena: Option<Arena>,
    /// They do not overlap. The index of one is the number under which it is shown, if that is below [`PLACES`].
    places: Vec<Option<Place>>,
    /// A process that was stopped in the middle of a copy may go on with it: no place is used for anything else.
    pub late_writer: bool,
}

impl SharedMemory {
    pub fn name(&self) -> Option<(u64, u64)> {
        self.arena.as_ref().map(Arena::name)
    }

    /// Those of these addresses that are in the arena. If there are several pieces, the longest: the rest is reached
    /// in other ways.
    pub fn find(&self, addr: u64, length: u64) -> Option<Place> {
        let end = addr.saturating_add(length);
        let cut = |place: &Place| {
            let from = place.addr.max(addr);
            let to = (place.addr + place.len).min(end);
            (from < to).then(|| Place { addr: from, len: to - from, at: place.at + (from - place.addr) })
        };
        self.places.iter().flatten().filter_map(cut).max_by_key(|place| place.len)
    }

    /// True if peers can map this address: it is in a place that is shown.
    pub fn shows(&self, addr: u64) -> bool {
        let holds = |place: &Place| addr.checked_sub(place.addr).is_some_and(|offset| offset < place.len);
        self.places.iter().take(PLACES).flatten().any(holds)
    }

    /// The count of numbers in use, those between them included.
    pub fn count(&self) -> usize {
        self.places.len().min(PLACES)
    }

    fn insert(&mut self, place: Place) -> usize {
        let number = self.places.iter().position(Option::is_none).unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[number] = Some(place);
        number
    }

    fn remove(&mut self, addr: u64) -> Option<(usize, Place)> {
        let number = self.places.iter().position(|place| place.is_some_and(|place| place.addr == addr))?;
        let place = self.places[number].take()?;
        while self.places.last().is_some_and(Option::is_none) {
            self.places.pop();
        }
        Some((number, place))
    }
}

impl WindowEnv {
    /// The arena, made if there is none yet; `None` where memory cannot be shared.
    fn arena(&mut self) -> Option<&mut Arena> {
        if !self.config.single_copy {
            return None; // peers that may not copy may not map
        }
        if self.shared.arena.is_none() {
            self.shared.arena = Arena::create(&self.fds).ok();
        }
        self.shared.arena.as_mut()
    }

    /// Zeroed memory that peers can map, at least `len` bytes: device memory. To be given back by
    /// [`WindowEnv::free_shared`]. `None` where memory cannot be shared.
    pub fn allocate_shared(&mut self, len: u64) -> Option<Mapped> {
        let arena = self.arena()?;
        let at = arena.allocate(len)?;
        match arena.reserve(at, len).and_then(|()| arena.map(at, len)) {
            Ok(mapped) => {
                self.insert_place(Place { addr: mapped.addr(), len: mapped.len(), at });
                Some(mapped)
            }
            Err(_) => {
                arena.release(at, len, false);
                None
            }
        }
    }

    /// What of these addresses is in the arena: the places as they were made.
    pub fn shared_places(&self, addr: u64, length: u64) -> Vec<Place> {
        let end = addr.saturating_add(length);
        let meets = |place: &&Place| place.addr < end && addr < place.addr + place.len;
        self.shared.places.iter().flatten().filter(meets).copied().collect()
    }

    /// Gives back what [`WindowEnv::allocate_shared`] gave. No region may be registered upon it any more.
    pub fn free_shared(&mut self, mapped: Mapped) {
        let place = self.remove_place(mapped.addr());
        drop(mapped);
        if let (Some(place), Some(arena)) = (place, &mut self.shared.arena) {
            arena.release(place.at, place.len, self.shared.late_writer);
        }
    }

    fn insert_place(&mut self, place: Place) {
        let number = self.shared.insert(place);
        if number < PLACES {
            self.publish_place(number, Some(place));
        }
    }

    fn remove_place(&mut self, addr: u64) -> Option<Place> {
        let (number, place) = self.shared.remove(addr)?;
        if number < PLACES {
            self.publish_place(number, None);
        }
        Some(place)
    }

    /// Moves memory of the program, whole pages, into the arena: `into` does it, given the file and the place. Nothing
    /// has changed if it fails.
    ///
    /// # Errors
    /// ENOMEM: no arena, no room; EBADF: the program has closed it; EEXIST: some of it is there already; else what
    /// `into` says.
    pub fn migrate_shared(
        &mut self,
        addr: u64,
        len: u64,
        into: impl FnOnce(BorrowedFd<'_>, u64) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if self.shared.find(addr, len).is_some() {
            return Err(Errno::EEXIST);
        }
        let arena = self.arena().ok_or(Errno::ENOMEM)?;
        let at = arena.allocate(len).ok_or(Errno::ENOMEM)?;
        if let Err(errno) = arena.file().ok_or(Errno::EBADF).and_then(|file| into(file, at)) {
            arena.release(at, len, false);
            return Err(errno);
        }
        self.insert_place(Place { addr, len, at });
        Ok(())
    }

    /// Gives memory back to the program that was moved by [`WindowEnv::migrate_shared`]: `out` does it. No region may
    /// be registered upon it any more.
    ///
    /// # Errors
    /// EINVAL: there is none at this address; else what `out` says. It is no longer a place in either case, but if it
    /// could not be given back, nothing else will be there.
    pub fn return_shared(
        &mut self,
        addr: u64,
        out: impl FnOnce(BorrowedFd<'_>, Place) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let place = self.remove_place(addr).ok_or(Errno::EINVAL)?;
        let arena = self.shared.arena.as_mut().ok_or(Errno::EINVAL)?;
        let done = arena.file().ok_or(Errno::EBADF).and_then(|file| out(file, place));
        if done.is_ok() {
            arena.release(place.at, place.len, self.shared.late_writer);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_piece_is_found() {
        let mut shared = SharedMemory::default();
        for (addr, len, at) in [(0x9000, 0x1000, 0x50_000), (0x1000, 0x3000, 0), (0x5000, 0x2000, 0x3000)] {
            shared.insert(Place { addr, len, at });
        }
        assert_eq!(shared.find(0x1100, 0x10), Some(Place { addr: 0x1100, len: 0x10, at: 0x100 }));
        assert_eq!(shared.find(0x3800, 0x10_000), Some(Place { addr: 0x5000, len: 0x2000, at: 0x3000 }));
        assert_eq!(shared.find(0x3f00, 0x1180), Some(Place { addr: 0x3f00, len: 0x100, at: 0x2f00 }));
        assert_eq!(shared.find(0x4000, 0x1000), None);
        assert_eq!(shared.find(0, u64::MAX), Some(Place { addr: 0x1000, len: 0x3000, at: 0 }));
        assert_eq!(shared.remove(0x5000), Some((2, Place { addr: 0x5000, len: 0x2000, at: 0x3000 })));
        assert_eq!((shared.find(0x5000, 0x1000), shared.count()), (None, 2));
        assert_eq!(shared.insert(Place { addr: 0x5000, len: 0x1000, at: 0 }), 2);
    }
}
