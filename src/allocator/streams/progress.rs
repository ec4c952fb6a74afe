//! How far the streams are: which epochs have passed, waiting for them, and ordering work behind them.
//!
//! What a call may learn depends on the streams that it was handed ([`Reach`](crate::stream::Reach)). What cannot be
//! learned of one stream, since that may be gone, is being captured, or answers with an error, concerns its memory and
//! nothing else; [`Progress::wait_for_device`] is what is left then.

use super::Streams;
use super::state::Stream;
use crate::driver::{Driver, DriverCall, DriverError, DriverErrorKind, DriverResult, StreamDriver};
use crate::stream::{HostWait, Reach, StreamClock, StreamIndex};
use crate::sync::Ordering;

/// Number of epochs of one stream that may be sealed and not passed before [`Progress::refresh_clocks`] seals no more.
const MAX_SEALED: usize = 4;

/// Freed bytes of a stream that is not kept from which on an event is recorded for them: it takes a device longer to use so many
/// bytes once (some 10 us at 3 TB/s) than the host to record an event.
const WORTH_AN_EVENT: u64 = 32 << 20;

/// The streams, as a call sees them that was handed one of them, or none.
#[derive(Debug)]
pub struct Progress<'a, D> {
    pub(super) streams: &'a Streams<D>,
    given: Option<StreamIndex>,
}

impl<'a, D: Driver> Progress<'a, D> {
    pub(super) fn new(streams: &'a Streams<D>, given: Option<StreamIndex>) -> Self {
        Self { streams, given }
    }

    /// Returns whether `stream` has passed `epoch`, which is sealed first if need be.
    pub fn has_passed(&self, stream: StreamIndex, epoch: u64) -> Result<bool, DriverError> {
        let stream = self.streams.get(stream);
        let mut clock = stream.clock.lock();
        if clock.has_passed(epoch) {
            return Ok(true);
        }
        if self.cover(stream, &mut clock, epoch)? {
            self.poll(stream, &mut clock)?;
        }
        Ok(clock.has_passed(epoch))
    }

    /// Seals until `epoch` is covered. Returns false where that is impossible.
    pub(super) fn cover(&self, stream: &Stream, clock: &mut StreamClock, epoch: u64) -> Result<bool, DriverError> {
        while !clock.covers(epoch) {
            // What was freed while sealing failed is stamped one epoch ahead; what is further ahead never passes.
            if epoch > clock.open() + 1 || !self.seal(stream, clock)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Records an event for the open epoch of a stream. Returns false while that is impossible: during a capture, and
    /// where the stream may have been destroyed.
    pub fn seal(&self, stream: &Stream, clock: &mut StreamClock) -> Result<bool, DriverError> {
        let given = self.given == Some(stream.index);
        if !clock.may_name(given) {
            return Ok(false);
        }
        // Stamp frees from now on with the next epoch first: a free that slips in before the event is covered by it and
        // only believed to be later.
        let fenced_before = {
            let mut state = stream.lock();
            state.open_next_epoch(self.streams.epoch_limit);
            let used = state.used_bytes();
            std::mem::replace(&mut state.fenced_bytes, used)
        };
        let sealed = clock.seal(given, &self.streams.driver, &self.streams.events);
        if !matches!(sealed, Ok(true)) {
            let mut state = stream.lock();
            state.epoch -= 1;
            state.dirty = true;
            state.fenced_bytes = fenced_before;
        }
        self.streams.note_sealed(stream.index, clock);
        self.of_one(stream, sealed, || false)
    }

    /// Seals a stream of which much was freed, where only calls that are handed the stream can: with the handle at hand, since
    /// later nothing but a wait for the whole device may be left, which ends captures. What the driver refuses is tried again with
    /// the next request.
    pub(super) fn fence_freed(&self, stream: &Stream) {
        {
            let state = stream.lock();
            if state.used_bytes() - state.fenced_bytes < WORTH_AN_EVENT {
                return;
            }
        }
        let mut clock = stream.clock.lock();
        if clock.reach() != Reach::Given {
            return;
        }
        if clock.sealed() >= MAX_SEALED && self.poll(stream, &mut clock).is_err() {
            return;
        }
        if clock.sealed() < MAX_SEALED {
            let _ = self.seal(stream, &mut clock);
        }
    }

    /// Queries the driver for the sealed epochs of a stream that have passed, and returns the last one.
    pub(super) fn poll(&self, stream: &Stream, clock: &mut StreamClock) -> Result<u64, DriverError> {
        let polled = clock.poll(&self.streams.driver, &self.streams.events);
        self.streams.note_sealed(stream.index, clock);
        self.of_one(stream, polled, || clock.passed())
    }

    /// Passes on the driver's answer about one stream. An error that concerns another stream than the one handed in is not the
    /// caller's, unless the device is lost: then nothing is learned.
    fn of_one<T>(&self, stream: &Stream, answer: DriverResult<T>, nothing: impl FnOnce() -> T) -> DriverResult<T> {
        match answer {
            Err(error) if !error.kind.is_sticky() && self.given != Some(stream.index) => Ok(nothing()),
            answer => answer,
        }
    }

    /// Polls all streams, so that the epochs they have passed are known; seals them before if `seal`. A stream that only this
    /// call may name is sealed in any case, since others cannot do it later.
    ///
    /// An event is not free: on the legacy default stream it orders all blocking streams behind each other.
    pub fn refresh_clocks(&self, seal: bool) -> Result<(), DriverError> {
        for stream in self.worth_asking(seal) {
            let mut clock = stream.clock.lock();
            let only_now = clock.reach() == Reach::Given && self.given == Some(stream.index);
            if only_now {
                self.is_captured(stream, &clock);
            }
            if (seal || only_now)
                && clock.sealed() < MAX_SEALED
                && (stream.lock().dirty || !clock.covers(clock.open() - 1))
            {
                self.seal(stream, &mut clock)?;
            }
            self.poll(stream, &mut clock)?;
        }
        Ok(())
    }

    /// The streams of which something may be learned: those with events that have not completed, and the one that was handed in;
    /// all, where they may be sealed.
    fn worth_asking(&self, seal: bool) -> Vec<&'a Stream> {
        let streams = self.streams;
        if seal {
            return streams.iter().collect();
        }
        let mut indices: Vec<StreamIndex> = streams.sealed.iter().collect();
        if let Some(given) = self.given
            && let Err(at) = indices.binary_search(&given)
        {
            indices.insert(at, given);
        }
        #[cfg(test)]
        indices.iter().for_each(|_| crate::testing::step());
        indices.into_iter().map(|index| streams.get(index)).collect()
    }

    /// As [`has_passed`](Self::has_passed), but records no event where several of the stream's have not completed, and where
    /// nothing has been freed since the last.
    pub fn may_have_passed(&self, stream: StreamIndex, epoch: u64) -> Result<bool, DriverError> {
        let worth_an_event = {
            let stream = self.streams.get(stream);
            let clock = stream.clock.lock();
            clock.covers(epoch) || (clock.sealed() < MAX_SEALED && (epoch < clock.open() || stream.lock().dirty))
        };
        if worth_an_event { self.has_passed(stream, epoch) } else { Ok(false) }
    }

    /// Blocks the host until `stream` has passed `epoch`: for its event, or for the whole device where there can be none.
    /// Returns false when the host cannot wait for that, during a capture.
    pub fn wait_until_passed(&self, stream: StreamIndex, epoch: u64) -> Result<bool, DriverError> {
        if self.has_passed(stream, epoch)? {
            return Ok(true);
        }
        let clock = &self.streams.get(stream).clock;
        // Not locked while the host waits: a free of a block that the stream uses takes the lock.
        let wait = clock.lock().begin_wait(epoch);
        match wait {
            HostWait::Needless => return Ok(true),
            HostWait::Impossible => {}
            HostWait::For(event) => {
                self.streams.host_waits.fetch_add(1, Ordering::Relaxed);
                let waited = self.streams.driver.event_synchronize(event);
                clock.lock().end_wait(event, waited.is_ok(), &self.streams.driver, &self.streams.events);
                return waited.map(|()| true);
            }
        }
        Ok(self.synchronize()? && self.has_passed(stream, epoch)?)
    }

    /// Blocks the host until the given stream, which the allocator has made, has done what is queued on it now.
    ///
    /// # Errors
    /// The driver's; then work may still be under way.
    pub fn wait_for_own(&self) -> Result<(), DriverError> {
        let open = self.streams.get(self.own()).clock.lock().open();
        self.wait_for_mark(open)
    }

    /// Marks what is queued on the given stream, which the allocator has made, by an event. Returns what
    /// [`wait_for_mark`](Self::wait_for_mark) takes.
    ///
    /// # Errors
    /// The driver's.
    pub fn mark_own(&self) -> Result<u64, DriverError> {
        let open = self.streams.get(self.own()).clock.lock().open();
        // Where no event can be recorded, the wait is for what is queued by then.
        self.has_passed(self.own(), open)?;
        Ok(open)
    }

    /// Blocks the host until the given stream, which the allocator has made, has done what was queued on it at a mark.
    ///
    /// # Errors
    /// The driver's; then work may still be under way.
    pub fn wait_for_mark(&self, mark: u64) -> Result<(), DriverError> {
        if self.wait_until_passed(self.own(), mark)? {
            return Ok(());
        }
        let text = "the allocator's own stream cannot be waited for";
        Err(DriverError::new(DriverCall::EventSynchronize, DriverErrorKind::Other, text))
    }

    fn own(&self) -> StreamIndex {
        self.given.expect("the caller names the stream")
    }

    /// Makes the device run later work of `waiter` behind `epoch` of `stream`. Returns false when that is impossible. The host
    /// waits instead while `waiter` is being captured, since the capture would fail for a wait on work outside of it, and where
    /// the driver must not get its handle, since it may have been destroyed. Called inside the slow path only.
    pub fn order_behind(&self, waiter: StreamIndex, stream: StreamIndex, epoch: u64) -> Result<bool, DriverError> {
        if self.has_passed(stream, epoch)? {
            return Ok(true);
        }
        let given = self.given == Some(waiter);
        let waiter = self.streams.get(waiter);
        // Locked until the driver is done with the handle: a stream that this call was not handed may be forgotten meanwhile, and
        // destroyed. Whoever locks two clocks is alone inside the slow path.
        let its_clock = waiter.clock.lock();
        if its_clock.is_captured(given, &self.streams.driver) != Some(false) {
            drop(its_clock);
            return self.wait_until_passed(stream, epoch);
        }
        let clock = self.streams.get(stream).clock.lock();
        clock.make_wait(waiter.id(), epoch, &self.streams.driver)
    }

    /// The last epoch of each stream, by the streams' numbers, that work can be ordered behind without a wait for the whole
    /// device; captures apart.
    pub fn coverable(&self) -> Vec<u64> {
        let mut coverable = self.streams.readings().coverable.clone();
        if let Some(given) = self.given {
            coverable[given.0 as usize] = self.streams.get(given).clock.lock().coverable_until(true);
        }
        coverable
    }

    /// The last epoch that each stream is known to have passed, by the streams' numbers.
    pub fn passed(&self) -> Vec<u64> {
        self.streams.readings().passed.clone()
    }

    /// Blocks the host until all streams have done what is queued on them now. Returns false when the host cannot wait
    /// for one of them.
    pub fn wait_for_all(&self) -> Result<bool, DriverError> {
        for stream in self.streams.iter() {
            let open = stream.clock.lock().open();
            if !self.wait_until_passed(stream.index, open)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Where something was freed on a stream that no event can cover, since it may have been destroyed: blocks the host until the
    /// whole device has done what is queued on it now. Returns false when there is no such stream, and while a stream is being
    /// captured.
    pub fn wait_for_device(&self) -> Result<bool, DriverError> {
        let uncovered = self.streams.iter().any(|stream| self.is_uncovered(stream)) || self.has_uncovered_pending();
        if uncovered { self.synchronize() } else { Ok(false) }
    }

    /// Blocks the host until the whole device has done what is queued on it now. Returns false while a stream is being
    /// captured.
    pub fn synchronize(&self) -> Result<bool, DriverError> {
        let forbidden = || {
            self.streams.waits_forbidden.fetch_add(1, Ordering::Relaxed);
            Ok(false)
        };
        if self.is_capturing() {
            return forbidden();
        }
        let marks: Vec<(StreamIndex, u64, bool)> = self
            .streams
            .iter()
            .map(|stream| {
                let mut clock = stream.clock.lock();
                stream.lock().open_next_epoch(self.streams.epoch_limit);
                (stream.index, clock.close_epoch(), clock.is_over())
            })
            .collect();
        match self.streams.driver.synchronize_device() {
            Ok(()) => {}
            Err(error) if error.kind == DriverErrorKind::Capturing => return forbidden(),
            Err(error) => return Err(error),
        }
        self.streams.host_waits.fetch_add(1, Ordering::Relaxed);
        for (index, epoch, over) in marks {
            self.streams.get(index).clock.lock().pass(epoch, over, &self.streams.driver, &self.streams.events);
        }
        Ok(true)
    }

    /// Whether memory waits for an epoch of this stream that no event covers.
    fn is_uncovered(&self, stream: &Stream) -> bool {
        let clock = stream.clock.lock();
        match clock.reach() {
            Reach::Over { .. } => !clock.covers(clock.open()),
            Reach::Given if self.given != Some(stream.index) => stream.lock().dirty || !clock.covers(clock.open() - 1),
            Reach::Given | Reach::Kept => false,
        }
    }

    /// Whether a stream is being captured, as far as the driver may be asked; of the others, whether they were last. Of those that
    /// were never named, a wait for the device answers by itself.
    pub fn is_capturing(&self) -> bool {
        self.streams.iter().any(|stream| self.is_captured(stream, &stream.clock.lock()))
    }

    /// Whether a stream is being captured, as far as the driver may be asked; else whether it was last.
    pub fn is_captured_now(&self, stream: &Stream) -> bool {
        self.is_captured(stream, &stream.clock.lock())
    }

    /// Whether this stream is being captured.
    fn is_captured(&self, stream: &Stream, clock: &StreamClock) -> bool {
        if let Some(captured) = clock.is_captured(self.given == Some(stream.index), &self.streams.driver) {
            stream.note_capture(captured);
        }
        stream.seemed_captured() && !clock.is_over()
    }

    /// Blocks the host until all streams have done what is queued on them now, as far as events cover that: for tearing down.
    /// Returns false where they do not, during a capture and of a stream that may have been destroyed.
    pub fn drain(&self) -> Result<bool, DriverError> {
        let mut drained = Ok(true);
        for stream in self.streams.iter() {
            let mut clock = stream.clock.lock();
            // A stream that neither allocated nor freed anything may use memory that was recorded on it.
            let sealed = clock.seal(false, &self.streams.driver, &self.streams.events);
            self.streams.note_sealed(stream.index, &clock);
            let last = clock.open() - 1;
            let waited = clock.wait(last, &self.streams.driver, &self.streams.events);
            let done = match (sealed, waited) {
                (Err(error), _) | (_, Err(error)) => Err(error),
                (Ok(sealed), Ok(waited)) => Ok((sealed && waited) || clock.is_gone()),
            };
            drained = match (drained, done) {
                (Ok(drained), Ok(done)) => Ok(drained && done),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        drained
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::driver::{DriverCall, Fault, FaultDriver, ModelDriver, WorkDriver};
    use crate::stream::NEVER;
    use crate::units::StreamId;
    use std::sync::Arc;

    /// Epochs of blocks stay small, however often a stream is sealed, and name the same moments as before.
    #[test]
    fn epochs_are_renumbered_at_the_limit() {
        let driver = Arc::new(ModelDriver::default());
        let other = driver.create_stream().unwrap();
        let allocator = Allocator::builder(Arc::clone(&driver)).epoch_limit(4).build().unwrap();
        allocator.keep_stream(other).unwrap();
        let kept = allocator.alloc_raw(100, other).unwrap();
        for _ in 0..30 {
            // Freed on its own stream while the other uses it: the other is sealed.
            let block = allocator.alloc_raw(100, StreamId::DEFAULT).unwrap();
            allocator.record_stream(block, other).unwrap();
            allocator.free(block).unwrap();
            let other = allocator.inner.shared.streams.find(other).unwrap();
            allocator.inner.shared.streams.progress(None).settle_pending().unwrap();
            let (clock, state) = (other.clock.lock(), other.lock());
            assert!(state.epoch <= 4, "epoch {}", state.epoch);
            assert_eq!(state.open_epoch(), clock.open());
        }
        assert!(allocator.inner.shared.streams.find(other).unwrap().lock().epoch_base > 20);
        assert_eq!(allocator.stats().host_waits, 0, "all had passed");
        allocator.check();
        allocator.free(kept).unwrap();
        allocator.close().unwrap();
    }

    /// A block that is freed while sealing fails is stamped one epoch ahead.
    #[test]
    fn one_epoch_ahead_passes_and_no_more() {
        let allocator = Allocator::builder(Arc::new(ModelDriver::default())).build().unwrap();
        let block = allocator.alloc_raw(100, StreamId::DEFAULT).unwrap();
        let stream = allocator.inner.shared.streams.find(StreamId::DEFAULT).unwrap();
        let open = || stream.clock.lock().open();
        for (ahead, passes) in [(0, true), (1, true), (2, false), (u64::MAX - open() - 10, false)] {
            let epoch = open() + ahead;
            assert_eq!(
                allocator.inner.shared.streams.progress(None).has_passed(stream.index, epoch).unwrap(),
                passes,
                "{ahead} ahead"
            );
        }
        allocator.check();
        allocator.free(block).unwrap();
    }

    /// A faulty device with an allocator that has freed a block on the default stream and one on another, and the other's handle.
    fn freed_on_two() -> (Arc<FaultDriver<ModelDriver>>, Allocator<FaultDriver<ModelDriver>>, StreamId) {
        let driver = Arc::new(FaultDriver::new(ModelDriver::default()));
        let allocator = Allocator::builder(Arc::clone(&driver)).build().unwrap();
        let other = driver.create_stream().unwrap();
        for stream in [StreamId::DEFAULT, other] {
            let block = allocator.alloc_raw(100, stream).unwrap();
            allocator.free(block).unwrap();
        }
        (driver, allocator, other)
    }

    const MAIN: StreamIndex = StreamIndex(0);
    const OTHER: StreamIndex = StreamIndex(1);

    #[test]
    fn an_error_of_another_stream_is_not_the_callers() {
        use DriverErrorKind::{DeviceLost, Other};
        for (kind, given, fails) in [(Other, MAIN, true), (Other, OTHER, false), (DeviceLost, OTHER, true)] {
            let (driver, allocator, _) = freed_on_two();
            driver.arm(Fault::nth(0, kind).only([DriverCall::EventQuery]));
            let answer = allocator.inner.shared.streams.progress(Some(given)).has_passed(MAIN, 1);
            assert_eq!((driver.fired(), answer.is_err()), (1, fails), "{kind:?}, {given:?}: {answer:?}");
            assert_ne!(answer.ok(), Some(true));
        }
    }

    /// Later calls cannot seal it.
    #[test]
    fn a_stream_that_only_this_call_may_name_is_sealed() {
        let (driver, allocator, _) = freed_on_two();
        for (given, recorded) in [(None, 0), (Some(MAIN), 0), (Some(OTHER), 1)] {
            allocator.inner.shared.streams.progress(given).refresh_clocks(false).unwrap();
            assert_eq!(driver.passed()[DriverCall::EventRecord], recorded, "{given:?}");
        }
        assert_eq!(allocator.inner.shared.streams.progress(None).passed(), [0, 1]);
    }

    #[test]
    fn a_stream_that_is_late_gets_few_events() {
        let (driver, allocator, _) = freed_on_two();
        let progress = allocator.inner.shared.streams.progress(None);
        let block = allocator.alloc_raw(100, StreamId::DEFAULT).unwrap();
        driver.inner().hold(StreamId::DEFAULT);
        for _ in 0..MAX_SEALED + 2 {
            let block = allocator.alloc_raw(100, StreamId::DEFAULT).unwrap();
            allocator.free(block).unwrap();
            let open = allocator.inner.shared.streams.get(MAIN).clock.lock().open();
            assert!(!progress.may_have_passed(MAIN, open).unwrap());
        }
        assert_eq!(driver.passed()[DriverCall::EventRecord], MAX_SEALED as u64);
        driver.inner().complete(StreamId::DEFAULT);
        allocator.free(block).unwrap();
    }

    /// The driver refuses the wait for the device, which has closed the epoch already.
    #[test]
    fn an_epoch_without_an_event_gets_one_when_it_matters() {
        let (driver, allocator, _) = freed_on_two();
        let progress = allocator.inner.shared.streams.progress(None);
        driver.arm(Fault::nth(0, DriverErrorKind::Other).only([DriverCall::Synchronize]));
        assert_eq!(progress.synchronize().unwrap_err().kind, DriverErrorKind::Other);
        assert_eq!(progress.passed(), [0, 0]);
        assert!(progress.may_have_passed(MAIN, 1).unwrap());
        assert_eq!(progress.passed(), [2, 0]);
    }

    #[test]
    fn what_never_passes_is_not_waited_for_in_vain() {
        let (_, allocator, _) = freed_on_two();
        let progress = allocator.inner.shared.streams.progress(None);
        assert!(!progress.wait_until_passed(MAIN, NEVER).unwrap());
        assert!(progress.wait_until_passed(MAIN, 1).unwrap());
    }

    #[test]
    fn work_is_ordered_behind_streams_that_may_be_named() {
        let (_, allocator, _) = freed_on_two();
        let coverable = |given| allocator.inner.shared.streams.progress(given).coverable();
        assert_eq!((coverable(None), coverable(Some(MAIN))), (vec![NEVER - 1, 0], vec![NEVER - 1, 0]));
        assert_eq!(coverable(Some(OTHER)), [NEVER - 1, NEVER - 1]);
    }

    #[test]
    fn all_streams_are_waited_for() {
        let (driver, allocator, other) = freed_on_two();
        allocator.keep_stream(other).unwrap();
        for stream in [StreamId::DEFAULT, other] {
            driver.inner().hold(stream);
        }
        let progress = allocator.inner.shared.streams.progress(None);
        assert!(progress.wait_for_all().unwrap());
        assert_eq!((progress.passed(), driver.inner().host_waits()), (vec![1, 1], 2));
        assert!(progress.drain().unwrap());
    }

    #[test]
    fn all_streams_with_events_are_drained() {
        let (driver, allocator, other) = freed_on_two();
        driver.inner().hold(StreamId::DEFAULT);
        let progress = allocator.inner.shared.streams.progress(None);
        assert!(!progress.drain().unwrap(), "the other may have been destroyed");
        assert_eq!((progress.passed(), driver.inner().host_waits()), (vec![1, 0], 1));
        allocator.forget_stream(other).unwrap();
        progress.has_passed(OTHER, 1).unwrap();
        assert!(progress.drain().unwrap());
    }

    /// A stream that cannot be named may have been destroyed, unless this call was handed it.
    #[test]
    fn the_device_is_waited_for_where_no_event_covers_an_epoch() {
        let (driver, allocator, _) = freed_on_two();
        for (given, waits) in [(Some(OTHER), false), (Some(MAIN), true), (None, false)] {
            let before = driver.passed()[DriverCall::Synchronize];
            let waited = allocator.inner.shared.streams.progress(given).wait_for_device().unwrap();
            assert_eq!(waited, waits, "{given:?}");
            assert_eq!(driver.passed()[DriverCall::Synchronize] - before, u64::from(waits));
        }
    }
}
