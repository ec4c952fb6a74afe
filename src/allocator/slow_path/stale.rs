//! Room for further mappings: the oldest stale views go when mappings run short.

use super::super::error::AllocError;
use super::SlowPath;
use crate::driver::{Driver, DriverError, DriverErrorKind};
use std::collections::HashSet;

/// Number of stale views that are removed at the limit of mappings for each mapping that is made: the next requests of that
/// size need remove none.
pub const DROPPED_FOR_EACH: usize = 4;

/// Which stale views to drop.
#[derive(Clone, Copy, Debug)]
pub struct Drop {
    /// Most that are dropped.
    pub most: usize,
    /// The search ends once more than these were looked at and not dropped, since their last use has not passed.
    pub patience: usize,
}

impl<D: Driver> SlowPath<'_, D> {
    /// Unmaps the oldest stale views whose last use has completed. Returns their number.
    ///
    /// # Errors
    /// The driver's. What was unmapped before stays so.
    pub fn drop_stale_views(&mut self, drop: Drop) -> Result<usize, DriverError> {
        let (mut dropped, mut waiting) = (0, Vec::new());
        let result = loop {
            if dropped == drop.most || waiting.len() > drop.patience {
                break Ok(dropped);
            }
            let Some((at, fence)) = self.mapper.take_oldest_stale() else { break Ok(dropped) };
            match self.progress().has_passed(fence.stream, fence.epoch) {
                Ok(true) => {}
                Ok(false) => {
                    waiting.push((at, fence));
                    continue;
                }
                Err(error) => {
                    waiting.push((at, fence));
                    break Err(error);
                }
            }
            match self.unmap_unless_refused(at) {
                Ok(true) => dropped += 1,
                Ok(false) => waiting.push((at, fence)),
                Err(error) => {
                    waiting.push((at, fence));
                    break Err(error);
                }
            }
        };
        self.mapper.put_back_stale(waiting);
        result
    }

    /// After the driver has refused a sequence of `mappings` mappings, which was undone: makes room where its own limit may be the
    /// cause, so that the sequence can be tried again.
    ///
    /// # Errors
    /// The driver's error, where that is another one or no room can be made. Views that were unmapped before stay unmapped.
    pub fn make_room_after(&mut self, error: DriverError, mappings: usize) -> Result<(), AllocError> {
        let may_help = error.kind == DriverErrorKind::OutOfMemory;
        if may_help && self.make_room_for_mappings(mappings * DROPPED_FOR_EACH)? {
            return Ok(());
        }
        Err(self.mapping_error(error))
    }

    /// Where the driver makes no further mapping: unmaps up to `most` of the oldest stale views. If the last use of none has
    /// completed, the host waits for that of the oldest for which it can. Returns whether one was unmapped.
    ///
    /// # Errors
    /// The driver's. What was unmapped before stays so.
    fn make_room_for_mappings(&mut self, most: usize) -> Result<bool, DriverError> {
        let drop = Drop { most, patience: usize::MAX };
        if self.drop_stale_views(drop)? > 0 {
            return Ok(true);
        }
        // Of a stream that cannot be waited for now, a later moment cannot either.
        let mut hopeless = HashSet::new();
        for fence in self.mapper.ends_of_stale() {
            // A view whose last use has completed is still there because a listener refuses to let it go.
            let passed = self.shared.streams.get(fence.stream).clock.lock().has_passed(fence.epoch);
            if passed || hopeless.contains(&fence.stream) {
                continue;
            }
            if !self.progress().wait_until_passed(fence.stream, fence.epoch)? {
                hopeless.insert(fence.stream);
            } else if self.drop_stale_views(drop)? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The error of a sequence of mappings that the driver did not make.
    pub fn mapping_error(&self, error: DriverError) -> AllocError {
        match error.kind {
            DriverErrorKind::OutOfMemory => {
                AllocError::OutOfMappings { mappings: self.mapper.mappings(), cause: error }
            }
            _ => error.into(),
        }
    }
}
