//! Calls on a handle.

use super::work::stream_of;
use super::*;

/// The settings of a header that has more of them, as many as the library reads.
#[repr(C)]
struct NewerConfig {
    known: gapless_config,
    newer: [u8; 4096 - size_of::<gapless_config>()],
}

impl Calls {
    pub(super) fn alloc(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let device = self.device_of(book);
        let (stream, kind) = self.stream(record.how, device);
        let known = kind.serves();
        let bytes = Self::bytes_of(record);
        let mut pointer: *mut c_void = without_provenance_mut(UNTOUCHED);
        let out = if record.how == 247 { null_mut() } else { &raw mut pointer };
        let alignment = match record.call {
            Call::AllocAligned => 1 << (record.number % 41),
            Call::AllocAlignedOddly => u64::from(record.number) << (record.what % 33),
            _ => 512,
        };
        let status = match record.call {
            Call::Alloc => c!(gapless_alloc(handle, bytes, stream, out)),
            _ => c!(gapless_alloc_aligned(handle, bytes, alignment, stream, out)),
        };
        let allowed: &[gapless_status] = match book {
            _ if out.is_null() => &[GAPLESS_ERROR_INVALID_ARGUMENT],
            None => &[GAPLESS_ERROR_INVALID_HANDLE],
            Some(_) if !alignment.is_power_of_two() => &[GAPLESS_ERROR_INVALID_ARGUMENT],
            // Which of several mistakes is reported first does not matter.
            Some(_) if !known => &[GAPLESS_ERROR_STREAM, GAPLESS_ERROR_TOO_LARGE, GAPLESS_ERROR_OUT_OF_MEMORY],
            Some(_) => &[GAPLESS_OK, GAPLESS_ERROR_OUT_OF_MEMORY, GAPLESS_ERROR_TOO_LARGE],
        };
        self.expect(status, allowed, record);
        if status == GAPLESS_ERROR_TOO_LARGE {
            assert!(
                bytes > 64 << 20 || alignment > 1 << 20,
                "{bytes} bytes at {alignment} are not much: {}",
                error_text()
            );
        }
        if let Some(book) = book.filter(|_| matches!(status, GAPLESS_ERROR_TOO_LARGE | GAPLESS_ERROR_OUT_OF_MEMORY)) {
            self.books[book].done.out_of_memory += 1;
        }
        if status != GAPLESS_OK {
            assert_eq!(pointer.addr(), UNTOUCHED, "{record:?} failed and wrote: {}", error_text());
            return;
        }
        assert!((pointer.addr() as u64).is_multiple_of(alignment.max(512)), "{pointer:p} is not at {alignment}");
        let book = book.expect("served by a good handle");
        let home = stream_of(stream.addr() as u64);
        self.take_in(pointer, Block { bytes, stamp: 0, owner: Some(book), pool: None, device, home });
    }

    pub(super) fn free(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let (addr, live) = self.pointer(record, book);
        if live {
            self.verify(addr);
        }
        let status = c!(gapless_free(handle, without_provenance_mut(addr as usize)));
        let allowed = match book {
            None => GAPLESS_ERROR_INVALID_HANDLE,
            Some(_) if live || addr == 0 => GAPLESS_OK,
            Some(_) => GAPLESS_ERROR_NOT_ALLOCATED,
        };
        expect(status, &[allowed], record);
        if live {
            self.forget(addr);
        }
    }

    pub(super) fn record_stream(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let (addr, live) = self.pointer(record, book);
        let (stream, kind) = self.stream(record.how, self.device_of(book));
        let known = kind.serves();
        let status = c!(gapless_record_stream(handle, without_provenance_mut(addr as usize), stream));
        let allowed: &[gapless_status] = match (book, live, known) {
            (None, ..) => &[GAPLESS_ERROR_INVALID_HANDLE],
            (_, true, true) => &[GAPLESS_OK],
            (_, true, false) => &[GAPLESS_ERROR_STREAM],
            (_, false, true) => &[GAPLESS_ERROR_NOT_ALLOCATED],
            (_, false, false) => &[GAPLESS_ERROR_NOT_ALLOCATED, GAPLESS_ERROR_STREAM],
        };
        self.expect(status, allowed, record);
    }

    pub(super) fn trim(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let mut released = UNTOUCHED as u64;
        let out = if record.how < 64 { null_mut() } else { &raw mut released };
        let before = book.map(|book| self.figures(book).reserved_bytes);
        let status = match record.what % 3 {
            0 => c!(gapless_reset_peaks(handle)),
            _ => c!(gapless_trim(handle, u64::from(record.number), out)),
        };
        self.expect(status, &[if book.is_some() { GAPLESS_OK } else { GAPLESS_ERROR_INVALID_HANDLE }], record);
        if let (Some(book), Some(before)) = (book, before) {
            let after = self.figures(book);
            if record.what.is_multiple_of(3) {
                assert_eq!(after.peak_live_bytes, after.live_bytes, "the peak is the current value");
                self.books[book].done.peak = self.books[book].done.live;
            } else if !out.is_null() && status == GAPLESS_OK {
                assert_eq!(before - after.reserved_bytes, released, "what was released");
            }
        }
        if status != GAPLESS_OK || record.what.is_multiple_of(3) {
            assert_eq!(released, UNTOUCHED as u64, "{record:?}");
        }
    }

    pub(super) fn set_budget(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        if book.is_some_and(|book| self.books[book].lasting && !self.gets_budgets(self.books[book].device)) {
            return;
        }
        let bytes = if record.what < 200 { u64::from(record.number) % (96 << 20) } else { Self::bytes_of(record) };
        let status = c!(gapless_set_budget(handle, bytes));
        self.expect(status, &[if book.is_some() { GAPLESS_OK } else { GAPLESS_ERROR_INVALID_HANDLE }], record);
        if let (Some(book), GAPLESS_OK) = (book, status) {
            assert_eq!(self.figures(book).budget_bytes, bytes, "of the device, where it is a device's");
            if self.books[book].lasting {
                self.note_budget(book, bytes);
            }
        }
    }

    pub(super) fn get_stats(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let size = match record.what {
            0..=127 => record.number as usize % (2 * size_of::<gapless_stats>()),
            128..=191 => size_of::<gapless_stats>(),
            _ => record.number as usize * (1 << (record.how % 33)),
        };
        // As large as the function may write, and a little more to see that it did not.
        let mut bytes = [0xa5_u8; size_of::<gapless_stats>() + 16];
        bytes[..size_of::<u64>()].copy_from_slice(&size.to_ne_bytes());
        let stats = if record.how == 255 { null_mut() } else { bytes.as_mut_ptr().cast::<gapless_stats>() };
        let status = c!(gapless_get_stats(handle, stats));
        let fits = (16..=size_of::<gapless_stats>()).contains(&size) && !stats.is_null();
        let allowed = match book {
            _ if !fits => GAPLESS_ERROR_INVALID_ARGUMENT,
            None => GAPLESS_ERROR_INVALID_HANDLE,
            Some(_) => GAPLESS_OK,
        };
        expect(status, &[allowed], record);
        let written = if status == GAPLESS_OK { size } else { size_of::<u64>() };
        assert!(bytes[written..].iter().all(|byte| *byte == 0xa5), "{record:?} wrote more than {written} bytes");
        assert_eq!(bytes[..size_of::<u64>()], size.to_ne_bytes(), "{record:?}");
        if let (Some(book), GAPLESS_OK) = (book, status) {
            let live = u64::from_ne_bytes(bytes[8..16].try_into().expect("eight bytes"));
            let its = &self.books[book];
            let of_device = || effect::sums_of(its.device, None).expect("a device in use").live_bytes;
            assert_eq!(live, if its.lasting { of_device() } else { its.live_bytes });
        }
    }

    /// The functions with a buffer.
    pub(super) fn json(&mut self, record: Record) {
        type Report = unsafe extern "C" fn(*mut gapless_allocator, *mut c_char, u64, *mut u64) -> gapless_status;
        let (handle, book) = self.handle(record);
        let function: Report = match record.what % 3 {
            0 => gapless_stats_json,
            1 => gapless_snapshot_json,
            _ => gapless_oom_report_json,
        };
        let call = |buffer: *mut c_char, capacity, needed: *mut u64| {
            // SAFETY: the buffer has that capacity or is null, needed is null or valid.
            unsafe { function(handle, buffer, capacity, needed) }
        };
        if record.how == 255 {
            let status = call(null_mut(), 0, null_mut());
            assert!(status != GAPLESS_OK, "{record:?} wrote nowhere");
            return;
        }
        let mut needed = UNTOUCHED as u64;
        let status = call(null_mut(), 0, &raw mut needed);
        let allowed: &[gapless_status] = match book {
            None => &[GAPLESS_ERROR_INVALID_HANDLE],
            Some(_) if record.what % 3 == 2 => &[GAPLESS_ERROR_BUFFER_TOO_SMALL, GAPLESS_ERROR_NOT_FOUND],
            Some(_) => &[GAPLESS_ERROR_BUFFER_TOO_SMALL],
        };
        expect(status, allowed, record);
        assert_eq!(needed == UNTOUCHED as u64, status != GAPLESS_ERROR_BUFFER_TOO_SMALL, "{record:?}");
        if status == GAPLESS_ERROR_BUFFER_TOO_SMALL {
            self.read_text(record, needed, call);
        }
    }

    /// Returns the JSON text that `call` writes; into too small a buffer it must write nothing.
    pub(super) fn read_text(
        &self,
        record: Record,
        needed: u64,
        call: impl Fn(*mut c_char, u64, *mut u64) -> gapless_status,
    ) -> serde_json::Value {
        assert!((3..1 << 24).contains(&needed), "{needed} bytes");
        let mut again = UNTOUCHED as u64;
        let mut buffer = vec![0xa5_u8; needed as usize + 8];
        for small in [needed - 1, u64::from(record.number) % needed] {
            expect(call(buffer.as_mut_ptr().cast(), small, &raw mut again), &[GAPLESS_ERROR_BUFFER_TOO_SMALL], record);
            assert!(again == needed && buffer.iter().all(|byte| *byte == 0xa5), "{record:?} wrote into {small} bytes");
        }
        expect(call(null_mut(), needed, &raw mut again), &[GAPLESS_ERROR_INVALID_ARGUMENT], record);
        let capacity = needed + u64::from(record.how) % 8;
        expect(call(buffer.as_mut_ptr().cast(), capacity, &raw mut again), &[GAPLESS_OK], record);
        assert!(
            buffer[needed as usize..].iter().all(|byte| *byte == 0xa5),
            "{record:?} wrote more than {needed} bytes"
        );
        let text = CStr::from_bytes_with_nul(&buffer[..needed as usize]).expect("one NUL, at the end");
        serde_json::from_slice(text.to_bytes()).expect("a JSON text")
    }

    pub(super) fn create(&mut self, record: Record) {
        if self.books.iter().filter(|book| book.is_owned()).count() >= MOST_HANDLES {
            return;
        }
        self.spare_opening();
        let environment = self.environment;
        let library = environment.library.as_ref().map_or(null(), |library| library.as_ptr());
        let peers = [i32::from(record.how), -1];
        // SAFETY: numbers and pointers, for which zero bytes are good values.
        let mut config: gapless_config = unsafe { std::mem::zeroed() };
        config.size = size_of::<gapless_config>() as u64;
        config.device = environment.device;
        config.library = library;
        config.budget_bytes = match record.how % 4 {
            0 => 0,
            1 => (2 << 20) + u64::from(record.number) % (80 << 20),
            _ => 24 << 20,
        };
        let mut good = true;
        let mut surely_bad = true;
        let mut newer = 0;
        match record.what {
            0..=95 => {}
            96..=111 => config.chunk_bytes = u64::from(record.how % 4 + 1) << 21,
            112..=127 => config.slack = 1.0 + f64::from(record.how) / 64.0,
            // What may or may not do: the answer is a status, and nothing else happens.
            128..=143 => (config.chunk_bytes, good, surely_bad) = (u64::from(record.number), false, false),
            144..=159 => (config.region_bytes, good, surely_bad) = (u64::from(record.number), false, false),
            160..=175 => {
                config.budget_bytes = 0;
                config.budget_fraction = f64::from(f32::from_bits(record.number));
                (good, surely_bad) = (false, false);
            }
            176..=191 => (config.slack, good, surely_bad) = (f64::from(f32::from_bits(record.number)), false, false),
            192..=207 => {
                // Of a newer header, or of none. What an older one lacks is a test of its own.
                let wanted = u64::from(record.number);
                config.size = if wanted.is_multiple_of(8) { wanted.max(config.size) } else { wanted };
                newer = u8::from(record.how % 2 == 1);
                let is_one = config.size.is_multiple_of(8) && config.size <= size_of::<NewerConfig>() as u64;
                good = is_one && (newer == 0 || config.size == size_of::<gapless_config>() as u64);
            }
            208..=223 => (config.device, good) = (if record.how < 128 { -1 } else { 1 << 20 }, false),
            224..=239 => {
                config.peer_count = u32::from(record.how) % 3;
                config.peers = if record.number.is_multiple_of(2) { null() } else { peers.as_ptr() };
                (good, surely_bad) = (false, false);
            }
            240..=247 => (config.library, good) = (c"/nowhere/libcuda.so.1".as_ptr(), false),
            _ => good = false,
        }
        surely_bad &= !good;
        let config = NewerConfig { known: config, newer: [newer; _] };
        let config: *const gapless_config = (&raw const config).cast();
        let mut handle: *mut gapless_allocator = without_provenance_mut(UNTOUCHED);
        let status = match record.what {
            248..=251 => c!(gapless_create(null(), &raw mut handle)),
            252..=255 => c!(gapless_create(config, null_mut())),
            _ => c!(gapless_create(config, &raw mut handle)),
        };
        assert!((GAPLESS_OK..GAPLESS_ERROR_INTERNAL).contains(&status), "{record:?}: {status}, {}", error_text());
        // Where others have all of the device, there is no room for what is tried when it is opened, nor for a budget.
        let alone = environment.usage.is_some() && self.failing.is_none() && !self.books.iter().any(Book::is_owned);
        assert!(!good || status == GAPLESS_OK || !alone, "{record:?}: {status}, {}", error_text());
        assert!(!surely_bad || status != GAPLESS_OK, "{record:?} was taken");
        if status == GAPLESS_OK {
            assert!(self.books.iter().all(|book| book.handle != handle.addr()), "a handle is given out once");
            let device = environment.device;
            self.books.push(Book { handle: handle.addr(), alive: true, device, ..Book::default() });
        } else {
            assert_eq!(handle.addr(), UNTOUCHED, "{record:?}");
        }
    }

    pub(super) fn destroy(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let status = c!(gapless_destroy(handle));
        let allowed = match book.map(|book| &self.books[book]) {
            None => GAPLESS_ERROR_INVALID_HANDLE,
            Some(book) if book.lasting => GAPLESS_ERROR_IN_USE,
            Some(book) if book.live > 0 => GAPLESS_ERROR_LEAKED,
            Some(_) => GAPLESS_OK,
        };
        expect(status, &[allowed], record);
        if let Some(number) = book.filter(|book| !self.books[*book].lasting) {
            self.live.retain(|_, block| block.owner != Some(number));
            let book = &mut self.books[number];
            book.alive = false;
            if let Some(path) = book.recording.take() {
                read_recording(&path, self.next_stamp);
            }
        }
    }
}
