//! A table of objects with reusable places. A handle carries the generation of its place, so a stale one finds
//! nothing.

use std::hint::cold_path;
use std::marker::PhantomData;

struct Place<T> {
    generation: u32,
    value: Option<T>,
}

/// Objects of one kind, named by handles of type `H`.
pub(crate) struct Slab<H, T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    len: u32,
    max: u32,
    handle: PhantomData<H>,
}

impl<H: From<(u32, u32)> + Into<(u32, u32)> + Copy, T> Slab<H, T> {
    pub fn new(max: u32) -> Self {
        Slab { places: Vec::new(), free: Vec::new(), len: 0, max, handle: PhantomData }
    }

    /// Puts an object in; `None` when the device's limit is reached.
    pub fn insert_with(&mut self, make: impl FnOnce(H) -> T) -> Option<H> {
        if self.len >= self.max {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, value: None });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        let handle = H::from((index, place.generation));
        place.value = Some(make(handle));
        self.len += 1;
        Some(handle)
    }

    pub fn insert(&mut self, value: T) -> Option<H> {
        self.insert_with(|_| value)
    }

    /// Number of objects, lent ones included.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn get(&self, handle: H) -> Option<&T> {
        let (index, generation) = handle.into();
        match self.places.get(index as usize) {
            Some(Place { generation: current, value: Some(value) }) if *current == generation => Some(value),
            _ => None,
        }
    }

    pub fn get_mut(&mut self, handle: H) -> Option<&mut T> {
        let (index, generation) = handle.into();
        match self.places.get_mut(index as usize) {
            Some(Place { generation: current, value: Some(value) }) if *current == generation => Some(value),
            _ => {
                cold_path();
                None
            }
        }
    }

    pub fn remove(&mut self, handle: H) -> Option<T> {
        let (index, generation) = handle.into();
        let place = self.places.get_mut(index as usize).filter(|p| p.generation == generation)?;
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(index);
        self.len -= 1;
        Some(value)
    }

    /// Lends an object out of the table: its handle stays valid, and [`Slab::put_back`] must follow.
    pub fn checkout(&mut self, handle: H) -> Option<T> {
        let (index, generation) = handle.into();
        self.places.get_mut(index as usize).filter(|p| p.generation == generation)?.value.take()
    }

    /// Takes a lent object back.
    #[inline]
    pub fn put_back(&mut self, handle: H, value: T) {
        let (index, _) = handle.into();
        self.places[index as usize].value = Some(value);
    }

    pub fn iter(&self) -> impl Iterator<Item = (H, &T)> {
        self.places.iter().enumerate().filter_map(|(i, p)| Some((H::from((i as u32, p.generation)), p.value.as_ref()?)))
    }
}
