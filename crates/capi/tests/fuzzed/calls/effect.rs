//! The figures of a device's process-wide allocator and its pools, against a caller's own count.
//!
//! - E1  sums of a device and of each pool are those of the calls: bytes, allocations, frees and users, whatever became of the
//!   pools. The device's handle says the same.
//! - E2  the chunks are those that the driver has given out.
//! - E3  a block that a stream of its own device may still use is pending.
//! - E4  each live block is listed once: where it is, as many bytes as were requested, for the stream and from the pool that the
//!   request named; nothing else that is listed has any of its bytes.
//!
//! A block with a deferred free (see `work`) counts as live in the sums, and is listed as pending.

use super::*;

/// The sums of a device, or of a pool; none where there is no such pool.
pub(super) fn sums_of(device: i32, pool: Option<Pool>) -> Option<Figures> {
    let name = pool.map(|(_, first)| named(first));
    let mut stats = gapless_stats::default();
    stats.figures.live_bytes = UNTOUCHED as u64;
    let status = c!(gapless_torch_get_stats(device, name.as_ref().map_or(null(), |name| name), &raw mut stats));
    if status == GAPLESS_ERROR_NOT_FOUND {
        assert!(pool.is_some() && stats.figures.live_bytes == UNTOUCHED as u64, "{stats:?}");
        return None;
    }
    expect_ok(status);
    Some(stats.figures)
}

pub(super) fn named(first: u64) -> gapless_torch_pool {
    gapless_torch_pool { first, second: 7 }
}

/// Bytes of a block for a request.
fn rounded(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(512)
}

/// Where a block is.
type Place = (u64, u64, u64, (u64, u64));

impl Calls {
    /// The handle of a device answers for the device, pools included: it says what E1 is about.
    pub(super) fn check_handle(&self, book: usize) {
        let stats = self.figures(book);
        let sums = sums_of(self.books[book].device, None).expect("a device in use");
        assert_eq!(
            (stats.live_bytes, stats.live_allocations, stats.reserved_bytes, stats.pending_bytes),
            (sums.live_bytes, sums.live_allocations, sums.reserved_bytes, sums.pending_bytes),
            "{stats:?}, {sums:?}"
        );
        assert_eq!((stats.allocs, stats.frees), (sums.allocs, sums.frees), "{stats:?}, {sums:?}");
        assert_eq!(
            (stats.peak_live_bytes, stats.peak_reserved_bytes),
            (sums.peak_live_bytes, sums.peak_reserved_bytes),
            "{stats:?}, {sums:?}"
        );
    }

    /// E1 to E3, after a call.
    pub(super) fn check_effect(&self, device: i32) {
        let Some(book) = self.books.iter().position(|book| book.lasting && book.device == device) else { return };
        let sums = sums_of(device, None).expect("a device in use");
        let [bytes, deferred] = self.check_live(&sums, |block| self.is_served_by(device, block));
        let (before, done) = (&self.books[book].sums_before, self.books[book].done);
        let since = |now: u64, before: u64| now.wrapping_sub(before);
        assert_eq!(since(sums.allocs, before.allocs), done.allocs, "{done:?}: {sums:?}");
        assert_eq!(since(sums.frees, before.frees) + deferred, done.frees, "{done:?}: {sums:?}");
        assert_eq!(since(sums.allocated_bytes, before.allocated_bytes), done.bytes, "{done:?}: {sums:?}");
        assert_eq!(sums.allocated_bytes - sums.freed_bytes, sums.live_bytes, "{sums:?}");
        assert_eq!(since(sums.failed_allocs, before.failed_allocs), done.out_of_memory, "{done:?}: {sums:?}");
        assert_eq!(sums.live_bytes, done.live + bytes, "{done:?}: {sums:?}");
        assert!(sums.live_bytes.max(done.peak) <= sums.peak_live_bytes, "{done:?}: {sums:?}");
        assert_eq!(sums.created_chunks - sums.released_chunks, sums.chunks, "{sums:?}");
        assert!(sums.created_bytes >= sums.reserved_bytes && sums.host_waits >= before.host_waits, "{sums:?}");
        self.check_chunks(device, &sums);
        let known: Vec<Pool> = self.pools.keys().filter(|(its, _)| *its == device).copied().collect();
        for pool in known {
            let sums = sums_of(device, Some(pool)).unwrap_or_else(|| panic!("pool {pool:?} is in use"));
            self.check_live(&sums, |block| block.pool == Some(pool));
            let mut users = 0;
            expect_ok(c!(gapless_torch_pool_users(device, named(pool.1), &raw mut users)));
            assert_eq!(users, self.pools[&pool], "users of {pool:?}");
        }
    }

    /// Compares with what is live and what waits. Returns bytes and number of the blocks whose free is deferred.
    fn check_live(&self, sums: &Figures, of: impl Fn(&Block) -> bool) -> [u64; 2] {
        let live: Vec<u64> = self.live.values().filter(|block| of(block)).map(|block| block.bytes).collect();
        let [least, most] = self.deferred_bounds(&of);
        let bytes = sums.live_bytes.wrapping_sub(live.iter().sum());
        let number = sums.live_allocations.wrapping_sub(live.len() as u64);
        assert!(
            (least.0..=most.0).contains(&bytes),
            "{bytes} bytes with a deferred free, not {least:?} to {most:?}: {sums:?}"
        );
        assert!((least.1..=most.1).contains(&number), "{number} deferred frees, not {least:?} to {most:?}: {sums:?}");
        let blocks = live.iter().map(|bytes| rounded(*bytes)).sum::<u64>();
        assert!(number > 0 || sums.live_block_bytes == blocks, "{blocks} bytes of blocks: {sums:?}");
        let waiting: u64 = self.surely_waiting(&of).iter().map(|(_, bytes)| rounded(*bytes)).sum();
        assert!(sums.pending_bytes >= waiting, "{waiting} bytes wait for streams: {sums:?}");
        let used = sums.live_block_bytes + sums.pending_bytes + sums.kept_free_bytes;
        assert!(used <= sums.reserved_bytes && sums.reserved_bytes <= sums.peak_reserved_bytes, "{sums:?}");
        [bytes, number]
    }

    /// E2. What was released is nobody's until it is given back.
    fn check_chunks(&self, device: i32, sums: &Figures) {
        if let Some([chunks, ..]) = self.environment.usage(device).filter(|_| !self.faulty) {
            let pools = self.shares(device);
            assert_eq!(sums.reserved_bytes + pools.condemned, pools.held(), "{sums:?}");
            assert!(sums.chunks == chunks || sums.chunks < chunks && pools.condemned > 0, "{chunks} chunks: {sums:?}");
        }
    }

    /// The pool that served a request that belonged to none: one that lends may have.
    pub(super) fn lender_of(&self, device: i32, pointer: *mut c_void) -> Option<Pool> {
        if !self.lending.iter().any(|(its, _)| *its == device) {
            return None;
        }
        let its = self.describe(pointer).expect("a live block").pool;
        if its.first == 0 {
            return None;
        }
        assert!(self.lending.contains(&(device, its.first)), "{its:?} lends nothing");
        Some((device, its.first))
    }

    /// The live block around an address, as it describes itself.
    pub(super) fn describe(&self, pointer: *const c_void) -> Option<gapless_torch_block> {
        let mut block = UNTOUCHED_BLOCK;
        let status = c!(gapless_torch_describe(pointer, &raw mut block));
        if status == GAPLESS_ERROR_NOT_FOUND {
            assert_eq!(block.address, UNTOUCHED_BLOCK.address, "written although nothing was found");
            return None;
        }
        expect_ok(status);
        Some(block)
    }

    /// E4, of one block that has been found live.
    pub(super) fn check_block(&self, found: &gapless_torch_block) {
        let known = self.live.get(&found.address).unwrap_or_else(|| panic!("nothing is live there: {found:?}"));
        assert_eq!((found.state, found.device, found.bytes), (1, known.device, rounded(known.bytes)), "{known:?}");
        assert_eq!(place(found), place_of(found.address, known), "{found:?}, not {known:?}");
    }

    /// Checks the description of an address: the live block around it, if any.
    pub(super) fn object_describe(&mut self, record: Record) {
        let addr = self.some_address(record) + [0, 1, 511, u64::from(record.number)][usize::from(record.how % 4)];
        let pointer = without_provenance_mut::<c_void>(addr as usize);
        if record.how == 255 {
            let status = c!(gapless_torch_describe(pointer, null_mut()));
            return expect(status, &[GAPLESS_ERROR_INVALID_ARGUMENT], record);
        }
        let around = self.live.range(..=addr).next_back();
        let around = around.filter(|(at, block)| self.is_process_wide(block) && addr - **at < rounded(block.bytes));
        let found = self.describe(pointer);
        assert_eq!(found.map(|block| block.address), around.map(|(at, _)| *at), "around {addr:#x}");
        found.iter().for_each(|block| self.check_block(block));
        let device = gapless_torch_device_of(pointer);
        let devices = [0, self.second_device()];
        match self.live.range(..=addr).next_back().filter(|(at, block)| addr - **at < block.bytes.max(1)) {
            Some((_, block)) if self.is_process_wide(block) => assert_eq!(device, block.device, "of {addr:#x}"),
            Some(_) => assert_eq!(device, -1, "of {addr:#x}"),
            None => assert!(device == -1 || devices.contains(&device), "{addr:#x} is of device {device}"),
        }
    }

    /// All lists of a device, and of one pool.
    pub(super) fn object_lists(&mut self, record: Record) {
        let (device, pool) = self.named_in(record);
        let Some(_) = self.torch_book(device) else { return };
        let live = self.blocks(device, None, 1, record);
        let expected: Vec<Place> = self
            .live
            .iter()
            .filter(|(_, block)| self.is_served_by(device, block))
            .map(|(at, block)| place_of(*at, block))
            .collect();
        live.iter().for_each(|block| self.check_block(block));
        assert_eq!(sorted(&live), expected, "live on device {device}");

        let sums = sums_of(device, None).expect("a device in use");
        let all = self.blocks(device, None, 0, record);
        let found: Vec<_> = all.iter().filter(|block| block.state == 1).copied().collect();
        found.iter().for_each(|block| self.check_block(block));
        assert_eq!(sorted(&found), expected, "live on device {device}");
        let mut ends: Vec<(u64, u64)> = all.iter().map(|block| (block.address, block.address + block.bytes)).collect();
        ends.sort_unstable();
        assert!(ends.windows(2).all(|two| two[0].1 <= two[1].0), "blocks overlap: {all:#x?}");
        assert!(all.windows(2).all(|two| two[0].region < two[1].region
            || two[0].region == two[1].region
                && two[0].address < two[1].address
                && two[0].pool.first == two[1].pool.first));
        let waits: Vec<_> = all.iter().filter(|block| block.state == 2).collect();
        let waiting: u64 = waits.iter().map(|block| block.bytes).sum();
        let deferred = self.deferred_bounds(|block| self.is_served_by(device, block)).map(|(_, number)| number);
        assert!(
            waiting == sums.pending_bytes || waiting > sums.pending_bytes && deferred[1] > 0,
            "{waiting}: {sums:?}"
        );
        let number = (waits.len() as u64).wrapping_sub(sums.pending_allocations);
        assert!(
            (deferred[0]..=deferred[1]).contains(&number),
            "{number} of {} frees deferred, not {deferred:?}: {sums:?}",
            waits.len()
        );
        for (addr, _) in self.surely_waiting(|block| self.is_served_by(device, block)) {
            assert!(waits.iter().any(|block| block.address == addr), "{addr:#x} waits for a stream: {all:#x?}");
        }

        let Some(pool) = pool else { return self.check_names(device, record) };
        for live_only in [0, 1] {
            let of_pool = self.blocks(device, Some(pool), live_only, record);
            let all = if live_only == 0 { &all } else { &live };
            let expected: Vec<_> = all.iter().filter(|block| block.pool.first == pool.1).copied().collect();
            assert_eq!(sorted(&of_pool), sorted(&expected), "of {pool:?}");
        }
    }

    /// The pools of a device, and their users.
    fn check_names(&self, device: i32, record: Record) {
        let mut names = [named(UNTOUCHED as u64); 8];
        let mut needed = UNTOUCHED as u64;
        expect_ok(c!(gapless_torch_pools(device, names.as_mut_ptr(), names.len() as u64, &raw mut needed)));
        let found = needed as usize;
        let known = self.pools.keys().filter(|(its, _)| *its == device);
        let [least, most] = self.lingering_pools(device);
        let number = known.clone().count();
        assert!((number + least..=number + most).contains(&found), "{found} pools, {least} to {most} linger");
        for (_, first) in known {
            assert!(names[..found].iter().any(|name| (name.first, name.second) == (*first, 7)), "{names:?}");
        }
        assert!(names[found..].iter().all(|name| name.first == UNTOUCHED as u64), "{names:?}");
        if needed > 0 {
            let status = c!(gapless_torch_pools(device, names.as_mut_ptr(), needed - 1, &raw mut needed));
            expect(status, &[GAPLESS_ERROR_BUFFER_TOO_SMALL], record);
        }
        for first in 1..=3 {
            let mut users = u32::MAX;
            expect_ok(c!(gapless_torch_pool_users(device, named(first), &raw mut users)));
            assert_eq!(users, self.pools.get(&(device, first)).copied().unwrap_or(0), "users of pool {first}");
            let exists = sums_of(device, Some((device, first))).is_some();
            assert!(exists || users == 0, "pool {first} has {users} users and no figures");
        }
    }

    /// Returns the blocks that are listed, by the rules of a list in a caller's buffer.
    pub(super) fn blocks(
        &self,
        device: i32,
        pool: Option<Pool>,
        live_only: i32,
        record: Record,
    ) -> Vec<gapless_torch_block> {
        let name = pool.map(|(_, first)| named(first));
        let name = name.as_ref().map_or(null(), |name| name);
        let mut needed = UNTOUCHED as u64;
        let status = c!(gapless_torch_blocks(device, name, live_only, null_mut(), 0, &raw mut needed));
        if needed == 0 {
            expect_ok(status);
            return Vec::new();
        }
        expect(status, &[GAPLESS_ERROR_BUFFER_TOO_SMALL], record);
        let mut found = vec![UNTOUCHED_BLOCK; needed as usize];
        let mut again = UNTOUCHED as u64;
        let small = c!(gapless_torch_blocks(device, name, live_only, found.as_mut_ptr(), needed - 1, &raw mut again));
        expect(small, &[GAPLESS_ERROR_BUFFER_TOO_SMALL], record);
        assert!(again == needed && found.iter().all(|block| block.state == UNTOUCHED_BLOCK.state), "{record:?} wrote");
        expect_ok(c!(gapless_torch_blocks(device, name, live_only, found.as_mut_ptr(), needed, &raw mut again)));
        found
    }
}

fn place(block: &gapless_torch_block) -> Place {
    (block.address, block.requested_bytes, stream_named(block.stream), (block.pool.first, block.pool.second))
}

fn place_of(addr: u64, block: &Block) -> Place {
    (addr, block.bytes, stream_named(block.home.as_raw()), block.pool.map_or((0, 0), |(_, first)| (first, 7)))
}

/// A stream by one of its names: the driver's first default stream has two.
pub(super) fn stream_named(handle: u64) -> u64 {
    if handle == 1 { 0 } else { handle }
}

fn sorted(blocks: &[gapless_torch_block]) -> Vec<Place> {
    let mut places: Vec<Place> = blocks.iter().map(place).collect();
    places.sort_unstable();
    places
}

const UNTOUCHED_BLOCK: gapless_torch_block = gapless_torch_block {
    device: -7,
    state: -7,
    small: -7,
    region: 7,
    address: UNTOUCHED as u64,
    bytes: 0,
    requested_bytes: 0,
    stream: 0,
    pool: gapless_torch_pool { first: 0, second: 0 },
};
