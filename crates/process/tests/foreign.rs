//! Blocks that streams of several other devices use: each use counts, and none longer than it lasts.

use gapless::StreamId;
use gapless::driver::{HoldStreams, ModelConfig, ModelDriver, WorkDriver};
use gapless::units::MIB;
use gapless_process::{Device, Process, Request, Simulated, StreamLives};

type Model = Simulated<ModelDriver>;

fn models() -> Process<Model> {
    let process = Process::new(|ordinal, _| {
        Ok(Simulated::model(ordinal, ModelConfig { capacity_bytes: 64 * MIB, ..ModelConfig::default() }))
    });
    process.configure("").expect("no device is in use");
    process
}

/// Queues work on a stream that does not complete by itself.
fn keep_busy(device: &Device<Model>, stream: StreamId) {
    let driver = device.allocator().driver();
    driver.hold(stream);
    driver.delay(stream, std::time::Duration::from_micros(1)).unwrap();
}

fn live_bytes(device: &Device<Model>) -> u64 {
    device.figures(None).unwrap().live_bytes
}

/// Lets all that is queued on a stream complete.
fn let_go(device: &Device<Model>, stream: StreamId) {
    let driver = device.allocator().driver();
    driver.resume(stream);
    driver.inner().advance(1 << 20);
}

/// Has the device free what no stream of another one uses any more.
fn settle(device: &Device<Model>) {
    let addr = device.alloc(&Request::new(512, StreamId::DEFAULT)).unwrap();
    device.free(addr, 0, StreamId::DEFAULT).unwrap();
}

/// The same handle on two other devices stands for two streams.
#[test]
fn the_default_stream_of_each_device_counts() {
    for busy in [1, 2] {
        let process = models();
        let devices = [0, 1, 2].map(|ordinal| process.device(ordinal).unwrap());
        let (first, other) = (devices[0], devices[busy]);
        let addr = first.alloc(&Request::new(2 * MIB, StreamId::DEFAULT)).unwrap();
        process.record_stream(first, addr, StreamId::DEFAULT, StreamLives::Unknown).unwrap();
        keep_busy(other, StreamId::DEFAULT);
        first.free(addr, 0, StreamId::DEFAULT).unwrap();
        settle(first);
        assert_eq!(live_bytes(first), 2 * MIB, "device {busy} uses it");
        let_go(other, StreamId::DEFAULT);
        settle(first);
        assert_eq!(live_bytes(first), 0, "device {busy} does not use it any more");
    }
}

/// A request that is served from the cache asks as well, and frees what no stream of another device uses any more.
#[test]
fn requests_from_the_cache_settle_what_is_over() {
    let process = models();
    let [first, second] = [0, 1].map(|ordinal| process.device(ordinal).unwrap());
    let kept = Request { lives: StreamLives::AsLongAsTheProcess, ..Request::new(2 * MIB, StreamId::DEFAULT) };
    let stream = second.allocator().driver().create_stream().unwrap();
    let [cached, used] = [4, 2].map(|mib| first.alloc(&Request { bytes: mib * MIB, ..kept }).unwrap());
    first.free(cached, 0, StreamId::DEFAULT).unwrap();
    keep_busy(second, stream);
    process.record_stream(first, used, stream, StreamLives::AsLongAsTheProcess).unwrap();
    first.free(used, 0, StreamId::DEFAULT).unwrap();
    assert_eq!(first.alloc(&kept).unwrap(), cached);
    assert_eq!(live_bytes(first), 4 * MIB);
    let_go(second, stream);
    assert_eq!(first.alloc(&kept).unwrap(), cached.offset(2 * MIB));
    assert_eq!(live_bytes(first), 4 * MIB);
}

/// What one stream has used is free as soon as it is done, all of it at once.
#[test]
fn all_that_a_stream_is_done_with_is_free() {
    let process = models();
    let [first, second] = [0, 1].map(|ordinal| process.device(ordinal).unwrap());
    let stream = second.allocator().driver().create_stream().unwrap();
    keep_busy(second, stream);
    let blocks = [(); 3].map(|()| first.alloc(&Request::new(2 * MIB, StreamId::DEFAULT)).unwrap());
    for addr in blocks {
        process.record_stream(first, addr, stream, StreamLives::AsLongAsTheProcess).unwrap();
        first.free(addr, 0, StreamId::DEFAULT).unwrap();
    }
    settle(first);
    assert_eq!(live_bytes(first), 6 * MIB);
    let_go(second, stream);
    settle(first);
    assert_eq!(live_bytes(first), 0);
}
