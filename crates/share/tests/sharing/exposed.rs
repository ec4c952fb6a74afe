//! Receivers that keep what they were given, after the sender has freed it.

use super::{MAIN, PAGE, allocator, device, eventually, fill, holds, turn};
use gapless::Allocator;
use gapless_share::{Exporter, Importer};
use std::sync::Arc;

/// What a receiver sees at the addresses of a block that it has closed and keeps mapped, or still has open, once the sender has
/// freed it and filled a block of the same size: whether that is the old bytes.
fn sees_what_it_was_sent(exporter: &Exporter<super::Device>, stays_open: bool) -> bool {
    let allocator: Allocator<super::Device> = allocator(8 * PAGE, PAGE);
    let target = device(8 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    importer.keep_closed(8 * PAGE);
    let block = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
    fill(allocator.driver(), block, 2 * PAGE, 1);
    let open = importer.open(&exporter.export(&allocator, block).unwrap()).unwrap();
    let addr = open.addr();
    let open = stays_open.then_some(open);
    allocator.free(block).unwrap();
    let mut later = vec![allocator.alloc_raw(2 * PAGE, MAIN).unwrap()];
    later.push(allocator.alloc_raw(if stays_open { 4 * PAGE } else { 6 * PAGE }, MAIN).unwrap());
    allocator.check();
    for (block, bytes) in later.iter().zip([2 * PAGE, 4 * PAGE]) {
        fill(allocator.driver(), *block, bytes, 2);
    }
    let is_as_sent = holds(&target, addr, 2 * PAGE, 1);
    drop(open);
    later.into_iter().for_each(|block| allocator.free(block).unwrap());
    eventually("all is had again", || match allocator.alloc_raw(8 * PAGE, MAIN) {
        Ok(all) => allocator.free(all).is_ok(),
        Err(_) => false,
    });
    allocator.check();
    is_as_sent
}

#[test]
fn who_keeps_an_exposed_block_does_not_see_what_comes_later() {
    let _turn = turn();
    for stays_open in [false, true] {
        assert!(sees_what_it_was_sent(&Exporter::exposing(), stays_open), "open: {stays_open}");
    }
    // Else it does, but for what is open.
    assert!(!sees_what_it_was_sent(&Exporter::new(), false));
    assert!(sees_what_it_was_sent(&Exporter::new(), true));
}
