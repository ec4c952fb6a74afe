//! Streams that use memory of others: how far they are, asked of the allocator of their device.
//!
//! An allocator knows the order of its own device's streams. Where one of them uses memory of another device's allocator, that
//! one cannot know when the use is over, and this one can.

use super::Allocator;
use super::error::StreamError;
use crate::driver::{Driver, DriverError};
use crate::stream::{Fence, StreamIndex};
use crate::units::StreamId;

/// A stream whose use of other memory is watched. It means something to the allocator that made it, and lasts as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchedStream(StreamIndex);

/// A moment in the work of a watched stream. It means something to the allocator that made it.
#[derive(Clone, Copy, Debug)]
pub struct StreamMark(Fence);

impl<D: Driver> Allocator<D> {
    /// Watches a stream of this allocator's device, whose work uses memory that is not of this allocator.
    ///
    /// # Errors
    /// [`StreamError`] when it is no stream of this device, or one too many.
    pub fn watch_stream(&self, stream: StreamId) -> Result<WatchedStream, StreamError> {
        Ok(WatchedStream(self.inner.shared.streams.find_or_add(stream)?.index))
    }

    /// Marks the end of what is queued on a watched stream by now. Of a stream that its owner has not promised to keep
    /// ([`keep_stream`](Self::keep_stream)), a later moment may be marked, or one that only [`wait_for`](Self::wait_for)
    /// reaches.
    pub fn mark(&self, stream: WatchedStream) -> StreamMark {
        let streams = &self.inner.shared.streams;
        let stream = streams.get(stream.0);
        let mut clock = stream.clock.lock();
        let epoch = clock.open();
        if clock.sealed() == 0 {
            // What fails here is tried again when it is asked for.
            let _ = streams.progress(None).seal(stream, &mut clock);
        }
        StreamMark(Fence { stream: stream.index, epoch })
    }

    /// Whether a stream has passed a mark. The host does not wait.
    ///
    /// # Errors
    /// [`DriverError`] when the device is lost.
    pub fn has_passed(&self, mark: StreamMark) -> Result<bool, DriverError> {
        self.inner.shared.streams.progress(None).has_passed(mark.0.stream, mark.0.epoch)
    }

    /// Blocks the host until a stream has passed a mark, or the whole device, where no event covers it. Returns false when that is
    /// impossible now: during a capture.
    ///
    /// # Errors
    /// [`DriverError`] when the device is lost.
    pub fn wait_for(&self, mark: StreamMark) -> Result<bool, DriverError> {
        self.inner.shared.streams.progress(None).wait_until_passed(mark.0.stream, mark.0.epoch)
    }

    /// Whether a stream of the device is being captured, as far as this allocator can know: a wait for the device would end the
    /// capture. A stream of which nobody has promised that it lives counts as it was when it was last named.
    pub fn may_be_capturing(&self) -> bool {
        self.inner.shared.streams.progress(None).is_capturing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{ModelDriver, WorkDriver};
    use std::sync::Arc;

    #[test]
    fn a_mark_is_passed_with_the_work_before_it() {
        let driver = Arc::new(ModelDriver::default());
        let (kept, other) = (driver.create_stream().unwrap(), driver.create_stream().unwrap());
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        allocator.keep_stream(kept).unwrap();
        for stream in [kept, other] {
            driver.hold(stream);
            let watched = allocator.watch_stream(stream).unwrap();
            driver.delay(stream, std::time::Duration::from_micros(5)).unwrap();
            let mark = allocator.mark(watched);
            assert!(!allocator.has_passed(mark).unwrap());
            driver.complete(stream);
            // Nobody has promised that the other stream lives: its handle is not used again.
            assert_eq!(allocator.has_passed(mark).unwrap(), stream == kept);
            let later = allocator.mark(watched);
            assert!(allocator.wait_for(later).unwrap());
            assert!(allocator.has_passed(mark).unwrap() && allocator.has_passed(later).unwrap());
            driver.resume(stream);
            allocator.check();
        }
        allocator.close().unwrap();
    }

    /// A stream that is destroyed between its use and the mark.
    #[test]
    fn a_mark_of_a_stream_that_is_gone() {
        let driver = Arc::new(ModelDriver::default());
        let stream = driver.create_stream().unwrap();
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let watched = allocator.watch_stream(stream).unwrap();
        driver.destroy_stream(stream).unwrap();
        let mark = allocator.mark(watched);
        assert!(!allocator.has_passed(mark).unwrap());
        assert!(allocator.wait_for(mark).unwrap());
        let stream = driver.create_stream().unwrap();
        let watched = allocator.watch_stream(stream).unwrap();
        allocator.keep_stream(stream).unwrap();
        allocator.forget_stream(stream).unwrap();
        driver.destroy_stream(stream).unwrap();
        assert!(allocator.has_passed(allocator.mark(watched)).unwrap());
        allocator.close().unwrap();
    }

    /// A mark is passed with the work before it, however long the work goes on that is queued behind it.
    #[test]
    fn a_mark_does_not_wait_for_what_is_queued_later() {
        let driver = Arc::new(ModelDriver::default());
        let stream = driver.create_stream().unwrap();
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        allocator.keep_stream(stream).unwrap();
        let watched = allocator.watch_stream(stream).unwrap();
        driver.hold(stream);
        let mark = allocator.mark(watched);
        driver.complete(stream);
        driver.delay(stream, std::time::Duration::from_micros(5)).unwrap();
        assert!(allocator.has_passed(mark).unwrap());
        assert!(!allocator.has_passed(allocator.mark(watched)).unwrap());
        driver.resume(stream);
    }
}
