//! Sleep and wake: what they cost the processor for each block, without the driver's own time, beside what a program has to do
//! that gives its memory back without them: free every block and trim, and allocate all again.

use super::table::{Cost, Random, Row, Table};
use gapless::allocator::Backup;
use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::{GIB, KIB, MIB};
use gapless::{Allocator, DeviceAddr, StreamId};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MAIN: StreamId = StreamId::DEFAULT;
/// Rounds of which the fastest counts.
const ROUNDS: usize = 10;

/// All rows.
pub fn rows(table: &mut Table) {
    let small = |random: &mut Random| 512 * (1 + random.below(64));
    let large = |random: &mut Random| 2 * MIB * (1 + random.below(64)) + 512 * random.below(4 * KIB);
    Blocks::new(100_000, 1, small).rows(table, "a small block");
    Blocks::new(100_000, 2, small).rows(table, "a small block between free ones");
    Blocks::new(1_000, 1, large).rows(table, "a large block");
    Blocks::new(1_000, 2, large).rows(table, "a large block between free ones");
}

/// Live blocks of an allocator.
struct Blocks {
    allocator: Allocator<ModelDriver>,
    live: Vec<(DeviceAddr, u64)>,
}

impl Blocks {
    /// `count` live blocks, each the first of `of` that were allocated together.
    fn new(count: u64, of: usize, bytes: impl Fn(&mut Random) -> u64) -> Self {
        let config = ModelConfig {
            capacity_bytes: 400 * GIB,
            max_mappings: usize::MAX,
            address_bits: 56,
            ..ModelConfig::default()
        };
        let builder = Allocator::builder(Arc::new(ModelDriver::new(config))).mapping_limit(usize::MAX);
        let mut blocks = Self { allocator: builder.build().expect("it fits"), live: Vec::new() };
        let mut random = Random(7);
        let sizes: Vec<u64> = (0..count * of as u64).map(|_| bytes(&mut random)).collect();
        let all = blocks.alloc(sizes);
        for (number, block) in all.into_iter().enumerate() {
            if number % of == 0 { blocks.live.push(block) } else { blocks.free(block) }
        }
        blocks
    }

    fn alloc(&self, sizes: Vec<u64>) -> Vec<(DeviceAddr, u64)> {
        let alloc = |bytes| (self.allocator.alloc_raw(bytes, MAIN).expect("the memory suffices"), bytes);
        sizes.into_iter().map(alloc).collect()
    }

    fn free(&self, (addr, _): (DeviceAddr, u64)) {
        self.allocator.free(addr).expect("a live block");
    }

    /// The rows of these blocks.
    fn rows(mut self, table: &mut Table, what: &str) {
        let mut fastest = [Duration::MAX; 6];
        let mut timed = |number: usize, work: &mut dyn FnMut(&mut Self)| {
            let start = Instant::now();
            work(&mut self);
            fastest[number] = fastest[number].min(start.elapsed());
        };
        for _ in 0..ROUNDS {
            for (number, backup) in [(0, Backup::Pinned), (2, Backup::Discard)] {
                timed(number, &mut |blocks| _ = blocks.allocator.sleep(backup).expect("it sleeps"));
                timed(number + 1, &mut |blocks| _ = blocks.allocator.wake(Duration::ZERO).expect("it wakes"));
            }
        }
        for _ in 0..ROUNDS {
            let mut sizes = Vec::new();
            timed(4, &mut |blocks| {
                sizes = blocks.live.iter().map(|(_, bytes)| *bytes).collect();
                std::mem::take(&mut blocks.live).into_iter().for_each(|block| blocks.free(block));
                blocks.allocator.trim(0).expect("released");
            });
            timed(5, &mut |blocks| blocks.live = blocks.alloc(std::mem::take(&mut sizes)));
        }
        let n = self.live.len() as u64;
        let [sleep, wake, discard, wake_discarded, free, alloc] = fastest.map(|elapsed| Cost::per(elapsed, n));
        for (way, cost, baseline) in [
            ("sleep", sleep, ("free and trim", free)),
            ("wake", wake, ("alloc", alloc)),
            ("sleep, discarding", discard, ("free and trim", free)),
            ("wake, discarded", wake_discarded, ("alloc", alloc)),
        ] {
            table.print(&Row { what: &format!("{what}: {way}"), n, cost, baseline: Some(baseline), goal: None });
        }
    }
}
