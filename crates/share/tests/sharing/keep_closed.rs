//! Closed blocks that stay mapped, for senders that send the same ones again.

use super::{MAIN, PAGE, allocator, device, fill, holds, turn};
use gapless::driver::{DriverCall, DriverCalls, DriverErrorKind, Fault};
use gapless_share::{Exporter, Importer, ShareError};
use std::sync::Arc;

/// Closed blocks that stay mapped: to the exporter they are closed, and they are opened again without the driver.
#[test]
fn closed_blocks_that_stay_mapped() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(64 * PAGE, PAGE), Exporter::new());
    let target = device(64 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    importer.keep_closed(4 * PAGE);
    let half = PAGE / 2;
    let blocks = [half, half, 2 * PAGE, 3 * PAGE].map(|bytes| allocator.alloc_raw(bytes, MAIN).unwrap());
    let handles = blocks.map(|block| exporter.export(&allocator, block).unwrap());
    let calls = || target.passed();
    let since = |before: &DriverCalls| {
        let made = calls().since(before);
        [DriverCall::Import, DriverCall::Map, DriverCall::Unmap].map(|call| made[call])
    };
    let addr = importer.open(&handles[0]).unwrap().addr();
    fill(allocator.driver(), blocks[0], half, 1);
    let before = calls();
    let again = importer.open(&handles[0]).unwrap();
    assert!(holds(&target, again.addr(), half, 1));
    assert_eq!((again.addr(), since(&before)), (addr, [0, 0, 0]));
    // While it is open, its chunk is that of its neighbour, too.
    drop(importer.open(&handles[1]).unwrap());
    assert_eq!(since(&before), [0, 1, 0]);
    drop(again);
    // Once nothing in it is open, the exporter may have another chunk of that number.
    allocator.free(blocks[0]).unwrap();
    assert_eq!(allocator.stats().pending_bytes, 0, "to the exporter it is closed");
    let before = calls();
    let other = allocator.alloc_raw(half, MAIN).unwrap();
    assert_eq!(other, blocks[0]);
    fill(allocator.driver(), other, half, 2);
    let other = importer.open(&exporter.export(&allocator, other).unwrap()).unwrap();
    assert!(holds(&target, other.addr(), half, 2));
    assert_eq!(since(&before), [1, 1, 2]);
    drop(other);
    // Four pages at most: those closed first go, and what has more is not kept.
    drop(importer.open(&handles[2]).unwrap());
    drop(importer.open(&handles[1]).unwrap());
    assert_eq!((target.inner().usage().mappings, importer.imported_chunks()), (3, 3));
    drop(importer.open(&handles[3]).unwrap());
    let usage = target.inner().usage();
    assert!(usage.mappings <= 4, "{usage:?}");
    // A block that is gone is not kept either, nor one of an exporter that has ended.
    let third = importer.open(&handles[2]).unwrap();
    allocator.free(blocks[2]).unwrap();
    drop(third);
    assert!(matches!(importer.open(&handles[2]), Err(ShareError::Gone)));
    drop(importer.open(&handles[1]).unwrap());
    assert_eq!(importer.imported_chunks(), 1);
    drop(exporter);
    assert!(matches!(importer.open(&handles[1]), Err(ShareError::ExporterGone(_))));
    assert!(target.inner().usage().is_empty(), "{:?}", target.inner().usage());
}

/// As much as is kept mapped is kept, to the byte.
#[test]
fn a_block_as_large_as_what_is_kept() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(8 * PAGE, PAGE), Exporter::new());
    let target = device(8 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let handle = exporter.export(&allocator, block).unwrap();
    let imports_of_two = |kept| {
        importer.keep_closed(kept);
        let before = target.passed()[DriverCall::Import];
        for _ in 0..2 {
            drop(importer.open(&handle).unwrap());
        }
        target.passed()[DriverCall::Import] - before
    };
    assert_eq!([PAGE - 1, PAGE].map(imports_of_two), [2, 1]);
    importer.keep_closed(0);
    assert!(target.inner().usage().is_empty(), "{:?}", target.inner().usage());
}

/// The block that was closed first is given up first, and one that was used again meanwhile is not the first any more.
#[test]
fn the_mapping_that_was_closed_first_goes_first() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(64 * PAGE, PAGE), Exporter::new());
    let target = device(64 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    importer.keep_closed(3 * PAGE);
    let blocks = [(); 4].map(|()| allocator.alloc_raw(PAGE, MAIN).unwrap());
    let handles = blocks.map(|block| exporter.export(&allocator, block).unwrap());
    let imports_for = |which: usize| {
        let before = target.passed()[DriverCall::Import];
        drop(importer.open(&handles[which]).unwrap());
        target.passed()[DriverCall::Import] - before
    };
    assert_eq!([0, 1, 2, 0, 3].map(imports_for), [1, 1, 1, 0, 1]);
    assert_eq!([2, 0, 3, 1].map(imports_for), [0, 0, 0, 1], "the second was the one closed longest ago");
    assert_eq!([0, 3, 2].map(imports_for), [0, 0, 1]);
}

/// A mapping that the driver does not unmap stays kept; a chunk of its number is not opened before it is gone.
#[test]
fn what_is_kept_and_not_unmapped_is_tried_again() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(64 * PAGE, PAGE), Exporter::new());
    let target = device(64 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    importer.keep_closed(u64::MAX);
    let blocks = [(); 2].map(|()| allocator.alloc_raw(PAGE / 2, MAIN).unwrap());
    let handles = blocks.map(|block| exporter.export(&allocator, block).unwrap());
    drop(importer.open(&handles[0]).unwrap());
    target.arm(Fault::nth(0, DriverErrorKind::Other).only([DriverCall::Unmap]));
    assert!(matches!(importer.open(&handles[1]), Err(ShareError::Driver(_))));
    assert_eq!(target.fired(), 1);
    target.disarm();
    drop(importer.open(&handles[1]).unwrap());
    target.arm(Fault::nth(0, DriverErrorKind::Other).only([DriverCall::Unmap]));
    importer.keep_closed(0);
    target.disarm();
    assert_eq!(importer.imported_chunks(), 1);
    importer.keep_closed(0);
    assert!(target.inner().usage().is_empty(), "{:?}", target.inner().usage());
    for block in blocks {
        allocator.free(block).unwrap();
    }
    allocator.trim(0).unwrap();
    assert_eq!(allocator.stats().reserved_bytes, 0, "nothing is pinned");
}
