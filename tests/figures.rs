//! The figures of snapshots, reports and statistics, exact to the byte.

use gapless::allocator::{BlockState, CloseError, RegionKind, RegionSnapshot};
use gapless::driver::{ModelConfig, ModelDriver, WorkDriver};
use gapless::units::{KIB, MIB};
use gapless::{Allocator, ChunkPolicy, StreamId};
use std::sync::Arc;

const PAGE: u64 = 2 * MIB;
const MAIN: StreamId = StreamId::DEFAULT;

fn allocator() -> (Arc<ModelDriver>, Allocator<ModelDriver>) {
    let driver = Arc::new(ModelDriver::new(ModelConfig::default()));
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    (driver, allocator)
}

#[test]
fn a_snapshot_has_the_requested_sizes() {
    let (_, allocator) = allocator();
    allocator.set_budget(5 * PAGE).unwrap();
    let block = allocator.alloc_raw(1000, MAIN).unwrap();
    let snapshot = allocator.snapshot();
    assert_eq!((snapshot.budget_bytes, snapshot.page_bytes), (5 * PAGE, PAGE));
    let blocks: Vec<_> = snapshot.regions.iter().flat_map(|region| &region.blocks).collect();
    let sizes: Vec<_> = blocks.iter().map(|block| (block.bytes, block.requested_bytes)).collect();
    assert_eq!((blocks[0].addr, &sizes[..]), (block, &[(KIB, 1000), (PAGE - KIB, 0)][..]));
    assert_eq!(snapshot.chunks.iter().map(|chunk| chunk.bytes).collect::<Vec<_>>(), [PAGE]);
}

#[test]
fn what_waits_has_its_requested_size_and_is_active_with_its_rounding() {
    let (driver, allocator) = allocator();
    let captured = driver.create_stream().unwrap();
    allocator.keep_stream(captured).unwrap();
    allocator.alloc_raw(100, MAIN).unwrap();
    let waiting = allocator.alloc_raw(1000, MAIN).unwrap();
    allocator.record_stream(waiting, captured).unwrap();
    assert_eq!(allocator.stats().figures().active_bytes, 512 + KIB);
    driver.begin_capture(captured);
    allocator.free(waiting).unwrap();
    let snapshot = allocator.snapshot();
    let block = snapshot.regions.iter().flat_map(|region| &region.blocks).find(|block| block.addr == waiting).unwrap();
    assert_eq!((block.state, block.bytes, block.requested_bytes), (BlockState::Pending, KIB, 1000));
    let figures = allocator.stats().figures();
    assert_eq!((figures.live_bytes, figures.active_bytes), (100, 512 + KIB), "what waits is active");
}

#[test]
fn a_snapshot_lists_the_streams_that_use_a_block() {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 2 * PAGE, ..ModelConfig::default() }));
    let (other, third) = (driver.create_stream().unwrap(), driver.create_stream().unwrap());
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let blocks = [(); 2].map(|()| allocator.alloc_raw(PAGE, MAIN).unwrap());
    allocator.free(blocks[1]).unwrap();
    let reused = allocator.alloc_raw(PAGE / 2, other).unwrap();
    assert_eq!((reused, allocator.stats().borrowed), (blocks[1], 1), "there is no other memory");
    for stream in [other, third, third, MAIN] {
        allocator.record_stream(reused, stream).unwrap();
    }
    let snapshot = allocator.snapshot();
    let users: Vec<_> = snapshot.regions.iter().flat_map(|region| &region.blocks).collect();
    let users: Vec<_> = users.iter().map(|block| (block.addr, block.borrowed_by, &block.recorded_on[..])).collect();
    let rest = reused.offset(PAGE / 2);
    assert_eq!(users, [(blocks[0], None, &[][..]), (reused, Some(other), &[third, MAIN]), (rest, None, &[])]);
}

#[test]
fn a_report_names_memory_that_waits() {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 5 * PAGE, ..ModelConfig::default() }));
    let captured = driver.create_stream().unwrap();
    driver.set_external(PAGE);
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    allocator.keep_stream(captured).unwrap();
    let waiting = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
    allocator.record_stream(waiting, captured).unwrap();
    driver.begin_capture(captured);
    allocator.free(waiting).unwrap();
    let _small = allocator.alloc_raw(100, captured).unwrap();
    let error = allocator.alloc_raw(3 * PAGE, MAIN).unwrap_err();
    let report = error.report().unwrap();
    assert_eq!((report.pending_bytes, report.cached_bytes), (2 * PAGE, PAGE - 512));
    assert_eq!((report.free_bytes, report.obtainable_bytes, report.others_bytes), (4 * PAGE - 512, PAGE, PAGE));
    assert_eq!((report.pinned.by_pending_bytes, report.pinned.by_live_bytes), (2 * PAGE, PAGE - 512));
    // After the capture the same request is served.
    let verdict = report.verdict();
    assert!(
        report.stopped_by_capture && verdict.starts_with("8.00 MiB are free, but a stream is being captured"),
        "{verdict}"
    );
    let text = report.to_string();
    assert!(text.contains(" 4 MiB waiting for streams"), "{text}");
    driver.end_capture(captured);
    allocator.alloc_raw(3 * PAGE, MAIN).unwrap();
    let error = allocator.alloc_raw(PAGE, MAIN).unwrap_err();
    let verdict = error.report().unwrap().verdict();
    assert!(verdict.starts_with("No allocator could have served this: 2 MiB were asked for"), "{verdict}");
}

/// On a device that was used once, blocks of a few MiB are cut out of large free chunks, and keep the rest of them from a large
/// request.
#[test]
fn a_report_names_whole_pages_that_are_held_beside_blocks() {
    const DEVICE: u64 = 64 << 30;
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: DEVICE, ..ModelConfig::default() }));
    let allocator = Allocator::builder(driver).build().unwrap();
    let all = allocator.alloc_raw(DEVICE, MAIN).unwrap();
    allocator.free(all).unwrap();
    let pairs: Vec<_> =
        (0..400).map(|_| [100 * MIB, 3 * MIB].map(|bytes| allocator.alloc_raw(bytes, MAIN).unwrap())).collect();
    pairs.iter().for_each(|[large, _]| allocator.free(*large).unwrap());
    let error = allocator.alloc_raw(60 << 30, MAIN).unwrap_err();
    let report = error.report().unwrap();
    // What is free but neither in free chunks nor in whole pages lies in pages with a live byte.
    let in_used_pages = report.free_bytes - report.obtainable_bytes - report.pinned.whole_page_bytes;
    assert!(report.pinned.whole_page_bytes > 0 && in_used_pages < 400 * 2 * PAGE, "{report}");
    assert!(report.verdict().contains(" are whole pages in chunks of several pages"), "{report}");
    // A trim in time avoids it.
    let live: Vec<_> = pairs.iter().map(|[_, small]| *small).collect();
    live.into_iter().for_each(|block| allocator.free(block).unwrap());
    allocator.trim(0).unwrap();
    let kept = allocator.alloc_raw(MIB, MAIN).unwrap();
    let error = allocator.alloc_raw(DEVICE, MAIN).unwrap_err();
    assert_eq!(error.report().unwrap().pinned.whole_page_bytes, 0, "{error}");
    allocator.free(kept).unwrap();
}

/// Memory that waits for a stream counts as available: a request that needs it waits as well, if the stream has not passed yet.
#[test]
fn remapping_counts_what_waits_for_streams() {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 9 * PAGE, ..ModelConfig::default() }));
    let user = driver.create_stream().unwrap();
    let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    allocator.keep_stream(user).unwrap();
    // A free page, three that wait whole, one of which a part waits and a part is free, one with a live block, and one that is
    // pinned as well.
    let before = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let waiting = allocator.alloc_raw(3 * PAGE + PAGE / 2, MAIN).unwrap();
    let [free, live, beside] = [(); 3].map(|()| allocator.alloc_raw(PAGE / 2, MAIN).unwrap());
    let pinned = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let pin = allocator.pin(pinned).unwrap();
    driver.hold(user);
    for block in [waiting, beside, pinned] {
        allocator.record_stream(block, user).unwrap();
        allocator.free(block).unwrap();
    }
    allocator.free(before).unwrap();
    allocator.free(free).unwrap();
    let fragmentation = allocator.stats().fragmentation;
    assert_eq!(fragmentation.largest_with_remapping_bytes, (5 + 2) * PAGE, "{fragmentation:?}");
    driver.resume(user);
    assert_eq!(allocator.stats().fragmentation, fragmentation, "nobody has asked the stream");
    let all = allocator.alloc_raw(fragmentation.largest_with_remapping_bytes, MAIN).unwrap();
    for block in [all, live] {
        allocator.free(block).unwrap();
    }
    drop(pin);
    allocator.check();
}

#[test]
fn small_blocks_are_below_64_kib() {
    let (_, allocator) = allocator();
    for (bytes, kind) in [(64 * KIB - 512, RegionKind::Small), (64 * KIB, RegionKind::Large)] {
        let block = allocator.alloc_raw(bytes, MAIN).unwrap();
        let snapshot = allocator.snapshot();
        let holds = |region: &&RegionSnapshot| (region.addr..region.addr.offset(region.bytes)).contains(&block);
        assert_eq!(snapshot.regions.iter().find(holds).unwrap().kind, kind);
    }
}

#[test]
fn fragmentation_is_measured_with_and_without_remapping() {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 6 * PAGE, ..ModelConfig::default() }));
    let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let blocks = [(); 5].map(|()| allocator.alloc_raw(PAGE, MAIN).unwrap());
    for number in [0, 2, 3] {
        allocator.free(blocks[number]).unwrap();
    }
    let fragmentation = allocator.stats().fragmentation;
    assert_eq!(fragmentation.largest_cached_bytes, 2 * PAGE);
    assert_eq!((fragmentation.free_bytes, fragmentation.largest_with_remapping_bytes), (4 * PAGE, 4 * PAGE));
    allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
}

#[test]
fn a_report_counts_free_pages() {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 6 * PAGE, ..ModelConfig::default() }));
    let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let blocks = [(); 5].map(|()| allocator.alloc_raw(PAGE, MAIN).unwrap());
    allocator.free(blocks[1]).unwrap();
    allocator.free(blocks[3]).unwrap();
    let error = allocator.alloc_raw(4 * PAGE, MAIN).unwrap_err();
    let report = error.report().unwrap();
    assert_eq!((report.free_bytes, report.obtainable_bytes, report.live_bytes), (3 * PAGE, 3 * PAGE, 3 * PAGE));
}

#[test]
fn chunks_that_move_are_counted() {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes: 4 * PAGE, ..ModelConfig::default() }));
    let allocator = Allocator::builder(driver).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
    let blocks = [(); 4].map(|()| allocator.alloc_raw(PAGE, MAIN).unwrap());
    let moved = || (allocator.stats().harvested_chunks, allocator.stats().reused_views);
    allocator.free(blocks[0]).unwrap();
    allocator.free(blocks[2]).unwrap();
    let joined = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
    assert_eq!(moved(), (2, 0));
    allocator.free(joined).unwrap();
    allocator.free(blocks[1]).unwrap();
    assert_eq!(allocator.alloc_raw(3 * PAGE, MAIN).unwrap(), blocks[0], "both chunks are still mapped there");
    assert_eq!(moved(), (4, 2));
}

#[test]
fn sizes_are_counted_by_powers_of_two() {
    let (_, allocator) = allocator();
    for bytes in [0, 100, 512, 1024, 3 * KIB, PAGE] {
        allocator.alloc_raw(bytes, MAIN).unwrap();
    }
    let sizes: Vec<_> = allocator.stats().sizes.iter().map(|range| (range.from_bytes, range.allocs)).collect();
    assert_eq!(sizes, [(512, 3), (KIB, 1), (2 * KIB, 1), (PAGE, 1)]);
}

#[test]
fn peaks_can_be_reset() {
    let (_, allocator) = allocator();
    let blocks = [3 * PAGE, PAGE].map(|bytes| allocator.alloc_raw(bytes, MAIN).unwrap());
    allocator.free(blocks[0]).unwrap();
    allocator.trim(0).unwrap();
    let peaks = || {
        let stats = allocator.stats();
        (stats.peak_live_bytes, stats.peak_reserved_bytes)
    };
    assert_eq!(peaks(), (4 * PAGE, 4 * PAGE));
    allocator.reset_peaks();
    assert_eq!(peaks(), (PAGE, PAGE));
}

#[test]
fn a_trim_keeps_the_requested_bytes() {
    let (_, allocator) = allocator();
    let blocks = [(); 4].map(|()| allocator.alloc_raw(PAGE, MAIN).unwrap());
    blocks.iter().for_each(|block| allocator.free(*block).unwrap());
    for (keep, released, held) in [(4 * PAGE, 0, 4), (2 * PAGE, 2, 2), (2 * PAGE - 1, 1, 1), (0, 1, 0)] {
        let trimmed = allocator.trim(keep).unwrap();
        assert_eq!((trimmed.released_bytes, trimmed.held_bytes), (released * PAGE, held * PAGE), "{keep}");
    }
}

#[test]
fn leaks_are_listed() {
    let (driver, allocator) = allocator();
    let other = driver.create_stream().unwrap();
    let blocks = [(KIB, MAIN), (2 * KIB, other)].map(|(bytes, stream)| allocator.alloc_raw(bytes, stream).unwrap());
    let error = allocator.close().unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("2 allocations of 3 KiB were never freed; 1 KiB at "), "{text}");
    assert!(text.ends_with(&format!("; 2 KiB at {} on {other:?}", blocks[1])), "{text}");
    let CloseError::Leaked(leaks) = error else { panic!("{error:?}") };
    assert_eq!(
        leaks.iter().map(|leak| (leak.addr, leak.bytes)).collect::<Vec<_>>(),
        [(blocks[0], KIB), (blocks[1], 2 * KIB)]
    );
}
