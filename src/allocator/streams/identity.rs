//! Identity of streams: the stream that a handle stands for.
//!
//! A handle does not say: once its owner has destroyed a stream, the driver gives the value to another one, and one value
//! stands for a stream of its own on every thread. So what the allocator keeps for a stream is found by key and number
//! ([`StreamIdentity`]). The driver is asked for them whenever a handle is handed in, unless somebody has promised that
//! the stream lives ([`Streams::keep`]) or it lives as long as the device. The default stream does, but its handle may stand
//! for that of another context: whether it does not is asked at each request.
//!
//! - I1  an entry is bound to at most one key, and only as long as its clock is not over.
//!
//! Threads: any. Lock order: binding, then a stream's clock, then its state. Cost: a lookup for a stream that is kept; for
//! others a driver call more.

use super::super::error::StreamError;
use super::Streams;
use super::state::Stream;
use crate::driver::{Driver, DriverErrorKind, StreamDriver, StreamIdentity, StreamLifetime};
use crate::stream::{Reach, STREAM_LIMIT, StreamIndex, StreamTable};
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::units::StreamId;
use std::collections::BTreeSet;

/// Number of streams that are over and may still run, from which on the device is waited for when a new stream comes, so
/// that it can have the place of one of them.
const MAX_OVER: usize = 16;

/// The streams by key.
#[derive(Debug, Default)]
pub struct Known {
    by_key: StreamTable<Binding>,
    /// The entries whose streams are over, and that another stream may have once they are gone. Locked while a binding changes.
    over: Mutex<BTreeSet<StreamIndex>>,
}

/// The entry that a key is bound to: 0 for none, or twice the stream's number and 2 more; 1 more for a stream that is kept.
#[derive(Debug, Default)]
struct Binding(AtomicU64);

impl Binding {
    fn bind(&self, index: StreamIndex, kept: bool) {
        self.0.store(2 * (u64::from(index.0) + 1) + u64::from(kept), Ordering::Release);
    }

    fn release(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// The stream, and whether it is kept.
    #[inline]
    fn get(&self) -> Option<(StreamIndex, bool)> {
        let bound = self.0.load(Ordering::Acquire);
        let index = u32::try_from((bound / 2).checked_sub(1)?).ok()?;
        Some((StreamIndex(index), bound % 2 == 1))
    }
}

impl<D: Driver> Streams<D> {
    /// The stream that was filed under this key last, if it is not over.
    #[inline]
    pub fn find(&self, key: StreamId) -> Option<&Stream> {
        let (index, _) = self.known.by_key.find(key)?.get()?;
        Some(self.get(index))
    }

    /// The stream that the handle stands for on the calling thread, added if it is new and the driver accepts it.
    #[inline]
    pub fn find_or_add(&self, handle: StreamId) -> Result<&Stream, StreamError> {
        match self.find_kept(handle) {
            Some(stream) => Ok(stream),
            None => self.identify(handle),
        }
    }

    /// The stream that the handle stands for, if it is kept. The default stream is, as long as the calling thread means this
    /// device's.
    #[inline]
    pub fn find_kept(&self, handle: StreamId) -> Option<&Stream> {
        match self.known.by_key.find(handle)?.get()? {
            (index, true) if handle != StreamId::DEFAULT || self.driver.inner().owns_default_stream() => {
                Some(self.get(index))
            }
            _ => None,
        }
    }

    /// Notes the promise that the stream lives until it is forgotten. That cannot be promised for a stream of a thread,
    /// which others could not name: it stays as it is.
    pub fn keep(&self, handle: StreamId) -> Result<(), StreamError> {
        if self.find_kept(handle).is_some() {
            return Ok(());
        }
        let stream = self.identify(handle)?;
        let _binding = self.known.over.lock();
        if stream.key() == handle
            && let Some(binding) = self.known.by_key.find(handle)
            && binding.get() == Some((stream.index, false))
        {
            stream.clock.lock().keep();
            binding.bind(stream.index, true);
        }
        Ok(())
    }

    /// Fences what is queued on the stream now, and never hands its handle to the driver again. Its owner queues no more
    /// work on it that uses memory of this allocator. Does nothing for a stream that the allocator does not know.
    pub fn forget(&self, handle: StreamId) -> Result<(), StreamError> {
        let (key, number) = match self.ask(handle) {
            Ok(identity) => (identity.key, Some(identity.number)),
            // A driver that does not tell during a capture. Whichever stream it is, its handle is not used again.
            Err(StreamError::Foreign { cause, .. }) if cause.kind == DriverErrorKind::Capturing => (handle, None),
            Err(_) => return Ok(()),
        };
        let mut over = self.known.over.lock();
        let Some(binding) = self.known.by_key.find(key) else { return Ok(()) };
        let Some((index, _)) = binding.get() else { return Ok(()) };
        let stream = self.get(index);
        let mut clock = stream.clock.lock();
        let fenced = number.is_some_and(|number| stream.has_number(number))
            && self.progress(Some(index)).seal(stream, &mut clock).unwrap_or(false);
        clock.end(fenced);
        over.insert(index);
        binding.release();
        Ok(())
    }

    /// The stream of a handle that is not known to live.
    #[inline(never)]
    fn identify(&self, handle: StreamId) -> Result<&Stream, StreamError> {
        let identity = match self.ask(handle) {
            Ok(identity) => identity,
            Err(StreamError::Foreign { cause, .. }) if cause.kind == DriverErrorKind::Capturing => {
                // A driver that does not tell during a capture: it is the stream that was known before.
                if let Some(stream) = self.find(handle) {
                    return Ok(stream);
                }
                StreamIdentity { key: handle, number: 0, lifetime: StreamLifetime::Owner }
            }
            Err(error) => return Err(error),
        };
        match self.find(identity.key) {
            Some(stream) if stream.has_number(identity.number) => {
                if stream.seemed_captured() {
                    stream.note_capture(self.driver.is_capturing(handle));
                }
                self.progress(Some(stream.index)).fence_freed(stream);
                Ok(stream)
            }
            _ => self.bind(handle, &identity),
        }
    }

    fn ask(&self, handle: StreamId) -> Result<StreamIdentity, StreamError> {
        self.driver.inner().identify(handle).map_err(|cause| StreamError::Foreign { stream: handle, cause })
    }

    /// Binds the key to an entry for the stream. The one that it was bound to is over: its handle means another stream now.
    #[cold]
    fn bind(&self, handle: StreamId, identity: &StreamIdentity) -> Result<&Stream, StreamError> {
        let mut over = self.known.over.lock();
        let before = self.find(identity.key);
        if let Some(stream) = before.filter(|stream| stream.has_number(identity.number)) {
            return Ok(stream);
        }
        self.driver.check_stream(handle).map_err(|cause| StreamError::Foreign { stream: handle, cause })?;
        let full = StreamError::TooMany { limit: STREAM_LIMIT };
        let Some(binding) = self.known.by_key.find_or_add(identity.key, Binding::default) else { return Err(full) };
        if let Some(before) = before {
            before.clock.lock().end(false);
            over.insert(before.index);
            binding.release();
        }
        let kept = identity.lifetime == StreamLifetime::Device;
        let reach = if kept { Reach::Kept } else { Reach::Given };
        let stream = match self.vacant(&mut over) {
            Some(stream) => {
                self.renew(stream, handle, identity, reach);
                over.remove(&stream.index);
                stream
            }
            None => {
                let new = |index| Stream::new(index, handle, identity, reach, &self.readings.changed);
                self.entries.push(new).ok_or(full)?
            }
        };
        binding.bind(stream.index, kept);
        Ok(stream)
    }

    /// An entry whose stream is gone, of those whose streams are over. Where mappings are kept, it has no memory: replays of graphs
    /// that were captured on that stream may use it beside those of another one. Called with the bindings locked.
    fn vacant(&self, over: &mut BTreeSet<StreamIndex>) -> Option<&Stream> {
        if !self.rules.may_change_streams() {
            // Those are never passed on: a stream that is over keeps its regions.
            over.retain(|index| self.get(*index).lock().regions.iter().next().is_none());
        }
        let gone = || {
            let mut streams = over.iter().map(|index| {
                #[cfg(test)]
                crate::testing::step();
                self.get(*index)
            });
            streams.find(|stream| stream.clock.lock().is_gone())
        };
        gone().or_else(|| {
            // What the driver refuses is tried again with the next stream.
            if over.len() >= MAX_OVER && self.progress(None).wait_for_device().unwrap_or(false) { gone() } else { None }
        })
    }

    /// Gives the entry of a stream that is gone to another one.
    fn renew(&self, stream: &Stream, handle: StreamId, identity: &StreamIdentity, reach: Reach) {
        let mut clock = stream.clock.lock();
        stream.lock().open_next_epoch(self.epoch_limit);
        clock.renew(handle, reach);
        stream.rename(handle, identity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Allocator;
    use crate::driver::{DriverCall, DriverError, Fault, FaultDriver, ModelDriver, WorkDriver};
    use crate::sync::Arc;
    use crate::testing::{BusyDevice, busy};

    /// The memory of a stream that is gone stays unused in a pool: graphs that were captured there may be replayed.
    #[test]
    fn memory_of_a_pool_is_not_passed_on() {
        let driver = Arc::new(ModelDriver::default());
        let pool = Allocator::builder(Arc::clone(&driver)).keep_mappings().build().unwrap();
        let mut handed = Vec::new();
        for _ in 0..3 {
            let stream = driver.create_stream().unwrap();
            let block = pool.alloc_raw(1 << 20, stream).unwrap();
            pool.free(block).unwrap();
            pool.forget_stream(stream).unwrap();
            driver.destroy_stream(stream).unwrap();
            assert!(!handed.contains(&block), "{block} was another stream's");
            handed.push(block);
        }
        pool.close().unwrap();
    }

    /// An allocator that has freed a block on a stream, whose driver refuses from then on to tell which stream a handle stands
    /// for, with an error of this kind; and the stream.
    fn unknown(kind: DriverErrorKind) -> (Allocator<BusyDevice>, StreamId) {
        let driver = busy(&Arc::default());
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let stream = driver.create_stream().unwrap();
        let block = allocator.alloc_raw(100, stream).unwrap();
        allocator.free(block).unwrap();
        driver.meanwhile(move |call| match call {
            None => Err(DriverError::new(DriverCall::Stream, kind, "no answer")),
            Some(_) => Ok(()),
        });
        (allocator, stream)
    }

    /// Some drivers do not answer during a capture: the handle stands for the stream that it stood for before.
    #[test]
    fn a_stream_is_known_again_during_a_capture() {
        for (kind, known) in [(DriverErrorKind::Capturing, true), (DriverErrorKind::Other, false)] {
            let (allocator, stream) = unknown(kind);
            let streams = &allocator.inner.shared.streams;
            match streams.find_or_add(stream) {
                Ok(found) => assert!(known && found.index == StreamIndex(0)),
                Err(StreamError::Foreign { cause, .. }) => assert!(!known && cause.kind == kind),
                Err(error) => panic!("{error}"),
            }
            assert_eq!(streams.iter().count(), 1);
        }
    }

    /// Whichever stream it is: during a capture its handle is not used again. Its last work cannot be fenced.
    #[test]
    fn a_stream_is_forgotten_during_a_capture() {
        for (kind, forgotten) in [(DriverErrorKind::Capturing, true), (DriverErrorKind::Other, false)] {
            let (allocator, stream) = unknown(kind);
            let streams = &allocator.inner.shared.streams;
            allocator.forget_stream(stream).unwrap();
            let reach = if forgotten { Reach::Over { last: None } } else { Reach::Given };
            assert_eq!(streams.get(StreamIndex(0)).clock.lock().reach(), reach, "{kind:?}");
            assert_eq!(streams.find(stream).is_none(), forgotten);
        }
    }

    /// The memory of a stream that is forgotten is used elsewhere when its last event has completed, and there has to be one.
    #[test]
    fn a_stream_whose_last_event_fails_is_not_gone() {
        for (fails, last) in [(false, Some(1)), (true, None)] {
            let driver = Arc::new(FaultDriver::new(ModelDriver::default()));
            let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
            let stream = driver.create_stream().unwrap();
            allocator.keep_stream(stream).unwrap();
            driver.inner().hold(stream);
            if fails {
                driver.arm(Fault::nth(0, DriverErrorKind::Other).only([DriverCall::EventRecord]));
            }
            allocator.forget_stream(stream).unwrap();
            let clock = allocator.inner.shared.streams.get(StreamIndex(0)).clock.lock();
            assert_eq!((clock.reach(), clock.is_gone()), (Reach::Over { last }, false));
        }
    }

    #[test]
    fn streams_that_are_over_are_counted() {
        let driver = Arc::new(ModelDriver::default());
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let streams = &allocator.inner.shared.streams;
        let make = || {
            let stream = driver.create_stream().unwrap();
            allocator.keep_stream(stream).unwrap();
            stream
        };
        let counts = || (streams.known.over.lock().len(), streams.iter().count());
        let three = [make(), make(), make()];
        for (number, stream) in three.into_iter().enumerate() {
            assert_eq!(counts(), (number, 3));
            allocator.forget_stream(stream).unwrap();
            streams.progress(None).refresh_clocks(false).unwrap();
        }
        for over in [3, 2, 1, 0] {
            assert_eq!(counts(), (over, 3));
            make();
        }
        assert_eq!(counts(), (0, 4));
    }

    #[test]
    fn a_stream_that_was_captured_is_asked_again() {
        let driver = Arc::new(ModelDriver::default());
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let handle = driver.create_stream().unwrap();
        let find = || allocator.inner.shared.streams.find_or_add(handle).unwrap();
        find().note_capture(true);
        assert!(!find().seemed_captured());
        driver.begin_capture(handle);
        find().note_capture(true);
        assert!(find().seemed_captured());
        driver.end_capture(handle);
    }
}
