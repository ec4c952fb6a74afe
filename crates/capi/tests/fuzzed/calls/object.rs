//! The calls of PyTorch's allocator object: memory by the name of its pool, on this thread and on others. What it reports is looked
//! at in `effect`, and pools that go back to an earlier state in `restore`.

use super::device::{WRONG_DEVICE, check_report};
use super::effect::{named, sums_of};
use super::work::stream_of;
use super::*;

impl Calls {
    /// One of the functions.
    pub(super) fn object(&mut self, record: Record) {
        if record.handle >= 250 {
            return self.without_device(record);
        }
        match record.call {
            Call::ObjectAlloc => self.object_alloc(record),
            Call::ObjectFree => self.object_free(record),
            Call::ObjectUse => self.object_use(record),
            Call::ObjectDescribe => self.object_describe(record),
            Call::ObjectLists => self.object_lists(record),
            Call::ObjectPool => self.object_pool(record),
            Call::ObjectRestore => self.object_restore(record),
            Call::ObjectAllocAgain => self.object_alloc_again(record),
            Call::ObjectTrim => self.object_trim(record),
            Call::ObjectHistory => self.object_history(record),
            _ if record.what < 128 => self.crowd(record),
            _ => self.fork(record),
        }
    }

    /// The device and the pool that a record names.
    pub(super) fn named_in(&self, record: Record) -> (i32, Option<Pool>) {
        let device = if record.handle < 128 { 0 } else { self.second_device() };
        let first = u64::from(record.handle % 4);
        (device, (first > 0).then_some((device, first)))
    }

    /// An address for a call that finds the device by itself.
    pub(super) fn some_address(&self, record: Record) -> u64 {
        let number = record.number as usize;
        let live: Vec<u64> = self.process_wide_blocks();
        let addr = match record.what {
            0..=191 => live.get(number % live.len().max(1)).copied(),
            192..=215 => self.freed.get(number % self.freed.len().max(1)).copied(),
            216..=223 => self.deferred.keys().next().copied(),
            224..=239 => self.live.keys().find(|at| !live.contains(at)).copied(),
            240..=247 => Some((&raw const NOT_OURS).addr() as u64),
            _ => live.get(number % live.len().max(1)).map(|at| at + 512),
        };
        addr.unwrap_or(0)
    }

    pub(super) fn process_wide_blocks(&self) -> Vec<u64> {
        self.live.iter().filter(|(_, block)| self.is_process_wide(block)).map(|(at, _)| *at).collect()
    }

    fn object_alloc(&mut self, record: Record) {
        let (device, pool) = self.named_in(record);
        let Some(book) = self.torch_book(device) else { return };
        let (stream, kind) = self.stream(record.how, device);
        let bytes = Self::bytes_of(record);
        let mut pointer: *mut c_void = without_provenance_mut(UNTOUCHED);
        let out = if record.how == 247 { null_mut() } else { &raw mut pointer };
        let name = pool.map(|(_, first)| named(first));
        let name = name.as_ref().map_or(null(), |name| name);
        let status = c!(gapless_torch_alloc(device, bytes, stream, name, out));
        let allowed: &[gapless_status] = match kind.serves() {
            _ if out.is_null() => &[GAPLESS_ERROR_INVALID_ARGUMENT],
            true => &[GAPLESS_OK, GAPLESS_ERROR_OUT_OF_MEMORY],
            false => &[GAPLESS_ERROR_STREAM, GAPLESS_ERROR_OUT_OF_MEMORY],
        };
        self.expect(status, allowed, record);
        if status != GAPLESS_OK {
            assert_eq!(pointer.addr(), UNTOUCHED, "{record:?} failed and wrote: {}", error_text());
            self.note_refusal(!out.is_null(), device, bytes, stream);
            if status == GAPLESS_ERROR_OUT_OF_MEMORY && self.failing.is_none() && check_report(bytes) {
                self.expect_settled(device);
                self.check_refusal(device, bytes);
            }
            return;
        }
        let addr = pointer.addr() as u64;
        let home = stream_of(stream.addr() as u64);
        let found = self.describe(pointer).expect("a live block").pool.first;
        let found = (found != 0).then_some((device, found));
        // One without users that has something live is there until that is gone, and one with a deferred free may be.
        let unsure = pool.is_some_and(|pool| !self.pools.contains_key(&pool));
        let lent = pool.is_none_or(|_| unsure) && found.is_some_and(|found| self.lending.contains(&found));
        assert!(found == pool || lent || unsure && found.is_none(), "asked for {pool:?}, served from {found:?}");
        self.note_event(Action::Alloc, device, addr, bytes, home);
        let owner = if found.is_some() { None } else { Some(book) };
        self.take_in(pointer, Block { bytes, stamp: 0, owner, pool: found, device, home });
        let described = self.describe(pointer).expect("a live block");
        self.check_block(&described);
    }

    fn object_free(&mut self, record: Record) {
        let addr = self.some_address(record);
        let known = self.live.get(&addr).copied().filter(|block| self.is_process_wide(block));
        if known.is_some() {
            self.verify(addr);
        }
        let delete = move || {
            let status = c!(gapless_torch_delete(without_provenance_mut(addr as usize)));
            (status, gapless_last_error_status())
        };
        // Its failure is of that thread, and this one's stays what it was.
        let elsewhere = record.how % 2 == 1;
        let (status, last) = match elsewhere {
            true => std::thread::spawn(delete).join().expect("no panic in the library"),
            false => delete(),
        };
        let theirs = self.live.contains_key(&addr) || addr == 0 || record.what >= 240 && record.what < 248;
        let allowed: &[gapless_status] = match known {
            Some(_) => &[GAPLESS_OK],
            None if theirs => &[GAPLESS_ERROR_NOT_FOUND],
            None => &[GAPLESS_ERROR_NOT_ALLOCATED, GAPLESS_ERROR_NOT_FOUND],
        };
        assert!(allowed.contains(&status), "{record:?} answered {status}, not one of {allowed:?}");
        assert!(status == GAPLESS_OK || last == status, "{record:?} answered {status}, and then {last}");
        if let Some(block) = known {
            self.note_event(Action::Free, block.device, addr, 0, StreamId::DEFAULT);
            self.forget(addr);
        }
    }

    fn object_use(&mut self, record: Record) {
        let addr = self.some_address(record);
        let block = self.live.get(&addr).copied().filter(|block| self.is_process_wide(block));
        let (stream, kind) = self.stream(record.how, block.map_or(0, |block| block.device));
        let device = self.device_of_use(block.map_or(0, |block| block.device), stream, kind);
        let status = c!(gapless_torch_use_on(without_provenance_mut(addr as usize), device, stream));
        let Some(block) = block else {
            let refused =
                [GAPLESS_ERROR_NOT_FOUND, GAPLESS_ERROR_NOT_ALLOCATED, GAPLESS_ERROR_STREAM, GAPLESS_ERROR_DRIVER];
            return expect(status, &refused, record);
        };
        let good = kind != Stream::Unknown;
        self.expect(status, if good { &[GAPLESS_OK] } else { &[GAPLESS_ERROR_STREAM] }, record);
        if good {
            self.used_pools.extend(block.pool);
            if self.is_sound() { self.use_block(addr, stream, kind) } else { self.use_perhaps(addr) }
        }
    }

    /// Users of pools, and pools that may lend.
    fn object_pool(&mut self, record: Record) {
        let (device, pool) = self.named_in(record);
        let (Some(book), Some(pool)) = (self.torch_book(device), pool) else { return };
        let name = named(pool.1);
        if record.what % 4 == 3 {
            let lend = record.how % 2;
            let status = c!(gapless_torch_lend_pool(device, name, i32::from(lend)));
            let exists = self.pools.contains_key(&pool);
            let lingers = self.lingering_pools(device)[1] > 0;
            let allowed: &[gapless_status] = match exists {
                true => &[GAPLESS_OK],
                false if lingers => &[GAPLESS_OK, GAPLESS_ERROR_NOT_FOUND],
                false => &[GAPLESS_ERROR_NOT_FOUND],
            };
            expect(status, allowed, record);
            match lend {
                0 => self.lending.remove(&pool),
                _ => self.lending.insert(pool),
            };
            return;
        }
        self.books[book].has_had_pools = true;
        let opens = record.what % 4 == 2;
        let status = match opens {
            true => c!(gapless_torch_open_pool(device, name)),
            false => c!(gapless_torch_use_pool(device, name)),
        };
        self.expect(status, &[GAPLESS_OK], record);
        if status == GAPLESS_OK {
            *self.pools.entry(pool).or_default() += 1;
            if opens {
                self.open.push(pool);
            }
            self.check_shares(device);
        }
    }

    fn object_trim(&mut self, record: Record) {
        let (device, _) = self.named_in(record);
        let Some(book) = self.torch_book(device) else { return };
        if record.what.is_multiple_of(3) {
            expect_ok(c!(gapless_torch_reset_peaks(device)));
            let sums = sums_of(device, None).expect("a device in use");
            let peaks = (sums.peak_live_bytes, sums.peak_reserved_bytes, sums.peak_chunks);
            assert_eq!(peaks, (sums.live_bytes, sums.reserved_bytes, sums.chunks), "peaks after a reset");
            let done = &mut self.books[book].done;
            done.peak = done.live;
            return;
        }
        let pools_only = i32::from(record.what % 3 == 1);
        let trim = |released| c!(gapless_torch_trim(device, pools_only, released));
        let status = self.check_trim(device, record, &[GAPLESS_OK], trim);
        if status == GAPLESS_OK && pools_only == 0 && self.failing.is_none() {
            self.expect_settled(device);
        }
    }

    /// Threads that free what was allocated here, while this one goes on allocating.
    fn crowd(&mut self, record: Record) {
        let (device, _) = self.named_in(record);
        let Some(book) = self.torch_book(device) else { return };
        let mine: Vec<u64> = self.process_wide_blocks().into_iter().filter(|at| !self.is_used(*at)).collect();
        let lends = self.lending.iter().any(|(its, _)| *its == device);
        if mine.len() < 2 || lends || self.failing.is_some() || self.history.is_on() && !self.history.has_room(64) {
            return;
        }
        mine.iter().for_each(|addr| self.verify(*addr));
        let halves = mine.split_at(mine.len() / 2);
        let free = |addrs: &[u64]| {
            let delete = |addr: &u64| c!(gapless_torch_delete(without_provenance_mut(*addr as usize)));
            assert!(addrs.iter().map(delete).all(|status| status == GAPLESS_OK), "a live block cannot be freed");
        };
        let bytes = u64::from(record.number) % (1 << 20);
        let allocs = || -> Vec<u64> {
            let alloc = |_| {
                let mut pointer = null_mut();
                let status = c!(gapless_torch_alloc(device, bytes, null_mut(), null(), &raw mut pointer));
                (status == GAPLESS_OK).then_some(pointer.addr() as u64)
            };
            (0..4).filter_map(alloc).collect()
        };
        let made = std::thread::scope(|scope| {
            scope.spawn(|| free(halves.0));
            scope.spawn(|| free(halves.1));
            allocs()
        });
        let refused = 4 - made.len();
        self.books[book].done.out_of_memory += refused as u64;
        let gone: Vec<(u64, Block)> = mine.iter().map(|addr| (*addr, self.live[addr])).collect();
        mine.iter().for_each(|addr| self.forget(*addr));
        let block = Block { bytes, stamp: 0, owner: Some(book), pool: None, device, home: StreamId::DEFAULT };
        made.iter().for_each(|addr| self.take_in(without_provenance_mut(*addr as usize), block));
        let frees = gone.into_iter().map(|(addr, block)| (Action::Free, addr, block));
        let served = made.into_iter().map(|addr| (Action::Alloc, addr, block));
        self.note_events(frees.chain(served).chain(std::iter::repeat_n((Action::Oom, 0, block), refused)));
    }

    /// A device that is none.
    fn without_device(&mut self, record: Record) {
        let device = [-1, 64, 1 << 20, 63][usize::from(record.how % 4)];
        let mut pointer: *mut c_void = without_provenance_mut(UNTOUCHED);
        let mut stats = gapless_stats::default();
        stats.figures.live_bytes = UNTOUCHED as u64;
        let (mut needed, mut users, mut released) = (UNTOUCHED as u64, u32::MAX, UNTOUCHED as u64);
        let status = match record.what % 10 {
            0 => c!(gapless_torch_alloc(device, 512, null_mut(), null(), &raw mut pointer)),
            1 => c!(gapless_torch_get_stats(device, null(), &raw mut stats)),
            2 => c!(gapless_torch_pools(device, null_mut(), 0, &raw mut needed)),
            3 => c!(gapless_torch_blocks(device, null(), 0, null_mut(), 0, &raw mut needed)),
            4 => c!(gapless_torch_use_pool(device, named(1))),
            5 => c!(gapless_torch_pool_users(device, named(1), &raw mut users)),
            6 => c!(gapless_torch_restore_pool(device, named(1), null(), 0)),
            7 => c!(gapless_torch_trim(device, 0, &raw mut released)),
            8 => c!(gapless_torch_reset_counts(device)),
            _ => c!(gapless_torch_reset_peaks(device)),
        };
        expect(status, WRONG_DEVICE, record);
        assert_eq!(c!(gapless_torch_reaches(device, 0)), 0);
        let untouched = (pointer.addr(), stats.figures.live_bytes, needed, users, released);
        assert_eq!(
            untouched,
            (UNTOUCHED, UNTOUCHED as u64, UNTOUCHED as u64, u32::MAX, UNTOUCHED as u64),
            "{record:?}"
        );
    }
}
