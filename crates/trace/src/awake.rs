//! Which of the live bytes are awake while the ops of a trace run.
//!
//! Cost: a few additions for each op, and for one that concerns all tags, for each tag.

use crate::{Op, Tags};

/// The live blocks, and what is asleep of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Awake {
    /// The block in each slot, or the last one that was.
    blocks: Vec<Block>,
    tags: Vec<TagState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    bytes: u64,
    tag: u8,
    /// How many sleeps its tag had seen when it was allocated.
    born: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct TagState {
    /// Number of sleeps so far.
    sleeps: u32,
    /// Whether what is older than the last sleep is asleep.
    is_asleep: bool,
    awake_bytes: u64,
    asleep_bytes: u64,
}

impl Awake {
    /// Runs an op.
    pub fn run(&mut self, op: &Op) {
        match *op {
            Op::Alloc { slot, tag, bytes, .. } => {
                let (slot, number) = (slot as usize, usize::from(tag));
                if slot >= self.blocks.len() {
                    self.blocks.resize(slot + 1, Block::default());
                }
                if number >= self.tags.len() {
                    self.tags.resize(number + 1, TagState::default());
                }
                self.tags[number].awake_bytes += bytes;
                self.blocks[slot] = Block { bytes, tag, born: self.tags[number].sleeps };
            }
            Op::Free { slot } => {
                let (block, is_awake) = (self.blocks[slot as usize], self.is_awake(slot));
                let tag = &mut self.tags[usize::from(block.tag)];
                *(if is_awake { &mut tag.awake_bytes } else { &mut tag.asleep_bytes }) -= block.bytes;
            }
            Op::Sleep { tags, .. } => self.each(tags).for_each(|tag| {
                tag.sleeps += 1;
                tag.is_asleep = true;
                tag.asleep_bytes += std::mem::take(&mut tag.awake_bytes);
            }),
            Op::Wake { tags } => self.each(tags).for_each(|tag| {
                tag.is_asleep = false;
                tag.awake_bytes += std::mem::take(&mut tag.asleep_bytes);
            }),
            Op::Refused { .. } | Op::Mark { .. } => {}
        }
    }

    /// Whether a block has been in a slot.
    pub fn knows(&self, slot: u32) -> bool {
        (slot as usize) < self.blocks.len()
    }

    /// Whether the block in a slot is awake.
    pub fn is_awake(&self, slot: u32) -> bool {
        let block = &self.blocks[slot as usize];
        let tag = &self.tags[usize::from(block.tag)];
        !tag.is_asleep || block.born == tag.sleeps
    }

    /// Requested bytes that are live and awake.
    pub fn bytes(&self) -> u64 {
        self.awake_of(Tags::All)
    }

    /// Requested bytes of tags that are live and awake.
    pub fn awake_of(&self, tags: Tags) -> u64 {
        self.of(tags).iter().map(|tag| tag.awake_bytes).sum()
    }

    /// Requested bytes of tags that are live and asleep.
    pub fn asleep_of(&self, tags: Tags) -> u64 {
        self.of(tags).iter().map(|tag| tag.asleep_bytes).sum()
    }

    fn of(&self, tags: Tags) -> &[TagState] {
        self.tags.get(tags.within(self.tags.len())).unwrap_or_default()
    }

    fn each(&mut self, tags: Tags) -> impl Iterator<Item = &mut TagState> {
        let range = tags.within(self.tags.len());
        self.tags.get_mut(range).unwrap_or_default().iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Trace;

    /// Awake and asleep bytes after each op.
    fn of(text: &str) -> Vec<(u64, u64)> {
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        let mut awake = Awake::default();
        let mut after = |op| {
            awake.run(op);
            (awake.bytes(), awake.asleep_of(Tags::All))
        };
        trace.ops().iter().map(&mut after).collect()
    }

    #[test]
    fn a_tag_sleeps_by_itself() {
        let text = "a 1 10 0 w\na 2 5 0\ns w keep\na 3 7 0 w\nf 1\ns w discard\nw w\nf 2\n";
        assert_eq!(of(text), [(10, 0), (15, 0), (5, 10), (12, 10), (12, 0), (5, 7), (12, 0), (7, 0)]);
    }

    #[test]
    fn what_is_allocated_meanwhile_is_awake() {
        assert_eq!(of("a 1 10 0 w\ns w keep\na 2 7 0 w\nf 2\nf 1\n"), [(10, 0), (0, 10), (7, 10), (0, 10), (0, 0)]);
    }

    #[test]
    fn everything_sleeps_twice_and_wakes_once() {
        let text = "s * keep\na 1 10 0 w\na 2 5 0\ns * keep\ns * discard\nw *\nw *\ns unknown keep\nf 2\n";
        assert_eq!(of(text), [(0, 0), (10, 0), (15, 0), (0, 15), (0, 15), (15, 0), (15, 0), (15, 0), (10, 0)]);
    }
}
