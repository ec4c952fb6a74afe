//! Tickets name one live block, and never a later one at its address; pins know the chunks under their block.

use gapless::allocator::FreeError;
use gapless::driver::{ModelConfig, ModelDriver};
use gapless::{Allocator, ChunkPolicy, StreamId};
use std::sync::Arc;

const PAGE: u64 = 2 << 20;
const MAIN: StreamId = StreamId::DEFAULT;

fn allocator(chunk: u64) -> Allocator<ModelDriver> {
    let config = ModelConfig { capacity_bytes: 64 * PAGE, ..ModelConfig::default() };
    let builder = Allocator::builder(Arc::new(ModelDriver::new(config)));
    builder.chunk_policy(ChunkPolicy::Fixed(chunk)).build().unwrap()
}

#[test]
fn a_ticket_is_of_one_block() {
    let allocator = allocator(PAGE);
    let addr = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let ticket = allocator.ticket(addr).unwrap();
    assert_eq!((ticket.addr(), ticket.bytes(), ticket.is_live()), (addr, PAGE, true));
    assert!(ticket == allocator.ticket(addr).unwrap() && ticket == ticket.clone());
    assert!(matches!(allocator.ticket(addr.offset(512)), Err(FreeError::NotAllocated { .. })));
    allocator.check();

    // The same address again: another block.
    allocator.free(addr).unwrap();
    allocator.check();
    assert!(!ticket.is_live() && ticket.pin().is_none());
    assert_eq!(allocator.alloc_raw(PAGE, MAIN).unwrap(), addr);
    assert!(!ticket.is_live() && ticket.pin().is_none());
    let second = allocator.ticket(addr).unwrap();
    assert!(second != ticket && second.is_live() && !ticket.is_live());

    // The pin keeps the block; the ticket ends with its free all the same.
    let pin = second.pin().unwrap();
    assert_eq!((pin.addr(), pin.bytes()), (addr, PAGE));
    allocator.free(addr).unwrap();
    assert!(!second.is_live() && second.pin().is_none());
    assert_ne!(allocator.alloc_raw(PAGE, MAIN).unwrap(), addr);
    allocator.check();
    drop(pin);
    assert_eq!(allocator.alloc_raw(PAGE, MAIN).unwrap(), addr);
    assert!(second.pin().is_none());
}

#[test]
fn a_ticket_keeps_no_allocator() {
    let allocator = allocator(PAGE);
    let addr = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let ticket = allocator.ticket(addr).unwrap();
    allocator.free(addr).unwrap();
    allocator.close().unwrap();
    assert!(!ticket.is_live() && ticket.pin().is_none());
}

#[test]
fn a_pin_knows_the_chunks_under_its_block() {
    let allocator = allocator(2 * PAGE);
    let [one, two] = [(); 2].map(|()| allocator.alloc_raw(PAGE / 2, MAIN).unwrap());
    let large = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
    let chunks = |addr| allocator.pin(addr).unwrap().chunks().unwrap();
    // Two blocks have a half each of one chunk.
    assert_eq!(chunks(one), chunks(two));
    assert_eq!(chunks(one).iter().map(|chunk| (chunk.addr, chunk.bytes)).collect::<Vec<_>>(), [(one, PAGE)]);
    let large: Vec<_> = chunks(large);
    assert_eq!(large.iter().map(|chunk| chunk.bytes).sum::<u64>(), 4 * PAGE);
    assert!(large.windows(2).all(|pair| pair[1].addr == pair[0].addr.offset(pair[0].bytes)));
    let known = allocator.snapshot().chunks;
    for chunk in large.iter().chain(&chunks(one)) {
        assert!(known.iter().any(|one| one.handle == chunk.handle.0 && one.active == Some(chunk.addr)));
    }
}
