//! Stream table: maps a stream's handle to the allocator's entry for it. Lookups take no lock.
//!
//! The table consists of levels of hash tables with open addressing. Each level is as large as all before it together,
//! and is created when those are full. Entries are added but never removed or moved, so a lookup usually needs two
//! loads per level, and few programs use more streams than the first level holds. Entries are numbered in the order in
//! which they were added.

use super::StreamIndex;
use crate::sync::{Mutex, OnceLock};
use crate::units::StreamId;

/// Capacity of the first level, and of the second. Small under loom, which tracks every slot.
const FIRST: usize = if cfg!(loom) { 2 } else { 16 };
const LEVELS: usize = if cfg!(loom) { 2 } else { 9 };
/// Maximum number of streams of one allocator.
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
        let mut value = value;
        for (index, slot) in self.slots.iter().enumerate() {
            match slot.set(value) {
                Ok(()) => return Some(index),
                Err(back) => value = back,
            }
        }
        None
    }

    /// Returns the entries in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().map_while(OnceLock::get)
    }
}

/// One level of the table: entries with consecutive numbers.
#[derive(Debug)]
struct Level<T> {
    /// Handles and their indices in `entries`. It has twice as many slots, so that a search soon reaches an empty one.
    by_handle: Box<[OnceLock<(StreamId, u32)>]>,
    entries: Slots<T>,
}

impl<T> Level<T> {
    fn new(capacity: usize) -> Self {
        Self { by_handle: (0..capacity * 2).map(|_| OnceLock::new()).collect(), entries: Slots::new(capacity) }
    }

    /// Returns the slots in which a handle may be, in the order of the search.
    #[inline]
    fn places(&self, stream: StreamId) -> impl Iterator<Item = &OnceLock<(StreamId, u32)>> {
        let slots = self.by_handle.len();
        let home = (stream.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        (home..).map(move |place| &self.by_handle[place & (slots - 1)])
    }

    #[inline]
    fn find(&self, stream: StreamId) -> Option<&T> {
        for place in self.places(stream) {
            let (handle, index) = place.get()?;
            if *handle == stream {
                return self.entries.get(*index as usize);
            }
        }
        None
    }

    /// Adds an entry and returns it, or `None` if the level is full.
    fn push(&self, stream: StreamId, entry: T) -> Option<&T> {
        let index = self.entries.push(entry)?;
        let mut found = (stream, u32::try_from(index).expect("CAPACITY is small"));
        // The entry is stored before the handle, so a thread that finds the handle also finds the entry.
        for place in self.places(stream) {
            match place.set(found) {
                Ok(()) => break,
                Err(back) => found = back,
            }
        }
        self.entries.get(index)
    }
}

/// Entries of type `T`, one per stream.
#[derive(Debug)]
pub struct StreamTable<T> {
    levels: [OnceLock<Level<T>>; LEVELS],
    adding: Mutex<()>,
}

impl<T> Default for StreamTable<T> {
    fn default() -> Self {
        Self { levels: std::array::from_fn(|_| OnceLock::new()), adding: Mutex::new(()) }
    }
}

impl<T> StreamTable<T> {
    /// Returns the level of an entry by its number, and the number of that level's first entry.
    #[inline]
    fn level_of(index: usize) -> (usize, usize) {
        let level = ((index / (FIRST / 2)) | 1).ilog2() as usize;
        (level, if level == 0 { 0 } else { (FIRST / 2) << level })
    }

    /// Returns the entry of `stream`, if it was added.
    #[inline]
    pub fn find(&self, stream: StreamId) -> Option<&T> {
        for level in &self.levels {
            let found = level.get()?.find(stream);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Returns the entry with this index.
    ///
    /// # Panics
    /// Panics if the index does not come from this table.
    #[inline]
    pub fn get(&self, index: StreamIndex) -> &T {
        let (level, first) = Self::level_of(index.0 as usize);
        let entry = self.levels[level].get().and_then(|level| level.entries.get(index.0 as usize - first));
        entry.expect("a stream index comes from this table")
    }

    /// Returns the entries in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.levels.iter().map_while(OnceLock::get).flat_map(|level| level.entries.iter())
    }

    /// Returns the entry of `stream`. If there is none, adds the one that `make` creates from its index. Returns `None`
    /// if the table is full. Takes a lock.
    pub fn find_or_add(&self, stream: StreamId, make: impl FnOnce(StreamIndex) -> T) -> Option<&T> {
        let _adding = self.adding.lock();
        if let Some(entry) = self.find(stream) {
            return Some(entry);
        }
        let index = self.iter().count();
        let (level, first) = Self::level_of(index);
        let level = self.levels.get(level)?;
        if level.get().is_none() {
            // Cannot fail: the lock is held.
            let _ = level.set(Level::new(first.max(FIRST)));
        }
        level.get()?.push(stream, make(StreamIndex(u32::try_from(index).expect("CAPACITY is small"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_keep_their_index() {
        let table = StreamTable::default();
        assert!(table.find(StreamId(0)).is_none());
        for handle in 0..CAPACITY as u64 {
            let entry = table.find_or_add(StreamId(handle * 64), |index| (index, handle)).unwrap();
            assert_eq!(*entry, (StreamIndex(handle as u32), handle));
        }
        for handle in 0..CAPACITY as u64 {
            assert_eq!(table.find(StreamId(handle * 64)).unwrap().1, handle);
            assert_eq!(table.get(StreamIndex(handle as u32)).1, handle);
            assert!(table.find(StreamId(handle * 64 + 1)).is_none());
        }
        assert!(table.find_or_add(StreamId(3), |index| (index, 0)).is_none(), "the table is full");
        assert!(table.iter().map(|entry| entry.1).eq(0..CAPACITY as u64));
        assert_eq!(CAPACITY, 4096);
    }

    /// Handles are small numbers, or addresses with many trailing zero bits.
    #[test]
    fn searches_for_a_stream_are_short() {
        for stride in [1, 64, 4096, 1 << 20] {
            let table = StreamTable::default();
            for number in 0..CAPACITY as u64 {
                table.find_or_add(StreamId(number * stride), |_| ()).unwrap();
            }
            let level = table.levels.last().and_then(OnceLock::get).expect("all levels are full");
            let handles = level.by_handle.iter().filter_map(|place| Some(place.get()?.0));
            let distance = |handle: StreamId| {
                level.places(handle).position(|place| place.get().is_some_and(|(other, _)| *other == handle)).unwrap()
            };
            // Linear probing with half of the slots occupied takes half a step beyond the home slot on average.
            assert!(handles.map(distance).sum::<usize>() < CAPACITY / 2, "stride {stride}");
        }
    }
}
