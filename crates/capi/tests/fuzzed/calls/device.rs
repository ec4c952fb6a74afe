//! The functions for memory of this process's devices, on the process-wide allocator of device 0.

use super::*;

impl Calls {
    /// One of the functions, by number. `book` is that of the process-wide allocator.
    pub(super) fn device(&mut self, function: u8, record: Record, book: usize, device: i32) {
        match function {
            0 | 1 => self.device_alloc(record, book, device),
            2 => self.device_free(record, book, device),
            _ if record.what < 128 => self.device_record_stream(record, book, device),
            _ => self.device_trim(record, book, device),
        }
    }

    fn device_alloc(&mut self, record: Record, book: usize, device: i32) {
        let (stream, known) = self.stream(record.how);
        let bytes = Self::bytes_of(record);
        let mut pointer: *mut c_void = without_provenance_mut(UNTOUCHED);
        let out = if record.how == 247 { null_mut() } else { &raw mut pointer };
        let alignment = if record.what < 64 { record.number % 5000 } else { 1 << (record.number % 23) };
        let alignment = if record.what < 128 { u64::from(alignment) } else { 1 };
        let status = match record.what {
            0..=127 => c!(gapless_device_alloc_aligned(device, bytes, alignment, stream, out)),
            _ => c!(gapless_device_alloc(device, bytes, stream, out)),
        };
        let allowed: &[gapless_status] = match device {
            _ if out.is_null() => &[GAPLESS_ERROR_INVALID_ARGUMENT],
            0 if !alignment.is_power_of_two() => &[GAPLESS_ERROR_INVALID_ARGUMENT],
            // Which of several mistakes is told first does not matter.
            0 if !known => &[GAPLESS_ERROR_STREAM, GAPLESS_ERROR_OUT_OF_MEMORY],
            0 => &[GAPLESS_OK, GAPLESS_ERROR_OUT_OF_MEMORY],
            _ => WRONG_DEVICE,
        };
        self.expect(status, allowed, record);
        if status == GAPLESS_ERROR_OUT_OF_MEMORY && self.failing.is_none() {
            assert!(known || gapless_last_error_kind() == GAPLESS_KIND_TOO_LARGE, "{record:?}: {}", told());
            check_report(bytes);
        }
        if status != GAPLESS_OK {
            assert_eq!(pointer.addr(), UNTOUCHED, "{record:?} failed and wrote: {}", told());
            return;
        }
        assert!((pointer.addr() as u64).is_multiple_of(alignment.max(512)), "{pointer:p} is not at {alignment}");
        // The newest open pool has it: all are this thread's.
        let pool = self.open.last().copied();
        let owner = if pool.is_some() { None } else { Some(book) };
        self.take_in(pointer, Block { bytes, stamp: 0, owner, pool });
    }

    fn device_free(&mut self, record: Record, book: usize, device: i32) {
        let (addr, live) = self.device_pointer(record, book);
        if live && device == 0 {
            self.verify(addr);
        }
        let (pointer, bytes) = (without_provenance_mut(addr as usize), u64::from(record.how));
        // A stream that is not ours makes the call wait for the device, which fails only where the driver does.
        let status = match record.what {
            0..=127 => c!(gapless_device_free(device, pointer, bytes)),
            _ => c!(gapless_device_free_on(device, pointer, bytes, self.stream(record.how).0)),
        };
        let allowed: &[gapless_status] = match device {
            0 if live || addr == 0 => &[GAPLESS_OK],
            0 => &[GAPLESS_ERROR_NOT_ALLOCATED],
            _ => WRONG_DEVICE,
        };
        self.expect(status, allowed, record);
        if live && device == 0 && status == GAPLESS_OK {
            self.forget(addr);
        }
    }

    fn device_record_stream(&mut self, record: Record, book: usize, device: i32) {
        let (addr, live) = self.device_pointer(record, book);
        let (stream, known) = self.stream(record.how);
        let status = c!(gapless_device_record_stream(device, without_provenance_mut(addr as usize), stream));
        let allowed: &[gapless_status] = match device {
            0 if live && known => &[GAPLESS_OK],
            0 if live => &[GAPLESS_ERROR_STREAM],
            0 => &[GAPLESS_ERROR_NOT_ALLOCATED, GAPLESS_ERROR_STREAM],
            _ => WRONG_DEVICE,
        };
        self.expect(status, allowed, record);
    }

    fn device_trim(&mut self, record: Record, book: usize, device: i32) {
        let mut released = UNTOUCHED as u64;
        let out = if record.how < 64 { null_mut() } else { &raw mut released };
        let before = self.figures(book).reserved_bytes;
        let status = c!(gapless_device_trim(device, u64::from(record.number), out));
        self.expect(status, if device == 0 { &[GAPLESS_OK] } else { WRONG_DEVICE }, record);
        let untouched = status != GAPLESS_OK || out.is_null();
        let expected = if untouched { UNTOUCHED as u64 } else { before - self.figures(book).reserved_bytes };
        assert_eq!(released, expected, "{record:?}");
    }

    /// A pointer, and whether a live allocation of the device or of one of its pools starts there.
    fn device_pointer(&self, record: Record, book: usize) -> (u64, bool) {
        let is_own = |block: &Block| block.owner == Some(book) || block.pool.is_some();
        let own: Vec<u64> = self.live.iter().filter(|(_, block)| is_own(block)).map(|(at, _)| *at).collect();
        let number = record.number as usize;
        let addr = match record.what % 8 {
            0 => self.live.iter().find(|(_, block)| !is_own(block)).map_or(0, |(at, _)| *at),
            1 => self.freed.get(number % self.freed.len().max(1)).copied().unwrap_or(0x1000),
            _ => own.get(number % own.len().max(1)).copied().unwrap_or(0x1000),
        };
        (addr, own.contains(&addr))
    }
}

/// This thread's last failure is a request of `bytes` that ran out of memory. Where it has a report, that is about it.
fn check_report(bytes: u64) {
    let mut needed = UNTOUCHED;
    let status = c!(gapless_last_error_report_json(null_mut(), 0, &raw mut needed));
    if gapless_last_error_kind() == GAPLESS_KIND_TOO_LARGE {
        assert_eq!((status, needed), (GAPLESS_ERROR_NOT_FOUND, UNTOUCHED));
        return;
    }
    assert_eq!((status, gapless_last_error_kind()), (GAPLESS_ERROR_BUFFER_TOO_SMALL, GAPLESS_KIND_OUT_OF_MEMORY));
    let mut buffer = vec![0_u8; needed];
    expect_ok(c!(gapless_last_error_report_json(buffer.as_mut_ptr().cast(), needed, &raw mut needed)));
    let report: serde_json::Value = serde_json::from_slice(&buffer[..needed - 1]).expect("a JSON text");
    assert_eq!(report["requested_bytes"], bytes, "{report}");
    assert_eq!(gapless_last_error_status(), GAPLESS_ERROR_OUT_OF_MEMORY, "asking does not change it");
}

const WRONG_DEVICE: &[gapless_status] = &[GAPLESS_ERROR_INVALID_ARGUMENT, GAPLESS_ERROR_NO_DEVICE];
