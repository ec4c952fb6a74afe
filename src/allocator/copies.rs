//! The copies of a sleep and of a wake, between the device and the host. No lock but that of sleeping is held meanwhile.

use super::Inner;
use super::error::AllocError;
use super::sleep::Backup;
use super::slow_path::{Span, Store, ToWake};
use crate::driver::{Driver, DriverError, MemoryDriver, StreamDriver};
use crate::stream::StreamIndex;

impl<D: Driver> Inner<D> {
    /// Waits for what `lane` is ordered behind, and copies `spans` to the host, if they are not discarded: to memory that is
    /// retained, or to new memory.
    ///
    /// # Errors
    /// [`AllocError::HostMemory`], and the driver's, with the new memory that copies may still write to.
    pub(super) fn copy_out(
        &self,
        lane: StreamIndex,
        backup: Backup,
        spans: &[Span],
    ) -> Result<Option<Store>, (AllocError, Option<Store>)> {
        let bytes = spans.iter().filter(|span| span.retained_in.is_none()).map(|span| span.bytes).sum();
        let driver = &self.shared.streams.driver;
        let store = match backup {
            Backup::Pinned if bytes > 0 => {
                let budget = &self.shared.host_budget;
                budget.take(bytes).map_err(|left| (AllocError::HostMemory { bytes, left }, None))?;
                let memory = driver.host_alloc(bytes).inspect_err(|_| budget.give_back(bytes));
                Some(Store { memory: memory.map_err(|error| (error.into(), None))?, bytes })
            }
            Backup::Pinned | Backup::Discard => None,
        };
        let stream = self.shared.streams.get(lane).id();
        let own = store.map(|store| store.memory);
        let queued = spans.iter().try_for_each(|span| match span.retained_in.or(own) {
            Some(memory) => driver.copy_out(stream, memory, span.place, span.addr, span.bytes),
            None => Ok(()),
        });
        match queued.and_then(|()| self.wait_for(lane)) {
            Ok(()) => Ok(store),
            Err(error) => Err((error.into(), store)),
        }
    }

    /// Copies everything back, and waits for the copies.
    pub(super) fn copy_in(&self, lane: StreamIndex, to_wake: &ToWake) -> Result<(), DriverError> {
        let stream = self.shared.streams.get(lane).id();
        for (memory, span) in &to_wake.copies {
            self.shared.streams.driver.copy_in(stream, span.addr, *memory, span.place, span.bytes)?;
        }
        self.wait_for(lane)
    }

    /// Blocks the host until `lane` has done what is queued on it.
    fn wait_for(&self, lane: StreamIndex) -> Result<(), DriverError> {
        self.shared.streams.progress(Some(lane)).wait_for_own()
    }
}
