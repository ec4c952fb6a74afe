//! How much free memory a device that was used before denies to one large request: after some history, the largest request that is
//! served beside the whole free pages that there are. With chunks of one page, nothing is kept back; the default policy is measured
//! beside it.
//!
//! `cargo bench --bench used_device`; nothing is timed, and every run prints the same.

use comfy_table::{Table, presets};
use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::{ByteSize, GIB, KIB, MIB};
use gapless::{Allocator, ChunkPolicy, DeviceAddr, StreamId};
use std::collections::HashSet;
use std::sync::Arc;

const PAGE: u64 = 2 * MIB;
const MAIN: StreamId = StreamId::DEFAULT;

/// An allocator over a device, and the blocks that a history has left on it.
struct Used {
    allocator: Allocator<ModelDriver>,
    device: u64,
    live: Vec<(DeviceAddr, u64)>,
}

impl Used {
    fn new(device: u64, policy: ChunkPolicy) -> Self {
        let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: device, ..ModelConfig::default() }));
        let allocator = Allocator::builder(driver).chunk_policy(policy).build().expect("a device of pages");
        Self { allocator, device, live: Vec::new() }
    }

    /// All memory is allocated in blocks of `bytes`, and freed.
    fn fill_once(&self, bytes: u64) {
        let blocks: Vec<_> = std::iter::from_fn(|| self.allocator.alloc_raw(bytes, MAIN).ok()).collect();
        blocks.into_iter().for_each(|block| self.free(block));
    }

    /// Pairs of a large and a small block, up to `most` or as many as there is room for. The large ones are freed.
    fn keep_small_of_pairs(&mut self, large: u64, small: u64, most: usize) {
        let mut freed = Vec::new();
        while freed.len() < most {
            let Ok(block) = self.allocator.alloc_raw(large, MAIN) else { break };
            freed.push(block);
            self.live.extend(self.allocator.alloc_raw(small, MAIN).ok().map(|block| (block, small)));
        }
        freed.into_iter().for_each(|block| self.free(block));
    }

    /// Blocks of `bytes`, `total` in all, of which one of `every` stays.
    fn keep_some(&mut self, bytes: u64, total: u64, every: usize) {
        let blocks: Vec<_> = (0..total / bytes).map_while(|_| self.allocator.alloc_raw(bytes, MAIN).ok()).collect();
        for (number, block) in blocks.into_iter().enumerate() {
            if number % every == 0 { self.live.push((block, bytes)) } else { self.free(block) }
        }
    }

    fn free(&self, block: DeviceAddr) {
        self.allocator.free(block).expect("a live block");
    }

    /// Whole pages without a live byte: on a device of pages, all of them could be one block.
    fn whole_free_pages(&self) -> u64 {
        let pages_of = |(addr, bytes): &(DeviceAddr, u64)| addr.0 / PAGE..(addr.0 + bytes).div_ceil(PAGE);
        let used: HashSet<u64> = self.live.iter().flat_map(pages_of).collect();
        self.device / PAGE - used.len() as u64
    }

    /// Pages of the largest request that is served.
    fn largest_served(&self) -> u64 {
        let (mut served, mut refused) = (0, self.whole_free_pages() + 1);
        while served + 1 < refused {
            let pages = served.midpoint(refused);
            match self.allocator.alloc_raw(pages * PAGE, MAIN) {
                Ok(block) => {
                    self.free(block);
                    served = pages;
                }
                Err(_) => refused = pages,
            }
        }
        served
    }
}

/// A history of a device of so many GiB, and its name.
struct History {
    gib: u64,
    name: &'static str,
    happens: Box<dyn Fn(&mut Used)>,
}

/// The device was used once; then pairs of a large and a small block, `most` at most, of which the large ones are freed.
fn pairs(gib: u64, name: &'static str, large: u64, small: u64, most: usize) -> History {
    let happens = Box::new(move |used: &mut Used| {
        used.fill_once(GIB);
        used.keep_small_of_pairs(large, small, most);
    });
    History { gib, name, happens }
}

fn histories() -> [History; 7] {
    let all = usize::MAX;
    [
        pairs(80, "used once, then pairs of 100 MiB + 64 KiB, the large ones freed", 100 * MIB, 64 * KIB, all),
        pairs(80, "the same with pairs of 30 MiB + 64 KiB", 30 * MIB, 64 * KIB, all),
        pairs(192, "the same", 30 * MIB, 64 * KIB, all),
        pairs(24, "the same", 30 * MIB, 64 * KIB, all),
        pairs(80, "the same with pairs of 60 MiB + 6 MiB", 60 * MIB, 6 * MIB, all),
        pairs(80, "the same with 640 pairs of 128 MiB less 64 KiB + 64 KiB", 128 * MIB - 64 * KIB, 64 * KIB, 640),
        History {
            gib: 80,
            name: "10 GiB of blocks of 32 KiB, one of 256 kept",
            happens: Box::new(|used| used.keep_some(32 * KIB, 10 * GIB, 256)),
        },
    ]
}

#[allow(clippy::cast_precision_loss, reason = "a ratio")]
fn main() {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["device", "history", "live", "whole free pages", "served", "kept back", "with chunks of 2 MiB"]);
    for History { gib, name, happens } in histories() {
        let [default, pages] = [ChunkPolicy::Auto, ChunkPolicy::Fixed(PAGE)].map(|policy| {
            let mut used = Used::new(gib * GIB, policy);
            happens(&mut used);
            used
        });
        let sizes = |used: &Used| (used.whole_free_pages(), used.largest_served());
        let part =
            |(free, served): (u64, u64)| format!("{:.1} %", (free - served) as f64 * 100.0 / (gib * GIB / PAGE) as f64);
        let live = default.live.iter().map(|(_, bytes)| bytes).sum();
        let (free, served) = sizes(&default);
        let size = |bytes| ByteSize(bytes).to_string();
        table.add_row([
            format!("{gib} GiB"),
            name.to_owned(),
            size(live),
            size(free * PAGE),
            size(served * PAGE),
            part((free, served)),
            part(sizes(&pages)),
        ]);
    }
    println!("{table}");
}
