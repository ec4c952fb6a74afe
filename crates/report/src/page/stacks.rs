//! The stacks that a page shows, each once, in a bounded number of bytes.

use super::html::cut;
use gapless_trace::Trace;
use std::collections::HashMap;

/// Stacks for the script of a page: lists of indices of frames, the innermost first.
#[derive(Debug, Default, serde::Serialize)]
pub(super) struct Stacks {
    frames: Vec<String>,
    stacks: Vec<Vec<usize>>,
    #[serde(skip)]
    numbers: HashMap<usize, usize>,
    #[serde(skip)]
    numbers_of_frames: HashMap<String, usize>,
    /// About how many bytes they take in a page.
    #[serde(skip)]
    bytes: usize,
}

impl Stacks {
    /// Returns the number of the stack of the op at an index, or `None` if it has none, or there is no room for more.
    pub(super) fn of_op(&mut self, trace: &Trace, op: u64) -> Option<usize> {
        let stack = trace.stack_of(op)?;
        if let Some(known) = self.numbers.get(&stack) {
            return Some(*known);
        }
        if trace.frames(stack).len() == 0 || self.bytes > MOST_BYTES {
            return None;
        }
        let frames: Vec<usize> = trace.frames(stack).map(|frame| self.frame(frame)).collect();
        self.bytes += frames.len() * BYTES_OF_INDEX;
        self.stacks.push(frames);
        self.numbers.insert(stack, self.stacks.len() - 1);
        Some(self.stacks.len() - 1)
    }

    fn frame(&mut self, frame: &str) -> usize {
        let frame = cut(&crate::printable(frame));
        if let Some(known) = self.numbers_of_frames.get(&frame) {
            return *known;
        }
        self.bytes += frame.len();
        self.frames.push(frame.clone());
        self.numbers_of_frames.insert(frame, self.frames.len() - 1);
        self.frames.len() - 1
    }
}

/// About how many bytes of stacks a page has at most.
const MOST_BYTES: usize = 400 << 10;
/// About how many bytes an index of a frame takes.
const BYTES_OF_INDEX: usize = 5;
