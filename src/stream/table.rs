//! Stream table: from a stream's handle to what the allocator keeps for it, without a lock.
//!
//! Open addressing over levels, each as large as all before it, made when those are full; entries are added, never
//! removed or moved, so a reader needs no more than two loads a level, and few streams live beyond the first. Entries
//! are also numbered in the order of their arrival.

use super::StreamIndex;
use crate::sync::{Mutex, OnceLock};
use crate::units::StreamId;

/// Streams of the first level, and of the second. Few under loom, which follows every slot.
const FIRST: usize = if cfg!(loom) { 2 } else { 16 };
const LEVELS: usize = if cfg!(loom) { 2 } else { 9 };
/// Most streams of one allocator.
pub const CAPACITY: usize = FIRST << (LEVELS - 1);

/// An append-only array: written under the owner's lock, read without one.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Box<[OnceLock<T>]>,
}

impl<T> Slots<T> {
    /// Room for `capacity` entries.
    pub fn new(capacity: usize) -> Self {
        Self { slots: (0..capacity).map(|_| OnceLock::new()).collect() }
    }

    /// The entry with this number.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.slots.get(index)?.get()
    }

    /// Fills the next slot in order. `None` when all are taken.
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

    /// Entries in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().map_while(OnceLock::get)
    }
}

/// The entries of some consecutive numbers.
#[derive(Debug)]
struct Level<T> {
    /// Handles and their places in `entries`; twice as many slots, so that a search soon ends at an empty one.
    by_handle: Box<[OnceLock<(StreamId, u32)>]>,
    entries: Slots<T>,
}

impl<T> Level<T> {
    fn new(capacity: usize) -> Self {
        Self { by_handle: (0..capacity * 2).map(|_| OnceLock::new()).collect(), entries: Slots::new(capacity) }
    }

    /// The slots in which a handle may be, in order.
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

    /// Fills the next place. `None` when all are taken.
    fn push(&self, stream: StreamId, entry: T) -> Option<&T> {
        let index = self.entries.push(entry)?;
        let mut found = (stream, u32::try_from(index).expect("CAPACITY is small"));
        // The entry first: who finds the handle finds it whole.
        for place in self.places(stream) {
            match place.set(found) {
                Ok(()) => break,
                Err(back) => found = back,
            }
        }
        self.entries.get(index)
    }
}

/// See the module.
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
    /// Level of an entry's number, and the number of that level's first entry.
    #[inline]
    fn level_of(index: usize) -> (usize, usize) {
        let level = ((index / (FIRST / 2)) | 1).ilog2() as usize;
        (level, if level == 0 { 0 } else { (FIRST / 2) << level })
    }

    /// The entry of `stream`, if it was added.
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

    /// The entry with this number.
    #[inline]
    pub fn get(&self, index: StreamIndex) -> &T {
        let (level, first) = Self::level_of(index.0 as usize);
        let entry = self.levels[level].get().and_then(|level| level.entries.get(index.0 as usize - first));
        entry.expect("a stream index comes from this table")
    }

    /// Entries in the order of their arrival.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.levels.iter().map_while(OnceLock::get).flat_map(|level| level.entries.iter())
    }

    /// The entry of `stream`, made by `make` from its number when it is new. `None` when the table is full.
    pub fn find_or_add(&self, stream: StreamId, make: impl FnOnce(StreamIndex) -> T) -> Option<&T> {
        let _adding = self.adding.lock();
        if let Some(entry) = self.find(stream) {
            return Some(entry);
        }
        let index = self.iter().count();
        let (level, first) = Self::level_of(index);
        let level = self.levels.get(level)?;
        if level.get().is_none() {
            // Alone: under the lock.
            let _ = level.set(Level::new(first.max(FIRST)));
        }
        level.get()?.push(stream, make(StreamIndex(u32::try_from(index).expect("CAPACITY is small"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_keep_their_number() {
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

    /// Handles are small numbers, or addresses with many zeros at the end.
    #[test]
    fn streams_are_near_their_home() {
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
            // Linear probing at half the places takes half a step beyond the home on average.
            assert!(handles.map(distance).sum::<usize>() < CAPACITY / 2, "stride {stride}");
        }
    }
}
