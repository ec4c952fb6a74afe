//! Stream table: maps what a stream is filed under to what the allocator knows about it. Lookups take no lock.
//!
//! The table consists of levels of hash tables with open addressing. Each level is as large as all before it together,
//! and is created when those are full. Keys are added but never removed or moved, so a lookup usually needs one load
//! per level, and few programs use more streams than the first level holds.

use super::entries::{CAPACITY, FIRST, LEVELS};
use crate::hash;
use crate::sync::{Mutex, OnceLock};
use crate::units::StreamId;

/// One level of the table. It has twice as many slots as keys, so that a search soon reaches an empty one.
#[derive(Debug)]
struct Level<T> {
    slots: Box<[OnceLock<(StreamId, T)>]>,
}

impl<T> Level<T> {
    fn new(capacity: usize) -> Self {
        Self { slots: (0..capacity * 2).map(|_| OnceLock::new()).collect() }
    }

    /// Returns the slots in which a key may be, in the order of the search.
    #[inline]
    fn places(&self, key: StreamId) -> impl Iterator<Item = &OnceLock<(StreamId, T)>> {
        let slots = self.slots.len();
        let home = (hash::fibonacci(key.0) >> 32) as usize;
        (home..).map(move |place| &self.slots[place & (slots - 1)])
    }

    #[inline]
    fn find(&self, key: StreamId) -> Option<&T> {
        for place in self.places(key) {
            let (other, value) = place.get()?;
            if *other == key {
                return Some(value);
            }
        }
        None
    }

    fn insert(&self, key: StreamId, value: T) -> Option<&T> {
        let mut entry = (key, value);
        for place in self.places(key) {
            match place.set(entry) {
                Ok(()) => return place.get().map(|(_, value)| value),
                Err(back) => entry = back,
            }
        }
        None
    }
}

/// Values of type `T`, one per key.
#[derive(Debug)]
pub struct StreamTable<T> {
    levels: [OnceLock<Level<T>>; LEVELS],
    /// Number of keys.
    count: Mutex<usize>,
}

impl<T> Default for StreamTable<T> {
    fn default() -> Self {
        Self { levels: std::array::from_fn(|_| OnceLock::new()), count: Mutex::new(0) }
    }
}

impl<T> StreamTable<T> {
    /// Returns the value of `key`, if it was added.
    #[inline]
    pub fn find(&self, key: StreamId) -> Option<&T> {
        let found = self.levels[0].get()?.find(key);
        if found.is_some() { found } else { self.find_further(key) }
    }

    #[inline(never)]
    fn find_further(&self, key: StreamId) -> Option<&T> {
        for level in &self.levels[1..] {
            let found = level.get()?.find(key);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Returns the value of `key`. If there is none, adds the one that `make` creates. Returns `None` if the table is
    /// full. Takes a lock.
    pub fn find_or_add(&self, key: StreamId, make: impl FnOnce() -> T) -> Option<&T> {
        let mut count = self.count.lock();
        if let Some(value) = self.find(key) {
            return Some(value);
        }
        if *count == CAPACITY {
            return None;
        }
        let full = |level: usize| FIRST << level;
        let level = (0..LEVELS).find(|level| *count < full(*level))?;
        let capacity = if level == 0 { FIRST } else { full(level - 1) };
        let slot = &self.levels[level];
        if slot.get().is_none() {
            // Cannot fail: the lock is held.
            let _ = slot.set(Level::new(capacity));
        }
        *count += 1;
        slot.get()?.insert(key, make())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_values() {
        let table = StreamTable::default();
        assert!(table.find(StreamId(0)).is_none());
        for handle in 0..CAPACITY as u64 {
            assert_eq!(table.find_or_add(StreamId(handle * 64), || handle), Some(&handle));
        }
        for handle in 0..CAPACITY as u64 {
            assert_eq!(table.find_or_add(StreamId(handle * 64), || unreachable!()), Some(&handle));
            assert!(table.find(StreamId(handle * 64 + 1)).is_none());
        }
        assert!(table.find_or_add(StreamId(3), || 0).is_none(), "the table is full");
    }

    /// Handles are small numbers, or addresses with many trailing zero bits.
    #[test]
    fn searches_for_a_stream_are_short() {
        for stride in [1, 64, 4096, 1 << 20] {
            let table = StreamTable::default();
            for number in 0..CAPACITY as u64 {
                table.find_or_add(StreamId(number * stride), || ()).unwrap();
            }
            let level = table.levels.last().and_then(OnceLock::get).expect("all levels are full");
            let keys = level.slots.iter().filter_map(|place| Some(place.get()?.0));
            let distance = |key: StreamId| {
                level.places(key).position(|place| place.get().is_some_and(|(other, ())| *other == key)).unwrap()
            };
            // Linear probing with half of the slots occupied takes half a step beyond the home slot on average.
            assert!(keys.map(distance).sum::<usize>() < CAPACITY / 2, "stride {stride}");
        }
    }

    /// A level is made when those before it are full, with two slots for each key that it takes.
    #[test]
    fn each_level_is_as_large_as_all_before_it() {
        let table = StreamTable::default();
        for number in 0..CAPACITY {
            table.find_or_add(StreamId(number as u64 * 64), || ()).unwrap();
            let keys = number + 1;
            let slots: usize = table.levels.iter().filter_map(OnceLock::get).map(|level| level.slots.len()).sum();
            assert_eq!(slots, 2 * keys.next_power_of_two().max(FIRST), "{keys} keys");
        }
    }
}
