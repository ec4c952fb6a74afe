use super::*;
use crate::driver::{DriverCall, DriverErrorKind, Fault, FaultDriver, Hook, Intercepted, ModelDriver, WorkDriver};
use crate::testing::{Break, assert_noticed};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MAIN: StreamId = StreamId::DEFAULT;

fn clock() -> (ModelDriver, EventPool, StreamClock) {
    (ModelDriver::default(), EventPool::default(), StreamClock::new(MAIN, Reach::Kept))
}

#[test]
fn check_names_what_is_broken() {
    let breaks: &[Break<StreamClock>] = &[
        ("I1: an open epoch has passed", |clock| clock.passed = clock.open),
        ("I1: sealed epoch 3 out of order", |clock| clock.open = 3),
        ("I1: sealed epoch 2 out of order", |clock| clock.passed = 2),
        ("I1: sealed epoch 2 out of order", |clock| clock.sealed.swap(0, 1)),
    ];
    let clock = || {
        let (driver, events, mut clock) = clock();
        driver.hold(MAIN);
        clock.open = 2;
        clock.passed = 1;
        assert!((0..2).all(|_| clock.seal(false, &driver, &events).unwrap()));
        clock
    };
    assert_noticed(clock, StreamClock::check, breaks);
}

#[test]
fn epochs_pass_in_order() {
    let (driver, events, mut clock) = clock();
    assert_eq!((clock.open(), clock.passed(), clock.sealed()), (1, 0, 0));
    driver.hold(MAIN);
    for open in 2..5 {
        assert!(clock.seal(false, &driver, &events).unwrap());
        assert_eq!((clock.open(), clock.sealed() as u64), (open, open - 1));
    }
    clock.check();
    assert_eq!(clock.poll(&driver, &events), Ok(0), "nothing has passed");
    driver.complete(MAIN);
    assert!(clock.seal(false, &driver, &events).unwrap(), "sealed on a stream that is not held");
    assert_eq!(clock.poll(&driver, &events), Ok(3));
    assert_eq!((clock.open(), clock.passed(), clock.sealed()), (5, 3, 1));
    clock.check();
    assert_eq!(driver.calls()[DriverCall::EventCreate], 4);
    assert!(clock.seal(false, &driver, &events).unwrap());
    assert_eq!(driver.calls()[DriverCall::EventCreate], 4, "events are reused");
}

#[test]
fn the_host_waits_only_for_the_epoch_in_question() {
    let (driver, events, mut clock) = clock();
    driver.hold(MAIN);
    let within = [1, 2, 3].map(|_| {
        let event = driver.event_create().unwrap();
        driver.event_record(event, MAIN).unwrap();
        clock.seal(false, &driver, &events).unwrap();
        event
    });
    clock.wait(0, &driver, &events).unwrap();
    assert_eq!(driver.host_waits(), 0, "epoch 0 has passed from the start");
    clock.wait(2, &driver, &events).unwrap();
    assert_eq!((driver.host_waits(), clock.passed(), clock.sealed()), (1, 2, 1));
    assert_eq!(within.map(|event| driver.event_query(event).unwrap()), [true, true, false]);
    clock.check();
    clock.wait(2, &driver, &events).unwrap();
    assert_eq!(driver.host_waits(), 1, "the epoch is known to have passed");
}

/// While one thread waits for an event, others may find that it has completed, and wait themselves: no event is recorded
/// again or destroyed before all waits are over.
#[test]
fn an_event_that_is_waited_for_is_not_used_again() {
    let (driver, events, mut clock) = clock();
    driver.hold(MAIN);
    assert!((0..2).all(|_| clock.seal(false, &driver, &events).unwrap()));
    let HostWait::For(first) = clock.begin_wait(1) else { panic!("the epoch has an event") };
    let HostWait::For(second) = clock.begin_wait(2) else { panic!("the epoch has an event") };
    assert!(first != second && driver.host_waits() == 0);
    driver.resume(MAIN);
    driver.complete(MAIN);
    assert_eq!(clock.poll(&driver, &events), Ok(2), "another call learns of both");
    assert!(clock.seal(false, &driver, &events).unwrap());
    assert_eq!(driver.calls()[DriverCall::EventCreate], 3, "neither event is recorded again");
    clock.end_wait(first, true, &driver, &events);
    assert!(clock.seal(false, &driver, &events).unwrap());
    assert_eq!(driver.calls()[DriverCall::EventCreate], 4);
    clock.end_wait(second, true, &driver, &events);
    assert!((0..2).all(|_| clock.seal(false, &driver, &events).unwrap()));
    assert_eq!(driver.calls()[DriverCall::EventCreate], 4, "now both are");
    assert_eq!((clock.begin_wait(1), clock.begin_wait(7)), (HostWait::Needless, HostWait::Impossible));
    clock.check();
}

#[test]
fn another_stream_waits_for_what_has_not_passed() {
    let (driver, events, mut clock) = clock();
    let other = driver.create_stream().unwrap();
    let waits = || driver.calls()[DriverCall::StreamWait];
    driver.hold(MAIN);
    clock.seal(false, &driver, &events).unwrap();
    clock.make_wait(other, 0, &driver).unwrap();
    assert_eq!(waits(), 0, "epoch 0 has passed from the start");
    clock.make_wait(other, 1, &driver).unwrap();
    assert_eq!(waits(), 1);
    let event = driver.event_create().unwrap();
    driver.event_record(event, other).unwrap();
    assert!(!driver.event_query(event).unwrap(), "the other stream waits for epoch 1");
    driver.complete(MAIN);
    assert!(driver.event_query(event).unwrap());
    clock.poll(&driver, &events).unwrap();
    clock.make_wait(other, 1, &driver).unwrap();
    assert_eq!(waits(), 1, "the epoch has passed");
}

#[test]
fn the_epoch_stays_open_after_a_failure_or_during_a_capture() {
    let driver = FaultDriver::new(ModelDriver::default());
    let (events, mut clock) = (EventPool::default(), StreamClock::new(MAIN, Reach::Kept));
    let own = driver.create_stream().unwrap();
    let mut capturing = StreamClock::new(own, Reach::Kept);
    driver.inner().begin_capture(own);
    assert_eq!(capturing.seal(false, &driver, &events), Ok(false));
    assert_eq!((capturing.open(), capturing.sealed()), (1, 0));
    driver.inner().end_capture(own);
    driver.arm(Fault::nth(0, DriverErrorKind::OutOfMemory).only([DriverCall::EventRecord]));
    assert!(clock.seal(false, &driver, &events).is_err());
    assert_eq!((clock.open(), clock.sealed()), (1, 0));
    driver.disarm();
    assert_eq!(clock.seal(false, &driver, &events), Ok(true));
    assert_eq!(driver.inner().calls()[DriverCall::EventCreate], 1, "the event of the failure was kept");
    clock.drop_events(&events);
    assert_eq!(clock.sealed(), 0);
    events.clear(&driver).unwrap();
    assert_eq!(driver.inner().usage().events, 0);
}

/// Begins a capture of the default stream when an event is about to be recorded, and ends it afterwards if `ends`.
struct CaptureStarts {
    device: Arc<ModelDriver>,
    armed: AtomicBool,
    ends: bool,
}

impl Hook for CaptureStarts {
    fn around<T>(&self, call: DriverCall, run: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        let now = call == DriverCall::EventRecord && self.armed.swap(false, Ordering::Relaxed);
        if now {
            self.device.begin_capture(MAIN);
        }
        let result = run();
        if now && self.ends {
            self.device.end_capture(MAIN);
        }
        result
    }
}

fn capture_starts(ends: bool) -> (Arc<ModelDriver>, Intercepted<ModelDriver, CaptureStarts>) {
    let device = Arc::new(ModelDriver::default());
    let hook = CaptureStarts { device: Arc::clone(&device), armed: AtomicBool::new(true), ends };
    (Arc::clone(&device), Intercepted::with_hook(device, hook))
}

#[test]
fn an_event_that_a_capture_took_is_discarded() {
    let (device, driver) = capture_starts(false);
    let (events, mut clock) = (EventPool::default(), StreamClock::new(MAIN, Reach::Kept));
    assert_eq!(clock.seal(false, &driver, &events), Ok(false), "the event belongs to the graph");
    assert_eq!((clock.open(), clock.sealed(), device.usage().events), (1, 0, 0));
    assert_eq!(clock.poll(&driver, &events), Ok(0), "it is not queried");
    device.end_capture(MAIN);
    assert_eq!(clock.seal(false, &driver, &events), Ok(true));
    assert_eq!(clock.poll(&driver, &events), Ok(1));
}

#[test]
fn an_epoch_whose_event_was_lost_is_covered_by_the_next() {
    let (device, driver) = capture_starts(true);
    let (events, mut clock) = (EventPool::default(), StreamClock::new(MAIN, Reach::Kept));
    device.hold(MAIN);
    assert_eq!(clock.seal(false, &driver, &events), Ok(true), "the capture has ended before the second check");
    let lost = clock.open() - 1;
    assert_eq!(clock.poll(&driver, &events), Ok(0), "the event is discarded");
    assert!(!clock.covers(lost));
    assert_eq!(clock.wait(lost, &driver, &events), Ok(false));
    assert_eq!(clock.make_wait(MAIN, lost, &driver), Ok(false));
    assert!(clock.seal(false, &driver, &events).unwrap() && clock.covers(lost));
    assert_eq!(clock.poll(&driver, &events), Ok(0));
    device.complete(MAIN);
    assert_eq!(clock.poll(&driver, &events), Ok(lost + 1));
}

#[test]
fn the_handle_of_a_stream_that_may_be_gone_is_not_used() {
    let (driver, events, _) = clock();
    let stream = driver.create_stream().unwrap();
    let mut clock = StreamClock::new(stream, Reach::Given);
    assert_eq!(clock.seal(true, &driver, &events), Ok(true));
    driver.abandon_stream(stream).unwrap();
    assert_eq!(clock.seal(false, &driver, &events), Ok(false), "the model panics for a destroyed stream");
    assert_eq!((clock.coverable_until(false), clock.coverable_until(true)), (1, NEVER - 1));
    clock.end(false);
    assert_eq!(clock.seal(true, &driver, &events), Ok(false));
    assert_eq!(clock.poll(&driver, &events), Ok(1));
    assert!(!clock.covers(2) && !clock.is_gone(), "more may have been queued before it was destroyed");
    let mark = (clock.close_epoch(), clock.is_over());
    driver.synchronize_device().unwrap();
    clock.pass(mark.0, mark.1, &driver, &events);
    assert!(clock.is_gone() && clock.covers(clock.open()));
    let other = driver.create_stream().unwrap();
    clock.renew(other, Reach::Given);
    clock.check();
    assert!(!clock.is_gone() && clock.passed() + 1 == clock.open());
}

/// Two threads wait for the device; when the second notes it, the entry belongs to another stream, which runs.
#[test]
fn a_wait_says_nothing_about_the_stream_that_came_meanwhile() {
    let (driver, events, _) = clock();
    let stream = driver.create_stream().unwrap();
    let mut clock = StreamClock::new(stream, Reach::Given);
    driver.abandon_stream(stream).unwrap();
    clock.end(false);
    let marks = [(); 2].map(|()| (clock.close_epoch(), clock.is_over()));
    driver.synchronize_device().unwrap();
    clock.pass(marks[1].0, marks[1].1, &driver, &events);
    assert!(clock.is_gone());
    clock.renew(driver.create_stream().unwrap(), Reach::Given);
    let passed = clock.passed();
    clock.pass(marks[0].0, marks[0].1, &driver, &events);
    assert!(!clock.is_gone() && clock.passed() == passed);
    clock.check();
}

/// The clock of a stream that is held, and was forgotten with an event.
fn forgotten() -> (ModelDriver, EventPool, StreamId, StreamClock) {
    let (driver, events, _) = clock();
    let stream = driver.create_stream().unwrap();
    let mut clock = StreamClock::new(stream, Reach::Given);
    driver.hold(stream);
    assert!(clock.seal(true, &driver, &events).unwrap());
    clock.end(true);
    (driver, events, stream, clock)
}

#[test]
fn a_forgotten_stream_is_gone_once_its_last_event_has_completed() {
    let (driver, events, stream, mut clock) = forgotten();
    let later = clock.open();
    assert!(clock.covers(later), "nothing is queued after the last event");
    assert_eq!(clock.poll(&driver, &events), Ok(0));
    driver.complete(stream);
    assert_eq!(clock.poll(&driver, &events), Ok(later));
    clock.check();
    // The next stream of the entry: what it frees has not passed, whoever remembers how far the old one was.
    let remembered = clock.passed();
    clock.renew(driver.create_stream().unwrap(), Reach::Given);
    assert!(clock.open() > remembered && clock.passed() == remembered);
}

/// The last event of a forgotten stream covers all of its work, but not memory that is never free again.
#[test]
fn what_never_passes_has_not_passed_at_the_end() {
    let (driver, events, stream, mut clock) = forgotten();
    assert_eq!((clock.coverable_until(false), clock.coverable_until(true)), (NEVER - 1, NEVER - 1));
    assert!(clock.covers(NEVER - 1) && !clock.covers(NEVER));
    driver.complete(stream);
    clock.poll(&driver, &events).unwrap();
    assert!(clock.is_gone() && clock.has_passed(NEVER - 1) && !clock.has_passed(NEVER));
}

/// Only what a capture took is lost: after any other error the event is asked about again.
#[test]
fn an_error_of_a_query_changes_nothing() {
    let driver = FaultDriver::new(ModelDriver::default());
    let (events, mut clock) = (EventPool::default(), StreamClock::new(MAIN, Reach::Kept));
    assert!(clock.seal(false, &driver, &events).unwrap());
    driver.arm(Fault::nth(0, DriverErrorKind::Other).only([DriverCall::EventQuery]));
    assert_eq!(clock.poll(&driver, &events).unwrap_err().kind, DriverErrorKind::Other);
    assert_eq!((clock.passed(), clock.sealed()), (0, 1));
    assert_eq!(clock.poll(&driver, &events), Ok(1));
}

/// After a wait for the whole device, events of what came before the wait are needed no more.
#[test]
fn a_wait_for_the_device_passes_what_was_sealed_before() {
    let (driver, events, mut clock) = clock();
    driver.hold(MAIN);
    assert!((0..3).all(|_| clock.seal(false, &driver, &events).unwrap()));
    clock.pass(2, false, &driver, &events);
    assert_eq!((clock.passed(), clock.sealed()), (2, 1));
    clock.check();
}

/// The wait for an event that others have found to be complete says nothing of later ones.
#[test]
fn the_end_of_a_wait_concerns_its_own_epoch() {
    let (driver, events, mut clock) = clock();
    assert!(clock.seal(false, &driver, &events).unwrap());
    let HostWait::For(first) = clock.begin_wait(1) else { panic!("the epoch has an event") };
    assert_eq!(clock.poll(&driver, &events), Ok(1), "another call learns of it");
    driver.hold(MAIN);
    assert!(clock.seal(false, &driver, &events).unwrap());
    clock.end_wait(first, true, &driver, &events);
    assert_eq!((clock.passed(), clock.sealed()), (1, 1), "the second epoch has not passed");
    driver.complete(MAIN);
    let HostWait::For(second) = clock.begin_wait(2) else { panic!("the epoch has an event") };
    clock.end_wait(second, true, &driver, &events);
    assert_eq!((clock.passed(), clock.sealed()), (2, 0));
    clock.check();
}
