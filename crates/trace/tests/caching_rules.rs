//! The baseline's rules under PyTorch's settings, one by one.

use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::{DeviceAddr, MIB, StreamId};
use gapless_trace::caching::{CachingAllocator, CachingError, FreeBlock};
use std::sync::Arc;

/// An allocator on a device of some MiB, in whose tests all sizes are MiB.
struct Case(CachingAllocator<ModelDriver>);

impl Case {
    fn new(settings: &str, capacity: u64) -> Self {
        let config = ModelConfig { capacity_bytes: capacity * MIB, ..ModelConfig::default() };
        Self(CachingAllocator::new(Arc::new(ModelDriver::new(config)), settings.parse().unwrap()))
    }

    fn alloc(&mut self, size: u64) -> DeviceAddr {
        self.0.alloc(size * MIB, StreamId::DEFAULT).unwrap()
    }

    fn free(&mut self, addr: DeviceAddr) {
        self.0.free(addr).unwrap();
    }

    fn reserved(&self) -> u64 {
        self.0.figures().reserved_bytes / MIB
    }

    fn is_out_of_memory(&mut self, size: u64) -> bool {
        matches!(self.0.alloc(size * MIB, StreamId::DEFAULT), Err(CachingError::OutOfMemory(_)))
    }

    fn free_sizes(&self) -> Vec<u64> {
        self.0.free_blocks().map(|FreeBlock { bytes, .. }| bytes / MIB).collect()
    }
}

#[test]
fn an_expandable_segment_grows_where_it_ends() {
    let mut case = Case::new("expandable_segments:True", 200);
    let first = case.alloc(30);
    assert_eq!((case.reserved(), case.free_sizes()), (40, vec![10]), "two handles of 20 MiB");
    let second = case.alloc(30);
    assert_eq!(second, first.offset(30 * MIB), "the free rest of a handle and a new one are one block");
    assert_eq!(case.reserved(), 60);
    case.free(first);
    case.free(second);
    assert_eq!(case.alloc(60), first, "free neighbours are one block");
    assert_eq!(case.reserved(), 60);
}

#[test]
fn small_requests_have_an_expandable_segment_of_their_own() {
    let mut case = Case::new("expandable_segments:True", 200);
    case.alloc(30);
    assert_eq!(case.0.alloc(512, StreamId::DEFAULT).map(|_| case.reserved()).unwrap(), 42, "a handle of 2 MiB");
}

#[test]
fn a_free_block_that_can_grow_less_is_preferred() {
    let mut case = Case::new("expandable_segments:True", 400);
    let small = case.alloc(30);
    let _between = case.alloc(10);
    let at_end = case.alloc(20);
    assert_eq!(case.reserved(), 60);
    case.free(small);
    case.free(at_end);
    assert_eq!(case.free_sizes(), [20, 30]);
    assert_eq!(case.alloc(15), small, "the smaller block is the one that the segment grows at");
}

#[test]
fn handles_without_live_blocks_are_unmapped_after_a_wait() {
    let mut case = Case::new("expandable_segments:True", 200);
    let kept = case.alloc(10);
    let gone = case.alloc(50);
    case.free(gone);
    case.0.empty_cache().unwrap();
    assert_eq!((case.reserved(), case.free_sizes()), (20, vec![10]), "the handle of the live block stays whole");
    assert_eq!(case.0.figures().host_waits, 1);
    let again = case.alloc(50);
    assert_eq!(again, gone, "free and unmapped addresses together serve a request");
    case.free(again);
    case.free(kept);
    case.0.empty_cache().unwrap();
    assert_eq!(case.reserved(), 0);
}

#[test]
fn cached_memory_is_unmapped_when_a_request_finds_none() {
    let mut case = Case::new("expandable_segments:True", 60);
    let small = case.0.alloc(512, StreamId::DEFAULT).unwrap();
    let large = case.alloc(40);
    case.free(small);
    case.free(large);
    assert_eq!(case.reserved(), 42);
    case.alloc(60);
    assert_eq!((case.reserved(), case.0.figures().host_waits), (60, 2), "a wait for each block that is unmapped");
    assert!(case.is_out_of_memory(2));
}

#[test]
fn oversize_blocks_are_not_split() {
    let mut case = Case::new("max_split_size_mb:64", 400);
    let oversize = case.alloc(100);
    case.free(oversize);
    assert_ne!(case.alloc(2), oversize);
    assert_eq!(case.reserved(), 120, "a request below the limit gets a segment of its own");
    assert_ne!(case.alloc(70), oversize);
    assert_eq!(case.reserved(), 190, "30 MiB would be wasted");
    assert_eq!(case.alloc(90), oversize);
    assert_eq!(case.free_sizes(), [18], "the block is not split");
}

#[test]
fn oversize_blocks_are_given_back_before_anything_else() {
    let mut case = Case::new("max_split_size_mb:64", 124);
    let oversize = case.alloc(100);
    let small = case.0.alloc(512, StreamId::DEFAULT).unwrap();
    case.free(small);
    case.free(oversize);
    case.alloc(30);
    assert_eq!(case.reserved(), 32, "the segment of small blocks stays");
    assert_eq!(case.0.figures().host_waits, 1);
}

#[test]
fn several_oversize_blocks_make_room_for_a_larger_one() {
    let mut case = Case::new("max_split_size_mb:64", 260);
    let blocks = [case.alloc(70), case.alloc(80), case.alloc(100)];
    for block in blocks {
        case.free(block);
    }
    case.alloc(150);
    assert_eq!(case.reserved(), 150 + 70, "the largest two are enough");
}

#[test]
fn old_blocks_are_collected_above_the_threshold() {
    let collect = "garbage_collection_threshold:0.5,per_process_memory_fraction:1";
    for (settings, reserved) in [(collect, 70 + 80), ("garbage_collection_threshold:0.5", 60 + 70 + 80)] {
        let mut case = Case::new(settings, 220);
        let old = case.alloc(60);
        case.free(old);
        let young = case.alloc(70);
        case.free(young);
        case.alloc(80);
        assert_eq!(case.reserved(), reserved, "{settings}");
    }
}

#[test]
fn below_the_threshold_nothing_is_collected() {
    let mut case = Case::new("garbage_collection_threshold:0.6,per_process_memory_fraction:1", 220);
    let old = case.alloc(60);
    case.free(old);
    let young = case.alloc(70);
    case.free(young);
    case.alloc(80);
    assert_eq!(case.reserved(), 210);
}

#[test]
fn no_more_than_the_fraction_is_reserved() {
    let mut case = Case::new("per_process_memory_fraction:0.5", 200);
    let block = case.alloc(100);
    assert!(case.is_out_of_memory(1));
    case.free(block);
    case.alloc(60);
    assert_eq!(case.reserved(), 100);
}

#[test]
fn blocks_are_as_large_as_divisions_of_powers_of_two() {
    let mut case = Case::new("roundup_power2_divisions:8", 200);
    case.alloc(17);
    assert_eq!(case.0.figures().live_bytes, 18 * MIB);
}
