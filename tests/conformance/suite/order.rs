//! The contract of order: streams, events, waits, and copies to the host.

use super::{MAIN, Mapped, Subject, kind, recorded};
use gapless::driver::{
    DriverErrorKind, EventHandle, HoldStreams, PER_THREAD_STREAM, StreamLifetime, WorkDriver, pattern_byte,
};
use gapless::units::StreamId;
use std::time::Duration;

pub fn work_on_a_stream_runs_in_order<D: Subject>(driver: &D) {
    let mapped = Mapped::new(driver, 2, 1);
    let page = driver.granularity();
    let (from, to) = (mapped.addr, mapped.addr.offset(page));
    for seed in 0..20 {
        driver.fill(MAIN, from, page, seed).unwrap();
        driver.copy(MAIN, to, from, page).unwrap();
        driver.fill(MAIN, from, page, seed + 1000).unwrap();
        driver.verify(MAIN, to, page, seed).unwrap();
    }
    driver.synchronize(MAIN).unwrap();
    mapped.unmap_all();
}

pub fn an_event_completes_with_the_work_before_it<D: Subject>(driver: &D) {
    let event = driver.event_create().unwrap();
    assert!(driver.event_query(event).unwrap(), "an event that was never recorded is complete");
    driver.event_synchronize(event).unwrap();
    let mapped = Mapped::new(driver, 1, 1);
    for seed in 0..3 {
        driver.delay(MAIN, Duration::from_millis(3)).unwrap();
        driver.fill(MAIN, mapped.addr, mapped.bytes, seed).unwrap();
        driver.event_record(event, MAIN).unwrap();
        driver.event_synchronize(event).unwrap();
        assert!(driver.event_query(event).unwrap());
    }
    // The event shows that all work with the mapping is done, so no other wait is needed.
    mapped.unmap_all();
    driver.event_destroy(event).unwrap();
}

pub fn a_pending_event_may_be_destroyed<D: Subject>(driver: &D) {
    driver.delay(MAIN, Duration::from_millis(3)).unwrap();
    let event = recorded(driver, MAIN);
    driver.event_destroy(event).unwrap();
    driver.synchronize(MAIN).unwrap();
}

pub fn waits_order_work_across_streams<D: Subject>(driver: &D) {
    let mapped = Mapped::new(driver, 1, 1);
    let streams = [MAIN, driver.create_stream().unwrap(), driver.create_stream().unwrap()];
    let event = driver.event_create().unwrap();
    for seed in 0..30 {
        let stream = streams[seed as usize % 3];
        driver.stream_wait(stream, event).unwrap();
        if seed > 0 {
            driver.verify(stream, mapped.addr, mapped.bytes, seed - 1).unwrap();
        }
        driver.delay(stream, Duration::from_micros(300)).unwrap();
        driver.fill(stream, mapped.addr, mapped.bytes, seed).unwrap();
        driver.event_record(event, stream).unwrap();
    }
    driver.event_synchronize(event).unwrap();
    driver.event_destroy(event).unwrap();
    mapped.unmap_all();
    for stream in &streams[1..] {
        driver.destroy_stream(*stream).unwrap();
    }
}

pub fn destroying_a_stream_waits_for_its_work<D: Subject>(driver: &D) {
    let mapped = Mapped::new(driver, 1, 1);
    let stream = driver.create_stream().unwrap();
    driver.check_stream(stream).unwrap();
    driver.check_stream(MAIN).unwrap();
    assert!(!driver.is_capturing(stream));
    driver.delay(stream, Duration::from_millis(3)).unwrap();
    driver.fill(stream, mapped.addr, mapped.bytes, 1).unwrap();
    let event = recorded(driver, stream);
    driver.destroy_stream(stream).unwrap();
    assert!(driver.event_query(event).unwrap());
    driver.event_destroy(event).unwrap();
    driver.verify(MAIN, mapped.addr, mapped.bytes, 1).unwrap();
    driver.synchronize(MAIN).unwrap();
    mapped.unmap_all();
    assert!(driver.destroy_stream(MAIN).is_err());
    driver.check_stream(MAIN).unwrap();
}

pub fn handles_come_back_for_other_streams<D: Subject>(driver: &D) {
    let mapped = Mapped::new(driver, 1, 1);
    let stream = driver.create_stream().unwrap();
    let identity = driver.identify(stream).unwrap();
    assert_eq!(driver.identify(stream).unwrap(), identity);
    assert_ne!(driver.identify(MAIN).unwrap().key, identity.key);
    driver.delay(stream, Duration::from_millis(3)).unwrap();
    driver.fill(stream, mapped.addr, mapped.bytes, 1).unwrap();
    driver.abandon_stream(stream).unwrap();
    let next = driver.create_stream().unwrap();
    assert_ne!(driver.identify(next).unwrap().number, identity.number);
    // What was queued on the abandoned stream still runs.
    driver.synchronize_device().unwrap();
    driver.verify(next, mapped.addr, mapped.bytes, 1).unwrap();
    driver.destroy_stream(next).unwrap();
    mapped.unmap_all();
}

pub fn the_device_is_waited_for_on_every_stream<D: Subject>(driver: &D) {
    let streams = [MAIN, driver.create_stream().unwrap(), driver.create_stream().unwrap()];
    let events = streams.map(|stream| {
        driver.delay(stream, Duration::from_millis(3)).unwrap();
        recorded(driver, stream)
    });
    driver.synchronize_device().unwrap();
    for event in events {
        assert!(driver.event_query(event).unwrap());
        driver.event_destroy(event).unwrap();
    }
    for stream in &streams[1..] {
        driver.destroy_stream(*stream).unwrap();
    }
}

pub fn threads_may_call_at_the_same_time<D: Subject>(driver: &D) {
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                let stream = driver.create_stream().unwrap();
                let event = driver.event_create().unwrap();
                for round in 0..10 {
                    let mapped = Mapped::new(driver, 2, 1);
                    let seed = 100 * thread + round;
                    driver.fill(stream, mapped.addr, mapped.bytes, seed).unwrap();
                    driver.verify(stream, mapped.addr, mapped.bytes, seed).unwrap();
                    driver.event_record(event, stream).unwrap();
                    driver.event_synchronize(event).unwrap();
                    mapped.unmap_all();
                }
                driver.event_destroy(event).unwrap();
                driver.destroy_stream(stream).unwrap();
            });
        }
    });
}

// From here on: drivers whose streams can be held. Completion may take a moment, but a held stream never completes.

fn pending<D: WorkDriver>(driver: &D, events: &[EventHandle]) -> Vec<bool> {
    std::thread::sleep(Duration::from_millis(2));
    events.iter().map(|&event| !driver.event_query(event).unwrap()).collect()
}

fn forget<D: WorkDriver>(driver: &D, events: impl IntoIterator<Item = EventHandle>, streams: &[StreamId]) {
    for event in events {
        driver.event_synchronize(event).unwrap();
        driver.event_destroy(event).unwrap();
    }
    for &stream in streams {
        driver.destroy_stream(stream).unwrap();
    }
}

/// Bytes come back from the host's memory, to other places, over several mappings; copies run in the order of their stream.
pub fn copies_go_to_the_host_and_back<D: Subject>(driver: &D) {
    let mapped = Mapped::new(driver, 3, 1);
    let page = driver.granularity();
    let lane = driver.create_copy_stream().unwrap();
    let memory = driver.host_alloc(2 * page + 100).unwrap();
    driver.fill(lane, mapped.addr.offset(100), 2 * page, 7).unwrap();
    driver.copy_out(lane, memory, 100, mapped.addr.offset(100), 2 * page).unwrap();
    driver.fill(lane, mapped.addr, mapped.bytes, 8).unwrap();
    driver.copy_in(lane, mapped.addr.offset(page), memory, 100, 2 * page).unwrap();
    driver.verify(lane, mapped.addr.offset(page), 2 * page, 7).unwrap();
    driver.verify(lane, mapped.addr, page, 8).unwrap();
    let copied = recorded(driver, lane);
    driver.event_synchronize(copied).unwrap();
    driver.event_destroy(copied).unwrap();
    let mut seen = None;
    let shown = driver.host_read(memory, 100 + 3, 500, &mut |bytes| seen = Some(bytes.to_vec()));
    let expected: Vec<u8> = (3..503).map(|offset| pattern_byte(7, offset)).collect();
    match shown {
        Ok(()) => assert_eq!(seen, Some(expected)),
        Err(error) => assert_eq!((error.kind, seen), (DriverErrorKind::NotSupported, None)),
    }
    let pattern = |bytes: &mut [u8]| (0..).zip(bytes).for_each(|(offset, byte)| *byte = pattern_byte(9, offset));
    let mut written = 0;
    let shown = driver.host_write(memory, 100 + 3, 500, &mut |bytes| {
        written = bytes.len();
        pattern(bytes);
    });
    assert_eq!(driver.host_memory_has_bytes(), D::HAS_BYTES);
    assert_eq!((shown.is_ok(), written), if D::HAS_BYTES { (true, 500) } else { (false, 0) });
    if D::HAS_BYTES {
        driver.copy_in(lane, mapped.addr, memory, 103, 500).unwrap();
        driver.verify(lane, mapped.addr, 500, 9).unwrap();
        // What is beside them is as it was.
        driver.fill(lane, mapped.addr, page, 7).unwrap();
        driver.copy_out(lane, memory, 103, mapped.addr.offset(3), 500).unwrap();
        driver.copy_in(lane, mapped.addr.offset(page), memory, 100, page).unwrap();
        driver.verify(lane, mapped.addr.offset(page), page, 7).unwrap();
        // In the order of its stream, over two mappings; and nothing beside it.
        driver.clear(lane, mapped.addr.offset(page - 4), 8).unwrap();
        driver.copy_out(lane, memory, 0, mapped.addr.offset(page - 8), 16).unwrap();
        driver.fill(lane, mapped.addr, mapped.bytes, 7).unwrap();
        driver.synchronize(lane).unwrap();
        let mut seen = Vec::new();
        driver.host_read(memory, 0, 16, &mut |bytes| seen = bytes.to_vec()).unwrap();
        assert_eq!(seen[4..12], [0; 8]);
        assert!(seen[..4].iter().chain(&seen[12..]).any(|byte| *byte != 0), "{seen:?}");
    }
    driver.host_free(memory).unwrap();
    driver.destroy_copy_stream(lane).unwrap();
    mapped.unmap_all();
}

pub fn a_held_stream_completes_on_request<D: Subject + HoldStreams>(driver: &D) {
    driver.hold(MAIN);
    let first = recorded(driver, MAIN);
    assert_eq!(pending(driver, &[first]), [true]);
    driver.complete(MAIN);
    assert_eq!(pending(driver, &[first]), [false]);
    let second = recorded(driver, MAIN);
    assert_eq!(pending(driver, &[first, second]), [false, true], "the stream is still held");
    driver.resume(MAIN);
    driver.synchronize(MAIN).unwrap();
    assert_eq!(pending(driver, &[second]), [false]);
    forget(driver, [first, second], &[]);
}

pub fn a_wait_for_a_held_stream_holds_the_waiter<D: Subject + HoldStreams>(driver: &D) {
    let other = driver.create_stream().unwrap();
    driver.hold(MAIN);
    let before = recorded(driver, other);
    let cause = recorded(driver, MAIN);
    driver.stream_wait(other, cause).unwrap();
    let effect = recorded(driver, other);
    driver.complete(other);
    assert_eq!(pending(driver, &[before, cause, effect]), [false, true, true]);
    assert_eq!(driver.host_waits(), 0);
    driver.complete(MAIN);
    driver.synchronize(other).unwrap();
    assert_eq!(pending(driver, &[cause, effect]), [false, false]);
    driver.resume(MAIN);
    forget(driver, [before, cause, effect], &[other]);
}

pub fn a_host_wait_completes_the_work_it_waits_for<D: Subject + HoldStreams>(driver: &D) {
    let other = driver.create_stream().unwrap();
    driver.hold(MAIN);
    driver.hold(other);
    let cause = recorded(driver, MAIN);
    driver.stream_wait(other, cause).unwrap();
    driver.complete(other);
    let effect = recorded(driver, other);
    let behind = [recorded(driver, MAIN), recorded(driver, other)];
    driver.event_synchronize(effect).unwrap();
    assert_eq!(pending(driver, &[cause, effect, behind[0], behind[1]]), [false, false, true, true]);
    assert_eq!(driver.host_waits(), 1);
    driver.event_synchronize(effect).unwrap();
    assert_eq!(driver.host_waits(), 1, "nothing to wait for");
    forget(driver, [cause, effect, behind[0], behind[1]], &[other]);
}

pub fn an_event_is_its_last_recording<D: Subject + HoldStreams>(driver: &D) {
    let [held, idle, waiting] = [(); 3].map(|()| driver.create_stream().unwrap());
    driver.hold(held);
    let event = recorded(driver, held);
    driver.stream_wait(waiting, event).unwrap();
    let effect = recorded(driver, waiting);
    driver.event_record(event, idle).unwrap();
    driver.event_synchronize(event).unwrap();
    assert_eq!(
        pending(driver, &[event, effect]),
        [false, true],
        "the wait is for the recording at the time of the call"
    );
    driver.stream_wait(idle, event).unwrap();
    driver.synchronize(idle).unwrap();
    driver.complete(held);
    driver.synchronize(waiting).unwrap();
    forget(driver, [event, effect], &[held, idle, waiting]);
}

pub fn waiting_for_an_unrecorded_event_is_no_wait<D: Subject + HoldStreams>(driver: &D) {
    let event = driver.event_create().unwrap();
    driver.stream_wait(MAIN, event).unwrap();
    let other = driver.create_stream().unwrap();
    driver.hold(other);
    driver.event_record(event, other).unwrap();
    driver.synchronize(MAIN).unwrap();
    assert_eq!(pending(driver, &[event]), [true]);
    forget(driver, [event], &[other]);
}

pub fn a_wait_outlives_its_event<D: Subject + HoldStreams>(driver: &D) {
    let other = driver.create_stream().unwrap();
    driver.hold(MAIN);
    let cause = recorded(driver, MAIN);
    driver.stream_wait(other, cause).unwrap();
    driver.event_destroy(cause).unwrap();
    let effect = recorded(driver, other);
    assert_eq!(pending(driver, &[effect]), [true]);
    driver.resume(MAIN);
    driver.event_synchronize(effect).unwrap();
    forget(driver, [effect], &[other]);
}

pub fn a_reuse_without_a_wait_is_detected<D: Subject + HoldStreams>(driver: &D) {
    let mapped = Mapped::new(driver, 1, 1);
    let other = driver.create_stream().unwrap();
    driver.fill(MAIN, mapped.addr, mapped.bytes, 1).unwrap();
    driver.synchronize(MAIN).unwrap();
    driver.hold(MAIN);
    driver.verify(MAIN, mapped.addr, mapped.bytes, 1).unwrap();
    driver.fill(other, mapped.addr, mapped.bytes, 2).unwrap();
    driver.synchronize(other).unwrap();
    driver.complete(MAIN);
    assert_eq!(driver.take_mismatches().len(), usize::from(D::HAS_BYTES));
    driver.resume(MAIN);
    driver.destroy_stream(other).unwrap();
    mapped.unmap_all();
}

pub fn unknown_streams_are_refused<D: Subject + HoldStreams>(driver: &D) {
    let mapped = Mapped::new(driver, 1, 1);
    let event = driver.event_create().unwrap();
    // SAFETY: only drivers that look at what they get are asked here.
    let stream = unsafe { StreamId::from_raw(1 << 50) };
    let outcomes = [
        driver.check_stream(stream),
        driver.identify(stream).map(drop),
        driver.event_record(event, stream),
        driver.stream_wait(stream, event),
        driver.fill(stream, mapped.addr, mapped.bytes, 1),
        driver.verify(stream, mapped.addr, mapped.bytes, 1),
        driver.delay(stream, Duration::ZERO),
        driver.synchronize(stream),
        driver.destroy_stream(stream),
        driver.abandon_stream(stream),
    ];
    for outcome in outcomes {
        assert_eq!(kind(outcome), Some(DriverErrorKind::InvalidHandle));
    }
    driver.event_destroy(event).unwrap();
    mapped.unmap_all();
}

/// Runs `body` on another thread.
fn elsewhere<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(body).join().unwrap())
}

pub fn one_handle_is_a_stream_of_each_thread<D: Subject>(driver: &D) {
    let own = || driver.identify(PER_THREAD_STREAM).unwrap();
    let (here, there) = (own(), elsewhere(own));
    assert_eq!((own(), here.lifetime), (here, StreamLifetime::Thread));
    assert!(here.key != there.key && here.number != there.number, "{here:?}, {there:?}");
    assert_ne!(elsewhere(own).number, there.number, "numbers do not come back");
    driver.check_stream(PER_THREAD_STREAM).unwrap();
    let mapped = Mapped::new(driver, 1, 1);
    let event = elsewhere(|| {
        driver.fill(PER_THREAD_STREAM, mapped.addr, mapped.bytes, 1).unwrap();
        recorded(driver, PER_THREAD_STREAM)
    });
    driver.stream_wait(PER_THREAD_STREAM, event).unwrap();
    driver.verify(PER_THREAD_STREAM, mapped.addr, mapped.bytes, 1).unwrap();
    driver.synchronize(PER_THREAD_STREAM).unwrap();
    driver.event_destroy(event).unwrap();
    mapped.unmap_all();
}

pub fn the_hold_of_one_threads_stream_leaves_the_others<D: Subject + HoldStreams>(driver: &D) {
    let held = elsewhere(|| {
        driver.hold(PER_THREAD_STREAM);
        recorded(driver, PER_THREAD_STREAM)
    });
    let free = recorded(driver, PER_THREAD_STREAM);
    driver.event_synchronize(free).unwrap();
    assert_eq!(pending(driver, &[held, free]), [true, false]);
    assert_eq!(kind(driver.destroy_stream(PER_THREAD_STREAM)), Some(DriverErrorKind::InvalidHandle));
    driver.synchronize_device().unwrap();
    forget(driver, [held, free], &[]);
}
