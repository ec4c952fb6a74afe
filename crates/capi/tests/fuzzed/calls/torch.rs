//! PyTorch's and CuPy's entry points, which work on the process-wide allocators.

use super::effect::sums_of;
use super::*;

impl Calls {
    /// The book of a device's process-wide allocator, opened at its first use by this input.
    pub(super) fn torch_book(&mut self, device: i32) -> Option<usize> {
        self.spare_opening();
        let mut handle: *mut gapless_allocator = null_mut();
        let status = c!(gapless_device_allocator(device, &raw mut handle));
        assert!(
            status == GAPLESS_OK || self.environment.usage.is_none() || self.failing.is_some(),
            "{status}: {}",
            error_text()
        );
        if status != GAPLESS_OK {
            return None;
        }
        self.torch = true;
        if let Some(book) = self.books.iter().position(|book| book.handle == handle.addr()) {
            return Some(book);
        }
        let mut stats = gapless_stats::default();
        expect_ok(c!(gapless_get_stats(handle, &raw mut stats)));
        assert_eq!(stats.figures.live_bytes, 0, "the input before left something");
        let whole = budget::was_set(device).then_some(stats.figures.budget_bytes);
        let main = self.main_figures(device);
        let before = (main.allocs, main.frees);
        self.books.push(Book {
            handle: handle.addr(),
            alive: true,
            lasting: true,
            device,
            before,
            sums_before: sums_of(device, None).expect("a device in use"),
            whole,
            ..Book::default()
        });
        Some(self.books.len() - 1)
    }

    pub(super) fn torch(&mut self, record: Record) {
        let device = match record.handle {
            248.. => i32::from(record.handle) - 250,
            128.. => self.second_device(),
            _ => 0,
        };
        // Device 1 has no process-wide allocator, and is to get none. Whether an installed driver has more is not known.
        if device == 1 || device > 1 && self.environment.usage.is_none() {
            return;
        }
        let exists = device == 0 || device == self.second_device();
        let Some(book) = self.torch_book(if exists { device } else { 0 }) else { return };
        let (stream, kind) = self.stream(record.how, device);
        match record.call {
            Call::TorchAlloc => {
                let bytes = Self::bytes_of(record);
                let pointer = match record.what {
                    250.. => c!(gapless_cupy_malloc(stream.cast(), bytes as usize, device)),
                    _ => c!(gapless_torch_malloc(bytes as libc::ssize_t, device, stream)),
                };
                if pointer.is_null() {
                    self.note_refusal(exists, device, bytes, stream);
                    let refused = gapless_last_error_kind() == GAPLESS_KIND_OUT_OF_MEMORY;
                    if exists && kind.serves() && refused && self.is_sound() {
                        self.expect_settled(device);
                        self.check_refusal(device, bytes);
                    }
                    return;
                }
                assert!(exists && kind.serves() && bytes < 1 << 40, "{record:?} was served");
                self.take_in_of_device(pointer, bytes, stream, book);
            }
            Call::TorchFree => {
                let its = self.books[book].device;
                let mine: Vec<u64> =
                    self.live.iter().filter(|(_, block)| self.is_served_by(its, block)).map(|(at, _)| *at).collect();
                if record.what < 200 && exists {
                    let Some(addr) = mine.get(record.number as usize % mine.len().max(1)).copied() else { return };
                    self.torch_free(addr, record.what.is_multiple_of(2));
                } else {
                    // Refused, and reported on stderr: nothing changes.
                    let addr = self.live.iter().find(|(at, _)| !mine.contains(at)).map_or(0x1000, |(at, _)| *at);
                    c!(gapless_torch_free(without_provenance_mut(addr as usize), 0, device, stream));
                }
            }
            Call::TorchUse => {
                let at = record.number as usize % self.live.len().max(1);
                let addr = self.live.keys().nth(at).map_or(0x1000, |at| at + u64::from(record.what % 4));
                let pointer: *mut c_void = without_provenance_mut(addr as usize);
                if record.what < 128 {
                    c!(gapless_torch_record_stream(pointer, stream));
                    let block = self.live.get(&addr).copied().filter(|block| self.is_process_wide(block));
                    // No status says whether it worked; where nothing fails, it has to.
                    if let Some(block) = block.filter(|_| self.is_sound()) {
                        let (_, kind) = self.stream(record.how, block.device);
                        if kind != Stream::Unknown {
                            self.used_pools.extend(block.pool);
                            self.use_block(addr, stream, kind);
                        }
                    } else if block.is_some() {
                        self.use_perhaps(addr);
                    }
                    return;
                }
                let mut size = UNTOUCHED;
                let base =
                    c!(gapless_torch_base_alloc(pointer, if record.how == 255 { null_mut() } else { &raw mut size }));
                let found = self.live.range(..=addr).next_back();
                let expected =
                    found.filter(|(at, block)| self.is_process_wide(block) && addr - **at < block.bytes.max(1));
                assert_eq!(base.addr() as u64, expected.map_or(0, |(at, _)| *at), "{record:?}: the base of {addr:#x}");
                let bytes = expected.filter(|_| record.how != 255).map_or(UNTOUCHED, |(_, block)| block.bytes as usize);
                assert_eq!(size, bytes, "{record:?}");
            }
            Call::TorchBudget => {
                if record.what < 128 {
                    c!(gapless_torch_reset());
                    if self.is_sound() {
                        self.environment.gpus.iter().for_each(|gpu| self.expect_settled(gpu.device));
                    }
                } else if self.gets_budgets(device) {
                    let part = f64::from(f32::from_bits(record.number));
                    let status = c!(gapless_torch_set_fraction(part, device));
                    let good = (0.0..=1.0).contains(&part) && exists;
                    let refused: &[gapless_status] = &[GAPLESS_ERROR_INVALID_ARGUMENT, GAPLESS_ERROR_NO_DEVICE];
                    self.expect(status, if good { &[GAPLESS_OK] } else { refused }, record);
                    if status == GAPLESS_OK {
                        self.check_new_budget(device, part);
                    }
                }
            }
            Call::TorchReport => self.torch_report(record, book),
            _ => self.device(record, book, device),
        }
    }

    /// The second device with a process-wide allocator; the first one where there is none.
    pub(super) fn second_device(&self) -> i32 {
        self.environment.gpus.last().map_or(0, |gpu| gpu.device)
    }

    /// Whether a block is of a process-wide allocator, or of one of its pools.
    pub(super) fn is_process_wide(&self, block: &Block) -> bool {
        block.pool.is_some() || block.owner.is_some_and(|book| self.books[book].lasting)
    }

    /// Whether it is the process-wide allocator of a device that has a block, or one of its pools.
    pub(super) fn is_served_by(&self, device: i32, block: &Block) -> bool {
        block.device == device && self.is_process_wide(block)
    }

    pub(super) fn torch_free(&mut self, addr: u64, cupy: bool) {
        let device = self.live[&addr].device;
        self.verify(addr);
        let pointer: *mut c_void = without_provenance_mut(addr as usize);
        if cupy {
            c!(gapless_cupy_free(null_mut(), pointer, device));
        } else {
            c!(gapless_torch_free(pointer, self.live[&addr].bytes as usize, device, null_mut()));
        }
        self.note_event(Action::Free, device, addr, 0, StreamId::DEFAULT);
        self.forget(addr);
    }

    pub(super) fn torch_report(&mut self, record: Record, book: usize) {
        let device = self.books[book].device;
        let call = |buffer: *mut c_char, capacity, needed: *mut u64| {
            c!(gapless_torch_report_json(device, i32::from(record.what % 2), buffer, capacity, needed))
        };
        let mut needed = UNTOUCHED as u64;
        expect(call(null_mut(), 0, &raw mut needed), &[GAPLESS_ERROR_BUFFER_TOO_SMALL], record);
        let report = self.read_text(record, needed, call);
        // What has a deferred free counts as live.
        let number = |value: &serde_json::Value| value.as_u64().expect("a number");
        let in_main = number(&report["main"]["live_bytes"]) - self.books[book].live_bytes;
        let bounds = self.deferred_bounds(|block| block.owner == Some(book)).map(|(bytes, _)| bytes);
        assert!((bounds[0]..=bounds[1]).contains(&in_main), "{bounds:?}: {report}");
        let pools = report["pools"].as_array().expect("a list");
        let [least, most] = self.lingering_pools(device);
        let known = self.pools.keys().filter(|(its, _)| *its == device).count();
        assert!((known + least..=known + most).contains(&pools.len()), "{least} to {most}: {report}");
        let is_of_pool = |block: &Block| block.pool.is_some_and(|(its, _)| its == device);
        let live: u64 = pools.iter().map(|pool| number(&pool["stats"]["live_bytes"])).sum();
        let known: u64 = self.live.values().filter(|block| is_of_pool(block)).map(|block| block.bytes).sum();
        let in_pools = live - known;
        let bounds = self.deferred_bounds(is_of_pool).map(|(bytes, _)| bytes);
        assert!((bounds[0]..=bounds[1]).contains(&in_pools), "{bounds:?}: {report}");
        let sums = sums_of(device, None).expect("a device in use");
        let in_all = live + number(&report["main"]["live_bytes"]);
        assert_eq!(sums.allocated_bytes - sums.freed_bytes, in_all, "{report}");
    }

    /// Pools of a device without users that still have something live: at least, and at most.
    pub(super) fn lingering_pools(&self, device: i32) -> [usize; 2] {
        let live = self.live.values().filter_map(|block| block.pool);
        let deferred = self.deferred.values().filter_map(|freed| freed.block.pool);
        [live.clone().collect::<Vec<_>>(), live.chain(deferred).collect()].map(|mut pools| {
            pools.sort_unstable();
            pools.dedup();
            pools.retain(|pool| pool.0 == device && !self.pools.contains_key(pool));
            pools.len()
        })
    }

    pub(super) fn torch_pool(&mut self, record: Record) {
        let device = if record.handle < 128 { 0 } else { self.second_device() };
        let Some(book) = self.torch_book(device) else { return };
        self.books[book].has_had_pools = true;
        let first = u64::from(record.handle % 3) + 1;
        let (pool, id) = (gapless_torch_pool { first, second: 7 }, (device, first));
        match record.what % 3 {
            0 => {
                c!(gapless_torch_begin_allocate_to_pool(device, pool, null_mut()));
                *self.pools.entry(id).or_default() += 1;
                self.open.push(id);
                self.check_shares(device);
            }
            1 => {
                c!(gapless_torch_end_allocate_to_pool(device, pool));
                if let Some(at) = self.open.iter().rposition(|open| *open == id) {
                    self.open.remove(at);
                }
                self.check_shares(device);
            }
            // PyTorch ends before it releases.
            _ if self.open.contains(&id) => {}
            _ => {
                c!(gapless_torch_release_pool(device, pool));
                if let Some(users) = self.pools.get_mut(&id) {
                    *users -= 1;
                    if *users == 0 {
                        self.pools.remove(&id);
                        self.forget_pool(id);
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
        if self.torch_book(0).is_some() {
            let refused = if good { GAPLESS_ERROR_IN_USE } else { GAPLESS_ERROR_INVALID_ARGUMENT };
            expect(c!(gapless_configure(text)), &[refused], record);
        }
        // SAFETY: a NUL-terminated text of the library.
        let version = unsafe { CStr::from_ptr(gapless_version()) };
        assert!(version.to_bytes().contains(&b'.'), "{version:?}");
    }

    /// The report of a device's process-wide allocator, for messages.
    pub(super) fn torch_text(&self, device: i32) -> String {
        self.torch_json(device, 1)
    }

    /// A device's report, with a snapshot if that is not 0.
    pub(super) fn torch_json(&self, device: i32, snapshot: i32) -> String {
        let mut needed = 0;
        c!(gapless_torch_report_json(device, snapshot, null_mut(), 0, &raw mut needed));
        let mut buffer = vec![0_u8; needed as usize];
        expect_ok(c!(gapless_torch_report_json(device, snapshot, buffer.as_mut_ptr().cast(), needed, &raw mut needed)));
        buffer.truncate(needed.saturating_sub(1) as usize);
        String::from_utf8(buffer).expect("UTF-8")
    }
}
