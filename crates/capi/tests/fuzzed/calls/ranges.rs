//! Growable ranges: memory that comes and goes at the end of an address that stays.
//!
//! - G1  a range has its bytes until they are unmapped, whatever else grows, moves or fails.
//! - G2  it has as many bytes as the calls have mapped, and no more addresses than it began with.
//! - G3  a tensor over it keeps it until it is deleted.

use super::device::WRONG_DEVICE;
use super::*;

/// A range, by its first address.
#[derive(Debug)]
pub(super) struct Range {
    device: i32,
    /// What each page has, from the start.
    pages: Vec<u64>,
    addresses: u64,
    /// What its own pages have.
    stamp: u64,
    /// Closed, and kept by this tensor.
    kept_by: Option<usize>,
}

impl Range {
    fn mapped(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }
}

/// DLPack's tensor, as far as its deleter.
#[repr(C)]
struct Tensor {
    before: [u64; 7],
    deleter: unsafe extern "C" fn(*mut DLManagedTensor),
}

const PAGE: u64 = 2 << 20;
const MOST: usize = 4;

impl Calls {
    /// One of the functions.
    pub(super) fn range(&mut self, record: Record) {
        let (device, _) = self.named_in(record);
        let Some(_) = self.torch_book(device) else { return };
        match record.what >> 5 {
            0 | 1 => self.reserve_range(device, record),
            2..=4 => self.grow_range(device, record),
            6 if record.number % 4 == 3 => self.take_range(device, record),
            5 | 6 => self.shrink_range(device, record),
            _ => self.close_range(device, record),
        }
    }

    fn reserve_range(&mut self, device: i32, record: Record) {
        if self.ranges.len() >= MOST {
            return;
        }
        let bytes = Self::bytes_of(record);
        let mut pointer: *mut c_void = without_provenance_mut(UNTOUCHED);
        let out = if record.how == 247 { null_mut() } else { &raw mut pointer };
        let status = c!(gapless_range_reserve(device, bytes, out));
        let allowed: &[gapless_status] = match out.is_null() {
            true => &[GAPLESS_ERROR_INVALID_ARGUMENT],
            // The driver has fewer addresses.
            false if bytes > 1 << 36 => &[GAPLESS_OK, GAPLESS_ERROR_DRIVER],
            false => &[GAPLESS_OK],
        };
        self.expect(status, allowed, record);
        if status != GAPLESS_OK {
            assert_eq!(pointer.addr(), UNTOUCHED, "{record:?} failed and wrote: {}", error_text());
            return;
        }
        self.next_stamp += 1;
        let addresses = bytes.max(1).next_multiple_of(PAGE);
        let range = Range { device, pages: Vec::new(), addresses, stamp: self.next_stamp, kept_by: None };
        assert!(self.ranges.insert(pointer.addr() as u64, range).is_none(), "{record:?}: two ranges at {pointer:p}");
        self.look_at_range(pointer.addr() as u64);
    }

    /// A range, and whether the call may find it.
    fn range_pointer(&self, device: i32, record: Record) -> (u64, bool) {
        let number = record.number as usize;
        let addr = match record.how {
            0..=223 => self.ranges.keys().nth(number % self.ranges.len().max(1)).copied().unwrap_or(0x1000),
            _ => self.some_address(record).max(1),
        };
        (addr, self.ranges.get(&addr).is_some_and(|range| range.device == device && range.kept_by.is_none()))
    }

    fn grow_range(&mut self, device: i32, record: Record) {
        let (addr, its) = self.range_pointer(device, record);
        let (stream, kind) = self.stream(record.how, device);
        let bytes = Self::bytes_of(record);
        let status = c!(gapless_range_grow(device, without_provenance_mut(addr as usize), bytes, stream));
        let allowed: &[gapless_status] = match its {
            false => &[GAPLESS_ERROR_NOT_ALLOCATED],
            true if kind.serves() => &[GAPLESS_OK, GAPLESS_ERROR_OUT_OF_MEMORY, GAPLESS_ERROR_TOO_LARGE],
            true => &[GAPLESS_ERROR_STREAM],
        };
        self.expect(status, allowed, record);
        let Some(range) = self.ranges.get_mut(&addr).filter(|_| its) else { return };
        let (before, stamp) = (range.mapped(), range.stamp);
        if status == GAPLESS_OK {
            range.pages.resize(range.pages.len() + bytes.div_ceil(PAGE) as usize, stamp);
        }
        let mapped = range.mapped();
        for at in self.pages(addr + before, addr + mapped) {
            // SAFETY: mapped memory of the simulated driver, which is this process's own.
            unsafe { std::ptr::with_exposed_provenance_mut::<u64>(at as usize).write(word_of(stamp)) };
        }
        self.look_at_range(addr);
    }

    fn shrink_range(&mut self, device: i32, record: Record) {
        let (addr, its) = self.range_pointer(device, record);
        let bytes = Self::bytes_of(record);
        let mut unmapped = UNTOUCHED as u64;
        let status = c!(gapless_range_shrink(device, without_provenance_mut(addr as usize), bytes, &raw mut unmapped));
        self.expect(status, &[if its { GAPLESS_OK } else { GAPLESS_ERROR_NOT_ALLOCATED }], record);
        assert_eq!(status == GAPLESS_OK, unmapped != UNTOUCHED as u64, "{record:?}");
        if !its {
            return;
        }
        let left = match status {
            GAPLESS_OK => {
                assert!(unmapped <= bytes, "{record:?}: {unmapped} of {bytes}");
                self.ranges[&addr].mapped() - unmapped
            }
            // What was unmapped before the failure stays so.
            _ => self.range_size(addr).0,
        };
        let range = self.ranges.get_mut(&addr).expect("just seen");
        assert!(left <= range.mapped(), "{record:?}: {left} bytes of {range:?}");
        range.pages.truncate((left / PAGE) as usize);
        self.look_at_range(addr);
    }

    fn take_range(&mut self, device: i32, record: Record) {
        let ((to, to_its), (from, from_its)) = (
            self.range_pointer(device, record),
            self.range_pointer(device, Record { number: record.number / 4, ..record }),
        );
        let (stream, kind) = self.stream(record.how, device);
        let (bytes, mut moved) = (Self::bytes_of(record), UNTOUCHED as u64);
        let [taker, giver] = [to, from].map(|addr| without_provenance_mut(addr as usize));
        let status = c!(gapless_range_take(device, taker, giver, bytes, stream, &raw mut moved));
        let allowed: &[gapless_status] = match to_its && from_its {
            false => &[GAPLESS_ERROR_NOT_ALLOCATED],
            true if to == from => &[GAPLESS_ERROR_INVALID_ARGUMENT],
            true if kind.serves() => &[GAPLESS_OK, GAPLESS_ERROR_TOO_LARGE],
            true => &[GAPLESS_ERROR_STREAM],
        };
        self.expect(status, allowed, record);
        assert_eq!(status == GAPLESS_OK, moved != UNTOUCHED as u64, "{record:?}");
        if status == GAPLESS_OK {
            let giver = self.ranges.get_mut(&from).expect("just seen");
            assert!(moved <= bytes.min(giver.mapped()), "{record:?}: {moved} of {bytes} bytes of {giver:?}");
            let pages = giver.pages.split_off(giver.pages.len() - (moved / PAGE) as usize);
            self.ranges.get_mut(&to).expect("just seen").pages.extend(pages);
        }
        [to, from].iter().filter(|addr| self.ranges.contains_key(addr)).for_each(|addr| self.look_at_range(*addr));
    }

    fn close_range(&mut self, device: i32, record: Record) {
        if let Some((addr, tensor)) = self.kept_range().filter(|_| record.number.is_multiple_of(2)) {
            self.look_at_range(addr);
            self.ranges.remove(&addr);
            return delete(tensor);
        }
        let (addr, its) = self.range_pointer(device, record);
        let pointer = without_provenance_mut(addr as usize);
        let mut tensor = null_mut();
        if record.number.is_multiple_of(3) {
            let status = c!(gapless_range_dlpack(device, pointer, &raw mut tensor));
            expect(status, &[if its { GAPLESS_OK } else { GAPLESS_ERROR_NOT_ALLOCATED }], record);
        }
        let status = c!(gapless_range_close(device, pointer));
        expect(status, &[if its { GAPLESS_OK } else { GAPLESS_ERROR_NOT_ALLOCATED }], record);
        match self.ranges.get_mut(&addr).filter(|_| its) {
            Some(range) if !tensor.is_null() => range.kept_by = Some(tensor.expose_provenance()),
            Some(_) => drop(self.ranges.remove(&addr)),
            None => {}
        }
        expect(c!(gapless_range_close(64, pointer)), WRONG_DEVICE, record);
    }

    /// A range that is closed and kept, and its tensor.
    fn kept_range(&self) -> Option<(u64, usize)> {
        self.ranges.iter().find_map(|(addr, range)| Some((*addr, range.kept_by?)))
    }

    fn range_size(&self, addr: u64) -> (u64, u64) {
        let (mut mapped, mut addresses) = (UNTOUCHED as u64, UNTOUCHED as u64);
        let (device, pointer) = (self.ranges[&addr].device, without_provenance_mut(addr as usize));
        expect_ok(c!(gapless_range_size(device, pointer, &raw mut mapped, &raw mut addresses)));
        (mapped, addresses)
    }

    /// The starts of the pages that lie between two addresses, where their memory can be looked at.
    fn pages(&self, start: u64, end: u64) -> impl Iterator<Item = u64> + use<> {
        let end = if self.environment.usage.is_none() { start } else { end };
        (start..end).step_by(PAGE as usize)
    }

    /// G1 and G2, of one range.
    fn look_at_range(&self, addr: u64) {
        let range = &self.ranges[&addr];
        if range.kept_by.is_none() {
            assert_eq!(self.range_size(addr), (range.mapped(), range.addresses), "G2: {range:?}");
        }
        for (at, stamp) in self.pages(addr, addr + range.mapped()).zip(&range.pages) {
            // SAFETY: as in `grow_range`.
            let found = unsafe { std::ptr::with_exposed_provenance::<u64>(at as usize).read() };
            assert_eq!(found, word_of(*stamp), "G1: {range:?} at {addr:#x} changed at {at:#x}");
        }
    }

    /// G1 to G3, after a call.
    pub(super) fn check_ranges(&self) {
        self.ranges.keys().for_each(|addr| self.look_at_range(*addr));
    }

    /// Whether a device has memory in ranges.
    pub(super) fn has_ranges(&self, device: i32) -> bool {
        self.ranges.values().any(|range| range.device == device && !range.pages.is_empty())
    }

    /// No range is left.
    pub(super) fn close_ranges(&mut self) {
        self.check_ranges();
        for (addr, range) in std::mem::take(&mut self.ranges) {
            match range.kept_by {
                Some(tensor) => delete(tensor),
                None => expect_ok(c!(gapless_range_close(range.device, without_provenance_mut(addr as usize)))),
            }
        }
    }
}

fn delete(tensor: usize) {
    let tensor = std::ptr::with_exposed_provenance_mut::<DLManagedTensor>(tensor);
    // SAFETY: one of `gapless_range_dlpack`, which is deleted once.
    let deleter = unsafe { (*tensor.cast::<Tensor>()).deleter };
    // SAFETY: as above.
    unsafe { deleter(tensor) };
}
