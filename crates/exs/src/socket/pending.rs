//! Operations that are not done, by their numbers.

/// An entry of the table.
struct Entry<T> {
    /// Counts the operations that the entry has had.
    turn: u32,
    /// `None`: free.
    value: Option<T>,
}

/// A table of operations. The number of one is its place and how often the place was used, so that the number of an
/// operation that is done names no other.
pub(super) struct Pending<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

impl<T> Pending<T> {
    pub fn new() -> Pending<T> {
        Pending { entries: Vec::new(), free: Vec::new() }
    }

    /// The number that [`Pending::insert`] gives next.
    pub fn next(&self) -> u64 {
        let at = self.free.last().map_or(self.entries.len(), |at| *at as usize);
        number(at, self.entries.get(at).map_or(0, |entry| entry.turn))
    }

    /// Take an operation in.
    pub fn insert(&mut self, value: T) -> u64 {
        let number = self.next();
        match self.free.pop() {
            Some(at) => self.entries[at as usize].value = Some(value),
            None => self.entries.push(Entry { turn: 0, value: Some(value) }),
        }
        number
    }

    pub fn get(&self, number: u64) -> Option<&T> {
        let entry = self.entries.get(place(number))?;
        entry.value.as_ref().filter(|_| entry.turn == turn(number))
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let entry = self.entries.get_mut(place(number))?;
        entry.value.as_mut().filter(|_| entry.turn == turn(number))
    }

    pub fn remove(&mut self, number: u64) -> Option<T> {
        let at = place(number);
        let entry = self.entries.get_mut(at).filter(|entry| entry.turn == turn(number))?;
        let value = entry.value.take()?;
        entry.turn = entry.turn.wrapping_add(1);
        // Bounded by the places of a connection.
        self.free.push(at as u32);
        Some(value)
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }

    pub fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }
}

fn number(at: usize, turn: u32) -> u64 {
    u64::from(turn) << 32 | at as u64
}

fn place(number: u64) -> usize {
    number as u32 as usize
}

fn turn(number: u64) -> u32 {
    (number >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_operation_that_is_done_names_no_other() {
        let mut table = Pending::new();
        assert!(table.is_empty());
        let (next, a) = (table.next(), table.insert('a'));
        let b = table.insert('b');
        assert_eq!(next, a);
        assert_eq!((table.remove(a), table.remove(a), table.get(b)), (Some('a'), None, Some(&'b')));
        let (next, c) = (table.next(), table.insert('c'));
        assert!(next == c && place(c) == place(a) && c != a);
        assert_eq!((table.get(a), table.get(c)), (None, Some(&'c')));
        assert_eq!(table.values().collect::<String>(), "cb");
        assert!(!table.is_empty());
        assert_eq!((table.remove(c), table.remove(b), table.remove(u64::MAX)), (Some('c'), Some('b'), None));
        assert!(table.is_empty() && table.values().next().is_none());
    }
}
