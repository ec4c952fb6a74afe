//! Pools that go back to an earlier state, and blocks at addresses that were given out before.
//!
//! - R1  a pool that went back has exactly the blocks of that state; if it could not, it is as it was.
//! - R2  while no stream uses any of a pool's blocks, it can go back to each state since it was made.
//! - R3  a block of a pool that is back has its bytes, or those that blocks of the same pool have written since.

use super::effect::named;
use super::work::stream_of;
use super::*;

/// The blocks of a pool at one moment, as they were listed and as they were known.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    listed: Vec<gapless_torch_block>,
    known: BTreeMap<u64, Block>,
}

impl Calls {
    /// A pool has no users any more: what comes of its memory is not known.
    pub(super) fn forget_pool(&mut self, pool: Pool) {
        self.saved.retain(|(its, _)| *its != pool);
        self.former.retain(|_, block| block.pool != Some(pool));
        self.waiting.retain(|_, freed| freed.block.pool != Some(pool));
    }

    fn blocks_of(&self, pool: Pool) -> BTreeMap<u64, Block> {
        self.live.iter().filter(|(_, block)| block.pool == Some(pool)).map(|(at, block)| (*at, *block)).collect()
    }

    /// Keeps the state of a pool, or goes back to one.
    pub(super) fn object_restore(&mut self, record: Record) {
        let (device, pool) = self.named_in(record);
        let (Some(_), Some(pool)) = (self.torch_book(device), pool) else { return };
        if !self.pools.contains_key(&pool) {
            if self.lingering_pools(device)[1] == 0 {
                let status = c!(gapless_torch_restore_pool(device, named(pool.1), null(), 0));
                expect(status, &[GAPLESS_ERROR_NOT_FOUND], record);
            }
            return;
        }
        if record.what < 96 {
            let listed = self.blocks(device, Some(pool), 1, record);
            listed.iter().for_each(|block| self.check_block(block));
            let known = self.blocks_of(pool);
            assert_eq!(listed.len(), known.len(), "live blocks of {pool:?}");
            return self.saved.push((pool, Kept { listed, known }));
        }
        let of_pool: Vec<&Kept> = self.saved.iter().filter(|(its, _)| *its == pool).map(|(_, kept)| kept).collect();
        let Some(kept) = of_pool.get(record.number as usize % of_pool.len().max(1)).copied().cloned() else { return };
        self.go_back(pool, kept, record);
    }

    fn go_back(&mut self, pool: Pool, mut kept: Kept, record: Record) {
        let Kept { listed, known } = &mut kept;
        // Some states never were: a block that reaches into the next, one that is nowhere.
        let mut real = true;
        if let (240.., Some(block)) = (record.what, listed.last_mut()) {
            let was = known.remove(&block.address).expect("it was kept");
            match record.how % 3 {
                0 => block.address += 512,
                1 => block.requested_bytes += 1 << 21,
                _ => block.address = (&raw const NOT_OURS).addr() as u64 & !511,
            }
            known.insert(block.address, Block { bytes: block.requested_bytes, ..was });
            real = false;
        }
        let now = self.blocks_of(pool);
        let is_same = |at: &u64, block: &Block, of: &BTreeMap<u64, Block>| {
            of.get(at).is_some_and(|other| other.bytes == block.bytes)
        };
        let surplus: Vec<u64> =
            now.iter().filter(|(at, block)| !is_same(at, block, known)).map(|(at, _)| *at).collect();
        let missing: BTreeMap<u64, Block> =
            known.iter().filter(|(at, block)| !is_same(at, block, &now)).map(|(at, block)| (*at, *block)).collect();
        surplus.iter().for_each(|addr| self.verify(*addr));
        let status = c!(gapless_torch_restore_pool(pool.0, named(pool.1), listed.as_ptr(), listed.len() as u64));
        let sure = real && self.is_sound() && !self.used_pools.contains(&pool);
        self.expect(status, if sure { &[GAPLESS_OK] } else { &[GAPLESS_OK, GAPLESS_ERROR_NOT_ALLOCATED] }, record);
        if status != GAPLESS_OK {
            if self.history.is_on() {
                self.clear_history();
            }
            self.recount(pool.0);
            let left = self.blocks(pool.0, Some(pool), 1, record);
            left.iter().for_each(|block| self.check_block(block));
            assert_eq!(left.len(), now.len(), "the pool is not as it was: {now:#x?}, {left:#x?}");
            return;
        }
        let freed: Vec<_> = surplus.iter().map(|addr| (Action::Free, *addr, now[addr])).collect();
        surplus.iter().for_each(|addr| self.forget(*addr));
        let made: Vec<_> = missing.iter().map(|(addr, block)| (Action::Alloc, *addr, *block)).collect();
        missing.iter().for_each(|(addr, block)| self.take_back(*addr, *block, real));
        // One after the other, in any order: frees first.
        self.note_events(freed);
        self.note_events(made);
    }

    /// Notes a block that is live again at its address.
    fn take_back(&mut self, addr: u64, block: Block, has_bytes: bool) {
        if has_bytes {
            for word in self.words(addr, block.bytes) {
                self.check_handed_out(addr, &block);
                // SAFETY: inside a live block of the simulated driver, which is memory of this process.
                let found = unsafe { std::ptr::with_exposed_provenance::<u64>(word as usize).read_unaligned() };
                let since = self.stamps.range(block.stamp + 1..).filter(|(_, pool)| **pool == block.pool);
                let mut good = std::iter::once(&block.stamp).chain(since.map(|(stamp, _)| stamp));
                assert!(good.any(|stamp| found == word_of(*stamp)), "{block:?} is back at {addr:#x} with {found:#x}");
            }
        }
        self.freed.retain(|at| *at != addr);
        self.take_in(without_provenance_mut(addr as usize), block);
    }

    /// Adds what was freed and allocated again, of which only the device knows how much it was.
    fn recount(&mut self, device: i32) {
        let sums = super::effect::sums_of(device, None).expect("a device in use");
        let book = self.books.iter_mut().find(|book| book.lasting && book.device == device).expect("in use");
        let (before, done) = (&mut book.sums_before, &book.done);
        let more = sums.allocs.wrapping_sub(before.allocs).wrapping_sub(done.allocs);
        let bytes = sums.allocated_bytes.wrapping_sub(before.allocated_bytes).wrapping_sub(done.bytes);
        assert!(more < 128 && bytes < 128 << 30, "{more} allocations of {bytes} bytes are not accounted for");
        before.allocs += more;
        before.frees += more;
        before.allocated_bytes += bytes;
    }

    /// A block at an address that was given out before.
    pub(super) fn object_alloc_again(&mut self, record: Record) {
        let number = record.number as usize;
        let former = self.former.iter().filter(|(_, block)| self.is_process_wide(block));
        let former: Vec<(u64, Block)> = former.map(|(at, block)| (*at, *block)).collect();
        let (addr, block) = match former.get(number % former.len().max(1)) {
            Some((addr, block)) if record.what < 200 => (*addr, *block),
            _ => {
                let addr = self.some_address(record);
                let status = c!(gapless_torch_alloc_again(without_provenance_mut(addr as usize), 512));
                let inside = self.live.range(..=addr).next_back();
                let inside = inside.filter(|(at, block)| addr - **at < block.bytes.max(1).next_multiple_of(512));
                if status != GAPLESS_OK {
                    return self.expect(status, &[GAPLESS_ERROR_NOT_ALLOCATED, GAPLESS_ERROR_NOT_FOUND], record);
                }
                assert!(inside.is_none(), "{addr:#x} was given out again: {inside:?} is there");
                let found = self.describe(without_provenance_mut(addr as usize)).expect("a live block");
                return self.take_found(&found);
            }
        };
        let book = self.books.iter().find(|book| book.lasting && book.device == block.device);
        if book.is_none() {
            return;
        }
        let bytes = if record.how < 200 { block.bytes } else { block.bytes / 2 };
        let end = addr + bytes.max(1).next_multiple_of(512);
        let status = c!(gapless_torch_alloc_again(without_provenance_mut(addr as usize), bytes));
        let taken = self.live.range(..end).next_back().is_some_and(|(at, other)| at + other.bytes.max(1) > addr);
        let pool = block.pool.filter(|pool| self.pools.contains_key(pool) && !self.used_pools.contains(pool));
        // Nothing else was allocated from the pool since.
        let untouched = pool.is_some() && !self.stamps.range(block.stamp + 1..).any(|(_, its)| *its == pool);
        let allowed: &[gapless_status] = match taken {
            true => &[GAPLESS_ERROR_NOT_ALLOCATED],
            false if untouched && self.is_sound() => &[GAPLESS_OK],
            false if pool.is_some() || block.pool.is_none() => &[GAPLESS_OK, GAPLESS_ERROR_NOT_ALLOCATED],
            false => &[GAPLESS_OK, GAPLESS_ERROR_NOT_ALLOCATED, GAPLESS_ERROR_NOT_FOUND],
        };
        self.expect(status, allowed, record);
        if status != GAPLESS_OK {
            return;
        }
        if pool.is_some() {
            let back = Block { bytes, ..block };
            self.note_event(Action::Alloc, block.device, addr, bytes, block.home);
            return self.take_back(addr, back, bytes == block.bytes);
        }
        let found = self.describe(without_provenance_mut(addr as usize)).expect("a live block");
        assert_eq!((found.address, found.requested_bytes), (addr, bytes));
        self.take_found(&found);
    }

    /// Notes a block of which nobody knows better than itself for which stream and in which pool it is.
    fn take_found(&mut self, found: &gapless_torch_block) {
        let device = found.device;
        let pool = (found.pool.first > 0).then_some((device, found.pool.first));
        let owner = self.books.iter().position(|book| book.lasting && book.device == device);
        let home = stream_of(found.stream);
        let block = Block { bytes: found.requested_bytes, stamp: 0, owner, pool, device, home };
        let block = Block { owner: if pool.is_some() { None } else { owner }, ..block };
        self.note_event(Action::Alloc, device, found.address, block.bytes, home);
        self.take_back(found.address, block, false);
    }
}
