//! Tables whose keys are handles for the program, or for the crate `exs`.

use std::collections::VecDeque;

/// Bits of a key that say the place; those above are its generation.
const PLACE: u32 = 20;
const GENERATIONS: u32 = 1 << (31 - PLACE);

/// A table. A key that was removed comes again only after many others: its place waits behind all free ones, and has
/// another generation when it is used next. Keys are not negative as an `i32`.
pub struct Slab<T> {
    places: Vec<(u32, Option<T>)>,
    free: VecDeque<u32>,
}

impl<T> Slab<T> {
    /// An empty table.
    pub const fn new() -> Slab<T> {
        Slab { places: Vec::new(), free: VecDeque::new() }
    }

    /// Enter a value; `None`: the table is full, with 2^20 values.
    pub fn insert(&mut self, value: T) -> Option<i32> {
        // A few places wait, so that a key that was just removed is unknown for some time.
        let place = match self.free.len() {
            0..16 if self.places.len() < 1 << PLACE => {
                self.places.push((0, None));
                self.places.len() as u32 - 1
            }
            _ => self.free.pop_front()?,
        };
        let (generation, at) = self.places.get_mut(place as usize)?;
        *at = Some(value);
        Some((*generation << PLACE | place) as i32)
    }

    fn place(&self, key: i32) -> Option<usize> {
        let key = u32::try_from(key).ok()?;
        let place = (key & ((1 << PLACE) - 1)) as usize;
        (self.places.get(place)?.0 == key >> PLACE).then_some(place)
    }

    /// The value of a key.
    pub fn get(&self, key: i32) -> Option<&T> {
        self.places[self.place(key)?].1.as_ref()
    }

    /// The value of a key, to be changed.
    pub fn get_mut(&mut self, key: i32) -> Option<&mut T> {
        let place = self.place(key)?;
        self.places[place].1.as_mut()
    }

    /// Remove a value.
    pub fn remove(&mut self, key: i32) -> Option<T> {
        let place = self.place(key)?;
        let value = self.places[place].1.take()?;
        self.places[place].0 = (self.places[place].0 + 1) % GENERATIONS;
        self.free.push_back(place as u32);
        Some(value)
    }

    /// All keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (i32, &T)> {
        let key = |place: usize, generation: u32| (generation << PLACE | place as u32) as i32;
        let entry = move |(place, (generation, value)): (usize, &'_ (u32, Option<T>))| {
            value.as_ref().map(|_| key(place, *generation))
        };
        self.places.iter().enumerate().filter_map(entry).filter_map(|key| Some((key, self.get(key)?)))
    }
}
