//! Entries: an append-only array that grows without moving anything. Reading takes no lock.
//!
//! It consists of levels. Each level is as large as all before it together, and is created when those are full. Entries
//! are numbered in the order in which they were added.

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
    levels: [OnceLock<Slots<T>>; LEVELS],
    count: Mutex<usize>,
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self { levels: std::array::from_fn(|_| OnceLock::new()), count: Mutex::new(0) }
    }
}

impl<T> Entries<T> {
    /// Returns the level of an entry by its number, and the number of that level's first entry.
    #[inline]
    fn level_of(index: usize) -> (usize, usize) {
        let level = ((index / (FIRST / 2)) | 1).ilog2() as usize;
        (level, if level == 0 { 0 } else { (FIRST / 2) << level })
    }

    /// Returns the entry with this index.
    ///
    /// # Panics
    /// Panics if the index does not come from these entries.
    #[inline]
    pub fn get(&self, index: StreamIndex) -> &T {
        let (level, first) = Self::level_of(index.0 as usize);
        let entry = self.levels[level].get().and_then(|level| level.get(index.0 as usize - first));
        entry.expect("a stream index comes from these entries")
    }

    /// Returns the number of entries. Takes a lock, and looks at none of them.
    #[allow(clippy::len_without_is_empty, reason = "a count, not a collection's length")]
    pub fn len(&self) -> usize {
        *self.count.lock()
    }

    /// Returns the entries in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.levels.iter().map_while(OnceLock::get).flat_map(Slots::iter)
    }

    /// Adds the entry that `make` creates from its index, and returns it; `None` if there is no room. Takes a lock.
    pub fn push(&self, make: impl FnOnce(StreamIndex) -> T) -> Option<&T> {
        let mut count = self.count.lock();
        let index = StreamIndex(u32::try_from(*count).expect("CAPACITY is small"));
        let (level, first) = Self::level_of(*count);
        let level = self.levels.get(level)?;
        if level.get().is_none() {
            // Cannot fail: the lock is held.
            let _ = level.set(Slots::new(first.max(FIRST)));
        }
        let level = level.get()?;
        let slot = level.push(make(index))?;
        debug_assert_eq!(slot, *count - first);
        *count += 1;
        level.get(slot)
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
