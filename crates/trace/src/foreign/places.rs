//! The places in the program that its requests come from, collected while a recording is read.

use crate::trace::{Origins, Stack};
use foldhash::HashMap;

/// Places, each identified by a number. Number 0 stands for no place.
#[derive(Debug, Default)]
pub(super) struct Places {
    stacks: Vec<Stack>,
    /// The place of each origin without frames.
    without_frames: HashMap<u32, u32>,
    texts: Interned,
}

impl Places {
    /// Returns the number of a text, for the frames of [`number`](Self::number).
    pub(super) fn text(&mut self, text: &str) -> u32 {
        self.texts.index(text)
    }

    /// Returns the number of the place with this origin and these frames, the innermost first. Every call with frames makes another
    /// place.
    pub(super) fn number(&mut self, origin: &str, frames: Box<[u32]>) -> u32 {
        let origin = self.texts.index(origin);
        if frames.is_empty()
            && let Some(&known) = self.without_frames.get(&origin)
        {
            return known;
        }
        self.stacks.push(Stack { origin, frames });
        let number = u32::try_from(self.stacks.len()).expect("fewer than 2^32: each takes memory of its own");
        if self.stacks[number as usize - 1].frames.is_empty() {
            self.without_frames.insert(origin, number);
        }
        number
    }

    /// Returns the places, with the number of that of each op.
    pub(super) fn into_origins(self, of_op: Vec<u32>) -> Origins {
        let of_op = if self.stacks.is_empty() { Vec::new() } else { of_op };
        Origins { of_op, stacks: self.stacks, texts: self.texts.texts }
    }
}

/// Texts, each stored once.
#[derive(Debug, Default)]
struct Interned {
    numbers: HashMap<Box<str>, u32>,
    texts: Vec<Box<str>>,
}

impl Interned {
    fn index(&mut self, text: &str) -> u32 {
        if let Some(known) = self.numbers.get(text) {
            return *known;
        }
        let index = u32::try_from(self.texts.len()).expect("fewer than 2^32: each takes memory of its own");
        self.texts.push(text.into());
        self.numbers.insert(text.into(), index);
        index
    }
}
