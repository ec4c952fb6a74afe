//! The contract of memory: addresses, chunks, mappings, and the work that touches them.

use super::{MAIN, Mapped, Subject, kind};
use gapless::driver::DriverErrorKind;
use gapless::units::{DeviceAddr, TIB};

const OOM: Option<DriverErrorKind> = Some(DriverErrorKind::OutOfMemory);
const INVALID: Option<DriverErrorKind> = Some(DriverErrorKind::InvalidValue);

pub fn the_page_is_a_constant_power_of_two<D: Subject>(driver: &D) {
    let page = driver.granularity();
    assert!(page.is_power_of_two());
    let chunk = driver.create(page).unwrap();
    assert_eq!(driver.granularity(), page);
    driver.release(chunk).unwrap();
}

pub fn reservations_are_aligned_and_apart<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let mut taken: Vec<(DeviceAddr, u64)> = Vec::new();
    for (pages, alignment) in [(1, page), (3, 4 * page), (1, 64 * page), (1000, page), (2, 2 * page)] {
        let addr = driver.reserve(pages * page, alignment).unwrap();
        assert!(addr.is_aligned(alignment), "{addr} is not aligned to {alignment}");
        let apart = |&(other, bytes): &(DeviceAddr, u64)| other.0 + bytes <= addr.0 || addr.0 + pages * page <= other.0;
        assert!(taken.iter().all(apart));
        taken.push((addr, pages * page));
    }
    for (addr, bytes) in taken {
        driver.address_free(addr, bytes).unwrap();
    }
}

pub fn addresses_cost_no_memory<D: Subject>(driver: &D) {
    let free = driver.memory_info().unwrap().free;
    let addr = driver.reserve(TIB, driver.granularity()).unwrap();
    assert_eq!(driver.memory_info().unwrap().free, free);
    driver.address_free(addr, TIB).unwrap();
}

pub fn malformed_and_oversized_reservations_are_errors<D: Subject>(driver: &D) {
    let page = driver.granularity();
    assert_eq!(kind(driver.reserve(0, page)), INVALID);
    assert_eq!(kind(driver.reserve(page + 1, page)), INVALID);
    assert_eq!(kind(driver.reserve(1 << 60, page)), OOM);
    let addr = driver.reserve(page, page).unwrap();
    driver.address_free(addr, page).unwrap();
}

pub fn create_takes_memory_and_release_returns_it<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let before = driver.memory_info().unwrap();
    let chunks = [1, 4, 2].map(|pages| driver.create(pages * page).unwrap());
    let during = driver.memory_info().unwrap();
    assert_eq!((during.free, during.total), (before.free - 7 * page, before.total));
    for chunk in chunks {
        driver.release(chunk).unwrap();
    }
    assert_eq!(driver.memory_info().unwrap(), before);
}

pub fn too_much_memory_is_an_error_without_effect<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let free = driver.memory_info().unwrap().free;
    assert_eq!(kind(driver.create(free + page)), OOM);
    assert_eq!(driver.memory_info().unwrap().free, free);
    let most = driver.create(free - page).unwrap();
    assert_eq!(kind(driver.create(2 * page)), OOM);
    let last = driver.create(page).unwrap();
    assert_eq!(kind(driver.create(page)), OOM);
    driver.release(last).unwrap();
    let again = driver.create(page).unwrap();
    driver.release(again).unwrap();
    driver.release(most).unwrap();
}

pub fn memory_is_held_until_the_last_alias_is_unmapped<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let before = driver.memory_info().unwrap().free;
    let addr = driver.reserve(4 * page, page).unwrap();
    let chunk = driver.create(2 * page).unwrap();
    driver.map(addr, 2 * page, chunk).unwrap();
    driver.map(addr.offset(2 * page), 2 * page, chunk).unwrap();
    driver.release(chunk).unwrap();
    assert_eq!(driver.memory_info().unwrap().free, before - 2 * page, "aliases count once");
    driver.unmap(addr, 2 * page).unwrap();
    assert_eq!(driver.memory_info().unwrap().free, before - 2 * page);
    driver.unmap(addr.offset(2 * page), 2 * page).unwrap();
    assert_eq!(driver.memory_info().unwrap().free, before);
    driver.address_free(addr, 4 * page).unwrap();
}

pub fn memory_is_held_while_its_handle_exists<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let before = driver.memory_info().unwrap().free;
    let addr = driver.reserve(page, page).unwrap();
    let chunk = driver.create(page).unwrap();
    driver.map(addr, page, chunk).unwrap();
    driver.unmap(addr, page).unwrap();
    assert_eq!(driver.memory_info().unwrap().free, before - page);
    driver.map(addr, page, chunk).unwrap();
    driver.unmap(addr, page).unwrap();
    driver.release(chunk).unwrap();
    driver.address_free(addr, page).unwrap();
}

pub fn one_call_may_cover_several_mappings<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let addr = driver.reserve(16 * page, page).unwrap();
    // Chunks of several sizes from page 3 on, not mapped in address order.
    for (at, pages) in [(5, 1), (3, 2), (6, 4)] {
        let chunk = driver.create(pages * page).unwrap();
        driver.map(addr.offset(at * page), pages * page, chunk).unwrap();
        driver.release(chunk).unwrap();
    }
    let (start, bytes) = (addr.offset(3 * page), 7 * page);
    driver.set_access(start, bytes).unwrap();
    driver.set_access(start, 2 * page).unwrap();
    driver.fill(MAIN, start, bytes, 5).unwrap();
    driver.verify(MAIN, start, bytes, 5).unwrap();
    driver.synchronize(MAIN).unwrap();
    // First the two in the middle, whose addresses are mapped again, then the others on either side.
    driver.unmap(addr.offset(5 * page), 5 * page).unwrap();
    let chunk = driver.create(page).unwrap();
    driver.map(addr.offset(5 * page), page, chunk).unwrap();
    driver.release(chunk).unwrap();
    driver.set_access(addr.offset(3 * page), 3 * page).unwrap();
    driver.fill(MAIN, start, 3 * page, 6).unwrap();
    driver.synchronize(MAIN).unwrap();
    driver.unmap(start, 3 * page).unwrap();
    driver.address_free(addr, 16 * page).unwrap();
}

pub fn work_may_touch_any_part_of_a_mapped_range<D: Subject>(driver: &D) {
    let mapped = Mapped::new(driver, 3, 1);
    let page = driver.granularity();
    for (seed, (offset, bytes)) in (1..).zip([(0, 1), (page - 3, 7), (page, page), (512, 2 * page), (7, 0)]) {
        driver.fill(MAIN, mapped.addr.offset(offset), bytes, seed).unwrap();
        driver.verify(MAIN, mapped.addr.offset(offset), bytes, seed).unwrap();
    }
    driver.synchronize(MAIN).unwrap();
    mapped.unmap_all();
}

pub fn a_wrong_byte_is_found<D: Subject>(driver: &D) {
    let mapped = Mapped::new(driver, 1, 1);
    driver.fill(MAIN, mapped.addr, 1024, 1).unwrap();
    driver.fill(MAIN, mapped.addr.offset(512), 8, 2).unwrap();
    driver.verify(MAIN, mapped.addr, 1024, 1).unwrap();
    driver.synchronize(MAIN).unwrap();
    let found = driver.take_mismatches();
    if D::HAS_BYTES {
        let [mismatch] = found[..] else { panic!("one check, one mismatch: {found:?}") };
        assert_eq!((mismatch.addr, mismatch.bytes, mismatch.seed), (mapped.addr, 1024, 1));
        assert!((512..520).contains(&mismatch.first) && (1..=8).contains(&mismatch.count), "{mismatch:?}");
    }
    mapped.unmap_all();
}

pub fn aliases_show_the_same_bytes<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let addr = driver.reserve(4 * page, page).unwrap();
    let chunk = driver.create(page).unwrap();
    let (one, other) = (addr, addr.offset(3 * page));
    for at in [one, other] {
        driver.map(at, page, chunk).unwrap();
        driver.set_access(at, page).unwrap();
    }
    for (seed, (write, read)) in (1..).zip([(one, other), (other, one)]) {
        driver.fill(MAIN, write, page, seed).unwrap();
        driver.verify(MAIN, read, page, seed).unwrap();
    }
    driver.synchronize(MAIN).unwrap();
    driver.unmap(one, page).unwrap();
    driver.verify(MAIN, other, page, 2).unwrap();
    driver.synchronize(MAIN).unwrap();
    driver.unmap(other, page).unwrap();
    driver.release(chunk).unwrap();
    driver.address_free(addr, 4 * page).unwrap();
}

pub fn content_moves_with_the_chunk<D: Subject>(driver: &D) {
    let page = driver.granularity();
    let addr = driver.reserve(8 * page, page).unwrap();
    let chunks = [1, 2].map(|seed| {
        let chunk = driver.create(page).unwrap();
        let at = addr.offset(seed * page);
        driver.map(at, page, chunk).unwrap();
        driver.set_access(at, page).unwrap();
        driver.fill(MAIN, at, page, seed).unwrap();
        chunk
    });
    driver.synchronize(MAIN).unwrap();
    driver.unmap(addr.offset(page), 2 * page).unwrap();
    // Exchange the chunks, and map both elsewhere.
    for (at, chunk, seed) in [(6, chunks[0], 1), (5, chunks[1], 2)] {
        driver.map(addr.offset(at * page), page, chunk).unwrap();
        driver.set_access(addr.offset(at * page), page).unwrap();
        driver.verify(MAIN, addr.offset(at * page), page, seed).unwrap();
    }
    driver.synchronize(MAIN).unwrap();
    driver.unmap(addr.offset(5 * page), 2 * page).unwrap();
    for chunk in chunks {
        driver.release(chunk).unwrap();
    }
    driver.address_free(addr, 8 * page).unwrap();
}
