//! The end of an allocator: everything goes back to the driver, once nothing can be using it.

use super::super::shared::Shared;
use super::{Door, SlowPath};
use crate::driver::{Driver, DriverError, DriverResult, MemoryDriver, StreamDriver};
use crate::physical::ChunkId;

/// Whether work may still use the memory of an allocator that ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// It may: it has to be waited for.
    MayBeAtWork,
    /// The caller has waited for the device since.
    AreDone,
}

impl Door {
    /// Waits for the users, and gives everything back, after the device was lost as well. On a failure it goes on, and returns
    /// the first one; but where the users cannot be waited for, nothing is given back. Not to be called in a forked process.
    pub fn tear_down<D: Driver>(&self, shared: &Shared<D>, users: Users) -> Result<(), DriverError> {
        let waited = match users {
            Users::MayBeAtWork => self.wait_for_users(shared)?,
            Users::AreDone => Ok(()),
        };
        for stream in shared.streams.iter() {
            stream.clock.lock().drop_events(&shared.streams.events);
        }
        let mut path = self.path(shared);
        let released = path.release_everything().and(path.end_sleep());
        path.publish();
        waited.and(released)
    }

    /// Blocks the host until nothing uses the allocator's memory: until its streams have done what is queued on them, or the
    /// whole device, where a stream cannot be waited for or work of others uses the memory. Returns the first failure on the
    /// way.
    ///
    /// # Errors
    /// The driver's, when something may be using the memory still. A device that was lost does nothing any more.
    fn wait_for_users<D: Driver>(&self, shared: &Shared<D>) -> Result<DriverResult<()>, DriverError> {
        let streams = &shared.streams;
        let (mut first, mut all_done) = (Ok(()), false);
        if shared.geometry.rules.knows_all_work() {
            let drained = streams.progress(None).drain();
            all_done = matches!(drained, Ok(true));
            first = drained.map(drop);
        }
        if !all_done && let Err(error) = streams.driver.synchronize_device() {
            if !error.kind.is_sticky() {
                return Err(error);
            }
            first = first.and(Err(error));
        }
        Ok(first)
    }
}

impl<D: Driver> SlowPath<'_, D> {
    /// Unmaps and releases everything, and returns the first failure.
    fn release_everything(&mut self) -> Result<(), DriverError> {
        let mut first = Ok(());
        let mut note = |result: Result<(), DriverError>| {
            if first.is_ok() {
                first = result;
            }
        };
        let chunks: Vec<ChunkId> = self.mapper.chunks().iter().map(|(id, _)| id).collect();
        for chunk in chunks {
            for at in self.mapper.views_of(chunk) {
                note(self.unmap_view(at));
            }
            // What is still mapped goes with its last mapping.
            note(self.driver().release(self.mapper.chunks().get(chunk).handle));
        }
        if self.mapper.mappings() == 0 {
            for (addr, bytes) in self.mapper.left_behind() {
                note(self.driver().address_free(*addr, *bytes));
            }
            for arena in self.shared.directory.arenas() {
                note(self.driver().address_free(arena.base, arena.bytes));
            }
        }
        note(self.shared.streams.events.clear(self.driver().inner().as_ref()));
        first
    }
}

#[cfg(test)]
mod tests {
    use crate::allocator::Allocator;
    use crate::driver::{DriverCall, ModelDriver};
    use crate::units::StreamId;
    use std::sync::Arc;

    /// An allocator that ends waits for its streams only; one that keeps its mappings, which others may use, for the device.
    #[test]
    fn the_device_is_waited_for_where_others_use_the_memory() {
        for keeps_mappings in [false, true] {
            let driver = Arc::new(ModelDriver::default());
            let builder = Allocator::builder(Arc::clone(&driver));
            let builder = if keeps_mappings { builder.keep_mappings() } else { builder };
            let allocator = builder.build().unwrap();
            let block = allocator.alloc_raw(100, StreamId::DEFAULT).unwrap();
            allocator.free(block).unwrap();
            allocator.close().unwrap();
            assert_eq!(driver.calls()[DriverCall::Synchronize], u64::from(keeps_mappings));
            assert!(driver.usage().is_empty());
        }
    }

    /// What is abandoned stays with the driver, which hears nothing of it. Another clone lives on.
    #[test]
    fn an_abandoned_allocator_calls_nothing() {
        let driver = Arc::new(ModelDriver::default());
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let block = allocator.alloc_raw(100, StreamId::DEFAULT).unwrap();
        let before = (driver.calls(), driver.usage().bytes);
        allocator.clone().abandon();
        allocator.free(block).unwrap();
        assert_eq!(allocator.alloc_raw(100, StreamId::DEFAULT).unwrap(), block);
        allocator.abandon();
        assert_eq!((driver.calls(), driver.usage().bytes), before);
    }
}
