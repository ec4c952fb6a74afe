//! Streams of the model driver, the events between them, and the work on them.

use super::ModelDriver;
use super::state::{broken, no_event, no_stream};
use crate::driver::{
    DriverCall, DriverError, DriverErrorKind, DriverResult, EventHandle, HoldStreams, HostMemory, Mismatch,
    StreamDriver, StreamIdentity, WorkDriver,
};
use crate::units::{DeviceAddr, StreamId};
use std::time::Duration;

impl StreamDriver for ModelDriver {
    fn check_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.call(DriverCall::Stream, 0.0).lane(DriverCall::Stream, stream).map(|_| ())
    }

    fn identify(&self, stream: StreamId) -> DriverResult<StreamIdentity> {
        let state = self.state.lock();
        state.lane(DriverCall::Stream, stream)?;
        state.handles.identify(stream).map_err(|_| no_stream(DriverCall::Stream, stream))
    }

    fn is_capturing(&self, stream: StreamId) -> bool {
        let state = self.state.lock();
        state.lane(DriverCall::Stream, stream).is_ok_and(|lane| state.timeline.is_capturing(lane))
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        Ok(self.call(DriverCall::EventCreate, 0.0).timeline.create_event())
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        let mut state = self.call(DriverCall::EventDestroy, 0.0);
        if !state.timeline.destroy_event(event) {
            no_event(DriverCall::EventDestroy, event);
        }
        Ok(())
    }

    fn event_record(&self, event: EventHandle, stream: StreamId) -> DriverResult<()> {
        let mut state = self.call(DriverCall::EventRecord, self.costs.event_record);
        state.known_event(DriverCall::EventRecord, event);
        let lane = state.lane(DriverCall::EventRecord, stream)?;
        state.timeline.record(event, lane);
        Ok(())
    }

    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        let mut state = self.call(DriverCall::EventQuery, self.costs.event_query);
        match state.recording(DriverCall::EventQuery, event)? {
            Some(point) => Ok(state.timeline.reached(point)),
            None => Ok(true),
        }
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        let mut state = self.call(DriverCall::EventSynchronize, 0.0);
        if let Some(point) = state.recording(DriverCall::EventSynchronize, event)? {
            state.host_wait(point);
        }
        Ok(())
    }

    fn stream_wait(&self, stream: StreamId, event: EventHandle) -> DriverResult<()> {
        let mut state = self.call(DriverCall::StreamWait, 0.0);
        let recording = state.recording(DriverCall::StreamWait, event)?;
        let lane = state.lane(DriverCall::StreamWait, stream)?;
        if state.timeline.is_capturing(lane) {
            broken(DriverCall::StreamWait, &format!("{stream:?} is being captured"));
        }
        if let Some(point) = recording {
            state.timeline.wait(lane, point);
        }
        Ok(())
    }

    fn synchronize_device(&self) -> DriverResult<()> {
        let mut state = self.call(DriverCall::Synchronize, 0.0);
        if let Some(stream) = state.timeline.capturing() {
            let text = format!("{stream:?} is being captured");
            return Err(DriverError::new(DriverCall::Synchronize, DriverErrorKind::Capturing, text));
        }
        for end in state.timeline.ends() {
            state.host_wait(end);
        }
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
        self.copy_beside(DriverCall::CopyOut, stream, (target, offset), (source, bytes))
    }

    fn copy_in(
        &self,
        stream: StreamId,
        target: DeviceAddr,
        source: HostMemory,
        offset: u64,
        bytes: u64,
    ) -> DriverResult<()> {
        self.copy_beside(DriverCall::CopyIn, stream, (source, offset), (target, bytes))
    }

    fn clear(&self, stream: StreamId, target: DeviceAddr, bytes: u64) -> DriverResult<()> {
        Self::queue(self.call(DriverCall::Clear, 0.0), DriverCall::Clear, stream, &[(target, bytes)])
    }
}

impl WorkDriver for ModelDriver {
    fn create_stream(&self) -> DriverResult<StreamId> {
        let mut state = self.call(DriverCall::Stream, 0.0);
        let lane = state.timeline.create_stream();
        Ok(state.handles.create(lane))
    }

    fn destroy_stream(&self, stream: StreamId) -> DriverResult<()> {
        let mut state = self.call(DriverCall::Stream, 0.0);
        let lane = state.destroy(stream)?;
        let end = state.timeline.end(lane);
        state.host_wait(end);
        state.timeline.remove_stream(lane);
        Ok(())
    }

    fn abandon_stream(&self, stream: StreamId) -> DriverResult<()> {
        let mut state = self.call(DriverCall::Stream, 0.0);
        let lane = state.destroy(stream)?;
        // Nobody is left who could end a hold.
        state.timeline.resume(lane);
        Ok(())
    }

    fn fill(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, _seed: u64) -> DriverResult<()> {
        self.work(stream, &[(addr, bytes)])
    }

    fn verify(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, _seed: u64) -> DriverResult<()> {
        self.work(stream, &[(addr, bytes)])
    }

    fn copy(&self, stream: StreamId, target: DeviceAddr, source: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.work(stream, &[(target, bytes), (source, bytes)])
    }

    /// Keeps the stream busy for one op a microsecond.
    fn delay(&self, stream: StreamId, duration: Duration) -> DriverResult<()> {
        let mut state = self.call(DriverCall::Work, 0.0);
        let lane = state.lane(DriverCall::Work, stream)?;
        state.timeline.delay(lane, u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
        Ok(())
    }

    fn synchronize(&self, stream: StreamId) -> DriverResult<()> {
        let mut state = self.call(DriverCall::Stream, 0.0);
        let lane = state.lane(DriverCall::Stream, stream)?;
        let end = state.timeline.end(lane);
        state.host_wait(end);
        Ok(())
    }

    /// Returns nothing: a model has no bytes that could differ.
    fn take_mismatches(&self) -> Vec<Mismatch> {
        Vec::new()
    }
}

impl HoldStreams for ModelDriver {
    fn hold(&self, stream: StreamId) {
        Self::hold(self, stream);
    }

    fn complete(&self, stream: StreamId) {
        Self::complete(self, stream);
    }

    fn resume(&self, stream: StreamId) {
        Self::resume(self, stream);
    }

    fn host_waits(&self) -> u64 {
        Self::host_waits(self)
    }
}
