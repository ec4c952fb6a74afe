//! Streams of the host driver, the events between them, and the work on them.

use super::queues::NoEvent;
use super::task::{Span, Task};
use super::{HostDriver, no_stream};
use crate::driver::{
    DriverCall, DriverError, DriverErrorKind, DriverResult, EventHandle, HoldStreams, HostMemory, Mismatch,
    StreamDriver, StreamIdentity, WorkDriver,
};
use crate::units::{DeviceAddr, StreamId};
use std::time::Duration;

impl StreamDriver for HostDriver {
    fn check_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.count(DriverCall::Stream);
        self.lane(DriverCall::Stream, stream).map(|_| ())
    }

    fn identify(&self, stream: StreamId) -> DriverResult<StreamIdentity> {
        self.lane(DriverCall::Stream, stream)?;
        self.books.lock().handles.identify(stream).map_err(|_| no_stream(DriverCall::Stream, stream))
    }

    fn is_capturing(&self, stream: StreamId) -> bool {
        self.lane(DriverCall::Stream, stream).is_ok_and(|lane| self.books.lock().capturing.contains(&lane))
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        self.count(DriverCall::EventCreate);
        Ok(self.queues.create_event())
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        self.count(DriverCall::EventDestroy);
        self.books.lock().captured.remove(&event);
        if self.queues.destroy_event(event) { Ok(()) } else { Err(self.no_event(DriverCall::EventDestroy, event)) }
    }

    fn event_record(&self, event: EventHandle, stream: StreamId) -> DriverResult<()> {
        self.count(DriverCall::EventRecord);
        let lane = self.lane(DriverCall::EventRecord, stream)?;
        {
            let mut books = self.books.lock();
            if books.capturing.contains(&lane) {
                books.captured.insert(event, lane);
            } else {
                books.captured.remove(&event);
            }
        }
        self.queues.record(event, lane).map_err(self.event_error(DriverCall::EventRecord, stream, event))
    }

    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        self.count(DriverCall::EventQuery);
        self.not_captured(DriverCall::EventQuery, event)?;
        self.queues.query(event).map_err(|NoEvent| self.no_event(DriverCall::EventQuery, event))
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        self.count(DriverCall::EventSynchronize);
        self.not_captured(DriverCall::EventSynchronize, event)?;
        self.queues.synchronize_event(event).map_err(|NoEvent| self.no_event(DriverCall::EventSynchronize, event))
    }

    fn stream_wait(&self, stream: StreamId, event: EventHandle) -> DriverResult<()> {
        self.count(DriverCall::StreamWait);
        self.not_captured(DriverCall::StreamWait, event)?;
        let lane = self.lane(DriverCall::StreamWait, stream)?;
        self.not_capturing(DriverCall::StreamWait, lane)?;
        self.queues.wait(lane, event).map_err(self.event_error(DriverCall::StreamWait, stream, event))
    }

    fn synchronize_device(&self) -> DriverResult<()> {
        self.count(DriverCall::Synchronize);
        if let Some(stream) = self.books.lock().capturing.iter().next() {
            let text = format!("{stream:?} is being captured");
            return Err(DriverError::new(DriverCall::Synchronize, DriverErrorKind::Capturing, text));
        }
        self.queues.synchronize_all();
        Ok(())
    }

    fn create_copy_stream(&self) -> DriverResult<StreamId> {
        self.create_stream()
    }

    fn destroy_copy_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.destroy_stream(stream)
    }

    fn copy_out(
        &self,
        stream: StreamId,
        target: HostMemory,
        offset: u64,
        source: DeviceAddr,
        bytes: u64,
    ) -> DriverResult<()> {
        let source = Span { addr: source, bytes };
        self.copy_beside(DriverCall::CopyOut, stream, (target, offset, bytes), |target| Task::CopyOut {
            target,
            source,
        })
    }

    fn copy_in(
        &self,
        stream: StreamId,
        target: DeviceAddr,
        source: HostMemory,
        offset: u64,
        bytes: u64,
    ) -> DriverResult<()> {
        let target = Span { addr: target, bytes };
        self.copy_beside(DriverCall::CopyIn, stream, (source, offset, bytes), |source| Task::CopyIn { target, source })
    }

    fn clear(&self, stream: StreamId, target: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.queue(DriverCall::Clear, stream, |_| Ok(Task::Clear { target: Span { addr: target, bytes } }))
    }
}

impl WorkDriver for HostDriver {
    fn create_stream(&self) -> DriverResult<StreamId> {
        self.count(DriverCall::Stream);
        let lane = self.new_lane(DriverCall::Stream)?;
        Ok(self.books.lock().handles.create(lane))
    }

    fn destroy_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.count(DriverCall::Stream);
        let lane = self.destroy(stream)?;
        if self.queues.destroy_stream(lane) { Ok(()) } else { Err(no_stream(DriverCall::Stream, stream)) }
    }

    /// The thread of the stream goes on until the driver is dropped.
    fn abandon_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.count(DriverCall::Stream);
        let lane = self.destroy(stream)?;
        // Nobody is left who could end a hold.
        self.queues.resume(lane);
        Ok(())
    }

    fn fill(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.work(stream, Task::Fill { target: Span { addr, bytes }, seed })
    }

    fn verify(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.work(stream, Task::Verify { source: Span { addr, bytes }, seed })
    }

    fn copy(&self, stream: StreamId, target: DeviceAddr, source: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let (target, source) = (Span { addr: target, bytes }, Span { addr: source, bytes });
        self.work(stream, Task::Copy { target, source })
    }

    fn delay(&self, stream: StreamId, duration: Duration) -> DriverResult<()> {
        self.count(DriverCall::Work);
        if self.queues.delay(self.lane(DriverCall::Work, stream)?, duration) {
            Ok(())
        } else {
            Err(no_stream(DriverCall::Work, stream))
        }
    }

    fn synchronize(&self, stream: StreamId) -> DriverResult<()> {
        self.count(DriverCall::Stream);
        if self.queues.synchronize(self.lane(DriverCall::Stream, stream)?) {
            Ok(())
        } else {
            Err(no_stream(DriverCall::Stream, stream))
        }
    }

    fn take_mismatches(&self) -> Vec<Mismatch> {
        std::mem::take(&mut self.books.lock().mismatches)
    }
}

impl HoldStreams for HostDriver {
    fn hold(&self, stream: StreamId) {
        self.queues.hold(self.existing(stream));
    }

    fn complete(&self, stream: StreamId) {
        self.queues.complete(self.existing(stream));
    }

    fn resume(&self, stream: StreamId) {
        self.queues.resume(self.existing(stream));
    }

    fn host_waits(&self) -> u64 {
        self.queues.host_waits()
    }
}
