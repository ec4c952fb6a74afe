//! Stream table: from a stream's handle to what the allocator keeps for it, without a lock.
//!
//! Open addressing over a fixed number of slots; entries are added, never removed or moved, so a reader needs no more
//! than two loads. Entries are also numbered in the order of their arrival.

use super::StreamIndex;
use crate::sync::{Mutex, OnceLock};
use crate::units::StreamId;

/// Most streams of one allocator. Few under loom, which follows every slot.
pub const CAPACITY: usize = if cfg!(loom) { 4 } else { 4096 };
const SLOTS: usize = CAPACITY * 2;

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

/// See the module.
#[derive(Debug)]
pub struct StreamTable<T> {
    by_handle: Box<[OnceLock<(StreamId, u32)>]>,
    entries: Slots<T>,
    adding: Mutex<()>,
}

impl<T> Default for StreamTable<T> {
    fn default() -> Self {
        Self {
            by_handle: (0..SLOTS).map(|_| OnceLock::new()).collect(),
            entries: Slots::new(CAPACITY),
            adding: Mutex::new(()),
        }
    }
}

impl<T> StreamTable<T> {
    #[inline]
    fn home(stream: StreamId) -> usize {
        (stream.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOTS.trailing_zeros())) as usize
    }

    /// The entry of `stream`, if it was added.
    #[inline]
    pub fn find(&self, stream: StreamId) -> Option<&T> {
        let mut slot = Self::home(stream);
        loop {
            let (handle, index) = self.by_handle[slot % SLOTS].get()?;
            if *handle == stream {
                return self.entries.get(*index as usize);
            }
            slot += 1;
        }
    }

    /// The entry with this number.
    #[inline]
    pub fn get(&self, index: StreamIndex) -> &T {
        self.entries.get(index.0 as usize).expect("a stream index comes from this table")
    }

    /// Entries in the order of their arrival.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter()
    }

    /// The entry of `stream`, made by `make` from its number when it is new. `None` when the table is full.
    pub fn find_or_add(&self, stream: StreamId, make: impl FnOnce(StreamIndex) -> T) -> Option<&T> {
        let _adding = self.adding.lock();
        if let Some(entry) = self.find(stream) {
            return Some(entry);
        }
        let index = self.entries.iter().count();
        if index == CAPACITY {
            return None;
        }
        let number = u32::try_from(index).expect("CAPACITY is small");
        self.entries.push(make(StreamIndex(number)))?;
        let mut slot = Self::home(stream);
        while self.by_handle[slot % SLOTS].set((stream, number)).is_err() {
            slot += 1;
        }
        self.entries.get(index)
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
            assert!(table.find(StreamId(handle * 64 + 1)).is_none());
        }
        assert!(table.find_or_add(StreamId(3), |index| (index, 0)).is_none(), "the table is full");
        assert_eq!(table.iter().count(), CAPACITY);
        assert_eq!(table.get(StreamIndex(7)).1, 7);
    }
}
