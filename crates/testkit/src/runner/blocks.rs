//! The runner's operations on blocks: allocate, free, record a stream, use.

use super::Runner;
use crate::device::Device;
use crate::oracle::{Block, fitting_blocks};
use crate::promise::check_new_chunks;
use gapless::GRANULE;
use gapless::allocator::{AllocError, FreeError, StreamError};
use gapless::driver::WorkDriver;
use gapless::units::{DeviceAddr, StreamId};
use std::sync::Arc;

/// Binary logarithm of the largest alignment requested.
const TOP_ALIGNMENT: u8 = 20;

/// Binary logarithm of the alignment of blocks that come in numbers.
const LEAST_ALIGNMENT: u8 = 9;

impl<D: Device> Runner<D> {
    /// Returns `false` if the request was refused.
    pub(crate) fn alloc(&mut self, bytes: u64, align: u8, stream: StreamId) -> bool {
        let alignment = 1_u64 << (align % (TOP_ALIGNMENT + 1));
        let held = self.allocator().reserved_bytes();
        let since = self.driver.inner().created();
        let result = self.allocator().alloc_raw_aligned(bytes, alignment, stream);
        if self.is_displaced(stream) {
            self.expect_displaced(result.map(|_| ()));
            return false;
        }
        let error = match result {
            Ok(addr) => {
                self.take_in(addr, bytes, alignment, stream, since);
                return true;
            }
            Err(error) => error,
        };
        if let AllocError::TooLarge { requested, region_bytes, .. } = &error {
            assert_eq!(*requested, bytes);
            assert!(bytes.max(alignment) > *region_bytes - GRANULE, "{error}");
            assert!(self.world.region_pages > 0 || *region_bytes > 2 * self.world.bytes(), "{error}");
        }
        if let AllocError::OutOfMemory(report) = &error
            && !self.struck()
            && !self.instance().lost
        {
            if self.is_promising() {
                let fitting = fitting_blocks(self.allocator(), bytes, alignment).next();
                assert!(fitting.is_none(), "the promise: {fitting:?} was free\n{report}");
            }
            self.check_refusal_of_pool(bytes, alignment, stream);
        }
        let promised = alignment <= self.world.page_bytes;
        self.excuse(&error, bytes, held, promised) && self.alloc(bytes, align, stream)
    }

    /// Allocates what the promise says is there, but `less` pages.
    pub(crate) fn alloc_rest(&mut self, less: u16, stream: StreamId) {
        let pages = self.promise(0).promised_pages.saturating_sub(less.into());
        if pages > 0 {
            self.alloc(pages * self.world.page_bytes, LEAST_ALIGNMENT, stream);
        }
    }

    /// Allocates a pair of blocks on each of `streams`, until a request is refused.
    pub(crate) fn fill(&mut self, bytes: u64, beside: u64, streams: impl Iterator<Item = u16>) {
        for stream in streams {
            let stream = self.stream(stream);
            for bytes in [Some(bytes), Some(beside).filter(|beside| *beside > 0)].into_iter().flatten() {
                let served = self.alloc(bytes, LEAST_ALIGNMENT, stream);
                self.note_fault();
                if !served {
                    return;
                }
            }
        }
    }

    /// Frees all blocks but one of every `every`, the one with the number `kept` among them.
    pub(crate) fn thin(&mut self, every: u16, kept: u16) {
        let live = u16::try_from(self.live()).unwrap_or(u16::MAX);
        for number in (0..live).rev() {
            if every == 0 || number % every != kept % every {
                self.free(number);
                self.note_fault();
            }
        }
    }

    fn take_in(&mut self, addr: DeviceAddr, bytes: u64, alignment: u64, stream: StreamId, since: u64) {
        assert!(addr.is_aligned(alignment), "{addr} is not a multiple of {alignment}");
        check_new_chunks(&self.world, self.driver.inner(), (addr, bytes), since);
        self.note_memory(addr, bytes, stream);
        self.instance_mut().oracle.add(Block {
            addr,
            bytes,
            home: Some(stream),
            handle: stream,
            recorded: Vec::new(),
            foreign: Vec::new(),
            since,
            last_user: stream,
            content: None,
            backup: None,
            graph: None,
        });
        self.write(addr, stream);
    }

    /// Queues work that fills a block.
    pub(crate) fn write(&mut self, addr: DeviceAddr, stream: StreamId) {
        let seed = self.fresh_seed();
        if !self.captured(addr, stream, Some(seed)) {
            self.enter_pool(stream);
            let bytes = self.block(addr).bytes;
            self.driver.inner().fill(stream, addr, bytes, seed).expect("invariant 2: a live block can be written");
            self.block(addr).content = Some(seed);
        }
        self.block(addr).last_user = stream;
    }

    pub(crate) fn block(&mut self, addr: DeviceAddr) -> &mut Block {
        self.instance_mut().oracle.live.get_mut(&addr.0).expect("a live block")
    }

    pub(crate) fn free(&mut self, number: u16) {
        let Some(block) = self.instance().oracle.block(number).cloned() else { return };
        // On the stream that last used it, so that the check adds no order that the allocator should have established.
        if !self.is_asleep(block.addr) {
            self.verify(&block, block.last_user);
        }
        if !self.wait_for_foreign_uses(&block) {
            return;
        }
        let (world, driver) = (self.world, Arc::clone(&self.driver));
        self.instance_mut().oracle.spend(&world, driver.inner(), &block);
        self.allocator().free(block.addr).expect("a live block can be freed");
        self.instance_mut().oracle.remove(block.addr.0);
    }

    /// Queues work that verifies a block, if it is known what it holds and the stream is not another thread's own.
    pub(crate) fn verify(&mut self, block: &Block, stream: StreamId) {
        if !self.is_here(stream) || self.captured(block.addr, stream, None) {
            return;
        }
        let Some(seed) = block.content else { return };
        self.enter_pool(stream);
        self.summary.verified_bytes += block.bytes;
        let result = self.driver.inner().verify(stream, block.addr, block.bytes, seed);
        result.expect("invariant 2: a live block can be read");
    }

    /// Records a stream on a block. Returns `true` if that succeeded.
    pub(crate) fn record(&mut self, addr: DeviceAddr, stream: StreamId) -> bool {
        let result = self.allocator().record_stream(addr, stream);
        if self.is_displaced(stream) {
            self.expect_record_refused(&result);
            return false;
        }
        match result {
            Ok(()) => {
                let block = self.block(addr);
                if block.home != Some(stream) && !block.recorded.contains(&stream) {
                    block.recorded.push(stream);
                }
                true
            }
            Err(FreeError::Stream(StreamError::Foreign { cause, .. })) => {
                self.expect_injected(&cause);
                false
            }
            Err(other) => panic!("record_stream returned {other}"),
        }
    }

    pub(crate) fn launch(&mut self, number: u16, stream: StreamId, write: bool) {
        let Some(block) = self.instance().oracle.block(number).cloned() else { return };
        if block.home != Some(stream) && !block.recorded.contains(&stream) && !self.record(block.addr, stream) {
            return;
        }
        if self.is_asleep(block.addr) || !self.order(block.last_user, stream) {
            return;
        }
        if write {
            self.write(block.addr, stream);
        } else {
            self.verify(&block, stream);
            self.block(block.addr).last_user = stream;
        }
    }
}
