//! Tests: what others free while a plan looks at the streams one after the other.

use super::{Allocator, ChunkPolicy};
use crate::driver::{ModelConfig, ModelDriver, WorkDriver};
use crate::testing::{cancel_interruption, interrupt_after};
use crate::units::{MIB, StreamId};
use std::sync::Arc;

const PAGE: u64 = 2 * MIB;

/// A request is refused because of what is free at one moment. Memory that is freed where nobody looks any more is seen all the
/// same, after whichever copy that is.
#[test]
fn what_is_freed_behind_the_last_look_is_found() {
    let mut copies = 0;
    loop {
        let config = ModelConfig { capacity_bytes: 4 * PAGE, ..ModelConfig::default() };
        let builder = Allocator::builder(Arc::new(ModelDriver::new(config))).slack(f64::INFINITY);
        let allocator = builder.chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let other = allocator.driver().create_stream().unwrap();
        let blocks: Vec<_> = (0..4).map(|_| allocator.alloc_raw(PAGE, StreamId::DEFAULT).unwrap()).collect();
        allocator.free(blocks[0]).unwrap();
        let (freeing, block) = (allocator.clone(), blocks[2]);
        interrupt_after(copies, move || freeing.free(block).unwrap());
        let served = allocator.alloc_raw(2 * PAGE, other);
        if cancel_interruption() {
            // One page was free all the time.
            assert!(served.is_err());
            break;
        }
        served.unwrap_or_else(|error| panic!("two pages were free after copy {copies}: {error}"));
        allocator.check();
        copies += 1;
    }
    assert!(copies > 4, "both streams were looked at more than once");
}
