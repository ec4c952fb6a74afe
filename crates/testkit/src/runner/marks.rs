//! Marks: streams whose use of other memory, such as another device's, is watched ([`Allocator::watch_stream`]).
//!
//! The runner records an event of its own before each mark. A mark must not count as passed before that event has completed.
//! And it uses blocks on streams that their allocator does not know of: freed behind their marks, they must be safe to use again.
//!
//! [`Allocator::watch_stream`]: gapless::Allocator::watch_stream

use super::Runner;
use super::instance::{Instance, Mark};
use crate::device::Device;
use crate::oracle::Block;
use gapless::allocator::StreamError;
use gapless::driver::{DriverError, PER_THREAD_STREAM, StreamDriver, WorkDriver};
use gapless::units::StreamId;

/// Number of marks of an allocator, from which on the oldest is waited for when another one is made.
const MOST_MARKS: usize = 4;

impl<D: Device> Runner<D> {
    /// Asks the current allocator about its marks, waits for the oldest one if there are many, and marks the end of what is
    /// queued on a stream that is not being captured.
    pub(crate) fn watch(&mut self, stream: StreamId) {
        for mark in &self.instance().marks {
            self.check_mark(mark, &mark.mark.has_passed());
        }
        if self.instance().marks.len() >= MOST_MARKS {
            let oldest = self.instance_mut().marks.remove(0);
            let waited = oldest.mark.wait();
            self.check_mark(&oldest, &waited);
            assert!(waited != Ok(false) || self.may_be_capturing(), "nothing forbids to wait for {:?}", oldest.mark);
            self.driver.inner().event_destroy(oldest.before).expect("an event of the device");
        }
        if self.driver.is_capturing(stream) {
            return;
        }
        let device = self.driver.inner();
        let before = device.event_create().expect("the device can create events");
        device.event_record(before, stream).expect("a stream of the device");
        match self.allocator().watch_stream(stream) {
            Ok(watched) => {
                self.instance_mut().marks.push(Mark { mark: watched.mark(), before });
            }
            Err(StreamError::Foreign { cause, .. }) => {
                self.expect_refused(stream, &cause);
                self.driver.inner().event_destroy(before).expect("an event of the device");
            }
            Err(other) => panic!("watch_stream returned {other}"),
        }
    }

    fn check_mark(&self, mark: &Mark<D>, passed: &Result<bool, DriverError>) {
        match passed {
            Ok(true) => {
                let over = self.driver.inner().event_query(mark.before).expect("an event outside captures");
                assert!(over, "{:?} counts as passed while the work before it runs", mark.mark);
            }
            Ok(false) => {}
            Err(error) => self.expect_injected(error),
        }
    }

    /// Fills a block on a stream that its allocator does not know of.
    pub(crate) fn use_as_foreign(&mut self, number: u16, stream: StreamId) {
        let Some(block) = self.instance().oracle.block(number).cloned() else { return };
        let known = block.home == Some(stream) || block.recorded.contains(&stream) || self.is_asleep(block.addr);
        if known || self.instance().pool.is_some() || stream == PER_THREAD_STREAM || self.driver.is_capturing(stream) {
            return;
        }
        if self.order(block.last_user, stream) {
            let seed = self.fresh_seed();
            let filled = self.driver.inner().fill_as_foreign(stream, block.addr, block.bytes, seed);
            filled.expect("invariant 2: a live block can be written, by a peer with access as well");
            let known = self.block(block.addr);
            (known.content, known.last_user) = (Some(seed), stream);
            if !block.foreign.contains(&stream) {
                self.block(block.addr).foreign.push(stream);
            }
        }
    }

    /// Waits until the foreign uses of a block are over. Returns false where that is impossible now.
    pub(crate) fn wait_for_foreign_uses(&self, block: &Block) -> bool {
        block.foreign.iter().all(|stream| {
            let waited = match self.allocator().watch_stream(*stream) {
                Ok(watched) => {
                    let mark = watched.mark();
                    match mark.has_passed() {
                        Ok(false) => mark.wait(),
                        other => other,
                    }
                }
                Err(StreamError::Foreign { cause, .. }) if self.is_displaced(*stream) => {
                    self.expect_displacement(&cause);
                    return false;
                }
                Err(StreamError::Foreign { cause, .. }) => Err(cause),
                Err(other) => panic!("watch_stream returned {other}"),
            };
            match waited {
                Ok(waited) => {
                    assert!(waited || self.may_be_capturing(), "nothing forbids to wait for {stream:?}");
                    waited
                }
                Err(error) => {
                    self.expect_injected(&error);
                    false
                }
            }
        })
    }

    /// Waits for the foreign uses on a stream, as a program does before it captures the stream: no mark can be made then.
    pub(crate) fn end_foreign_uses(&mut self, stream: StreamId) {
        let all = self.instances.iter_mut().flat_map(|instance| instance.oracle.live.values_mut());
        for block in all.filter(|block| block.foreign.contains(&stream)) {
            self.driver.inner().synchronize(stream).expect("a stream can be waited for");
            block.foreign.retain(|user| *user != stream);
            block.was_waited_for(stream);
        }
    }

    /// Destroys the events of an allocator that is about to end, and waits for the foreign uses of its memory.
    pub(crate) fn forget_marks(&self, instance: &mut Instance<D>) {
        for stream in instance.oracle.live.values().flat_map(|block| &block.foreign) {
            self.driver.inner().synchronize(*stream).expect("a stream that is not captured");
        }
        for mark in instance.marks.drain(..) {
            self.driver.inner().event_destroy(mark.before).expect("an event of the device");
        }
    }
}
