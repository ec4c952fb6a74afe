//! Looking at everything: the report on a request that does not fit, and statistics.

use super::streams::with_streams;
use super::table::{Goal, Table, fastest};
use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::{KIB, MIB};
use gapless::{Allocator, StreamId};
use std::sync::Arc;

/// Most that a refusal takes.
const REFUSAL: Option<Goal> = Some(Goal::ns(5_000_000.0));
/// Most that statistics take.
const STATISTICS: Option<Goal> = Some(Goal::ns(2_000_000.0));

/// All rows.
pub fn rows(table: &mut Table) {
    refusals(table);
    statistics(table);
}

/// Requests that do not fit, with the report on each.
fn refusals(table: &mut Table) {
    for blocks in [10_000, 1_000_000] {
        for (bytes, size) in [(4 * KIB, "4 KiB"), (MIB, "1 MiB")] {
            let config = ModelConfig {
                capacity_bytes: bytes * blocks + 64 * MIB,
                max_mappings: usize::MAX,
                address_bits: 56,
                ..ModelConfig::default()
            };
            let builder = Allocator::builder(Arc::new(ModelDriver::new(config))).mapping_limit(usize::MAX);
            let allocator = builder.build().expect("it fits");
            for _ in 0..blocks {
                allocator.alloc_raw(bytes, StreamId::DEFAULT).expect("the memory suffices");
            }
            let cost = fastest(50, || {
                let refused = allocator.alloc_raw(128 * MIB, StreamId::DEFAULT);
                assert!(std::hint::black_box(refused).is_err());
            });
            table.row(&format!("refusal, n live blocks of {size}"), blocks, cost, REFUSAL);
        }
    }
}

/// Statistics of n streams.
fn statistics(table: &mut Table) {
    for count in [64, 1000, 4000] {
        let (allocator, _) = with_streams(count);
        let cost = fastest(50, || drop(std::hint::black_box(allocator.stats())));
        table.row("statistics, n streams", count, cost, STATISTICS);
    }
}
