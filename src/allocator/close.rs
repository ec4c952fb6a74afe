//! The end of an allocator: everything goes back to the driver.

use super::state::StreamHeap;
use super::{Allocator, CloseError, Inner, LiveAllocation};
use crate::driver::{Driver, DriverError, MemoryDriver};
use crate::physical::ChunkId;
use crate::sync::Arc;

impl<D: Driver> Allocator<D> {
    /// Waits for the streams that used this allocator's memory, and gives everything back to the driver. Every other
    /// clone has been dropped, and no stream that used its memory is being captured: there is no waiting for one.
    ///
    /// # Errors
    /// [`CloseError::Leaked`] names the allocations that were never freed; their memory is gone all the same.
    /// [`CloseError::Forked`] in a process forked from the one that built it.
    /// [`CloseError::InUse`] when there are other clones: the allocator lives on in them.
    /// [`CloseError::Driver`] when the driver refused to take something back.
    pub fn close(self) -> Result<(), CloseError> {
        let clones = Arc::strong_count(&self.inner);
        let mut inner = Arc::try_unwrap(self.inner).map_err(|_| CloseError::InUse(clones.saturating_sub(1).max(1)))?;
        if inner.is_forked() {
            // `Drop` leaves everything to the process that built it.
            return Err(CloseError::Forked { built_in: inner.process });
        }
        let leaks = inner.leaks();
        inner.tear_down()?;
        if leaks.is_empty() { Ok(()) } else { Err(CloseError::Leaked(leaks)) }
    }

    /// The live allocations, in address order within each stream. O(blocks).
    pub fn live(&self) -> Vec<LiveAllocation> {
        self.inner.leaks()
    }
}

impl<D: Driver> Inner<D> {
    fn leaks(&self) -> Vec<LiveAllocation> {
        let mut leaks = Vec::new();
        self.for_each_live(|block| leaks.push(block));
        leaks
    }

    /// Gives everything back; on a failure goes on and returns the first one.
    fn tear_down(&mut self) -> Result<(), DriverError> {
        let mut first: Result<(), DriverError> = Ok(());
        let mut note = |result: Result<(), DriverError>| {
            if first.is_ok() {
                first = result;
            }
        };
        for stream in self.streams.iter() {
            note(self.drain(stream));
        }
        let mut mapper = self.mapper.lock();
        let chunks: Vec<ChunkId> = mapper.pool.iter().map(|(id, _)| id).collect();
        for chunk in chunks {
            for at in mapper.views_of(chunk) {
                note(self.unmap_view(&mut mapper, at));
            }
            // What is mapped still goes with its last mapping.
            note(self.driver.release(mapper.pool.get(chunk).handle));
        }
        let mapped = mapper.mappings() > 0;
        for (addr, bytes) in mapper.left_behind.iter().filter(|_| !mapped) {
            note(self.driver.address_free(*addr, *bytes));
        }
        for arena in self.directory.arenas().filter(|_| !mapped) {
            note(self.driver.address_free(arena.base, arena.bytes));
        }
        note(self.events.clear(self.driver.inner().as_ref()));
        drop(mapper);
        self.torn_down = true;
        first
    }

    /// Waits until a stream has done everything queued so far.
    fn drain(&self, stream: &StreamHeap) -> Result<(), DriverError> {
        let mut clock = stream.clock.lock();
        // Also a stream that neither allocated nor freed anything may use memory: what was recorded on it.
        let result = self.seal(stream, &mut clock).and_then(|_| {
            let last = clock.open() - 1;
            clock.wait(last, &self.driver, &self.events)
        });
        clock.forget(&self.events);
        result
    }
}

impl<D: Driver> Drop for Inner<D> {
    fn drop(&mut self) {
        if !self.torn_down && !self.is_forked() {
            // Nobody is left to tell; `close` is for those who want to know.
            let _ = self.tear_down();
        }
    }
}
