//! Pinned memory of the host, which copies go from and to: found by its name, and shown to one caller at a time where that changes
//! it.

use super::HostDriver;
use super::books::{InFlight, SharedBooks};
use super::bytes;
use super::task::{HostSpan, Task};
use crate::driver::ledger::Refusal;
use crate::driver::{DriverCall, DriverError, DriverErrorKind, DriverResult, HostMemory};
use crate::units::{ByteSize, StreamId};

/// Memory of the host that is shown to a caller, until this is dropped.
struct Shown<'a> {
    books: &'a SharedBooks,
    entry: (HostMemory, bool),
    /// The first byte of the range, in this process.
    start: u64,
}

impl HostDriver {
    pub(super) fn alloc_pinned(&self, bytes: u64) -> DriverResult<HostMemory> {
        const CALL: DriverCall = DriverCall::HostAlloc;
        let mut books = self.call(CALL);
        let Some((memory, start)) = host_memory(bytes) else {
            let text = format!("no {} of the host's memory", ByteSize(bytes));
            return Err(DriverError::new(CALL, DriverErrorKind::OutOfMemory, text));
        };
        let name = books.ledger.host_alloc(bytes, start);
        books.host_memory.insert(name, memory);
        Ok(name)
    }

    pub(super) fn free_pinned(&self, memory: HostMemory) -> DriverResult<()> {
        let mut books = self.call(DriverCall::HostFree);
        let in_use = books.in_flight.values().any(|work| work.task.uses(memory));
        let answer = match in_use {
            true => Err(Refusal::Misuse(format!("{memory:?} is freed while a copy is in flight"))),
            false => books.check_not_shown(memory, false).and_then(|()| books.ledger.host_free(memory)),
        };
        books.enforce(DriverCall::HostFree, answer)?;
        books.host_memory.remove(&memory);
        Ok(())
    }

    pub(super) fn read_pinned(
        &self,
        memory: HostMemory,
        offset: u64,
        bytes: u64,
        read: &mut dyn FnMut(&[u8]),
    ) -> DriverResult<()> {
        let shown = self.show((memory, false), offset, bytes)?;
        // SAFETY: the range is within memory of the host, which is neither freed nor written to while it is shown.
        read(unsafe { bytes::slice(shown.start, bytes) });
        Ok(())
    }

    pub(super) fn write_pinned(
        &self,
        memory: HostMemory,
        offset: u64,
        bytes: u64,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> DriverResult<()> {
        let shown = self.show((memory, true), offset, bytes)?;
        // SAFETY: the range is within memory of the host, which is neither freed nor used by anybody else while it is shown.
        write(unsafe { bytes::slice_mut(shown.start, bytes) });
        Ok(())
    }

    /// Notes that a range of memory is shown from now on, and whether to be changed. No copy that is in flight minds.
    fn show(&self, entry: (HostMemory, bool), offset: u64, bytes: u64) -> DriverResult<Shown<'_>> {
        let (memory, changes) = entry;
        let mut books = self.books.lock();
        let in_use = |work: &InFlight| if changes { work.task.uses(memory) } else { work.task.writes(memory) };
        let answer = match books.in_flight.values().any(in_use) {
            true if changes => Err(Refusal::Misuse(format!("{memory:?} is written to while a copy is in flight"))),
            true => Err(Refusal::Misuse(format!("{memory:?} is read while a copy to it is in flight"))),
            false => {
                books.check_not_shown(memory, !changes).and_then(|()| books.ledger.check_host(memory, offset, bytes))
            }
        };
        let start = books.enforce(DriverCall::HostAlloc, answer)? + offset;
        books.shown.push(entry);
        Ok(Shown { books: &self.books, entry, start })
    }

    /// Queues a copy from or to `offset` of memory of the host, which `task` makes of the range.
    pub(super) fn copy_beside(
        &self,
        call: DriverCall,
        stream: StreamId,
        (memory, offset, bytes): (HostMemory, u64, u64),
        task: impl FnOnce(HostSpan) -> Task,
    ) -> DriverResult<()> {
        self.queue(call, stream, |books| {
            let answer = books.ledger.check_host(memory, offset, bytes);
            let start = books.enforce(call, answer)?;
            Ok(task(HostSpan { memory, addr: start + offset, bytes }))
        })
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        let shown = &mut self.books.lock().shown;
        if let Some(at) = shown.iter().position(|entry| *entry == self.entry) {
            shown.swap_remove(at);
        }
    }
}

/// Memory of the host with so many bytes, and the address of the first one.
fn host_memory(bytes: u64) -> Option<(Vec<u64>, u64)> {
    let words = usize::try_from(bytes.div_ceil(8)).ok()?;
    let mut memory = Vec::new();
    memory.try_reserve_exact(words).ok()?;
    memory.resize(words, 0_u64);
    let start = memory.as_mut_ptr().expose_provenance() as u64;
    Some((memory, start))
}

#[cfg(test)]
mod tests {
    use crate::driver::host::tests::{MAIN, PAGE, host, mapped};
    use crate::driver::{MemoryDriver, StreamDriver, WorkDriver};

    #[test]
    fn memory_that_is_shown_is_left_alone() {
        let driver = host();
        let memory = driver.host_alloc(PAGE).unwrap();
        let addr = mapped(&driver);
        let refused = |count| assert_eq!(driver.take_violations().len(), count);
        let mut looks = 0;
        let look = &mut |_: &[u8]| {
            driver.host_free(memory).unwrap_err();
            driver.host_write(memory, 0, 8, &mut |_| unreachable!()).unwrap_err();
            driver.copy_out(MAIN, memory, 0, addr, PAGE).unwrap_err();
            refused(3);
            driver.copy_in(MAIN, addr, memory, 0, PAGE).unwrap();
            driver.host_read(memory, 0, 8, &mut |_| looks += 1).unwrap();
        };
        driver.host_read(memory, 0, PAGE, look).unwrap();
        driver.synchronize(MAIN).unwrap();
        let change = &mut |_: &mut [u8]| {
            driver.host_free(memory).unwrap_err();
            driver.host_read(memory, 0, 8, &mut |_| unreachable!()).unwrap_err();
            driver.copy_in(MAIN, addr, memory, 0, PAGE).unwrap_err();
            refused(3);
        };
        driver.host_write(memory, 0, PAGE, change).unwrap();
        driver.host_free(memory).unwrap();
        assert_eq!((looks, driver.take_violations()), (1, Vec::new()));
    }
}
