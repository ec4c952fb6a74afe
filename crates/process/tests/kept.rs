//! Requests on streams that live as long as the process: most are served from what the device's own allocator has cached, and
//! come to the same as any other.

use gapless::StreamId;
use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::MIB;
use gapless_process::{Action, Before, Place, PoolId, Process, Request, Simulated, StreamLives};
use gapless_trace::Op;

const POOL: PoolId = (3, 4);

fn configured(conf: &str) -> Process<Simulated<ModelDriver>> {
    let process = Process::new(|ordinal, _| {
        Ok(Simulated::model(ordinal, ModelConfig { capacity_bytes: 64 * MIB, ..ModelConfig::default() }))
    });
    process.configure(conf).expect("no device is in use");
    process
}

fn request(mib: u64) -> Request {
    Request { lives: StreamLives::AsLongAsTheProcess, ..Request::new(mib * MIB, StreamId::DEFAULT) }
}

/// A recording and the history have requests from the cache as well.
#[test]
fn what_the_cache_serves_is_recorded() {
    let process = configured("");
    let device = process.device(0).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    device.main().record(&path).unwrap();
    process.history().record(10, Before::Forgotten);
    for _ in 0..2 {
        let addr = device.alloc(&request(4)).unwrap();
        device.free(addr, 0, StreamId::DEFAULT).unwrap();
    }
    device.main().stop_recording().unwrap();
    let trace = gapless_trace::Trace::open(&path).unwrap();
    let (alloc, free) = (Op::Alloc { slot: 0, stream: 0, tag: 0, bytes: 4 * MIB }, Op::Free { slot: 0 });
    assert_eq!(trace.ops(), [alloc, free, alloc, free]);
    let actions: Vec<Action> = process.history().events().iter().map(|event| event.action).collect();
    assert_eq!(actions, [Action::Alloc, Action::Free, Action::Alloc, Action::Free]);
}

/// While a pool is open, its thread's requests are served there, although the device's own allocator has free memory.
#[test]
fn an_open_pool_comes_before_the_cache() {
    let process = configured("");
    let device = process.device(0).unwrap();
    let first = device.alloc(&request(4)).unwrap();
    device.free(first, 0, StreamId::DEFAULT).unwrap();
    device.pools().begin(POOL).unwrap();
    let of_pool = device.alloc(&request(4)).unwrap();
    let of_main = device.alloc_worded(Place::Main, &request(4), |error| error).unwrap();
    assert_eq!((device.figures(Some(POOL)).unwrap().live_bytes, of_main), (4 * MIB, first));
    device.end_pool(POOL);
    [of_pool, of_main].into_iter().for_each(|addr| device.free(addr, 0, StreamId::DEFAULT).unwrap());
}

/// With `ipc:private`, a block of more than a page takes whole pages of the cache, too.
#[test]
fn a_private_block_is_not_cut_from_the_cache() {
    let process = configured("ipc:private");
    let device = process.device(0).unwrap();
    let cached = device.alloc(&request(8)).unwrap();
    device.free(cached, 0, StreamId::DEFAULT).unwrap();
    device.alloc(&request(3)).unwrap();
    assert_eq!(device.live_blocks(None)[0].bytes, 4 * MIB);
}
