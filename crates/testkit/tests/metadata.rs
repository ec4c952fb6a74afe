//! Compares the reported host memory with the memory that the structures really allocate.

use gapless::GRANULE;
use gapless::allocator::BlockState;
use gapless::driver::{ModelConfig, ModelDriver};
use gapless::internals::Heap;
use gapless::{Allocator, ChunkPolicy, StreamId};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

/// The system's allocator, with a count of the bytes that each thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: usize, sign: i64) {
    HELD.set(HELD.get() + sign * i64::try_from(bytes).expect("an allocation's size fits"));
}

// SAFETY: all calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller fulfils the same conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of bytes that `make` leaves allocated, and its result.
fn held<T>(make: impl FnOnce() -> T) -> (f64, T) {
    let before = HELD.get();
    let made = make();
    ((HELD.get() - before) as f64, made)
}

#[track_caller]
fn assert_near(reported: u64, counted: f64) {
    let ratio = reported as f64 / counted;
    assert!((0.75..1.25).contains(&ratio), "{reported} bytes reported, {counted} held");
}

/// Creates a heap in which every granule is a separate block.
fn granules(count: u64) -> Heap {
    let mut heap = Heap::new((count + 1) * GRANULE);
    heap.set(0, 0, count * GRANULE, BlockState::Free, 0);
    for _ in 0..count {
        heap.alloc(GRANULE, 0).unwrap();
    }
    heap
}

/// Asserts that `change` increases the heap's memory by as many bytes as the heap reports.
fn assert_grows_as_reported(heap: &mut Heap, change: impl FnOnce(&mut Heap)) {
    let reported = heap.metadata_bytes();
    let (counted, ()) = held(|| change(heap));
    assert!(counted > 1000.0, "too little to measure: {counted} bytes");
    assert_near(heap.metadata_bytes() - reported, counted);
}

#[test]
fn a_heap_reports_its_memory() {
    let (counted, heap) = held(|| Heap::new(GRANULE));
    assert_near(heap.metadata_bytes(), counted);
    // Records of blocks.
    let (counted, mut heap) = held(|| granules(100_000));
    assert_near(heap.metadata_bytes(), counted);
    // One bin with very many free blocks.
    assert_grows_as_reported(&mut heap, |heap| {
        for granule in (0..100_000).step_by(2) {
            heap.free(granule * GRANULE, 1).unwrap();
        }
    });
    // Bins with one free block each, and then unmapped ones. Their records exist already.
    let mut heap = Heap::new(1 << 40);
    let place = |number: u64| (number << 28, number * 700 * GRANULE);
    let set_all = |heap: &mut Heap, to: BlockState| {
        for number in 1..400 {
            let (start, size) = place(number);
            let first = if heap.block(start).is_some() { start } else { place(number - 1).0 + place(number - 1).1 };
            heap.set(first, start, size, to, 0);
        }
    };
    set_all(&mut heap, BlockState::Claimed);
    assert_grows_as_reported(&mut heap, |heap| set_all(heap, BlockState::Free));
    let mut heap = granules(20_000);
    for granule in (0..20_000).step_by(2) {
        heap.free(granule * GRANULE, 1).unwrap();
        heap.set(granule * GRANULE, granule * GRANULE, GRANULE, BlockState::Claimed, 0);
    }
    assert_grows_as_reported(&mut heap, |heap| {
        for granule in (0..20_000).step_by(2) {
            heap.set(granule * GRANULE, granule * GRANULE, GRANULE, BlockState::Hole, 0);
        }
    });
}

/// The figure that the design requires: first adjacent blocks, then blocks of other sizes in the space of freed ones.
/// The second and the third number are the worst within a doubling: a table has just grown.
#[test]
fn an_allocation_takes_at_most_128_bytes() {
    for count in [60_000, 94_974, 98_520] {
        let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 1 << 40, ..ModelConfig::default() }));
        let (counted, (allocator, mut live)) = held(|| {
            let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(2 << 20)).build().unwrap();
            let live: Vec<_> = (0..count).map(|_| allocator.alloc_raw(40 << 10, StreamId::DEFAULT).unwrap()).collect();
            (allocator, live)
        });
        let reported = || allocator.stats().metadata_bytes;
        assert_near(reported(), counted - size_of_val(&live[..]) as f64);
        assert!(reported() <= 128 * count, "{} bytes for {count} allocations", reported());
        let mut state = 1u64;
        for _ in 0..5 * count {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = &mut live[((state >> 33) % count) as usize];
            allocator.free(*block).unwrap();
            let bytes = (512 << ((state >> 20) % 9)) + (state >> 50) % 3000;
            *block = allocator.alloc_raw(bytes, StreamId::DEFAULT).unwrap();
        }
        assert!(reported() <= 128 * count, "{} bytes for {count} allocations among free blocks", reported());
    }
}
