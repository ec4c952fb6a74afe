//! The contract of `driver`, sentence by sentence, as functions over any driver. Each gets a new driver and releases
//! everything that it creates.

use gapless::driver::{
    DriverErrorKind, DriverResult, DriverUsage, EventHandle, HoldStreams, PER_THREAD_STREAM, StreamLifetime, Violation,
    WorkDriver,
};
use gapless::units::{DeviceAddr, StreamId, TIB};
use std::time::Duration;

/// A driver under test, with functions for checks beyond the contract.
pub trait Subject: WorkDriver {
    /// Whether memory has content. Otherwise the driver only keeps state.
    const HAS_BYTES: bool;

    /// Returns the number of objects that exist, if the driver knows it.
    fn usage(&self) -> Option<DriverUsage>;

    /// Returns the violations of the contract since the last call, if the driver records them.
    fn violations(&self) -> Vec<Violation> {
        Vec::new()
    }
}

/// A reservation, and the chunks mapped from its start, with access.
pub struct Mapped<'a, D: WorkDriver> {
    driver: &'a D,
    pub addr: DeviceAddr,
    pub bytes: u64,
    reserved: u64,
}

impl<'a, D: WorkDriver> Mapped<'a, D> {
    /// Maps `chunks` chunks of `pages` pages each in a reservation of twice the size, and releases their handles.
    pub fn new(driver: &'a D, chunks: u64, pages: u64) -> Self {
        let chunk_bytes = pages * driver.granularity();
        let (bytes, reserved) = (chunks * chunk_bytes, 2 * chunks * chunk_bytes);
        let addr = driver.reserve(reserved, driver.granularity()).unwrap();
        for index in 0..chunks {
            let chunk = driver.create(chunk_bytes).unwrap();
            driver.map(addr.offset(index * chunk_bytes), chunk_bytes, chunk).unwrap();
            driver.release(chunk).unwrap();
        }
        driver.set_access(addr, bytes).unwrap();
        Self { driver, addr, bytes, reserved }
    }

    pub fn unmap_all(self) {
        self.driver.unmap(self.addr, self.bytes).unwrap();
        self.driver.address_free(self.addr, self.reserved).unwrap();
    }
}

pub fn kind<T>(outcome: DriverResult<T>) -> Option<DriverErrorKind> {
    outcome.err().map(|error| error.kind)
}

pub fn recorded<D: WorkDriver>(driver: &D, stream: StreamId) -> EventHandle {
    let event = driver.event_create().unwrap();
    driver.event_record(event, stream).unwrap();
    event
}

const MAIN: StreamId = StreamId::DEFAULT;
const OOM: Option<DriverErrorKind> = Some(DriverErrorKind::OutOfMemory);
const INVALID: Option<DriverErrorKind> = Some(DriverErrorKind::InvalidValue);

/// Runs `test` with `driver`, and checks that it left nothing behind and found no wrong byte.
pub fn run<D: Subject>(driver: &D, test: impl FnOnce(&D)) {
    let free = driver.memory_info().unwrap().free;
    test(driver);
    assert_eq!(driver.take_mismatches(), []);
    assert_eq!(driver.violations(), []);
    if let Some(usage) = driver.usage() {
        assert!(usage.is_empty(), "left in the driver: {usage:?}");
        assert_eq!(driver.memory_info().unwrap().free, free);
    }
}

pub fn the_page_is_a_constant_power_of_two<D: Subject>(driver: &D) {
    let page = driver.granularity();
    assert!(page.is_power_of_two());
    let chunk = driver.create(page).unwrap();
    assert_eq!(driver.granularity(), page);
    driver.release(chunk).unwrap();
}

pub fn reservations_are_aligned_and_apart<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let mut taken: Vec<(DeviceAddr, u64)> = Vec::new();
    for (pages, alignment) in [(1, page), (3, 4 * page), (1, 64 * page), (1000, page), (2, 2 * page)] {
        let addr = driver.reserve(pages * page, alignment).unwrap();
        assert!(addr.is_aligned(alignment), "{addr} is not aligned to {alignment}");
        let apart = |&(other, bytes): &(DeviceAddr, u64)| other.0 + bytes <= addr.0 || addr.0 + pages * page <= other.0;
        assert!(taken.iter().all(apart));
        taken.push((addr, pages * page));
    }
    for (addr, bytes) in taken {
        driver.address_free(addr, bytes).unwrap();
    }
}

pub fn addresses_cost_no_memory<D: Subject>(driver: &D) {
    let free = driver.memory_info().unwrap().free;
    let addr = driver.reserve(TIB, driver.granularity()).unwrap();
    assert_eq!(driver.memory_info().unwrap().free, free);
    driver.address_free(addr, TIB).unwrap();
}

pub fn malformed_and_oversized_reservations_are_errors<D: Subject>(driver: &D) {
    let page = driver.granularity();
    assert_eq!(kind(driver.reserve(0, page)), INVALID);
    assert_eq!(kind(driver.reserve(page + 1, page)), INVALID);
    assert_eq!(kind(driver.reserve(1 << 60, page)), OOM);
    let addr = driver.reserve(page, page).unwrap();
    driver.address_free(addr, page).unwrap();
}

pub fn create_takes_memory_and_release_returns_it<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let before = driver.memory_info().unwrap();
    let chunks = [1, 4, 2].map(|pages| driver.create(pages * page).unwrap());
    let during = driver.memory_info().unwrap();
    assert_eq!((during.free, during.total), (before.free - 7 * page, before.total));
    for chunk in chunks {
        driver.release(chunk).unwrap();
    }
    assert_eq!(driver.memory_info().unwrap(), before);
}

pub fn too_much_memory_is_an_error_without_effect<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let free = driver.memory_info().unwrap().free;
    assert_eq!(kind(driver.create(free + page)), OOM);
    assert_eq!(driver.memory_info().unwrap().free, free);
    let most = driver.create(free - page).unwrap();
    assert_eq!(kind(driver.create(2 * page)), OOM);
    let last = driver.create(page).unwrap();
    assert_eq!(kind(driver.create(page)), OOM);
    driver.release(last).unwrap();
    let again = driver.create(page).unwrap();
    driver.release(again).unwrap();
    driver.release(most).unwrap();
}

pub fn memory_is_held_until_the_last_alias_is_unmapped<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let before = driver.memory_info().unwrap().free;
    let addr = driver.reserve(4 * page, page).unwrap();
    let chunk = driver.create(2 * page).unwrap();
    driver.map(addr, 2 * page, chunk).unwrap();
    driver.map(addr.offset(2 * page), 2 * page, chunk).unwrap();
    driver.release(chunk).unwrap();
    assert_eq!(driver.memory_info().unwrap().free, before - 2 * page, "aliases count once");
    driver.unmap(addr, 2 * page).unwrap();
    assert_eq!(driver.memory_info().unwrap().free, before - 2 * page);
    driver.unmap(addr.offset(2 * page), 2 * page).unwrap();
    assert_eq!(driver.memory_info().unwrap().free, before);
    driver.address_free(addr, 4 * page).unwrap();
}

pub fn memory_is_held_while_its_handle_exists<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let before = driver.memory_info().unwrap().free;
    let addr = driver.reserve(page, page).unwrap();
    let chunk = driver.create(page).unwrap();
    driver.map(addr, page, chunk).unwrap();
    driver.unmap(addr, page).unwrap();
    assert_eq!(driver.memory_info().unwrap().free, before - page);
    driver.map(addr, page, chunk).unwrap();
    driver.unmap(addr, page).unwrap();
    driver.release(chunk).unwrap();
    driver.address_free(addr, page).unwrap();
}

pub fn one_call_may_cover_several_mappings<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let addr = driver.reserve(16 * page, page).unwrap();
    // Chunks of several sizes from page 3 on, not mapped in address order.
    for (at, pages) in [(5, 1), (3, 2), (6, 4)] {
        let chunk = driver.create(pages * page).unwrap();
        driver.map(addr.offset(at * page), pages * page, chunk).unwrap();
        driver.release(chunk).unwrap();
    }
    let (start, bytes) = (addr.offset(3 * page), 7 * page);
    driver.set_access(start, bytes).unwrap();
    driver.set_access(start, 2 * page).unwrap();
    driver.fill(MAIN, start, bytes, 5).unwrap();
    driver.verify(MAIN, start, bytes, 5).unwrap();
    driver.synchronize(MAIN).unwrap();
    // First the two in the middle, whose addresses are mapped again, then the others on either side.
    driver.unmap(addr.offset(5 * page), 5 * page).unwrap();
    let chunk = driver.create(page).unwrap();
    driver.map(addr.offset(5 * page), page, chunk).unwrap();
    driver.release(chunk).unwrap();
    driver.set_access(addr.offset(3 * page), 3 * page).unwrap();
    driver.fill(MAIN, start, 3 * page, 6).unwrap();
    driver.synchronize(MAIN).unwrap();
    driver.unmap(start, 3 * page).unwrap();
    driver.address_free(addr, 16 * page).unwrap();
}

pub fn work_may_touch_any_part_of_a_mapped_range<D: Subject>(driver: &D) {
    let mapped = Mapped::new(driver, 3, 1);
    let page = driver.granularity();
    for (seed, (offset, bytes)) in (1..).zip([(0, 1), (page - 3, 7), (page, page), (512, 2 * page), (7, 0)]) {
        driver.fill(MAIN, mapped.addr.offset(offset), bytes, seed).unwrap();
        driver.verify(MAIN, mapped.addr.offset(offset), bytes, seed).unwrap();
    }
    driver.synchronize(MAIN).unwrap();
    mapped.unmap_all();
}

pub fn a_wrong_byte_is_found<D: Subject>(driver: &D) {
    let mapped = Mapped::new(driver, 1, 1);
    driver.fill(MAIN, mapped.addr, 1024, 1).unwrap();
    driver.fill(MAIN, mapped.addr.offset(512), 8, 2).unwrap();
    driver.verify(MAIN, mapped.addr, 1024, 1).unwrap();
    driver.synchronize(MAIN).unwrap();
    let found = driver.take_mismatches();
    if D::HAS_BYTES {
        let [mismatch] = found[..] else { panic!("one check, one mismatch: {found:?}") };
        assert_eq!((mismatch.addr, mismatch.bytes, mismatch.seed), (mapped.addr, 1024, 1));
        assert!((512..520).contains(&mismatch.first) && (1..=8).contains(&mismatch.count), "{mismatch:?}");
    }
    mapped.unmap_all();
}

pub fn aliases_show_the_same_bytes<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let addr = driver.reserve(4 * page, page).unwrap();
    let chunk = driver.create(page).unwrap();
    let (one, other) = (addr, addr.offset(3 * page));
    for at in [one, other] {
        driver.map(at, page, chunk).unwrap();
        driver.set_access(at, page).unwrap();
    }
    for (seed, (write, read)) in (1..).zip([(one, other), (other, one)]) {
        driver.fill(MAIN, write, page, seed).unwrap();
        driver.verify(MAIN, read, page, seed).unwrap();
    }
    driver.synchronize(MAIN).unwrap();
    driver.unmap(one, page).unwrap();
    driver.verify(MAIN, other, page, 2).unwrap();
    driver.synchronize(MAIN).unwrap();
    driver.unmap(other, page).unwrap();
    driver.release(chunk).unwrap();
    driver.address_free(addr, 4 * page).unwrap();
}

pub fn content_moves_with_the_chunk<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let addr = driver.reserve(8 * page, page).unwrap();
    let chunks = [1, 2].map(|seed| {
        let chunk = driver.create(page).unwrap();
        let at = addr.offset(seed * page);
        driver.map(at, page, chunk).unwrap();
        driver.set_access(at, page).unwrap();
        driver.fill(MAIN, at, page, seed).unwrap();
        chunk
    });
    driver.synchronize(MAIN).unwrap();
    driver.unmap(addr.offset(page), 2 * page).unwrap();
    // Exchange the chunks, and map both elsewhere.
    for (at, chunk, seed) in [(6, chunks[0], 1), (5, chunks[1], 2)] {
        driver.map(addr.offset(at * page), page, chunk).unwrap();
        driver.set_access(addr.offset(at * page), page).unwrap();
        driver.verify(MAIN, addr.offset(at * page), page, seed).unwrap();
    }
    driver.synchronize(MAIN).unwrap();
    driver.unmap(addr.offset(5 * page), 2 * page).unwrap();
    for chunk in chunks {
        driver.release(chunk).unwrap();
    }
    driver.address_free(addr, 8 * page).unwrap();
}

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
    let stream = StreamId(1 << 50);
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
