//! Stream set: which streams something is true of. One bit for each stream that there can be, so that a walk over the set does not
//! look at the streams that are not in it. Any thread may change it; a bit is as current as what its owner changes with it under
//! a lock.

use super::StreamIndex;
use super::entries::CAPACITY;
use crate::sync::{AtomicU64, Ordering};

const WORDS: usize = CAPACITY.div_ceil(64);

/// A set of streams.
#[derive(Debug)]
pub struct StreamSet {
    words: [AtomicU64; WORDS],
}

impl Default for StreamSet {
    fn default() -> Self {
        Self { words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl StreamSet {
    /// Adds or removes a stream.
    pub fn set(&self, index: StreamIndex, member: bool) {
        let (word, bit) = Self::place(index);
        // Mostly nothing changes.
        match (member, word_has(self.words[word].load(Ordering::Relaxed), bit)) {
            (true, false) => _ = self.words[word].fetch_or(bit, Ordering::Relaxed),
            (false, true) => _ = self.words[word].fetch_and(!bit, Ordering::Relaxed),
            _ => {}
        }
    }

    /// The streams of the set in the order of their numbers. What is added or removed meanwhile may be among them or not.
    pub fn iter(&self) -> impl Iterator<Item = StreamIndex> {
        self.words.iter().enumerate().flat_map(|(word, bits)| {
            let mut left = bits.load(Ordering::Relaxed);
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(StreamIndex(word as u32 * 64 + bit))
            })
        })
    }

    fn place(index: StreamIndex) -> (usize, u64) {
        (index.0 as usize / 64, 1 << (index.0 % 64))
    }
}

fn word_has(word: u64, bit: u64) -> bool {
    word & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_in_order() {
        let set = StreamSet::default();
        let members = || set.iter().map(|index| index.0).collect::<Vec<_>>();
        assert!(members().is_empty());
        let last = CAPACITY as u32 - 1;
        for index in [64, 3, last, 63, 3] {
            set.set(StreamIndex(index), true);
        }
        assert_eq!(members(), [3, 63, 64, last]);
        for index in [63, 5] {
            set.set(StreamIndex(index), false);
        }
        assert_eq!(members(), [3, 64, last]);
    }
}
