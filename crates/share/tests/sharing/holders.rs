//! Who has what open, and an importer that is cut off.

use super::{MAIN, PAGE, allocator, device, eventually, fill, holds, turn};
use gapless_share::{Exporter, Importer};
use std::sync::Arc;

/// This process, which is both sides.
fn own() -> Option<u32> {
    Some(std::process::id())
}

/// Blocks, bytes and freed bytes of the only holder, if there is one.
fn held(exporter: &Exporter<super::Device>) -> Option<(usize, u64, u64)> {
    let holders = exporter.holders();
    assert!(holders.len() <= 1 && holders.iter().all(|holder| holder.process == own()), "{holders:?}");
    holders.first().map(|holder| (holder.blocks, holder.bytes, holder.freed_bytes))
}

#[test]
fn an_exporter_knows_who_has_what_open() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(8 * PAGE, PAGE), Exporter::new());
    assert_eq!(held(&exporter), None);
    let importers = [(); 2].map(|()| Importer::new(device(8 * PAGE)));
    let [one, two] = [1, 2].map(|pages| allocator.alloc_raw(pages * PAGE, MAIN).unwrap());
    let handles = [one, two].map(|block| exporter.export(&allocator, block).unwrap());
    assert_eq!(held(&exporter), None, "it is offered, and nobody has opened it");
    let first = [importers[0].open(&handles[0]).unwrap(), importers[0].open(&handles[1]).unwrap()];
    assert_eq!(held(&exporter), Some((2, 3 * PAGE, 0)));
    // Through another connection, and once more through the same.
    let second = [importers[1].open(&handles[1]).unwrap(), importers[0].open(&handles[1]).unwrap()];
    assert_eq!(held(&exporter), Some((2, 3 * PAGE, 0)));
    allocator.free(two).unwrap();
    assert_eq!(held(&exporter), Some((2, 3 * PAGE, 2 * PAGE)));
    drop(first);
    eventually("one block is closed", || held(&exporter) == Some((1, 2 * PAGE, 2 * PAGE)));
    drop(second);
    eventually("all is closed", || held(&exporter).is_none());
    allocator.free(one).unwrap();
}

#[test]
fn what_is_cut_off_keeps_what_it_sees_and_holds_nothing_up() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(8 * PAGE, PAGE), Exporter::new());
    let target = device(8 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    exporter.cut_off(own());
    let [freed, lives] = [4, 2].map(|pages| allocator.alloc_raw(pages * PAGE, MAIN).unwrap());
    fill(allocator.driver(), freed, 4 * PAGE, 1);
    fill(allocator.driver(), lives, 2 * PAGE, 2);
    let handles = [freed, lives].map(|block| exporter.export(&allocator, block).unwrap());
    let open = handles.clone().map(|handle| importer.open(&handle).unwrap());
    allocator.free(freed).unwrap();
    assert!(allocator.alloc_raw(6 * PAGE, MAIN).is_err(), "it is held for the importer");
    // Nobody of these numbers has anything open.
    [None, Some(0), Some(u32::MAX)].into_iter().for_each(|process| exporter.cut_off(process));
    assert_eq!(held(&exporter), Some((2, 6 * PAGE, 4 * PAGE)));

    exporter.cut_off(own());
    assert_eq!(held(&exporter), None);
    allocator.check();
    let later = allocator.alloc_raw(6 * PAGE, MAIN).unwrap();
    fill(allocator.driver(), later, 6 * PAGE, 3);
    assert!(holds(&target, open[0].addr(), 4 * PAGE, 1), "its memory is nobody else's");
    // Also of what is freed later.
    allocator.free(later).unwrap();
    allocator.free(lives).unwrap();
    let all = allocator.alloc_raw(8 * PAGE, MAIN).unwrap();
    fill(allocator.driver(), all, 8 * PAGE, 4);
    assert!(holds(&target, open[1].addr(), 2 * PAGE, 2), "its memory is nobody else's");
    allocator.check();
    drop(open);
    allocator.free(all).unwrap();

    // It may open something later.
    let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let again = importer.open(&exporter.export(&allocator, block).unwrap()).unwrap();
    assert_eq!(held(&exporter), Some((1, PAGE, 0)));
    drop(again);
    allocator.free(block).unwrap();
}
