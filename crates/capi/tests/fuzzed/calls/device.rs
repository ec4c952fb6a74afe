//! The functions for memory of this process's devices, on the process-wide allocators.

use super::work::stream_of;
use super::*;

impl Calls {
    /// One of the functions. `book` is that of the device's process-wide allocator, or of device 0's where there is no
    /// such device.
    pub(super) fn device(&mut self, record: Record, book: usize, device: i32) {
        match record.call {
            Call::DeviceAlloc | Call::DeviceAllocToo => self.device_alloc(record, book, device),
            Call::DeviceFree => self.device_free(record, book, device),
            _ if record.what < 128 => self.device_record_stream(record, book, device),
            _ => self.device_trim(record, book, device),
        }
    }

    fn device_alloc(&mut self, record: Record, book: usize, device: i32) {
        let exists = self.books[book].device == device;
        let (stream, kind) = self.stream(record.how, device);
        let known = kind.serves();
        let bytes = Self::bytes_of(record);
        let mut pointer: *mut c_void = without_provenance_mut(UNTOUCHED);
        let out = if record.how == 247 { null_mut() } else { &raw mut pointer };
        let alignment = if record.what < 64 { record.number % 5000 } else { 1 << (record.number % 23) };
        let alignment = if record.what < 128 { u64::from(alignment) } else { 1 };
        let status = match record.what {
            0..=127 => c!(gapless_device_alloc_aligned(device, bytes, alignment, stream, out)),
            _ => c!(gapless_device_alloc(device, bytes, stream, out)),
        };
        let allowed: &[gapless_status] = match exists {
            _ if out.is_null() => &[GAPLESS_ERROR_INVALID_ARGUMENT],
            true if !alignment.is_power_of_two() => &[GAPLESS_ERROR_INVALID_ARGUMENT],
            // Which of several mistakes is reported first does not matter.
            true if !known => &[GAPLESS_ERROR_STREAM, GAPLESS_ERROR_TOO_LARGE, GAPLESS_ERROR_OUT_OF_MEMORY],
            true => &[GAPLESS_OK, GAPLESS_ERROR_TOO_LARGE, GAPLESS_ERROR_OUT_OF_MEMORY],
            false => WRONG_DEVICE,
        };
        self.expect(status, allowed, record);
        if status != GAPLESS_OK && !out.is_null() {
            self.note_refusal(exists, device, bytes, stream);
        }
        if status == GAPLESS_ERROR_OUT_OF_MEMORY && self.failing.is_none() {
            assert!(known, "{record:?}: {}", error_text());
            assert!(check_report(bytes), "{record:?}: {}", error_text());
            self.expect_settled(device);
            if alignment <= 512 {
                self.check_refusal(device, bytes);
            }
        }
        if status != GAPLESS_OK {
            assert_eq!(pointer.addr(), UNTOUCHED, "{record:?} failed and wrote: {}", error_text());
            return;
        }
        assert!((pointer.addr() as u64).is_multiple_of(alignment.max(512)), "{pointer:p} is not at {alignment}");
        self.take_in_of_device(pointer, bytes, stream, book);
    }

    /// Notes a block of a process-wide allocator, or of one of its pools.
    pub(super) fn take_in_of_device(
        &mut self,
        pointer: *mut c_void,
        bytes: u64,
        stream: *mut CUstream_st,
        book: usize,
    ) {
        let device = self.books[book].device;
        // The newest open pool of the device has it: all are this thread's.
        let pool = self.open.iter().rev().find(|(its, _)| *its == device).copied();
        let pool = pool.or_else(|| self.lender_of(device, pointer));
        self.note_event(Action::Alloc, device, pointer.addr() as u64, bytes, stream_of(stream.addr() as u64));
        let owner = if pool.is_some() { None } else { Some(book) };
        let home = stream_of(stream.addr() as u64);
        self.take_in(pointer, Block { bytes, stamp: 0, owner, pool, device, home });
    }

    fn device_free(&mut self, record: Record, book: usize, device: i32) {
        let (addr, live) = self.device_pointer(record, book);
        let exists = self.books[book].device == device;
        if live && exists {
            self.verify(addr);
        }
        let (stream, kind) = self.stream(record.how, device);
        if live && exists && record.what >= 128 {
            self.used_pools.extend(self.live[&addr].pool);
            self.use_before_free(addr, stream, kind);
        }
        let (pointer, bytes) = (without_provenance_mut(addr as usize), u64::from(record.how));
        // A stream that is not ours makes the call wait for the device, which fails only where the driver does.
        let status = match record.what {
            0..=127 => c!(gapless_device_free(device, pointer, bytes)),
            _ => c!(gapless_device_free_on(device, pointer, bytes, stream)),
        };
        let allowed: &[gapless_status] = match exists {
            true if live || addr == 0 => &[GAPLESS_OK],
            true => &[GAPLESS_ERROR_NOT_ALLOCATED],
            false => WRONG_DEVICE,
        };
        self.expect(status, allowed, record);
        if live && exists && status == GAPLESS_OK {
            self.note_event(Action::Free, device, addr, 0, StreamId::DEFAULT);
            self.forget(addr);
        }
    }

    /// Work on the stream that a block is going to be freed on, without a word to the library before.
    fn use_before_free(&mut self, addr: u64, stream: *mut CUstream_st, kind: Stream) {
        match kind {
            Stream::Unknown => {}
            _ if !self.is_sound() => self.use_perhaps(addr),
            // The handle means that of the block's own device here.
            Stream::Default => {
                let own = self.live[&addr].device;
                if let Some(number) = self.environment.gpus.iter().position(|gpu| gpu.device == own) {
                    self.queue(addr, number, stream_of(stream.addr() as u64));
                }
            }
            Stream::Own | Stream::Foreign => self.use_block(addr, stream, kind),
        }
    }

    fn device_record_stream(&mut self, record: Record, book: usize, device: i32) {
        let (addr, live) = self.device_pointer(record, book);
        let (stream, kind) = self.stream(record.how, device);
        let exists = self.books[book].device == device;
        let status = c!(gapless_device_record_stream(device, without_provenance_mut(addr as usize), stream));
        let allowed: &[gapless_status] = match exists {
            true if live && kind != Stream::Unknown => &[GAPLESS_OK],
            true if live => &[GAPLESS_ERROR_STREAM],
            true => &[GAPLESS_ERROR_NOT_ALLOCATED, GAPLESS_ERROR_STREAM],
            false => WRONG_DEVICE,
        };
        self.expect(status, allowed, record);
        if live && exists && kind != Stream::Unknown {
            self.used_pools.extend(self.live[&addr].pool);
            if self.is_sound() { self.use_block(addr, stream, kind) } else { self.use_perhaps(addr) }
        }
    }

    fn device_trim(&mut self, record: Record, book: usize, device: i32) {
        let its = self.books[book].device;
        let allowed = if its == device { &[GAPLESS_OK][..] } else { WRONG_DEVICE };
        let trim = |released| c!(gapless_device_trim(device, u64::from(record.number), released));
        let status = self.check_trim(its, record, allowed, trim);
        if status == GAPLESS_OK && self.failing.is_none() {
            self.expect_settled(device);
        }
    }

    /// Trims a device: what is said to be released is what its allocator and its pools hold less, those included that were closed.
    pub(super) fn check_trim(
        &mut self,
        device: i32,
        record: Record,
        allowed: &[gapless_status],
        trim: impl FnOnce(*mut u64) -> gapless_status,
    ) -> gapless_status {
        let mut released = UNTOUCHED as u64;
        let out = if record.how < 64 { null_mut() } else { &raw mut released };
        let before = self.shares(device).held();
        let status = trim(out);
        self.expect(status, allowed, record);
        let untouched = status != GAPLESS_OK || out.is_null();
        let expected = if untouched { UNTOUCHED as u64 } else { before - self.shares(device).held() };
        assert_eq!(released, expected, "{record:?}: what was released");
        status
    }

    /// A pointer, and whether a live allocation of the device or of one of its pools starts there.
    fn device_pointer(&self, record: Record, book: usize) -> (u64, bool) {
        let device = self.books[book].device;
        let is_own = |block: &Block| block.owner == Some(book) || block.pool.is_some_and(|(its, _)| its == device);
        let own: Vec<u64> = self.live.iter().filter(|(_, block)| is_own(block)).map(|(at, _)| *at).collect();
        let number = record.number as usize;
        let addr = match record.what % 8 {
            0 => self.live.iter().find(|(_, block)| !is_own(block)).map_or(0, |(at, _)| *at),
            1 if record.number.is_multiple_of(2) => self.deferred.keys().next().copied().unwrap_or(0x1000),
            1 => self.freed.get(number % self.freed.len().max(1)).copied().unwrap_or(0x1000),
            _ => own.get(number % own.len().max(1)).copied().unwrap_or(0x1000),
        };
        (addr, own.contains(&addr))
    }
}

/// This thread's last failure is a request of `bytes` that ran out of memory. Where it has a report, that is about it; returns
/// whether it has. One of PyTorch's that exceeds the addresses of a region has none.
pub(super) fn check_report(bytes: u64) -> bool {
    let mut needed = UNTOUCHED as u64;
    let status = c!(gapless_last_error_report_json(null_mut(), 0, &raw mut needed));
    if gapless_last_error_kind() == GAPLESS_KIND_NONE {
        assert_eq!((status, needed), (GAPLESS_ERROR_NOT_FOUND, UNTOUCHED as u64));
        return false;
    }
    assert_eq!((status, gapless_last_error_kind()), (GAPLESS_ERROR_BUFFER_TOO_SMALL, GAPLESS_KIND_OUT_OF_MEMORY));
    let mut buffer = vec![0_u8; needed as usize];
    expect_ok(c!(gapless_last_error_report_json(buffer.as_mut_ptr().cast(), needed, &raw mut needed)));
    let report: serde_json::Value = serde_json::from_slice(&buffer[..needed as usize - 1]).expect("a JSON text");
    assert_eq!(report["requested_bytes"], bytes, "{report}");
    assert_eq!(gapless_last_error_status(), GAPLESS_ERROR_OUT_OF_MEMORY, "asking does not change it");
    true
}

pub(super) const WRONG_DEVICE: &[gapless_status] = &[GAPLESS_ERROR_INVALID_ARGUMENT, GAPLESS_ERROR_NO_DEVICE];
