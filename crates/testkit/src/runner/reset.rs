//! Resets of the device by the program, as `cudaDeviceReset` does them.
//!
//! Streams and events are gone, memory stays mapped. From then on, whatever needs the driver is refused with a text that says so,
//! nothing panics, and what callers hold can be freed. Closing gives all memory back, and an allocator that is opened afterwards
//! works: the sequence goes on with one on a new device.

use super::Runner;
use super::instance::Instance;
use crate::device::Device;
use crate::kept::Kept;
use crate::op::CurrentContext;
use gapless::allocator::{AllocError, CloseError, FreeError, RangeError, StreamError};
use gapless::driver::{DriverError, DriverErrorKind, WorkDriver};

impl<D: Device> Runner<D> {
    pub(crate) fn reset(&mut self) {
        let device = self.driver.inner();
        if !device.inner().has_resets() {
            return;
        }
        device.inner().set_context(CurrentContext::None);
        self.disarm();
        self.end_captures();
        let device = self.driver.inner();
        for stream in &self.streams {
            device.synchronize(*stream).expect("a stream that is not captured");
        }
        assert!(device.take_mismatches().is_empty(), "the content of live memory changed before a reset");
        device.inner().reset();
        for index in 0..self.instances.len() {
            self.current = index;
            self.use_after_reset();
        }
        for (number, instance) in std::mem::take(&mut self.instances).into_iter().enumerate() {
            self.close_after_reset(instance, number % 2 == 0);
        }
        let usage = self.driver.inner().inner().usage();
        assert!(usage.is_empty(), "invariant 11: left in the driver after a reset: {usage:?}");
        self.summary.resets += 1;
        let summary = std::mem::take(&mut self.summary);
        *self = Self { summary, ..Self::new(&self.world) };
    }

    /// Makes every kind of call.
    fn use_after_reset(&mut self) {
        let page = self.world.page_bytes;
        let live: Vec<_> = self.instance().oracle.live.values().cloned().collect();
        for stream in self.streams.clone() {
            let allocator = self.allocator();
            for bytes in [1, 3 * page] {
                match allocator.alloc_raw(bytes, stream) {
                    // What is free and needs no driver call is handed out.
                    Ok(addr) => allocator.free(addr).expect("a live block can be freed"),
                    Err(error) => expect_reset(&error),
                }
            }
            // A chunk has to be created, or a free one to be mapped elsewhere.
            expect_reset(&allocator.alloc_registered(page, stream).map(|_| ()).expect_err("the driver was asked"));
            if let Some(block) = live.first() {
                match allocator.record_stream(block.addr, stream) {
                    Ok(()) => {}
                    Err(FreeError::Stream(StreamError::Foreign { cause, .. })) => expect_reset_said(&cause),
                    Err(other) => panic!("record_stream returned {other} after a reset"),
                }
            }
            if let Err(StreamError::Foreign { cause, .. }) = allocator.keep_stream(stream) {
                expect_reset_said(&cause);
            }
        }
        let stream = self.streams[0];
        for range in &mut self.instance_mut().ranges {
            match range.grow(page, stream) {
                Err(RangeError::Full { .. }) => {}
                Err(RangeError::Alloc(error)) => expect_reset(&error),
                other => panic!("the driver was asked: {other:?}"),
            }
            if let Err(error) = range.shrink(page) {
                expect_reset(&error);
            }
        }
        let allocator = self.allocator();
        if let Err(error) = allocator.trim(0) {
            expect_reset(&error);
        }
        let error = allocator.reserve_range(page).map(|_| ()).expect_err("addresses come from the driver");
        expect_reset(&error);
        for block in live {
            allocator.free(block.addr).expect("a live block can be freed");
        }
        allocator.check();
    }

    fn close_after_reset(&self, mut instance: Instance<D>, says: bool) {
        // Their events are gone.
        instance.marks.clear();
        instance.ranges.clear();
        instance.kept = Kept::default();
        let handle = instance.handles.pop().expect("every allocator has a handle");
        instance.handles.clear();
        if !says {
            drop(handle);
            return;
        }
        match handle.close() {
            Ok(()) => {}
            Err(CloseError::Driver(error)) => expect_reset_said(&error),
            Err(other) => panic!("close returned {other} after a reset"),
        }
    }
}

fn expect_reset(error: &AllocError) {
    match error {
        AllocError::Driver(cause)
        | AllocError::OutOfMappings { cause, .. }
        | AllocError::Stream(StreamError::Foreign { cause, .. }) => expect_reset_said(cause),
        // What the budget does not allow is refused without the driver.
        AllocError::OutOfMemory(report) => assert_eq!(report.device, None, "the driver does not tell what is free"),
        other => panic!("{other} after a reset"),
    }
}

/// Checks that the driver says what has happened.
fn expect_reset_said(error: &DriverError) {
    assert_eq!(error.kind, DriverErrorKind::DeviceLost, "{error}");
    assert!(error.to_string().contains("the primary context of device 0 was reset"), "{error}");
}
