//! PyTorch's and CuPy's entry points, which work on the process-wide allocator of device 0.

use super::*;

impl Calls {
    /// The book of device 0's process-wide allocator, opened at its first use by this input.
    pub(super) fn torch_book(&mut self) -> Option<usize> {
        self.spare_opening();
        let mut handle: *mut gapless_allocator = null_mut();
        let status = c!(gapless_device_allocator(0, &raw mut handle));
        assert!(
            status == GAPLESS_OK || self.environment.usage.is_none() || self.failing.is_some(),
            "{status}: {}",
            told()
        );
        if status != GAPLESS_OK {
            return None;
        }
        self.torch = true;
        if let Some(book) = self.books.iter().position(|book| book.handle == handle.addr()) {
            return Some(book);
        }
        let mut stats = gapless_stats { size: size_of::<gapless_stats>(), ..gapless_stats::default() };
        expect_ok(c!(gapless_get_stats(handle, &raw mut stats)));
        assert_eq!(stats.live_bytes, 0, "the input before left something");
        let before = (stats.allocs, stats.frees);
        self.books.push(Book { handle: handle.addr(), alive: true, lasting: true, before, ..Book::default() });
        Some(self.books.len() - 1)
    }

    pub(super) fn torch(&mut self, record: Record) {
        let Some(book) = self.torch_book() else { return };
        let (stream, known) = self.stream(record.how);
        let device = if record.handle >= 248 { i32::from(record.handle) - 250 } else { 0 };
        let wrong_device = record.handle >= 248 && device != 0 && !(device == 1 && self.environment.device == 1);
        if device == 1 {
            return;
        }
        match record.call / 20 {
            function @ 8.. => self.device(function - 8, record, book, device),
            0..=3 => {
                let bytes = Self::bytes_of(record);
                let pointer = match record.what {
                    250.. => c!(gapless_cupy_malloc(stream.cast(), bytes as usize, device)),
                    _ => c!(gapless_torch_malloc(bytes as libc::ssize_t, device, stream)),
                };
                if pointer.is_null() {
                    return;
                }
                assert!(!wrong_device && known && bytes < 1 << 40, "{record:?} was served");
                // The newest open pool has it: all are this thread's.
                let pool = self.open.last().copied();
                let owner = if pool.is_some() { None } else { Some(book) };
                self.take_in(pointer, Block { bytes, stamp: 0, owner, pool });
            }
            4 => {
                let mine: Vec<u64> = self
                    .live
                    .iter()
                    .filter(|(_, block)| block.owner == Some(book) || block.pool.is_some())
                    .map(|(at, _)| *at)
                    .collect();
                if record.what < 200 && !wrong_device {
                    let Some(addr) = mine.get(record.number as usize % mine.len().max(1)).copied() else { return };
                    self.torch_free(addr, record.what.is_multiple_of(2));
                } else {
                    // Refused, and told on stderr: nothing changes.
                    let addr = self.live.iter().find(|(at, _)| !mine.contains(at)).map_or(0x1000, |(at, _)| *at);
                    c!(gapless_torch_free(without_provenance_mut(addr as usize), 0, device, stream));
                }
            }
            5 => {
                let at = record.number as usize % self.live.len().max(1);
                let addr = self.live.keys().nth(at).map_or(0x1000, |at| at + u64::from(record.what % 4));
                let pointer: *mut c_void = without_provenance_mut(addr as usize);
                if record.what < 128 {
                    c!(gapless_torch_record_stream(pointer, stream));
                    return;
                }
                let mut size = UNTOUCHED;
                let base =
                    c!(gapless_torch_base_alloc(pointer, if record.how == 255 { null_mut() } else { &raw mut size }));
                let found = self.live.range(..=addr).next_back();
                let expected = found.filter(|(at, block)| {
                    (block.owner == Some(book) || block.pool.is_some()) && addr - **at < block.bytes.max(1)
                });
                assert_eq!(base.addr() as u64, expected.map_or(0, |(at, _)| *at), "{record:?}: the base of {addr:#x}");
                let bytes = expected.filter(|_| record.how != 255).map_or(UNTOUCHED, |(_, block)| block.bytes as usize);
                assert_eq!(size, bytes, "{record:?}");
            }
            6 => {
                if record.what < 128 {
                    c!(gapless_torch_reset());
                } else {
                    let part = f64::from(f32::from_bits(record.number));
                    let status = c!(gapless_torch_set_fraction(part, device));
                    let good = part > 0.0 && part <= 1.0 && !wrong_device;
                    let refused: &[gapless_status] = &[GAPLESS_ERROR_INVALID_ARGUMENT, GAPLESS_ERROR_NO_DEVICE];
                    self.expect(status, if good { &[GAPLESS_OK] } else { refused }, record);
                }
            }
            _ => self.torch_report(record, book),
        }
    }

    pub(super) fn torch_free(&mut self, addr: u64, cupy: bool) {
        self.verify(addr);
        let pointer: *mut c_void = without_provenance_mut(addr as usize);
        if cupy {
            c!(gapless_cupy_free(null_mut(), pointer, 0));
        } else {
            c!(gapless_torch_free(pointer, self.live[&addr].bytes as usize, 0, null_mut()));
        }
        self.forget(addr);
    }

    pub(super) fn torch_report(&mut self, record: Record, book: usize) {
        let call = |buffer: *mut c_char, capacity, needed: *mut usize| {
            c!(gapless_torch_report_json(0, i32::from(record.what % 2), buffer, capacity, needed))
        };
        let mut needed = UNTOUCHED;
        expect(call(null_mut(), 0, &raw mut needed), &[GAPLESS_ERROR_BUFFER_TOO_SMALL], record);
        let report = self.read_text(record, needed, call);
        assert_eq!(report["main"]["live_bytes"], self.books[book].live_bytes, "{report}");
        let pools = report["pools"].as_array().expect("a list");
        assert_eq!(pools.len(), self.pools.len() + self.lingering_pools(), "{report}");
        let live: u64 = pools.iter().filter_map(|pool| pool["stats"]["live_bytes"].as_u64()).sum();
        let known: u64 = self.live.values().filter(|block| block.pool.is_some()).map(|block| block.bytes).sum();
        assert_eq!(live, known, "{report}");
        let [allocated, freed] = ["allocated_bytes", "freed_bytes"].map(|key| report[key].as_u64().expect("a number"));
        assert_eq!(allocated - freed, live + self.books[book].live_bytes, "{report}");
    }

    /// Pools without users that still have something live.
    pub(super) fn lingering_pools(&self) -> usize {
        let mut ids: Vec<u64> = self.live.values().filter_map(|block| block.pool).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|id| !self.pools.contains_key(id));
        ids.len()
    }

    pub(super) fn torch_pool(&mut self, record: Record) {
        if self.torch_book().is_none() {
            return;
        }
        let id = u64::from(record.handle % 3) + 1;
        let pool = gapless_torch_pool { first: id, second: 7 };
        match record.what % 3 {
            0 => {
                c!(gapless_torch_begin_allocate_to_pool(0, pool, null_mut()));
                *self.pools.entry(id).or_default() += 1;
                self.open.push(id);
            }
            1 => {
                c!(gapless_torch_end_allocate_to_pool(0, pool));
                if let Some(at) = self.open.iter().rposition(|open| *open == id) {
                    self.open.remove(at);
                }
            }
            // PyTorch ends before it releases.
            _ if self.open.contains(&id) => {}
            _ => {
                c!(gapless_torch_release_pool(0, pool));
                if let Some(users) = self.pools.get_mut(&id) {
                    *users -= 1;
                    if *users == 0 {
                        self.pools.remove(&id);
                    }
                }
            }
        }
    }

    pub(super) fn conf(&mut self, record: Record) {
        let texts =
            [c"budget:0.5", c"", c"bugdet:1", c"slack:0.1", c"log", c"budget:1GiB,max_split_size_mb:9", c"\xff"];
        let number = usize::from(record.what) % texts.len();
        let text = if record.how == 255 { null() } else { texts[number].as_ptr() };
        let good = [true, true, false, false, false, true, false][number] && record.how != 255;
        let refused = if good { GAPLESS_OK } else { GAPLESS_ERROR_INVALID_ARGUMENT };
        expect(c!(gapless_check_conf(text)), &[refused], record);
        if self.torch_book().is_some() {
            let refused = if good { GAPLESS_ERROR_IN_USE } else { GAPLESS_ERROR_INVALID_ARGUMENT };
            expect(c!(gapless_configure(text)), &[refused], record);
        }
        // SAFETY: a NUL-terminated text of the library.
        let version = unsafe { CStr::from_ptr(gapless_version()) };
        assert!(version.to_bytes().contains(&b'.'), "{version:?}");
    }

    /// The process-wide allocator's report, for messages.
    pub(super) fn torch_text(&self) -> String {
        let mut buffer = vec![0_u8; 1 << 16];
        let mut needed = 0;
        let status = c!(gapless_torch_report_json(0, 1, buffer.as_mut_ptr().cast(), buffer.len(), &raw mut needed));
        let text = buffer.get(..needed).unwrap_or_default();
        format!("{status}, {}", String::from_utf8_lossy(text))
    }
}
