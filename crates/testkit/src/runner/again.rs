//! The runner's allocations at addresses that were handed out before.
//!
//! Such a block belongs to the stream that its memory is kept for: the one that it was allocated for before, or the one whose
//! memory it reuses. Work there runs behind what used the memory before. If the stream has been destroyed nothing can be ordered
//! behind it, so that the block must be free to use on any stream at once.

use super::Runner;
use crate::device::Device;
use crate::oracle::{Block, Former};
use gapless::allocator::{AllocAgainError, AllocError, StreamError};
use gapless::driver::{PER_THREAD_STREAM, StreamDriver};
use gapless::units::StreamId;

impl<D: Device> Runner<D> {
    /// Allocates at a former address. It is that very address, or the memory is not free and nothing has changed.
    pub(crate) fn alloc_again(&mut self, number: u16, other: StreamId) {
        let formers = &self.instance().oracle.former;
        let Some(at) = usize::from(number).checked_rem(formers.len()) else { return };
        let former = formers[at];
        // The handle of a stream that is gone may be that of a living one, which has the memory by now and has used it.
        let has_used = |later: &Former| later.home == Some(former.handle) || later.used_by_namesake;
        let is_gone =
            former.home.is_none() && !formers[at..].iter().any(|later| has_used(later) && later.overlaps(&former));
        let held = self.allocator().reserved_bytes();
        let since = self.driver.inner().created();
        match self.allocator().alloc_again(former.addr, former.bytes) {
            Ok(()) => self.take_back(former, is_gone, other, since),
            Err(AllocAgainError::NotFree { addr, bytes, .. }) => {
                assert_eq!((addr, bytes), (former.addr, former.bytes));
            }
            Err(AllocAgainError::Alloc(AllocError::CannotWait { .. })) if self.may_be_capturing() => {}
            Err(AllocAgainError::Asleep { .. }) if self.allocator().stats().asleep_bytes > 0 => {}
            Err(error) => {
                let cause = match &error {
                    AllocAgainError::Alloc(AllocError::Driver(cause) | AllocError::OutOfMappings { cause, .. }) => {
                        cause
                    }
                    AllocAgainError::Alloc(AllocError::Stream(StreamError::Foreign { cause, .. })) => cause,
                    other => panic!("alloc_again returned {other}"),
                };
                self.expect_injected(cause);
                let kept = self.allocator().reserved_bytes() > held;
                assert!(!kept, "invariant 6: a failed call kept memory: {error}");
                if self.struck() {
                    self.recover();
                }
            }
        }
    }

    /// Takes in a block at a former address, and uses it. `is_gone`: nobody has used the memory since its stream was destroyed.
    fn take_back(&mut self, former: Former, is_gone: bool, other: StreamId, since: u64) {
        let Former { addr, bytes, handle, .. } = former;
        let live = self.allocator().live_around(addr).expect("a new block is live");
        assert_eq!((live.addr, live.bytes), (addr, bytes));
        // Of a handle that has stood for several streams, nobody here knows which of them the memory is kept for.
        let is_over = is_gone && live.stream == handle;
        if !is_over && (live.stream == PER_THREAD_STREAM || self.renewed.contains(&live.stream)) {
            self.allocator().free(addr).expect("a live block can be freed");
            let oracle = &mut self.instance_mut().oracle;
            (oracle.allocs, oracle.frees) = (oracle.allocs + 1, oracle.frees + 1);
            oracle.freed_bytes += bytes;
            oracle.peak_live_bytes = oracle.peak_live_bytes.max(oracle.live_bytes + bytes);
            return;
        }
        let home = (!is_over).then_some(live.stream);
        self.summary.again += 1;
        self.summary.again_of_destroyed += u64::from(is_over);
        let last_user = home.unwrap_or(StreamId::DEFAULT);
        let block = Block {
            addr,
            bytes,
            home,
            handle: live.stream,
            recorded: Vec::new(),
            foreign: Vec::new(),
            since,
            last_user,
            content: None,
            backup: None,
            graph: None,
        };
        self.instance_mut().oracle.add(block);
        if let Some(home) = home {
            self.note_memory(addr, bytes, home);
            self.write(addr, home);
        } else if !self.driver.is_capturing(other) && self.record(addr, other) {
            self.write(addr, other);
        }
    }
}
