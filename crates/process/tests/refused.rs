//! What a device's driver refuses: which error it becomes, and what has happened then.

use gapless::StreamId;
use gapless::allocator::{AllocError, FreeError, StreamError};
use gapless::driver::{
    DriverCall, DriverError, DriverErrorKind, DriverResult, Hook, Intercepted, ModelConfig, ModelDriver,
    StreamIdentity, WorkDriver,
};
use gapless::units::MIB;
use gapless_process::{Error, Process, Request, Simulated, StreamLives};
use std::sync::{Arc, Mutex};

/// Returns the stream that has a handle, or none.
const fn stream_of(handle: u64) -> StreamId {
    // SAFETY: the drivers here look at what they get.
    unsafe { StreamId::from_raw(handle) }
}

/// Fails the next call of a kind, or the next question for a stream's identity.
#[derive(Default)]
struct Refusal {
    call: Mutex<Option<(DriverCall, DriverErrorKind)>>,
    identity: Mutex<Option<DriverErrorKind>>,
}

impl Hook for Refusal {
    fn around<T>(&self, call: DriverCall, run: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        match self.call.lock().unwrap().take_if(|(refused, _)| *refused == call) {
            Some((call, kind)) => Err(DriverError::new(call, kind, "refused by the test")),
            None => run(),
        }
    }

    fn identify(&self, run: impl FnOnce() -> DriverResult<StreamIdentity>) -> DriverResult<StreamIdentity> {
        match self.identity.lock().unwrap().take() {
            Some(kind) => Err(DriverError::new(DriverCall::Stream, kind, "refused by the test")),
            None => run(),
        }
    }
}

type Driver = Intercepted<Simulated<ModelDriver>, Refusal>;

/// A process with one device of 64 MiB, and its driver.
fn process() -> (Process<Driver>, Arc<Driver>) {
    let model = Simulated::model(0, ModelConfig { capacity_bytes: 64 * MIB, ..ModelConfig::default() });
    let driver = Arc::new(Intercepted::with_hook(Arc::new(model), Refusal::default()));
    let process = Process::new(|_, _| unreachable!("the device is added"));
    process.configure("").unwrap();
    process.add(0, Arc::clone(&driver)).unwrap();
    (process, driver)
}

fn request(mib: u64) -> Request {
    Request::new(mib * MIB, StreamId::DEFAULT)
}

/// Only a handle that is none of the block's own device is looked for on others.
#[test]
fn a_stream_that_cannot_be_identified() {
    let (process, driver) = process();
    let device = process.device(0).unwrap();
    let addr = device.alloc(&request(2)).unwrap();
    let stream = driver.create_stream().unwrap();
    let record = |stream, kind| {
        *driver.hook().identity.lock().unwrap() = Some(kind);
        process.record_stream(device, addr, stream, StreamLives::Unknown)
    };
    match record(stream, DriverErrorKind::Other) {
        Err(Error::Free(FreeError::Stream(StreamError::Foreign { cause, .. }))) => {
            assert_eq!(cause.kind, DriverErrorKind::Other);
        }
        other => panic!("{other:?}"),
    }
    // As of a stream of another context of the same device: it is no other device's.
    match record(stream, DriverErrorKind::InvalidHandle) {
        Err(Error::Foreign { ordinal: 0, cause: StreamError::Foreign { cause, .. }, .. }) => {
            assert_eq!(cause.text, "refused by the test");
        }
        other => panic!("{other:?}"),
    }
    device.free(addr, 0, StreamId::DEFAULT).unwrap();
    assert_eq!(device.figures(None).unwrap().live_bytes, 0, "no stream holds it back");
}

/// A free on a stream that cannot be recorded waits for the device, or has not happened. A device that is lost runs nothing.
#[test]
fn a_device_that_cannot_be_waited_for() {
    let (process, driver) = process();
    let device = process.device(0).unwrap();
    let free_while = |addr, kind| {
        *driver.hook().call.lock().unwrap() = Some((DriverCall::Synchronize, kind));
        process.free_on(device, addr, 0, stream_of(0x7700))
    };
    let addr = device.alloc(&request(2)).unwrap();
    match free_while(addr, DriverErrorKind::Capturing) {
        Err(Error::Driver(error)) => assert_eq!(error.kind, DriverErrorKind::Capturing),
        other => panic!("{other:?}"),
    }
    assert_eq!(device.figures(None).unwrap().live_bytes, 2 * MIB, "it is live still");
    free_while(addr, DriverErrorKind::DeviceLost).unwrap();
    assert_eq!(device.figures(None).unwrap().live_bytes, 0);
}

/// The new budget holds, and that memory could not be returned is said.
#[test]
fn a_budget_below_what_cannot_be_returned() {
    let (process, driver) = process();
    let device = process.device(0).unwrap();
    let addr = device.alloc(&request(8)).unwrap();
    device.free(addr, 0, StreamId::DEFAULT).unwrap();
    *driver.hook().call.lock().unwrap() = Some((DriverCall::Unmap, DriverErrorKind::Other));
    assert!(matches!(device.set_budget(2 * MIB), Err(Error::Alloc(AllocError::Driver(_)))));
    assert_eq!(device.allocator().budget(), 2 * MIB);
}

/// What is larger than the device is said to be; else the allocator's own words are.
#[test]
fn a_request_that_no_device_could_serve() {
    let (process, _driver) = process();
    let device = process.device(0).unwrap();
    let error = device.alloc(&request(1 << 30)).unwrap_err();
    let larger = device.explain_too_large(64 * MIB + 1, &error);
    assert_eq!(larger, "No allocator could have served this: the device has 64 MiB in all.");
    for bytes in [MIB, 64 * MIB] {
        assert_eq!(device.explain_too_large(bytes, &error), error.to_string());
    }
}
