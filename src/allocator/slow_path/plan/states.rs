//! How a plan gets at the states of the streams: a piece at a time, or all together.

use super::super::super::streams::Streams;
use super::super::super::streams::state::{AllStates, StreamState};
use crate::driver::Driver;
use crate::stream::StreamIndex;

/// Most blocks that are looked at while a stream is locked, where others are not to wait for more than a piece of the work. What a
/// piece finds is collected in memory that has been used before: to get more, from the system perhaps, takes long.
pub const PIECE: usize = 16;

/// Most blocks that are claimed, or given back, while a stream is locked.
pub const CLAIM_PIECE: usize = 2;

/// The streams' states.
#[derive(Debug)]
pub struct States<'a, D> {
    streams: &'a Streams<D>,
    /// All of them, where they are locked together.
    together: Option<AllStates<'a>>,
}

impl<'a, D: Driver> States<'a, D> {
    /// Each stream is locked for a piece of the work. What is learned of one stream is of another moment than what is learned
    /// of the next one, or of its next piece.
    pub fn in_pieces(streams: &'a Streams<D>) -> Self {
        Self { streams, together: None }
    }

    /// All streams are locked: what is learned is of one moment.
    pub fn together(streams: &'a Streams<D>) -> Self {
        Self { streams, together: Some(streams.lock_all()) }
    }

    /// The streams that may have regions. One that is added meanwhile has none: it gets them in the slow path.
    pub fn indices(&self) -> impl DoubleEndedIterator<Item = StreamIndex> + use<'a, D> {
        let count = self.together.as_ref().map_or_else(|| self.streams.count(), Vec::len);
        (0..count).map(|number| StreamIndex(u32::try_from(number).expect("stream numbers are 32 bits")))
    }

    /// Does a piece of the work on one stream.
    pub fn with<T>(&mut self, stream: StreamIndex, piece: impl FnOnce(&mut StreamState) -> T) -> T {
        match &mut self.together {
            Some(states) => piece(&mut states[stream.0 as usize]),
            None => self.streams.get(stream).piece(piece),
        }
    }

    /// Lets another thread run here, in tests.
    #[cfg(test)]
    pub fn interrupt(&self) {
        if self.together.is_none() {
            crate::testing::between_copies();
        }
    }
}
