//! Work in stream order: fills, checks, copies and delays, for tests and replays.
//!
//! With the feature `testing`.
//!
//! A check writes its result to a slot in device memory, which is copied to a slot in host memory; an event says when
//! the copy has completed.
//!
//! ```text
//! slot   count: u64 = 0 | first: u64 = ~0        free -> queued (event recorded) -> read by harvest -> free
//! ```
//!
//! - I1  a slot is in `free` or belongs to exactly one of `queued`.
//!
//! Threads: any; queueing takes the driver's work lock, for the length of a few launches.

use std::collections::VecDeque;
use std::time::Duration;

use super::CudaDriver;
use super::kernels::{Kernels, Threads};
use super::streams::raw_stream;
use crate::driver::{
    DriverCall, DriverError, DriverErrorKind, DriverResult, EventHandle, Mismatch, StreamDriver, WorkDriver,
};
use crate::units::{DeviceAddr, StreamId};

/// The objects that work needs: kernels, result slots, checks in progress. Created at the first use.
pub(super) struct Work {
    kernels: Kernels,
    device_slots: DeviceAddr,
    /// The copies of the device's slots, read only when their event has completed.
    host_slots: *mut [u64; 2],
    free: Vec<u32>,
    queued: VecDeque<Check>,
    found: Vec<Mismatch>,
}

// SAFETY: `host_slots` is plain memory that is only reached through the lock around `Work`.
unsafe impl Send for Work {}

struct Check {
    slot: u32,
    event: EventHandle,
    /// The report of a check that fails, without `first` and `count`.
    about: Mismatch,
}

impl WorkDriver for CudaDriver {
    fn create_stream(&self) -> DriverResult<StreamId> {
        self.create_copy_stream()
    }

    fn destroy_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.destroy_copy_stream(stream)
    }

    fn abandon_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.end_stream(stream)
    }

    fn fill(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.with_work(|work| {
            let threads = Threads::ForItems(bytes.div_ceil(8));
            // SAFETY: the kernel's parameters; the range is mapped until the work has run (the trait's contract).
            unsafe { self.launch(work.kernels.fill_pattern, stream, threads, &[addr.0, bytes, seed]) }
        })
    }

    fn verify(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.with_work(|work| {
            let about = Mismatch { stream, addr, bytes, seed, first: 0, count: 0 };
            let slot = self.take_slot(work)?;
            let event = match self.event_create() {
                Ok(event) => event,
                Err(error) => {
                    work.free.push(slot);
                    return Err(error);
                }
            };
            let queued = self.queue_check(work, slot, event, &about);
            if let Err(error) = queued {
                // Part of it may be queued: the slot stays out of use, the event is of no use to anyone.
                let _ = self.event_destroy(event);
                return Err(error);
            }
            work.queued.push_back(Check { slot, event, about });
            Ok(())
        })
    }

    fn copy(&self, stream: StreamId, target: DeviceAddr, source: DeviceAddr, bytes: u64) -> DriverResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.context.enter(DriverCall::Work)?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let stream = raw_stream(stream);
        // SAFETY: both ranges are mapped until the work has run (the trait's contract).
        let result = unsafe { self.library.api().cuMemcpyDtoDAsync_v2(target.0, source.0, bytes, stream) };
        self.library.check(DriverCall::Work, "cuMemcpyDtoDAsync", result)
    }

    fn delay(&self, stream: StreamId, duration: Duration) -> DriverResult<()> {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.with_work(|work| {
            // SAFETY: the kernel's only parameter; it touches no memory.
            unsafe { self.launch(work.kernels.spin, stream, Threads::One, &[nanoseconds]) }
        })
    }

    fn synchronize(&self, stream: StreamId) -> DriverResult<()> {
        self.wait_for_stream(stream)
    }

    fn take_mismatches(&self) -> Vec<Mismatch> {
        let mut work = self.work.lock();
        let Some(work) = work.as_mut() else { return Vec::new() };
        self.harvest(work);
        std::mem::take(&mut work.found)
    }
}

impl CudaDriver {
    /// Loads the kernels that [`WorkDriver`] is made of, as its first call would. Nothing else needs them: where they
    /// cannot be loaded, because the device is too old for them or the driver cannot compile, memory, streams and events
    /// work all the same.
    ///
    /// # Errors
    /// The driver's error.
    pub fn load_kernels(&self) -> DriverResult<()> {
        self.with_work(|_| Ok(()))
    }

    /// Runs `queue` with the kernels loaded and the context current.
    fn with_work<T>(&self, queue: impl FnOnce(&mut Work) -> DriverResult<T>) -> DriverResult<T> {
        let mut work = self.work.lock();
        let _current = self.context.enter(DriverCall::Work)?;
        if work.is_none() {
            *work = Some(self.start_work()?);
        }
        match work.as_mut() {
            Some(work) => queue(work),
            None => unreachable!("made just above"),
        }
    }

    fn start_work(&self) -> DriverResult<Work> {
        let kernels = Kernels::load(self.library, &self.context)?;
        let _guards = self.context.enter_outside_capture(DriverCall::Work)?;
        let bytes = SLOTS as usize * size_of::<[u64; 2]>();
        let mut device_slots = 0;
        // SAFETY: the out-parameter is a valid pointer for the call.
        let result = unsafe { self.library.api().cuMemAlloc_v2(&raw mut device_slots, bytes) };
        if let Err(error) = self.library.check(DriverCall::Work, "cuMemAlloc", result) {
            kernels.unload();
            return Err(error);
        }
        let mut host_slots = std::ptr::null_mut();
        // SAFETY: the out-parameter is a valid pointer for the call.
        let result = unsafe { self.library.api().cuMemAllocHost_v2(&raw mut host_slots, bytes) };
        if let Err(error) = self.library.check(DriverCall::Work, "cuMemAllocHost", result) {
            // SAFETY: allocated above, used by nobody.
            let _ = unsafe { self.library.api().cuMemFree_v2(device_slots) };
            kernels.unload();
            return Err(error);
        }
        Ok(Work {
            kernels,
            device_slots: DeviceAddr(device_slots),
            host_slots: host_slots.cast(),
            free: (0..SLOTS).collect(),
            queued: VecDeque::new(),
            found: Vec::new(),
        })
    }

    /// Clears the slot, checks into it, copies it to the host and records the event, all on the check's stream.
    fn queue_check(&self, work: &Work, slot: u32, event: EventHandle, about: &Mismatch) -> DriverResult<()> {
        let api = self.library.api();
        let stream = raw_stream(about.stream);
        let result_at = work.device_slots.offset(u64::from(slot) * SLOT_BYTES);
        // SAFETY: the first half of a slot that belongs to this check alone (I1).
        let cleared = unsafe { api.cuMemsetD8Async(result_at.0, 0, 8, stream) };
        self.library.check(DriverCall::Work, "cuMemsetD8Async", cleared)?;
        // SAFETY: its second half.
        let cleared = unsafe { api.cuMemsetD8Async(result_at.0 + 8, 0xff, 8, stream) };
        self.library.check(DriverCall::Work, "cuMemsetD8Async", cleared)?;
        let threads = Threads::ForItems(about.bytes.div_ceil(8));
        let parameters = [about.addr.0, about.bytes, about.seed, result_at.0];
        // SAFETY: the kernel's parameters; the range is mapped until the work has run (the trait's contract).
        unsafe { self.launch(work.kernels.verify_pattern, about.stream, threads, &parameters) }?;
        let target = work.host_slots.wrapping_add(slot as usize);
        // SAFETY: slot of device and host memory, both of this check alone (I1), and kept until its event completed.
        let copied = unsafe { api.cuMemcpyDtoHAsync_v2(target.cast(), result_at.0, size_of::<[u64; 2]>(), stream) };
        self.library.check(DriverCall::Work, "cuMemcpyDtoHAsync", copied)?;
        self.event_record(event, about.stream)
    }

    /// Returns a free slot; waits for the oldest check if there is none.
    fn take_slot(&self, work: &mut Work) -> DriverResult<u32> {
        if work.free.is_empty() {
            self.harvest(work);
        }
        if work.free.is_empty()
            && let Some(oldest) = work.queued.front()
        {
            self.event_synchronize(oldest.event)?;
            self.harvest(work);
        }
        work.free.pop().ok_or_else(|| {
            let text = "every result slot was lost to failed checks";
            DriverError::new(DriverCall::Work, DriverErrorKind::OutOfMemory, text)
        })
    }

    /// Reads the results of the checks that have completed.
    fn harvest(&self, work: &mut Work) {
        for _ in 0..work.queued.len() {
            let Some(check) = work.queued.pop_front() else { break };
            if !matches!(self.event_query(check.event), Ok(true)) {
                work.queued.push_back(check);
                continue;
            }
            let result = work.host_slots.wrapping_add(check.slot as usize);
            // SAFETY: inside the slots, and the copy into it has completed: nobody writes it now (I1).
            let [count, first] = unsafe { result.read_volatile() };
            if count > 0 {
                work.found.push(Mismatch { first, count, ..check.about });
            }
            let _ = self.event_destroy(check.event);
            work.free.push(check.slot);
        }
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        let Some(mut work) = self.work.get_mut().take() else { return };
        // Teardown goes on past every failure: where the context is lost, all of this is gone with it.
        let _ = self.context.synchronize();
        let Ok(_guards) = self.context.enter_outside_capture(DriverCall::Work) else { return };
        for check in work.queued.drain(..) {
            let _ = self.event_destroy(check.event);
        }
        work.kernels.unload();
        // SAFETY: allocated in `start_work`, freed once; all work has completed.
        let _ = unsafe { self.library.api().cuMemFree_v2(work.device_slots.0) };
        // SAFETY: as above.
        let _ = unsafe { self.library.api().cuMemFreeHost(work.host_slots.cast()) };
    }
}

/// The most checks in progress at once; a further one waits for the oldest.
const SLOTS: u32 = 4096;
const SLOT_BYTES: u64 = 16;
