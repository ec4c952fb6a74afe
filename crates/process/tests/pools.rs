//! Pools that are open several times, released with something in them, and closed while others want their memory.

use gapless::StreamId;
use gapless::allocator::{AllocError, MapListener, MappedRange, Refusal};
use gapless::driver::{ModelConfig, ModelDriver, WorkDriver};
use gapless::units::MIB;
use gapless_process::{Device, Place, PoolId, Process, Request, Simulated};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const POOL: PoolId = (3, 4);
const OTHER: PoolId = (5, 6);
/// How long a test waits for what takes milliseconds.
const LIMIT: Duration = Duration::from_secs(5);
/// How far the handle of a simulated device's stream lies behind that of its model.
const STREAM_BITS: u32 = 40;

fn models() -> Process<Simulated<ModelDriver>> {
    configured("")
}

fn configured(conf: &str) -> Process<Simulated<ModelDriver>> {
    let process = Process::new(|ordinal, _| {
        Ok(Simulated::model(ordinal, ModelConfig { capacity_bytes: 64 * MIB, ..ModelConfig::default() }))
    });
    process.configure(conf).expect("no device is in use");
    process
}

fn request(mib: u64, stream: StreamId) -> Request {
    Request::new(mib * MIB, stream)
}

/// Returns the stream that has a handle, or none.
const fn stream_of(handle: u64) -> StreamId {
    // SAFETY: the drivers here look at what they get.
    unsafe { StreamId::from_raw(handle) }
}

fn live_in_pool(device: &Device<Simulated<ModelDriver>>) -> Option<u64> {
    device.figures(Some(POOL)).map(|sums| sums.live_bytes / MIB)
}

/// A pool that its thread has open is opened once more for a capture: the end of that is not the end for the thread.
#[test]
fn the_opening_that_was_last_is_closed_first() {
    let process = models();
    let device = process.device(0).unwrap();
    let driver = device.allocator().driver();
    let stream = driver.create_stream().unwrap();
    let inner = stream_of(stream.as_raw() & ((1 << STREAM_BITS) - 1));
    device.pools().begin(POOL).unwrap();
    let first = device.alloc(&request(2, StreamId::DEFAULT)).unwrap();
    device.pools().begin(POOL).unwrap();
    driver.inner().begin_capture(inner);
    let second = device.alloc(&request(2, stream)).unwrap();
    assert_eq!(live_in_pool(device), Some(4));
    driver.inner().end_capture(inner);
    device.end_pool(POOL);
    let third = device.alloc(&request(2, StreamId::DEFAULT)).unwrap();
    assert_eq!(live_in_pool(device), Some(6), "the thread has it open still");
    device.end_pool(POOL);
    let outside = device.alloc(&request(2, StreamId::DEFAULT)).unwrap();
    assert_eq!(live_in_pool(device), Some(6));
    for addr in [first, second, third, outside] {
        device.free(addr, 0, StreamId::DEFAULT).unwrap();
    }
}

/// Pools for graphs begin with less than others have, also where the regions of all are set to be smaller than that.
#[test]
fn a_pool_opens_where_regions_are_small() {
    let process = configured("region:16MiB");
    let device = process.device(0).unwrap();
    device.pools().begin(POOL).unwrap();
    let addr = device.alloc(&request(2, StreamId::DEFAULT)).unwrap();
    assert_eq!(live_in_pool(device), Some(2));
    device.end_pool(POOL);
    device.free(addr, 0, StreamId::DEFAULT).unwrap();
}

/// A pool that is open for a capture serves the requests of that, and no others of the thread; whether or not who makes the first
/// one knows that it belongs there.
#[test]
fn a_pool_is_open_for_one_capture() {
    for place in [Place::OpenPool, Place::Pool(POOL)] {
        let process = models();
        let device = process.device(0).unwrap();
        let driver = device.allocator().driver();
        let stream = driver.create_stream().unwrap();
        let inner = stream_of(stream.as_raw() & ((1 << STREAM_BITS) - 1));
        device.pools().begin(OTHER).unwrap();
        let of_other = device.alloc(&request(2, StreamId::DEFAULT)).unwrap();
        device.pools().begin(POOL).unwrap();
        driver.inner().begin_capture(inner);
        let captured = device.alloc_worded(place, &request(2, stream), |error| error).unwrap();
        assert_eq!(live_in_pool(device), Some(2));
        let outside = device.alloc(&request(2, StreamId::DEFAULT)).unwrap();
        assert_eq!(live_in_pool(device), Some(2), "first in {place:?}");
        driver.inner().end_capture(inner);
        device.end_pool(POOL);
        device.end_pool(OTHER);
        for addr in [of_other, captured, outside] {
            device.free(addr, 0, StreamId::DEFAULT).unwrap();
        }
    }
}

/// A pool that was opened may be for a capture that has begun and is still to make its first request: nothing waits for the
/// device.
#[test]
fn nothing_is_closed_while_a_capture_may_have_begun() {
    let process = models();
    let device = process.device(0).unwrap();
    device.pools().begin(POOL).unwrap();
    let pooled = device.alloc(&request(32, StreamId::DEFAULT)).unwrap();
    device.end_pool(POOL);
    device.pools().begin(OTHER).unwrap();
    device.free(pooled, 0, StreamId::DEFAULT).unwrap();
    device.pools().release(POOL);
    assert_eq!(device.close_released_pools(), 0);
    device.end_pool(OTHER);
    assert_eq!(device.close_released_pools(), 32 * MIB);
}

/// What is allocated in a pool when it has no user any more stays, whatever memory is wanted.
#[test]
fn a_released_pool_with_late_memory_stays() {
    let process = models();
    let device = process.device(0).unwrap();
    device.pools().add_user(POOL).unwrap();
    let pool = device.pools().named(POOL).unwrap();
    device.pools().release(POOL);
    let late = pool.allocator().alloc_raw(2 * MIB, StreamId::DEFAULT).unwrap();
    drop(pool);
    device.trim(0).unwrap();
    assert!(device.holds(late));
    device.free(late, 0, StreamId::DEFAULT).unwrap();
    device.trim(0).unwrap();
    assert!(!device.holds(late));
}

/// A block of 0 bytes is one: the pool that was released ends with it, and not before.
#[test]
fn a_released_pool_lives_as_long_as_an_empty_block() {
    let process = models();
    let device = process.device(0).unwrap();
    device.pools().begin(POOL).unwrap();
    let empty = device.alloc(&Request::new(0, StreamId::DEFAULT)).unwrap();
    device.end_pool(POOL);
    device.pools().release(POOL);
    device.trim(0).unwrap();
    assert_eq!(device.pools().all().len(), 1);
    assert!(device.holds(empty));
    device.free(empty, 0, StreamId::DEFAULT).unwrap();
    device.trim(0).unwrap();
    assert!(device.pools().all().is_empty() && !device.holds(empty));
}

/// A pool is lent what nobody holds, which does not include what the main allocator has live.
#[test]
fn a_pool_is_not_lent_what_the_main_allocator_holds() {
    let process = models();
    let device = process.device(0).unwrap();
    device.set_budget(48 * MIB).unwrap();
    let own = device.alloc(&request(30, StreamId::DEFAULT)).unwrap();
    device.pools().begin(POOL).unwrap();
    match device.alloc(&request(20, StreamId::DEFAULT)) {
        Err(AllocError::OutOfMemory(report)) => assert_eq!(report.budget_bytes, 48 * MIB),
        other => panic!("{other:?}"),
    }
    let pooled = device.alloc(&request(18, StreamId::DEFAULT)).unwrap();
    assert_eq!(live_in_pool(device), Some(18));
    device.end_pool(POOL);
    for addr in [own, pooled] {
        device.free(addr, 0, StreamId::DEFAULT).unwrap();
    }
}

/// Has the first unmap wait until it is told to go on.
struct Hold(Mutex<Option<(Sender<()>, Receiver<()>)>>);

impl MapListener for Hold {
    fn on_map(&self, _: MappedRange) -> Result<(), Refusal> {
        Ok(())
    }

    fn before_unmap(&self, _: MappedRange) -> Result<(), Refusal> {
        let first = self.0.lock().unwrap().take();
        if let Some((is_inside, may_go_on)) = first {
            is_inside.send(()).unwrap();
            // It goes on when it is told to, or when nobody is left who could.
            let _ = may_go_on.recv();
        }
        Ok(())
    }
}

/// Releases a pool and does something while that is being closed. Returns the bytes that closing it gave back.
fn while_it_is_closed(device: &Device<Simulated<ModelDriver>>, pool: PoolId, act: impl FnOnce()) -> u64 {
    std::thread::scope(|scope| {
        let ((is_inside, inside), (go_on, may_go_on)) = (channel(), channel());
        let hold = Hold(Mutex::new(Some((is_inside, may_go_on))));
        device.allocator().listeners().add(Arc::new(hold)).unwrap();
        device.pools().release(pool);
        let closing = scope.spawn(|| device.close_released_pools());
        inside.recv_timeout(LIMIT).expect("the pool is being closed");
        act();
        drop(go_on);
        closing.join().unwrap()
    })
}

/// The bytes of a pool that is being closed count until it is closed, and not afterwards.
#[test]
fn bytes_that_are_being_closed_count() {
    let process = models();
    let device = process.device(0).unwrap();
    device.set_budget(48 * MIB).unwrap();
    // Another pool stays.
    device.pools().begin(OTHER).unwrap();
    let in_other = device.alloc(&request(2, StreamId::DEFAULT)).unwrap();
    device.end_pool(OTHER);
    let of_other = device.figures(Some(OTHER)).unwrap().reserved_bytes;
    device.pools().begin(POOL).unwrap();
    let pooled = device.alloc(&request(32, StreamId::DEFAULT)).unwrap();
    device.free(pooled, 0, StreamId::DEFAULT).unwrap();
    device.end_pool(POOL);
    let closed = while_it_is_closed(device, POOL, || {
        match device.alloc(&request(20, StreamId::DEFAULT)) {
            Err(AllocError::OutOfMemory(report)) => {
                assert_eq!((report.budget_bytes, report.elsewhere_bytes), (48 * MIB, 32 * MIB + of_other));
            }
            other => panic!("{other:?}"),
        }
        let rest = device.alloc(&Request::new(16 * MIB - of_other, StreamId::DEFAULT)).unwrap();
        device.free(rest, 0, StreamId::DEFAULT).unwrap();
    });
    assert_eq!(closed, 32 * MIB);
    let all = device.alloc(&Request::new(48 * MIB - of_other, StreamId::DEFAULT)).unwrap();
    for addr in [all, in_other] {
        device.free(addr, 0, StreamId::DEFAULT).unwrap();
    }
}

/// So they do for a pool that begins meanwhile, and where no other pool is left. Nothing is missing of the budget afterwards.
#[test]
fn bytes_of_the_only_pool_that_are_being_closed_count() {
    let process = models();
    let device = process.device(0).unwrap();
    device.set_budget(48 * MIB).unwrap();
    device.pools().begin(POOL).unwrap();
    assert_eq!(device.pools().named(POOL).unwrap().allocator().budget(), 24 * MIB, "a pool is lent half");
    let pooled = device.alloc(&request(32, StreamId::DEFAULT)).unwrap();
    device.free(pooled, 0, StreamId::DEFAULT).unwrap();
    device.end_pool(POOL);
    let closed = while_it_is_closed(device, POOL, || {
        // Nothing of that name is open, and budgets are shared out again.
        device.end_pool(OTHER);
        assert_eq!(device.allocator().budget(), 16 * MIB);
        assert_eq!(device.lend_beside(), Some(16 * MIB), "nor is another allocator lent them");
        device.settle_beside(0);
        device.pools().begin(OTHER).unwrap();
        assert!(matches!(device.alloc(&request(20, StreamId::DEFAULT)), Err(AllocError::OutOfMemory(_))));
        let rest = device.alloc(&request(16, StreamId::DEFAULT)).unwrap();
        device.end_pool(OTHER);
        device.free(rest, 0, StreamId::DEFAULT).unwrap();
        device.pools().release(OTHER);
    });
    assert_eq!(closed, 32 * MIB);
    let all = device.alloc(&request(48, StreamId::DEFAULT)).unwrap();
    assert!(device.pools().all().is_empty());
    device.free(all, 0, StreamId::DEFAULT).unwrap();
}

/// Without pools, the budget is the allocator's own, whoever sets it.
#[test]
fn a_budget_is_the_allocator_s_once_the_pools_are_gone() {
    let process = models();
    let device = process.device(0).unwrap();
    device.set_budget(48 * MIB).unwrap();
    device.pools().begin(POOL).unwrap();
    device.end_pool(POOL);
    device.pools().release(POOL);
    device.trim(0).unwrap();
    device.allocator().set_budget(16 * MIB).unwrap();
    device.pools().end(POOL);
    assert_eq!((device.memory_use().set_budget, device.allocator().budget()), (Some(16 * MIB), 16 * MIB));
}

/// A stream that cannot be recorded changes nothing of a registered block.
#[test]
fn a_registered_block_outlives_a_stream_that_is_none() {
    let process = models();
    let device = process.device(0).unwrap();
    let block = device.alloc_registered(1, StreamId::DEFAULT).unwrap();
    assert!(device.record_registered(block, stream_of(0x7700)).is_err());
    assert_eq!(device.allocator().stats().registered_bytes, 2 * MIB);
    device.record_registered(block, StreamId::DEFAULT).unwrap();
    device.free_registered(block).unwrap();
    assert_eq!(device.allocator().stats().registered_bytes, 0);
}
