//! Entries: an append-only array that grows without moving anything. Reading takes no lock.
//!
//! It consists of levels. The first is part of it, since few programs use more; each further level is as large as all before it
//! together, and is created when those are full. A slot is a pointer, so that the slots of several entries are in one line of the
//! processor's caches. Entries are numbered in the order in which they were added.

use super::StreamIndex;
use crate::sync::{Mutex, OnceLock};

/// Capacity of the first level, and of the second. Small under loom, which tracks every slot.
pub const FIRST: usize = if cfg!(loom) { 2 } else { 16 };
/// Number of levels.
pub const LEVELS: usize = if cfg!(loom) { 2 } else { 9 };
/// Maximum number of entries, and so of streams of one allocator.
pub const CAPACITY: usize = FIRST << (LEVELS - 1);

/// An append-only array. The owner holds a lock while it appends; reading needs no lock.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Box<[OnceLock<T>]>,
}

impl<T> Slots<T> {
    /// Creates an array with space for `capacity` entries.
    pub fn new(capacity: usize) -> Self {
        Self { slots: (0..capacity).map(|_| OnceLock::new()).collect() }
    }

    /// Returns the entry with this number, or `None` if it was not added yet.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.slots.get(index)?.get()
    }

    /// Appends `value` and returns its number, or `None` if the array is full.
    pub fn push(&self, value: T) -> Option<usize> {
        // A slot that is taken hands the value back, which may be large: the first free one is looked for before.
        // They are filled in order.
        let index = self.slots.partition_point(|slot| {
            #[cfg(test)]
            crate::testing::step();
            slot.get().is_some()
        });
        self.slots.get(index)?.set(value).ok().map(|()| index)
    }

    /// Returns the entries in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().map_while(OnceLock::get)
    }
}

/// Entries of type `T`, up to `CAPACITY`.
#[derive(Debug)]
pub struct Entries<T> {
    first: [OnceLock<Box<T>>; FIRST],
    further: [OnceLock<Slots<Box<T>>>; LEVELS - 1],
    count: Mutex<usize>,
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        let (first, further) = (std::array::from_fn(|_| OnceLock::new()), std::array::from_fn(|_| OnceLock::new()));
        Self { first, further, count: Mutex::new(0) }
    }
}

impl<T> Entries<T> {
    /// Returns the further level of an entry by its number, and the number of that level's first entry.
    #[inline]
    fn level_of(index: usize) -> (usize, usize) {
        let level = (index / FIRST).ilog2() as usize;
        (level, FIRST << level)
    }

    /// Returns the entry with this index.
    ///
    /// # Panics
    /// Panics if the index does not come from these entries.
    #[inline]
    pub fn get(&self, index: StreamIndex) -> &T {
        let index = index.0 as usize;
        let entry = match self.first.get(index) {
            Some(first) => first.get(),
            None => {
                let (level, first) = Self::level_of(index);
                self.further[level].get().and_then(|level| level.get(index - first))
            }
        };
        entry.expect("a stream index comes from these entries")
    }

    /// Returns the number of entries. Takes a lock, and looks at none of them.
    #[allow(clippy::len_without_is_empty, reason = "a count, not a collection's length")]
    pub fn len(&self) -> usize {
        *self.count.lock()
    }

    /// Returns the entries in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let first = self.first.iter().map_while(OnceLock::get);
        let further = self.further.iter().map_while(OnceLock::get).flat_map(Slots::iter);
        first.chain(further).map(|entry| &**entry)
    }

    /// Adds the entry that `make` creates from its index, and returns it; `None` if there is no room. Takes a lock.
    pub fn push(&self, make: impl FnOnce(StreamIndex) -> T) -> Option<&T> {
        let mut count = self.count.lock();
        let index = StreamIndex(u32::try_from(*count).expect("CAPACITY is small"));
        if let Some(slot) = self.first.get(*count) {
            // Cannot fail: the lock is held.
            let _ = slot.set(Box::new(make(index)));
        } else {
            let (level, first) = Self::level_of(*count);
            let level = self.further.get(level)?;
            if level.get().is_none() {
                let _ = level.set(Slots::new(first));
            }
            let slot = level.get()?.push(Box::new(make(index)))?;
            debug_assert_eq!(slot, *count - first);
        }
        *count += 1;
        Some(self.get(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many there are.
    #[test]
    fn an_entry_is_added_in_few_steps() {
        let entries = Entries::default();
        for number in 0..CAPACITY {
            let steps = crate::testing::steps_of(|| _ = entries.push(|index| index).unwrap());
            assert!(steps <= 12, "{steps} steps for entry {number}");
        }
    }

    #[test]
    fn entries_keep_their_index() {
        let entries = Entries::default();
        for number in 0..CAPACITY as u32 {
            assert_eq!(entries.push(|index| index), Some(&StreamIndex(number)));
        }
        for number in 0..CAPACITY as u32 {
            assert_eq!(entries.get(StreamIndex(number)), &StreamIndex(number));
        }
        assert!(entries.push(|index| index).is_none(), "there is no room left");
        assert!(entries.iter().map(|entry| entry.0).eq(0..CAPACITY as u32));
        assert_eq!(entries.len(), CAPACITY);
        assert_eq!(CAPACITY, 4096);
    }
}
