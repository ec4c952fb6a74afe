//! The end of an allocator: everything goes back to the driver.

use super::super::shared::Shared;
use super::{Door, SlowPath};
use crate::driver::{Driver, DriverError, MemoryDriver};
use crate::physical::ChunkId;

impl Door {
    /// Waits for all streams and gives everything back, after the device was lost as well. On a failure it goes on, and
    /// returns the first one. Not to be called in a forked process.
    pub fn tear_down<D: Driver>(&self, shared: &Shared<D>) -> Result<(), DriverError> {
        let first = shared.streams.progress(None).drain();
        let mut path = SlowPath { shared, mapper: self.mapper.lock(), given: None, created: Vec::new() };
        first.and(path.release_everything())
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
        let chunks: Vec<ChunkId> = self.mapper.pool.iter().map(|(id, _)| id).collect();
        for chunk in chunks {
            for at in self.mapper.views_of(chunk) {
                note(self.unmap_view(at));
            }
            // What is still mapped goes with its last mapping.
            note(self.driver().release(self.mapper.pool.get(chunk).handle));
        }
        if self.mapper.mappings() == 0 {
            for (addr, bytes) in &self.mapper.left_behind {
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
