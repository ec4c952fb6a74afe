//! Fault driver: any driver, with failures and delays where a test wants them.
//!
//! Not armed it only counts. Armed with a [`Fault`], it lets the calls that the fault concerns through until the n-th,
//! which fails without reaching the inner driver, or is late. "Fail the n-th call, for every n" is then a loop:
//!
//! ```
//! use gapless::driver::{DriverErrorKind, Fault, FaultDriver, MemoryDriver, ModelDriver};
//!
//! let driver = FaultDriver::new(ModelDriver::default());
//! for n in 0.. {
//!     driver.arm(Fault::nth(n, DriverErrorKind::OutOfMemory));
//!     let outcome = driver.create(2 << 20).and_then(|chunk| driver.release(chunk));
//!     driver.disarm();
//!     if driver.fired() == 0 {
//!         break; // n is past the last call: every one has failed once
//!     }
//!     assert!(outcome.is_err());
//! }
//! ```
//!
//! What cannot fail is passed on as it is: `granularity`, `is_capturing`, `take_mismatches`, and holding streams.
//!
//! Threads: any; one lock, not held during the inner call. Cost: one lock a call.

use super::{
    CallCounts, ChunkHandle, DriverCall, DriverError, DriverErrorKind, DriverResult, EventHandle, HoldStreams,
    MemoryDriver, MemoryInfo, Mismatch, StreamDriver, WorkDriver,
};
use crate::sync::unseen::Mutex;
use crate::units::{DeviceAddr, StreamId};
use std::time::Duration;

/// A driver around `D` that fails when told to.
#[derive(Debug)]
pub struct FaultDriver<D> {
    inner: D,
    state: Mutex<State>,
}

/// What goes wrong, at which call, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    nth: u64,
    calls: Option<Vec<DriverCall>>,
    effect: Effect,
    repeat: Repeat,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// It fails with an error of this kind and does nothing.
    Fail(DriverErrorKind),
    /// It takes this much longer.
    Delay(Duration),
}

/// How often a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    /// At the n-th call only.
    Once,
    /// At the n-th call and every later one that the fault concerns.
    Always,
}

impl Fault {
    /// Fails call number `n`, counted from 0 at arming, with an error of this kind, once.
    pub fn nth(n: u64, kind: DriverErrorKind) -> Self {
        Self { nth: n, calls: None, effect: Effect::Fail(kind), repeat: Repeat::Once }
    }

    /// Delays call number `n`, counted from 0 at arming, once.
    pub fn delay(n: u64, duration: Duration) -> Self {
        Self { effect: Effect::Delay(duration), ..Self::nth(n, DriverErrorKind::Other) }
    }

    /// Concerns, and counts, calls of these kinds only.
    #[must_use]
    pub fn only(mut self, calls: impl IntoIterator<Item = DriverCall>) -> Self {
        self.calls = Some(calls.into_iter().collect());
        self
    }

    /// Strikes from call `n` on, until disarmed.
    #[must_use]
    pub fn from_then_on(mut self) -> Self {
        self.repeat = Repeat::Always;
        self
    }

    fn concerns(&self, call: DriverCall) -> bool {
        self.calls.as_ref().is_none_or(|calls| calls.contains(&call))
    }

    fn strikes(&self, index: u64) -> bool {
        match self.repeat {
            Repeat::Once => index == self.nth,
            Repeat::Always => index >= self.nth,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    fault: Option<Fault>,
    /// Calls since arming that the fault concerns.
    seen: u64,
    fired: u64,
    passed: CallCounts,
}

impl<D> FaultDriver<D> {
    /// Wraps a driver; not armed.
    pub fn new(inner: D) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// The driver inside.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// From now on the fault is looked for, in place of an earlier one; counting starts at 0.
    pub fn arm(&self, fault: Fault) {
        let mut state = self.state.lock();
        state.fault = Some(fault);
        state.seen = 0;
        state.fired = 0;
    }

    /// No fault from now on. [`fired`](Self::fired) keeps its value until the next arming.
    pub fn disarm(&self) {
        self.state.lock().fault = None;
    }

    /// Whether a fault is looked for; one that strikes once stays armed after it did.
    pub fn armed(&self) -> bool {
        self.state.lock().fault.is_some()
    }

    /// How often the fault has struck since the last arming.
    pub fn fired(&self) -> u64 {
        self.state.lock().fired
    }

    /// The calls that reached the inner driver.
    pub fn passed(&self) -> CallCounts {
        self.state.lock().passed
    }

    fn gate(&self, call: DriverCall) -> DriverResult<&D> {
        let effect = self.state.lock().next(call);
        match effect {
            Some(Effect::Fail(kind)) => return Err(DriverError::new(call, kind, "injected by the fault driver")),
            Some(Effect::Delay(duration)) => std::thread::sleep(duration),
            None => {}
        }
        Ok(&self.inner)
    }
}

impl State {
    /// Counts a call; what is to happen to it.
    fn next(&mut self, call: DriverCall) -> Option<Effect> {
        let mut effect = None;
        if let Some(fault) = self.fault.as_ref().filter(|fault| fault.concerns(call)) {
            effect = fault.strikes(self.seen).then_some(fault.effect);
            self.seen += 1;
            self.fired += u64::from(effect.is_some());
        }
        if !matches!(effect, Some(Effect::Fail(_))) {
            self.passed.add(call);
        }
        effect
    }
}

impl<D: MemoryDriver> MemoryDriver for FaultDriver<D> {
    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.gate(DriverCall::MemoryInfo)?.memory_info()
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr> {
        self.gate(DriverCall::Reserve)?.reserve(bytes, alignment)
    }

    fn address_free(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.gate(DriverCall::AddressFree)?.address_free(addr, bytes)
    }

    fn create(&self, bytes: u64) -> DriverResult<ChunkHandle> {
        self.gate(DriverCall::Create)?.create(bytes)
    }

    fn release(&self, chunk: ChunkHandle) -> DriverResult<()> {
        self.gate(DriverCall::Release)?.release(chunk)
    }

    fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()> {
        self.gate(DriverCall::Map)?.map(addr, bytes, chunk)
    }

    fn set_access(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.gate(DriverCall::SetAccess)?.set_access(addr, bytes)
    }

    fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.gate(DriverCall::Unmap)?.unmap(addr, bytes)
    }
}

impl<D: StreamDriver> StreamDriver for FaultDriver<D> {
    fn check_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.gate(DriverCall::Stream)?.check_stream(stream)
    }

    fn is_capturing(&self, stream: StreamId) -> bool {
        self.inner.is_capturing(stream)
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        self.gate(DriverCall::EventCreate)?.event_create()
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        self.gate(DriverCall::EventDestroy)?.event_destroy(event)
    }

    fn event_record(&self, event: EventHandle, stream: StreamId) -> DriverResult<()> {
        self.gate(DriverCall::EventRecord)?.event_record(event, stream)
    }

    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        self.gate(DriverCall::EventQuery)?.event_query(event)
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        self.gate(DriverCall::EventSynchronize)?.event_synchronize(event)
    }

    fn stream_wait(&self, stream: StreamId, event: EventHandle) -> DriverResult<()> {
        self.gate(DriverCall::StreamWait)?.stream_wait(stream, event)
    }
}

impl<D: WorkDriver> WorkDriver for FaultDriver<D> {
    fn create_stream(&self) -> DriverResult<StreamId> {
        self.gate(DriverCall::Stream)?.create_stream()
    }

    fn destroy_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.gate(DriverCall::Stream)?.destroy_stream(stream)
    }

    fn fill(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.gate(DriverCall::Work)?.fill(stream, addr, bytes, seed)
    }

    fn verify(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.gate(DriverCall::Work)?.verify(stream, addr, bytes, seed)
    }

    fn copy(&self, stream: StreamId, target: DeviceAddr, source: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.gate(DriverCall::Work)?.copy(stream, target, source, bytes)
    }

    fn delay(&self, stream: StreamId, duration: Duration) -> DriverResult<()> {
        self.gate(DriverCall::Work)?.delay(stream, duration)
    }

    fn synchronize(&self, stream: StreamId) -> DriverResult<()> {
        self.gate(DriverCall::Stream)?.synchronize(stream)
    }

    fn take_mismatches(&self) -> Vec<Mismatch> {
        self.inner.take_mismatches()
    }
}

impl<D: HoldStreams> HoldStreams for FaultDriver<D> {
    fn hold(&self, stream: StreamId) {
        self.inner.hold(stream);
    }

    fn complete(&self, stream: StreamId) {
        self.inner.complete(stream);
    }

    fn resume(&self, stream: StreamId) {
        self.inner.resume(stream);
    }

    fn host_waits(&self) -> u64 {
        self.inner.host_waits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::ModelDriver;
    use std::time::Instant;

    const PAGE: u64 = 2 << 20;

    fn kind<T>(outcome: DriverResult<T>) -> Option<DriverErrorKind> {
        outcome.err().map(|error| error.kind)
    }

    #[test]
    fn the_nth_call_fails_without_effect() {
        let driver = FaultDriver::new(ModelDriver::default());
        driver.arm(Fault::nth(1, DriverErrorKind::DeviceLost));
        let chunk = driver.create(PAGE).unwrap();
        let error = driver.release(chunk).unwrap_err();
        assert_eq!((error.call, error.kind), (DriverCall::Release, DriverErrorKind::DeviceLost));
        assert_eq!((driver.fired(), driver.inner().usage().chunks), (1, 1));
        driver.release(chunk).unwrap();
        assert_eq!(driver.fired(), 1);
        assert_eq!((driver.passed().count(DriverCall::Create), driver.passed().count(DriverCall::Release)), (1, 1));
    }

    #[test]
    fn faults_of_some_kinds_from_then_on() {
        let driver = FaultDriver::new(ModelDriver::default());
        driver.arm(Fault::nth(1, DriverErrorKind::OutOfMemory).only([DriverCall::Create]).from_then_on());
        driver.memory_info().unwrap();
        let first = driver.create(PAGE).unwrap();
        driver.memory_info().unwrap();
        for _ in 0..3 {
            assert_eq!(kind(driver.create(PAGE)), Some(DriverErrorKind::OutOfMemory));
        }
        driver.release(first).unwrap();
        assert!(driver.armed());
        driver.disarm();
        assert!(!driver.armed() && driver.fired() == 3);
        driver.create(PAGE).unwrap();
    }

    #[test]
    fn a_delay_is_late_and_succeeds() {
        let driver = FaultDriver::new(ModelDriver::default());
        driver.arm(Fault::delay(0, Duration::from_millis(20)));
        let start = Instant::now();
        driver.create(PAGE).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert_eq!((driver.fired(), driver.inner().usage().chunks), (1, 1));
    }
}
