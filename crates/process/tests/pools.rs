//! Pools that are open several times, released with something in them, and closed while others want their memory.

use gapless::StreamId;
use gapless::allocator::{AllocError, MapListener, MappedRange, Refusal};
use gapless::driver::{ModelConfig, ModelDriver, WorkDriver};
use gapless::units::MIB;
use gapless_process::{Device, PoolId, Process, Request, Simulated};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

const POOL: PoolId = (3, 4);
const OTHER: PoolId = (5, 6);
/// How far the handle of a simulated device's stream lies behind that of its model.
const STREAM_BITS: u32 = 40;

fn models() -> Process<Simulated<ModelDriver>> {
    let process = Process::new(|ordinal, _| {
        Ok(Simulated::model(ordinal, ModelConfig { capacity_bytes: 64 * MIB, ..ModelConfig::default() }))
    });
    process.configure("").expect("no device is in use");
    process
}

fn request(mib: u64, stream: StreamId) -> Request {
    Request::new(mib * MIB, stream)
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
    let inner = StreamId(stream.0 & ((1 << STREAM_BITS) - 1));
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
    std::thread::scope(|scope| {
        let ((is_inside, inside), (go_on, may_go_on)) = (channel(), channel());
        let hold = Hold(Mutex::new(Some((is_inside, may_go_on))));
        device.allocator().listeners().add(Arc::new(hold)).unwrap();
        device.pools().release(POOL);
        let closing = scope.spawn(|| device.close_released_pools());
        inside.recv().unwrap();
        match device.alloc(&request(20, StreamId::DEFAULT)) {
            Err(AllocError::OutOfMemory(report)) => {
                assert_eq!((report.budget_bytes, report.elsewhere_bytes), (48 * MIB, 32 * MIB + of_other));
            }
            other => panic!("{other:?}"),
        }
        let rest = device.alloc(&Request::new(16 * MIB - of_other, StreamId::DEFAULT)).unwrap();
        device.free(rest, 0, StreamId::DEFAULT).unwrap();
        drop(go_on);
        assert_eq!(closing.join().unwrap(), 32 * MIB);
    });
    let all = device.alloc(&Request::new(48 * MIB - of_other, StreamId::DEFAULT)).unwrap();
    for addr in [all, in_other] {
        device.free(addr, 0, StreamId::DEFAULT).unwrap();
    }
}

/// A stream that cannot be recorded changes nothing of a registered block.
#[test]
fn a_registered_block_outlives_a_stream_that_is_none() {
    let process = models();
    let device = process.device(0).unwrap();
    let block = device.alloc_registered(1, StreamId::DEFAULT).unwrap();
    assert!(device.record_registered(block, StreamId(0x7700)).is_err());
    assert_eq!(device.allocator().stats().registered_bytes, 2 * MIB);
    device.record_registered(block, StreamId::DEFAULT).unwrap();
    device.free_registered(block).unwrap();
    assert_eq!(device.allocator().stats().registered_bytes, 0);
}
