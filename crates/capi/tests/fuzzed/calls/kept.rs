//! Memory that does not move: pinned blocks, registered blocks; and listeners, which are notified of every mapping.
//!
//! - K1  a pinned block has its bytes until its last pin is gone, also once it is freed, and nobody else gets any of it.
//! - K2  a registered block has its bytes until it is freed: whole pages, of which nothing else has any.
//! - K3  a listener is notified before anything is unmapped: that memory can be read still, and is neither pinned nor registered.

use super::device::WRONG_DEVICE;
use super::*;
use std::sync::Mutex;

/// Pins of one block.
#[derive(Debug)]
pub(super) struct Pinned {
    block: Block,
    pins: u32,
    freed: bool,
}

#[derive(Debug)]
pub(super) struct Registered {
    device: i32,
    bytes: u64,
    stamp: u64,
}

const PAGE: u64 = 2 << 20;
/// Pins of all blocks, and registered blocks, in one input.
const MOST: usize = 8;

/// Pinned and registered memory as a listener knows it: the end of each block, by its start.
static KEPT: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

fn keep(addr: u64, bytes: u64) {
    KEPT.lock().expect("no panic before").insert(addr, addr + bytes.max(1));
}

fn let_move(addr: u64) {
    KEPT.lock().expect("no panic before").remove(&addr);
}

fn word(at: u64) -> u64 {
    // SAFETY: mapped memory of the simulated driver, which is this process's own.
    unsafe { std::ptr::with_exposed_provenance::<u64>(at as usize).read_unaligned() }
}

/// A library that registers what it is notified of, and looks at it once more before it goes. A panic here ends the process.
unsafe extern "C" fn before_unmap(_context: *mut c_void, _device: i32, pointer: *mut c_void, bytes: u64) -> i32 {
    let (start, end) = (pointer.addr() as u64, pointer.addr() as u64 + bytes);
    let kept = KEPT.lock().expect("no panic before");
    if let Some((addr, kept_to)) = kept.range(..end).next_back() {
        assert!(*kept_to <= start, "{start:#x} to {end:#x} is unmapped, and {addr:#x} to {kept_to:#x} must stay");
    }
    std::hint::black_box([word(start), word(end - 8)]);
    0
}

unsafe extern "C" fn on_map(_context: *mut c_void, _device: i32, pointer: *mut c_void, bytes: u64) -> i32 {
    std::hint::black_box([word(pointer.addr() as u64), word(pointer.addr() as u64 + bytes - 8)]);
    0
}

impl Calls {
    /// One of the functions.
    pub(super) fn kept(&mut self, record: Record) {
        let (device, _) = self.named_in(record);
        let Some(_) = self.torch_book(device) else { return };
        match record.call {
            Call::Pin => self.pin(device, record),
            Call::Unpin => self.unpin(device, record),
            Call::AllocRegistered => self.alloc_registered(device, record),
            Call::UseRegistered => self.use_registered(device, record),
            Call::FreeRegistered => self.free_registered(device, record),
            _ => self.listen(device, record),
        }
    }

    fn pin(&mut self, device: i32, record: Record) {
        let addr = self.some_address(record);
        let block = self.live.get(&addr).copied().filter(|block| self.is_served_by(device, block));
        if self.pinned.values().map(|pinned| pinned.pins as usize).sum::<usize>() >= MOST {
            return;
        }
        let status = c!(gapless_device_pin(device, without_provenance_mut(addr as usize)));
        self.expect(status, &[if block.is_some() { GAPLESS_OK } else { GAPLESS_ERROR_NOT_ALLOCATED }], record);
        if let (Some(block), GAPLESS_OK) = (block, status) {
            self.used_pools.extend(block.pool);
            self.pinned.entry(addr).or_insert(Pinned { block, pins: 0, freed: false }).pins += 1;
            keep(addr, block.bytes);
        }
    }

    fn unpin(&mut self, device: i32, record: Record) {
        let number = record.number as usize;
        let addr = match record.what {
            0..=223 => self.pinned.keys().nth(number % self.pinned.len().max(1)).copied().unwrap_or(0x1000),
            _ => self.some_address(record),
        };
        let its = self.pinned.get(&addr).filter(|pinned| pinned.block.device == device);
        let allowed = if its.is_some() { GAPLESS_OK } else { GAPLESS_ERROR_NOT_ALLOCATED };
        if its.is_some() {
            self.check_pinned(addr);
        }
        if its.is_some_and(|pinned| pinned.pins == 1) {
            let_move(addr);
        }
        let status = c!(gapless_device_unpin(device, without_provenance_mut(addr as usize)));
        expect(status, &[allowed], record);
        if status == GAPLESS_OK {
            let pinned = self.pinned.get_mut(&addr).expect("just seen");
            pinned.pins -= 1;
            if pinned.pins == 0 {
                self.pinned.remove(&addr);
            }
        }
    }

    /// K1, of a block that is freed and pinned.
    fn check_pinned(&self, addr: u64) {
        let pinned = &self.pinned[&addr];
        if !pinned.freed || self.deferred.contains_key(&addr) || self.waiting.contains_key(&addr) {
            return;
        }
        for at in self.words(addr, pinned.block.bytes) {
            assert_eq!(word(at), word_of(pinned.block.stamp), "{pinned:?} at {addr:#x} changed at {at:#x}");
        }
    }

    fn alloc_registered(&mut self, device: i32, record: Record) {
        if self.registered.len() >= MOST {
            return;
        }
        let (stream, kind) = self.stream(record.how, device);
        let bytes = Self::bytes_of(record);
        let mut pointer: *mut c_void = without_provenance_mut(UNTOUCHED);
        let out = if record.how == 247 { null_mut() } else { &raw mut pointer };
        let status = c!(gapless_device_alloc_registered(device, bytes, stream, out));
        let allowed: &[gapless_status] = match kind.serves() {
            _ if out.is_null() => &[GAPLESS_ERROR_INVALID_ARGUMENT],
            true => &[GAPLESS_OK, GAPLESS_ERROR_OUT_OF_MEMORY],
            false => &[GAPLESS_ERROR_STREAM, GAPLESS_ERROR_OUT_OF_MEMORY],
        };
        self.expect(status, allowed, record);
        if status != GAPLESS_OK {
            assert_eq!(pointer.addr(), UNTOUCHED, "{record:?} failed and wrote: {}", error_text());
            return;
        }
        let (addr, bytes) = (pointer.addr() as u64, bytes.max(1).next_multiple_of(PAGE));
        assert_eq!(addr % PAGE, 0);
        self.check_apart(addr, bytes);
        if let Some((at, block)) = self.live.range(..addr + bytes).next_back() {
            assert!(at + block.bytes.max(1) <= addr, "{block:?} at {at:#x} has a part of {addr:#x}");
        }
        self.next_stamp += 1;
        let stamp = self.next_stamp;
        for at in self.words(addr, bytes) {
            // SAFETY: inside a registered block of the simulated driver, which is memory of this process.
            unsafe { std::ptr::with_exposed_provenance_mut::<u64>(at as usize).write_unaligned(word_of(stamp)) };
        }
        keep(addr, bytes);
        self.registered.insert(addr, Registered { device, bytes, stamp });
    }

    /// A registered block, and whether the call may find it.
    fn registered_pointer(&self, device: i32, record: Record) -> (u64, bool) {
        let number = record.number as usize;
        let addr = match record.what {
            0..=223 => self.registered.keys().nth(number % self.registered.len().max(1)).copied().unwrap_or(0x1000),
            _ => self.some_address(record).max(1),
        };
        (addr, self.registered.get(&addr).is_some_and(|block| block.device == device))
    }

    /// Records a stream on a registered block, or exports it for other hardware.
    fn use_registered(&mut self, device: i32, record: Record) {
        let (addr, its) = self.registered_pointer(device, record);
        let pointer = without_provenance_mut::<c_void>(addr as usize);
        if record.how.is_multiple_of(2) {
            let (stream, kind) = self.stream(record.how, device);
            let status = c!(gapless_device_record_registered(device, pointer, stream));
            let allowed: &[gapless_status] = match its {
                true if kind == Stream::Unknown => &[GAPLESS_ERROR_STREAM],
                true if kind == Stream::Foreign => &[GAPLESS_OK, GAPLESS_ERROR_STREAM],
                true => &[GAPLESS_OK],
                false => &[GAPLESS_ERROR_NOT_ALLOCATED],
            };
            return self.expect(status, allowed, record);
        }
        let mut descriptor = -1;
        let status = c!(gapless_device_registered_dma_buf(device, pointer, &raw mut descriptor));
        let allowed = [if its { GAPLESS_OK } else { GAPLESS_ERROR_NOT_ALLOCATED }];
        self.expect(status, &allowed, record);
        assert_eq!(descriptor >= 0, status == GAPLESS_OK, "{record:?}");
        if descriptor >= 0 {
            // SAFETY: a descriptor of this process, and the only one that closes it.
            drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(descriptor) });
        }
    }

    fn free_registered(&mut self, device: i32, record: Record) {
        let (addr, its) = self.registered_pointer(device, record);
        if its {
            self.check_registered(addr);
            let_move(addr);
        }
        let status = c!(gapless_device_free_registered(device, without_provenance_mut(addr as usize)));
        self.expect(status, &[if its { GAPLESS_OK } else { GAPLESS_ERROR_NOT_ALLOCATED }], record);
        if its {
            self.registered.remove(&addr);
        }
        let wrong = c!(gapless_device_free_registered(64, without_provenance_mut(addr as usize)));
        expect(wrong, WRONG_DEVICE, record);
    }

    /// K2, of one block.
    fn check_registered(&self, addr: u64) {
        let block = &self.registered[&addr];
        for at in self.words(addr, block.bytes) {
            assert_eq!(word(at), word_of(block.stamp), "{block:?} at {addr:#x} changed at {at:#x}");
        }
    }

    /// Adds a listener, or removes one.
    fn listen(&mut self, device: i32, record: Record) {
        if record.what < 128 && self.environment.usage.is_some() && self.listeners.len() < MOST {
            let mut number = 0;
            let (map, unmap) = (Some(on_map as _), Some(before_unmap as _));
            expect_ok(c!(gapless_device_add_map_listener(device, map, unmap, null_mut(), &raw mut number)));
            assert_ne!(number, 0);
            self.listeners.push((device, number));
            return;
        }
        let at = record.number as usize % self.listeners.len().max(1);
        let (its, number) = self.listeners.get(at).copied().unwrap_or((device, u64::from(record.number) << 32));
        let status = c!(gapless_device_remove_map_listener(its, number));
        let known = self.listeners.contains(&(its, number));
        expect(status, &[if known { GAPLESS_OK } else { GAPLESS_ERROR_NOT_FOUND }], record);
        self.listeners.retain(|listener| *listener != (its, number));
    }

    /// K1 and K2, after a call.
    pub(super) fn check_kept(&self) {
        self.pinned.keys().for_each(|addr| self.check_pinned(*addr));
        self.registered.keys().for_each(|addr| self.check_registered(*addr));
    }

    /// New memory was handed out: no part of it is pinned or registered.
    pub(super) fn check_apart(&self, addr: u64, bytes: u64) {
        let end = addr + bytes.max(1);
        let freed = self.pinned.iter().filter(|(_, pinned)| pinned.freed);
        let pinned = freed.map(|(at, pinned)| (*at, at + pinned.block.bytes.max(1)));
        let registered = self.registered.iter().map(|(at, block)| (*at, at + block.bytes));
        for (start, kept_to) in pinned.chain(registered) {
            let apart = end <= start || kept_to <= addr;
            assert!(apart, "{addr:#x} to {end:#x} was handed out, and {start:#x} to {kept_to:#x} is kept");
        }
    }

    /// A block was freed, which may be pinned.
    pub(super) fn note_freed(&mut self, addr: u64) {
        if let Some(pinned) = self.pinned.get_mut(&addr) {
            pinned.freed = true;
        }
    }

    /// Nothing is kept any more.
    pub(super) fn let_all_move(&mut self) {
        self.check_kept();
        for (addr, pinned) in std::mem::take(&mut self.pinned) {
            let_move(addr);
            for _ in 0..pinned.pins {
                expect_ok(c!(gapless_device_unpin(pinned.block.device, without_provenance_mut(addr as usize))));
            }
        }
        for (addr, block) in std::mem::take(&mut self.registered) {
            let_move(addr);
            expect_ok(c!(gapless_device_free_registered(block.device, without_provenance_mut(addr as usize))));
        }
    }

    /// Whether a device has registered blocks.
    pub(super) fn has_registered(&self, device: i32) -> bool {
        self.registered.values().any(|block| block.device == device)
    }

    pub(super) fn stop_listening(&mut self) {
        for (device, number) in std::mem::take(&mut self.listeners) {
            expect_ok(c!(gapless_device_remove_map_listener(device, number)));
        }
    }
}
