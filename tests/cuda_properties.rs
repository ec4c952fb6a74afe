//! Random use of an allocator on the CUDA driver, with every block's bytes written and checked by the device: on the
//! simulated library, or on device 0 of this machine when `GAPLESS_TEST_DEVICE` is set.

mod simulated;

use std::sync::Arc;

use gapless::driver::WorkDriver;
use gapless::driver::cuda::CudaDriver;
use gapless::units::{KIB, MIB};
use gapless::{Allocator, ChunkPolicy, DeviceAddr, StreamId};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Alloc {
        bytes: u64,
        stream: usize,
    },
    Free {
        block: usize,
    },
    /// The block is used on another stream too.
    Share {
        block: usize,
        stream: usize,
    },
}

struct Block {
    addr: DeviceAddr,
    bytes: u64,
    stream: StreamId,
    seed: u64,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let bytes = prop_oneof![1..4 * KIB, 4 * KIB..MIB, MIB..6 * MIB];
    let op = prop_oneof![
        5 => (bytes, 0..3_usize).prop_map(|(bytes, stream)| Op::Alloc { bytes, stream }),
        4 => any::<usize>().prop_map(|block| Op::Free { block }),
        1 => (any::<usize>(), 0..3_usize).prop_map(|(block, stream)| Op::Share { block, stream }),
    ];
    prop::collection::vec(op, 1..120)
}

fn open() -> CudaDriver {
    let builder = CudaDriver::builder();
    let on_device = std::env::var_os("GAPLESS_TEST_DEVICE").is_some();
    let builder = if on_device { builder } else { builder.library(simulated::library()) };
    builder.open().unwrap()
}

/// Runs `ops` with a budget of 32 MiB, so that memory is remapped all the time.
fn run(driver: &Arc<CudaDriver>, streams: &[StreamId; 3], policy: ChunkPolicy, ops: &[Op]) {
    const BUDGET: u64 = 32 * MIB;
    let allocator = Allocator::builder(Arc::clone(driver)).budget(BUDGET).chunk_policy(policy).build().unwrap();
    let mut blocks: Vec<Block> = Vec::new();
    for (seed, op) in (1..).zip(ops) {
        match *op {
            Op::Alloc { bytes, stream } => {
                let stream = streams[stream];
                let Ok(addr) = allocator.alloc(bytes, stream) else { continue };
                driver.fill(stream, addr, bytes, seed).unwrap();
                blocks.push(Block { addr, bytes, stream, seed });
            }
            Op::Free { block } if !blocks.is_empty() => {
                let block = blocks.swap_remove(block % blocks.len());
                driver.verify(block.stream, block.addr, block.bytes, block.seed).unwrap();
                allocator.free(block.addr).unwrap();
            }
            Op::Share { block, stream } if !blocks.is_empty() => {
                let block = blocks.swap_remove(block % blocks.len());
                let stream = streams[stream];
                // The block is handed over to the other stream: its work comes after what was queued so far.
                driver.synchronize(block.stream).unwrap();
                allocator.record_stream(block.addr, stream).unwrap();
                driver.verify(stream, block.addr, block.bytes, block.seed).unwrap();
                allocator.free(block.addr).unwrap();
            }
            Op::Free { .. } | Op::Share { .. } => {}
        }
        let stats = allocator.stats();
        assert!(stats.live_bytes <= stats.reserved_bytes && stats.reserved_bytes <= BUDGET, "{stats:?}");
    }
    for block in blocks {
        driver.verify(block.stream, block.addr, block.bytes, block.seed).unwrap();
        allocator.free(block.addr).unwrap();
    }
    allocator.close().unwrap();
    for &stream in streams {
        driver.synchronize(stream).unwrap();
    }
    assert_eq!(driver.take_mismatches(), []);
}

#[test]
fn every_byte_stays_where_it_was_written() {
    let driver = Arc::new(open());
    let streams = [StreamId::DEFAULT, driver.create_stream().unwrap(), driver.create_stream().unwrap()];
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    let policy =
        prop_oneof![Just(ChunkPolicy::Auto), Just(ChunkPolicy::Fixed(2 * MIB)), Just(ChunkPolicy::Fixed(8 * MIB))];
    proptest!(config, |(ops in ops(), policy in policy)| run(&driver, &streams, policy, &ops));
}
