//! Streams that use memory of others: how far they are, asked of the allocator of their device.
//!
//! An allocator knows the order of its own device's streams. Where one of them uses memory of another device's allocator, that
//! one cannot know when the use is over, and this one can.

use super::Allocator;
use super::error::StreamError;
use crate::driver::{Driver, DriverError};
use crate::stream::StreamIndex;
use crate::sync::Arc;
use crate::units::StreamId;
use std::fmt;

/// A stream whose use of other memory is watched. It keeps its device's allocator alive.
#[must_use = "to watch a stream changes nothing: ask it for marks"]
pub struct WatchedStream<D: Driver> {
    allocator: Allocator<D>,
    stream: StreamIndex,
}

/// A moment in the work of a watched stream. It keeps the allocator alive as well.
#[must_use = "a mark does nothing: ask it, or wait for it"]
pub struct StreamMark<D: Driver> {
    stream: WatchedStream<D>,
    epoch: u64,
}

impl<D: Driver> Allocator<D> {
    /// Watches a stream of this allocator's device, whose work uses memory that is not of this allocator.
    ///
    /// # Errors
    /// [`StreamError`] when it is no stream of this device, or one too many.
    pub fn watch_stream(&self, stream: StreamId) -> Result<WatchedStream<D>, StreamError> {
        let stream = self.inner.shared.streams.find_or_add(stream)?.index;
        Ok(WatchedStream { allocator: self.clone(), stream })
    }

    /// Whether a stream of the device is being captured, as far as this allocator can know: a wait for the device would end the
    /// capture. A stream of which nobody has promised that it lives counts as it was when it was last named.
    #[must_use]
    pub fn may_be_capturing(&self) -> bool {
        self.inner.shared.streams.progress(None).is_capturing()
    }
}

impl<D: Driver> WatchedStream<D> {
    /// Marks the end of what is queued on the stream by now. Of a stream that its owner has not promised to keep
    /// ([`keep_stream`](Allocator::keep_stream)), a later moment may be marked, or one that only [`wait`](StreamMark::wait)
    /// reaches.
    pub fn mark(&self) -> StreamMark<D> {
        let streams = &self.allocator.inner.shared.streams;
        let stream = streams.get(self.stream);
        let mut clock = stream.clock.lock();
        let epoch = clock.open();
        if clock.sealed() == 0 {
            // What fails here is tried again when it is asked for.
            let _ = streams.progress(None).seal(stream, &mut clock);
        }
        StreamMark { stream: self.clone(), epoch }
    }
}

impl<D: Driver> StreamMark<D> {
    /// The stream in whose work it is.
    pub fn stream(&self) -> &WatchedStream<D> {
        &self.stream
    }

    /// Whether the stream has passed the mark. The host does not wait.
    ///
    /// # Errors
    /// [`DriverError`] when the device is lost.
    pub fn has_passed(&self) -> Result<bool, DriverError> {
        let WatchedStream { allocator, stream } = &self.stream;
        allocator.inner.shared.streams.progress(None).has_passed(*stream, self.epoch)
    }

    /// Blocks the host until the stream has passed the mark, or the whole device, where no event covers it. Returns false when that
    /// is impossible now: during a capture.
    ///
    /// # Errors
    /// [`DriverError`] when the device is lost.
    pub fn wait(&self) -> Result<bool, DriverError> {
        let WatchedStream { allocator, stream } = &self.stream;
        allocator.inner.shared.streams.progress(None).wait_until_passed(*stream, self.epoch)
    }
}

impl<D: Driver> Clone for WatchedStream<D> {
    fn clone(&self) -> Self {
        Self { allocator: self.allocator.clone(), stream: self.stream }
    }
}

impl<D: Driver> Clone for StreamMark<D> {
    fn clone(&self) -> Self {
        Self { stream: self.stream.clone(), epoch: self.epoch }
    }
}

impl<D: Driver> fmt::Debug for WatchedStream<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedStream").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl<D: Driver> fmt::Debug for StreamMark<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamMark")
            .field("stream", &self.stream.stream)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

/// The same stream of the same allocator.
impl<D: Driver> PartialEq for WatchedStream<D> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.allocator.inner, &other.allocator.inner) && self.stream == other.stream
    }
}

impl<D: Driver> Eq for WatchedStream<D> {}

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
            let mark = watched.mark();
            assert!(!mark.has_passed().unwrap());
            driver.complete(stream);
            // Nobody has promised that the other stream lives: its handle is not used again.
            assert_eq!(mark.has_passed().unwrap(), stream == kept);
            let later = watched.mark();
            assert!(later.wait().unwrap());
            assert!(mark.has_passed().unwrap() && later.has_passed().unwrap());
            driver.resume(stream);
            allocator.check();
        }
        assert_ne!(allocator.watch_stream(kept).unwrap(), allocator.watch_stream(other).unwrap());
        allocator.close().unwrap();
    }

    /// The streams of two allocators have the same numbers.
    #[test]
    fn a_mark_asks_its_own_allocator() {
        let [one, other] = [(), ()].map(|()| {
            let driver = Arc::new(ModelDriver::default());
            let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
            let stream = driver.create_stream().unwrap();
            allocator.keep_stream(stream).unwrap();
            let watched = allocator.watch_stream(stream).unwrap();
            driver.hold(stream);
            driver.delay(stream, std::time::Duration::from_micros(5)).unwrap();
            (driver, stream, watched)
        });
        assert_ne!(one.2, other.2);
        let mark = one.2.mark();
        assert_eq!(mark.stream(), &one.2);
        other.0.complete(other.1);
        assert!(!mark.has_passed().unwrap());
        one.0.complete(one.1);
        assert!(mark.has_passed().unwrap());
    }

    /// A stream that is destroyed between its use and the mark.
    #[test]
    fn a_mark_of_a_stream_that_is_gone() {
        let driver = Arc::new(ModelDriver::default());
        let stream = driver.create_stream().unwrap();
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let watched = allocator.watch_stream(stream).unwrap();
        driver.destroy_stream(stream).unwrap();
        let mark = watched.mark();
        assert!(!mark.has_passed().unwrap());
        assert!(mark.wait().unwrap());
        drop((watched, mark));
        let stream = driver.create_stream().unwrap();
        let watched = allocator.watch_stream(stream).unwrap();
        allocator.keep_stream(stream).unwrap();
        allocator.forget_stream(stream).unwrap();
        driver.destroy_stream(stream).unwrap();
        assert!(watched.mark().has_passed().unwrap());
        drop(watched);
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
        let mark = watched.mark();
        driver.complete(stream);
        driver.delay(stream, std::time::Duration::from_micros(5)).unwrap();
        assert!(mark.has_passed().unwrap());
        assert!(!watched.mark().has_passed().unwrap());
        driver.resume(stream);
    }
}
