//! A queue with fixed places: entries are written and read in place.
//!
//! The fast path of a message, too, puts receives and completions into such queues. A `VecDeque` wants an entry made
//! elsewhere and moved in, by loads that are wider than the stores just before them. A processor cannot forward such
//! stores. It waits until they, and all before them, have left its store buffer. One of these stores goes to the ring,
//! and the ring's cache line has to come from another core.

use std::collections::TryReserveError;
use std::hint::cold_path;
use std::ops::{Index, IndexMut};

/// The queue.
#[derive(Debug)]
pub(crate) struct InPlaceRing<T> {
    /// The places of the queue, as far as they were ever used; behind the last place comes the first. The contents of
    /// places that are not in use do not matter.
    places: Vec<T>,
    /// The oldest entry's place.
    head: usize,
    len: usize,
}

impl<T> Default for InPlaceRing<T> {
    fn default() -> Self {
        InPlaceRing { places: Vec::new(), head: 0, len: 0 }
    }
}

impl<T: Default> InPlaceRing<T> {
    /// An empty queue with room for so many entries.
    pub fn with_capacity(capacity: usize) -> Self {
        InPlaceRing { places: Vec::with_capacity(capacity), ..InPlaceRing::default() }
    }

    /// Number of entries that fit before the queue must grow.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.places.capacity()
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if the queue must grow before one more fits.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len == self.capacity()
    }

    #[inline]
    fn at(&self, i: usize) -> usize {
        let at = self.head + i;
        if at >= self.capacity() { at - self.capacity() } else { at }
    }

    /// Makes room for so many more; the queue grows by more than it must.
    pub fn try_reserve(&mut self, more: usize) -> Result<(), TryReserveError> {
        if more <= self.capacity() - self.len {
            return Ok(());
        }
        self.unwrap_around();
        self.places.try_reserve(more)
    }

    /// Puts the entries to the front of the memory, and nothing behind them.
    fn unwrap_around(&mut self) {
        // Entries that go on at the front have passed the last place, so all places exist.
        self.places.rotate_left(self.head);
        self.head = 0;
        self.places.truncate(self.len);
    }

    /// A place for one more entry at the end, with its old contents. The place counts as an entry from now on. `None`
    /// if the queue must grow first.
    #[inline(always)]
    pub fn place(&mut self) -> Option<&mut T> {
        if self.is_full() {
            cold_path();
            return None;
        }
        let at = self.at(self.len);
        self.len += 1;
        if at >= self.places.len() {
            cold_path();
            self.lay_out(at);
        }
        self.places.get_mut(at)
    }

    #[cold]
    fn lay_out(&mut self, at: usize) {
        self.places.resize_with(at + 1, T::default);
    }

    /// Adds an entry at the end; inlined, so that the entry is made in its place.
    #[inline(always)]
    pub fn push_back(&mut self, value: T) {
        if self.is_full() {
            self.unwrap_around();
            self.places.reserve(1);
        }
        if let Some(place) = self.place() {
            *place = value;
        }
    }

    /// Adds an entry at the front: puts back an entry that was taken.
    pub fn push_front(&mut self, value: T) {
        if self.is_full() || self.head == 0 && self.places.len() < self.capacity() {
            // The place before the first is behind all others, and was never used, or there is none.
            self.unwrap_around();
            self.places.insert(0, value);
        } else {
            self.head = if self.head == 0 { self.capacity() - 1 } else { self.head - 1 };
            self.places[self.head] = value;
        }
        self.len += 1;
    }

    /// The oldest entry.
    #[inline]
    pub fn front(&self) -> Option<&T> {
        if self.len == 0 { None } else { self.places.get(self.head) }
    }

    /// An entry; the oldest is number 0.
    #[inline]
    pub fn get(&self, i: usize) -> Option<&T> {
        if i < self.len { self.places.get(self.at(i)) } else { None }
    }

    /// Removes so many of the oldest entries, or all that there are. Their contents are dropped when their places are
    /// used again.
    #[inline]
    pub fn drop_front(&mut self, n: usize) {
        // An empty queue begins anew. A queue with one entry at a time always uses the same place, which stays in the
        // cache.
        self.head = if n >= self.len { 0 } else { self.at(n) };
        self.len = self.len.saturating_sub(n);
    }

    /// Removes the oldest entry, if there is one.
    #[inline(always)]
    pub fn drop_first(&mut self) {
        let next = self.head + 1;
        self.head = if self.len <= 1 || next >= self.capacity() { 0 } else { next };
        self.len = self.len.saturating_sub(1);
    }

    /// Removes the youngest entry, if there is one.
    #[inline(always)]
    pub fn drop_last(&mut self) {
        self.len = self.len.saturating_sub(1);
    }

    /// Takes the oldest entry out.
    pub fn pop_front(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let value = std::mem::take(&mut self[0]);
        self.drop_front(1);
        Some(value)
    }

    pub fn clear(&mut self) {
        self.places.clear();
        (self.head, self.len) = (0, 0);
    }

    /// The places of the entries: the older ones, and those that follow at the front.
    fn halves(&self) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let behind = (self.head + self.len).saturating_sub(self.capacity());
        (self.head..self.head + self.len - behind, 0..behind)
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let (older, younger) = self.halves();
        self.places[older].iter().chain(&self.places[younger])
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let (older, younger) = self.halves();
        let (front, back) = self.places.split_at_mut(older.start);
        back[..older.len()].iter_mut().chain(&mut front[younger])
    }

    /// Keeps the entries for which `keep` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        let mut kept = 0;
        for i in 0..self.len {
            if keep(&self[i]) {
                let (to, from) = (self.at(kept), self.at(i));
                self.places.swap(to, from);
                kept += 1;
            }
        }
        self.len = kept;
    }
}

impl<T: Default> Index<usize> for InPlaceRing<T> {
    type Output = T;
    #[inline]
    fn index(&self, i: usize) -> &T {
        assert!(i < self.len);
        &self.places[self.at(i)]
    }
}

impl<T: Default> IndexMut<usize> for InPlaceRing<T> {
    #[inline]
    fn index_mut(&mut self, i: usize) -> &mut T {
        assert!(i < self.len);
        let at = self.at(i);
        &mut self.places[at]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Does the same to an in-place ring and to a `VecDeque`, which is known to be right, in an order drawn from a
    /// seed.
    #[test]
    fn it_does_what_a_deque_does() {
        for seed in 1..200u64 {
            let (mut in_place_ring, mut deque) = (InPlaceRing::with_capacity(seed as usize % 7), VecDeque::new());
            let mut state = seed;
            let mut draw = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) % below
            };
            for step in 0..500u64 {
                match draw(14) {
                    0..5 => {
                        in_place_ring.push_back(step);
                        deque.push_back(step);
                    }
                    5 | 6 => {
                        assert_eq!(in_place_ring.is_full(), in_place_ring.len() == in_place_ring.capacity());
                        let capacity = in_place_ring.capacity();
                        if let Some(place) = in_place_ring.place() {
                            *place = step;
                            deque.push_back(step);
                            assert_eq!(in_place_ring.capacity(), capacity, "places are used again");
                        } else {
                            in_place_ring.try_reserve(1).unwrap();
                            assert!(!in_place_ring.is_full());
                        }
                    }
                    7..11 => assert_eq!(in_place_ring.pop_front(), deque.pop_front()),
                    11 => {
                        match draw(2) {
                            0 => in_place_ring.drop_front(1),
                            _ => in_place_ring.drop_first(),
                        }
                        deque.pop_front();
                    }
                    12 if draw(2) == 0 => {
                        in_place_ring.drop_last();
                        deque.pop_back();
                    }
                    12 => {
                        in_place_ring.push_front(step);
                        deque.push_front(step);
                    }
                    _ => match draw(20) {
                        0 => {
                            in_place_ring.clear();
                            deque.clear();
                        }
                        1 => {
                            let more = draw(30) as usize;
                            in_place_ring.try_reserve(more).unwrap();
                            assert!(in_place_ring.capacity() >= in_place_ring.len() + more);
                        }
                        2 => {
                            in_place_ring.iter_mut().for_each(|v| *v += 1000);
                            deque.iter_mut().for_each(|v| *v += 1000);
                        }
                        n => {
                            in_place_ring.retain(|v| v % n != 0);
                            deque.retain(|v| v % n != 0);
                        }
                    },
                }
                assert!(in_place_ring.iter().eq(&deque), "seed {seed}, step {step}");
                assert_eq!(
                    (in_place_ring.len(), in_place_ring.is_empty(), in_place_ring.front()),
                    (deque.len(), deque.is_empty(), deque.front())
                );
                for i in 0..deque.len() {
                    assert_eq!((in_place_ring[i], &mut in_place_ring[i]), (deque[i], &mut deque[i]));
                }
            }
        }
    }

    #[test]
    fn without_room_there_is_no_place() {
        let mut in_place_ring = InPlaceRing::<u8>::default();
        assert!(
            in_place_ring.place().is_none() && in_place_ring.pop_front().is_none() && in_place_ring.front().is_none()
        );
        in_place_ring.drop_front(1);
        assert!(in_place_ring.try_reserve(usize::MAX).is_err());
        in_place_ring.push_back(7);
        assert_eq!(in_place_ring.pop_front(), Some(7));
    }
}
