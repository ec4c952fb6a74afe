//! The runner's operations on memory that stays as it is: pins and registered blocks.

use super::Runner;
use crate::device::Device;
use crate::kept::KeptBytes;
use crate::op::Op;
use gapless::allocator::{AllocError, FreeError};
use gapless::units::StreamId;

/// Maximum number of pins of one allocator, and of registered blocks.
const MOST_KEPT: usize = 4;

impl<D: Device> Runner<D> {
    pub(crate) fn act_on_kept(&mut self, op: Op) {
        match op {
            Op::Pin { block } => self.pin(block),
            Op::Expose { pin } => self.expose(pin),
            Op::Unpin { pin } => {
                if let Some(index) = usize::from(pin).checked_rem(self.instance().kept.pins.len()) {
                    let instance = self.instance_mut();
                    drop(instance.kept.pins.remove(index));
                    instance.oracle.pinned.remove(index);
                }
            }
            Op::AllocRegistered { pages, stream } => {
                let pages = u64::from(pages) % self.world.pages + 1;
                self.alloc_registered(pages, self.stream(stream));
            }
            Op::FreeRegistered { block } => {
                if let Some(index) = usize::from(block).checked_rem(self.instance().kept.registered.len()) {
                    self.free_registered(index);
                }
            }
            _ => unreachable!("an operation on what is kept"),
        }
    }

    fn pin(&mut self, number: u16) {
        let Some(block) = self.instance().oracle.block(number).cloned() else { return };
        if self.instance().kept.pins.len() >= MOST_KEPT {
            return;
        }
        let pin = match self.allocator().pin(block.addr) {
            Ok(pin) => pin,
            Err(FreeError::Asleep { addr }) if self.is_asleep(block.addr) && addr == block.addr => return,
            Err(other) => panic!("pin returned {other}"),
        };
        let driver = self.driver.inner();
        let known = KeptBytes::new(driver, block.addr, block.bytes.max(1), block.since, false);
        self.summary.kept += 1;
        let instance = self.instance_mut();
        instance.kept.pins.push(pin);
        instance.oracle.pinned.push(known);
    }

    /// Exposes a pinned block, if it is live. Where mappings are kept, its memory would be out of use from its free on.
    fn expose(&mut self, pin: u8) {
        let instance = self.instance();
        let Some(index) = usize::from(pin).checked_rem(instance.kept.pins.len()) else { return };
        let addr = instance.kept.pins[index].addr();
        if instance.pool.is_some() || instance.oracle.pinned[index].alone {
            return;
        }
        instance.kept.pins[index].expose();
        self.summary.exposed += 1;
        self.instance_mut().oracle.exposed.insert(addr.0);
    }

    fn alloc_registered(&mut self, pages: u64, stream: StreamId) {
        if self.instance().kept.registered.len() >= MOST_KEPT {
            return;
        }
        let bytes = pages * self.world.page_bytes;
        let held = self.allocator().reserved_bytes();
        let result = self.allocator().alloc_registered(bytes, stream);
        if self.is_displaced(stream) {
            self.expect_displaced(result.map(|_| ()));
            return;
        }
        let error = match result {
            Ok(block) => {
                let known = KeptBytes::new(self.driver.inner(), block.addr(), block.bytes(), 0, true);
                assert_eq!((block.bytes(), known.backing.len()), (bytes, 1), "invariant 7: one chunk");
                self.summary.kept += 1;
                let instance = self.instance_mut();
                instance.kept.registered.push(block);
                instance.oracle.registered.push(known);
                return;
            }
            Err(error) => error,
        };
        // What waits for a capture is not there.
        let waits = self.may_be_capturing() && matches!(error, AllocError::CannotWait { .. });
        if !waits && self.excuse(&error, bytes, held, true) {
            self.alloc_registered(pages, stream);
        }
    }

    fn free_registered(&mut self, index: usize) {
        let instance = self.instance_mut();
        drop(instance.kept.registered.remove(index));
        let block = instance.oracle.registered.remove(index);
        if self.struck() || self.instance().lost || self.may_be_capturing() {
            self.note_left_behind(block.bytes);
        }
    }

    /// Notes what could not be unmapped of something of `bytes` bytes that was dropped. It stays until it is needed, or until
    /// the allocator is closed.
    pub(crate) fn note_left_behind(&mut self, bytes: u64) {
        let stats = self.allocator().stats();
        let asleep = self.instance().oracle.without_memory(&self.world, self.driver.inner());
        let elsewhere = stats.live_block_bytes - asleep + stats.cached_bytes + stats.pending_bytes + stats.idle_bytes;
        let oracle = &self.instance().oracle;
        let left = stats.reserved_bytes - elsewhere - oracle.range_bytes(&self.world) - oracle.registered_bytes();
        let most = oracle.abandoned_bytes + bytes;
        assert!((oracle.abandoned_bytes..=most).contains(&left), "{left} bytes are unaccounted for");
        self.instance_mut().oracle.abandoned_bytes = left;
    }
}
