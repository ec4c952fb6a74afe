//! The slot of every id of a trace while it is read. Most recordings number their blocks in order, and then a slot is an entry of a
//! list; ids that lie far from the others are in a table.

use foldhash::{HashMap, HashMapExt};

/// What has become of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Its block is in this slot.
    Live(u32),
    /// Its block was freed.
    Freed,
}

/// All ids so far. Memory: at most 8 bytes for each id in the list, and an entry of the table for each of the others.
pub struct Ids {
    /// The slots of the ids below its length, [`FREED`] or [`NONE`].
    near: Vec<u32>,
    far: HashMap<u64, u32>,
    len: u64,
}

impl Ids {
    pub fn new() -> Self {
        Self { near: Vec::new(), far: HashMap::new(), len: 0 }
    }

    /// Notes that the block of a new id is in `slot`. Returns whether the id is new.
    pub fn insert(&mut self, id: u64, slot: u32) -> bool {
        debug_assert!(slot < FREED, "slots have fewer numbers than ops");
        if self.entry(id).is_some() {
            return false;
        }
        if id < 2 * self.len + MOST_GAP {
            let index = usize::try_from(id).expect("a list of that length is in memory");
            if index >= self.near.len() {
                self.near.resize(index + 1, NONE);
            }
            self.near[index] = slot;
        } else {
            self.far.insert(id, slot);
        }
        self.len += 1;
        true
    }

    /// Notes that an id was freed. Returns what was known of it before.
    pub fn free(&mut self, id: u64) -> Option<Use> {
        match std::mem::replace(self.entry(id)?, FREED) {
            FREED => Some(Use::Freed),
            slot => Some(Use::Live(slot)),
        }
    }

    fn entry(&mut self, id: u64) -> Option<&mut u32> {
        let near = usize::try_from(id).ok().and_then(|index| self.near.get_mut(index)).filter(|slot| **slot != NONE);
        // An id that was far once stays in the table.
        near.or_else(|| self.far.get_mut(&id))
    }
}

/// How far beyond twice the number of ids so far one may be that the list takes in.
const MOST_GAP: u64 = 1 << 10;
/// The id was freed.
const FREED: u32 = u32::MAX - 1;
/// The id was not used.
const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_used_once_wherever_they_lie() {
        let far = [MOST_GAP + 20, u64::MAX, u64::MAX - 1];
        let mut ids = Ids::new();
        for (slot, id) in (0..).zip((0..40).rev().chain(far)) {
            assert_eq!(ids.free(id), None, "{id}");
            assert!(ids.insert(id, slot));
            assert!(!ids.insert(id, slot), "{id}");
        }
        assert_eq!((ids.near.len(), ids.far.len()), (MOST_GAP as usize + 21, 2));
        for (slot, id) in (0..).zip((0..40).rev().chain(far)) {
            assert_eq!((ids.free(id), ids.free(id)), (Some(Use::Live(slot)), Some(Use::Freed)), "{id}");
            assert!(!ids.insert(id, slot), "{id}");
        }
    }

    #[test]
    fn an_id_that_was_far_stays_known_when_others_reach_it() {
        let mut ids = Ids::new();
        assert!(ids.insert(2_000, 7));
        assert!((0..2_000).all(|id| ids.insert(id, 0)) && !ids.insert(2_000, 0));
        assert_eq!(ids.free(2_000), Some(Use::Live(7)));
        assert_eq!((ids.near.len(), ids.far.len()), (2_000, 1));
    }
}
