//! The current context of the calling thread. While one of the program's own is current, handles of default streams stand for
//! streams of that context: they must be refused, and nothing may change. Everything else works as before.

use super::Runner;
use crate::device::Device;
use crate::op::CurrentContext;
use gapless::allocator::{AllocError, FreeError, StreamError};
use gapless::driver::cuda::LEGACY_STREAM;
use gapless::driver::{DriverError, DriverErrorKind, PER_THREAD_STREAM};
use gapless::units::StreamId;

const DEFAULT_STREAMS: [StreamId; 3] = [StreamId::DEFAULT, LEGACY_STREAM, PER_THREAD_STREAM];

impl<D: Device> Runner<D> {
    pub(crate) fn set_context(&mut self, context: CurrentContext) {
        if self.world.own_streams {
            // The witness knows the thread's own stream from now on, whatever is current.
            self.driver.inner().number(PER_THREAD_STREAM);
        }
        self.driver.inner().inner().set_context(context);
        if self.driver.inner().inner().has_other_default_streams() {
            self.summary.contexts += 1;
            DEFAULT_STREAMS.iter().for_each(|stream| self.hand_in_displaced(*stream));
        }
    }

    /// Returns `true` if the handle stands for a stream of another context on the calling thread.
    pub(crate) fn is_displaced(&self, stream: StreamId) -> bool {
        DEFAULT_STREAMS.contains(&stream) && self.driver.inner().inner().has_other_default_streams()
    }

    /// Hands in a stream of another context wherever a stream is handed in.
    fn hand_in_displaced(&self, stream: StreamId) {
        let allocator = self.allocator();
        let page = self.world.page_bytes;
        for bytes in [1, page, 3 * page] {
            self.expect_displaced(allocator.alloc_raw(bytes, stream).map(|_| ()));
            assert_eq!(allocator.alloc_raw_cached(bytes, 1, stream), None, "{stream:?} is one of another context");
        }
        self.expect_displaced(allocator.alloc_registered(page, stream).map(|_| ()));
        for block in self.instance().oracle.live.values().take(1) {
            self.expect_record_refused(&allocator.record_stream(block.addr, stream));
        }
        self.expect_displaced(allocator.keep_stream(stream).map_err(AllocError::Stream));
        self.expect_displaced(allocator.watch_stream(stream).map(|_| ()).map_err(AllocError::Stream));
    }

    pub(crate) fn expect_displaced(&self, result: Result<(), AllocError>) {
        match result {
            Err(AllocError::Stream(StreamError::Foreign { cause, .. })) => self.expect_displacement(&cause),
            // What is wrong besides may be said first.
            Err(AllocError::TooLarge { .. }) => {}
            other => panic!("a stream of another context was handed in: {other:?}"),
        }
    }

    pub(crate) fn expect_record_refused(&self, result: &Result<(), FreeError>) {
        match result {
            Err(FreeError::Stream(StreamError::Foreign { cause, .. })) => self.expect_displacement(cause),
            other => panic!("a stream of another context was recorded: {other:?}"),
        }
    }

    /// Checks the driver's answer about a stream that was refused.
    pub(crate) fn expect_refused(&self, stream: StreamId, error: &DriverError) {
        if self.is_displaced(stream) { self.expect_displacement(error) } else { self.expect_injected(error) }
    }

    /// Checks the driver's answer about a stream of another context.
    pub(crate) fn expect_displacement(&self, error: &DriverError) {
        let says = error.to_string().contains("a context other than the primary one of device 0 is current");
        let refused = error.kind == DriverErrorKind::InvalidHandle && says;
        if !refused {
            self.expect_injected(error);
        }
    }
}
