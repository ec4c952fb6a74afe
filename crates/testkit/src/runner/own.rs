//! The streams that threads have of their own: one handle, [`PER_THREAD_STREAM`], stands for another stream on every thread.
//!
//! In what the runner keeps, the handle stands for the stream of the thread that is running. When a thread is left, its
//! stream gets a name there that no handle has, and an event at its end: no other thread can name that stream to the driver,
//! but each can wait for the event.

use super::Runner;
use crate::device::Device;
use crate::op::CurrentContext;
use gapless::driver::{PER_THREAD_STREAM, StreamDriver};
use gapless::units::StreamId;

impl<D: Device> Runner<D> {
    /// Called on a thread before it runs operations.
    pub(crate) fn enter_thread(&mut self) {
        // A sequence that failed may have left another one.
        self.driver.inner().inner().set_context(CurrentContext::None);
        if self.world.own_streams {
            let name = self.own_name();
            if let Some(event) = self.elsewhere.0.remove(&name) {
                self.driver.inner().event_destroy(event).expect("an event of the device");
            }
            self.rename(name, PER_THREAD_STREAM);
        }
    }

    /// Called on a thread after it has run operations. Captures end that no other thread could end, as that of its own stream.
    pub(crate) fn leave_thread(&mut self) {
        self.driver.inner().inner().set_context(CurrentContext::None);
        let captured: Vec<StreamId> = self.graphs.captures.iter().map(|capture| capture.stream).collect();
        for stream in captured {
            if self.driver.inner().inner().ends_with_thread(stream) {
                self.end_capture(stream);
            }
        }
        if self.world.own_streams {
            let (name, device) = (self.own_name(), self.driver.inner());
            let event = device.event_create().expect("the device can create events");
            device.event_record(event, PER_THREAD_STREAM).expect("a stream of this thread");
            self.elsewhere.0.insert(name, event);
            self.rename(PER_THREAD_STREAM, name);
        }
    }

    /// Destroys the events, once the streams of other threads are not used any more.
    pub(crate) fn forget_threads(&mut self) {
        for (_, event) in std::mem::take(&mut self.elsewhere).0 {
            self.driver.inner().event_destroy(event).expect("an event of the device");
        }
    }

    /// Returns `true` if the calling thread can queue work on the stream.
    pub(crate) fn is_here(&self, stream: StreamId) -> bool {
        self.elsewhere.end_of(stream).is_none()
    }

    fn own_name(&self) -> StreamId {
        self.driver.inner().identify(PER_THREAD_STREAM).expect("every thread has a stream").key
    }

    fn rename(&mut self, old: StreamId, new: StreamId) {
        let rename = |stream: &mut StreamId| {
            if *stream == old {
                *stream = new;
            }
        };
        for instance in &mut self.instances {
            for block in instance.oracle.live.values_mut() {
                block.home.iter_mut().for_each(rename);
                block.recorded.iter_mut().for_each(rename);
                rename(&mut block.last_user);
            }
            instance.oracle.former.iter_mut().filter_map(|former| former.home.as_mut()).for_each(rename);
            for range in &mut instance.oracle.ranges {
                range.users.iter_mut().for_each(rename);
                range.pages.iter_mut().for_each(|page| rename(&mut page.last_user));
            }
        }
        self.rename_in_pools(old, new);
    }
}
