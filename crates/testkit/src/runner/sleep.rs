//! The runner's sleep and wake.

use super::Runner;
use super::instance::Instance;
use crate::device::Device;
use crate::errors::of_sleep;
use crate::graphs::Left;
use crate::oracle::Block;
use gapless::allocator::{AllocError, Backup, BackupError, StreamError, Wake};
use gapless::driver::{DriverErrorKind, MemoryDriver, pattern_byte};
use gapless::units::DeviceAddr;
use std::collections::BTreeSet;
use std::time::Duration;

impl<D: Device> Runner<D> {
    /// Puts everything to sleep. What nobody has pinned gives its memory back.
    pub(crate) fn sleep(&mut self, backup: Backup) {
        let live: Vec<Block> = self.instance().oracle.live.values().cloned().collect();
        if !live.iter().all(|block| self.wait_for_foreign_uses(block)) {
            return;
        }
        let (discard, reserved) = (backup == Backup::Discard, self.allocator().reserved_bytes());
        let had_memory = self.with_memory(&live);
        let was_asleep = self.allocator().stats().asleep_bytes;
        let left = self.write_free_memory();
        let slept = match self.allocator().sleep(backup).map_err(of_sleep) {
            Ok(slept) => slept,
            Err(error) => {
                if self.excuse_sleep(&error) {
                    self.sleep(backup);
                }
                return;
            }
        };
        let stats = self.allocator().stats();
        assert_eq!(slept.released_bytes, reserved - stats.reserved_bytes, "{slept:?}");
        assert!(stats.asleep_bytes <= was_asleep + slept.asleep_bytes, "{slept:?} {stats:?}");
        assert!(slept.asleep_bytes <= stats.asleep_bytes, "{slept:?} {stats:?}");
        // A pool sleeps with its free bytes.
        let copied = if self.instance().pool.is_some() { slept.asleep_bytes } else { slept.live_bytes };
        assert_eq!(slept.copied_bytes, if discard { 0 } else { copied }, "{slept:?}");
        self.summary.pools_slept += u64::from(slept.asleep_bytes > 0 && self.instance().pool.is_some());
        self.note_pool_asleep(left, discard);
        self.summary.slept += u64::from(slept.asleep_bytes > 0);
        assert_eq!(stats.reserved_bytes, slept.left_awake.total_bytes(), "held after a sleep: {slept:?} {stats:?}");
        let beside = (slept.left_awake.range_bytes, slept.left_awake.registered_bytes);
        assert_eq!(beside, (stats.range_bytes, stats.registered_bytes));
        let (promising, world) = (self.is_promising() && !self.struck(), self.world);
        let instance = self.instance_mut();
        let oracle = &mut instance.oracle;
        let is_pinned = |block: &Block| oracle.pinned.iter().any(|pinned| pinned.addr == block.addr);
        let asleep: Vec<u64> = live.iter().filter(|block| !is_pinned(block)).map(|block| block.addr.0).collect();
        for addr in asleep {
            oracle.asleep.insert(addr);
            let block = oracle.live.get_mut(&addr).expect("a live block");
            if discard && had_memory.contains(&addr) {
                block.content = None;
            }
        }
        if promising && oracle.pinned.is_empty() && stats.poisoned == 0 {
            let elsewhere = oracle.range_bytes(&world) + oracle.registered_bytes() + oracle.abandoned_bytes;
            assert!(stats.reserved_bytes <= elsewhere, "memory is left after a sleep: {slept:?} {stats:?}");
        }
        let left_awake = self.with_memory(&live);
        for addr in had_memory {
            let block = self.instance_mut().oracle.live.get_mut(&addr).expect("a live block");
            // What stays awake in part may have a backup of before.
            block.backup = block.content.filter(|_| !left_awake.contains(&addr));
        }
        self.check_backups();
    }

    /// Begins to put everything to sleep, and does not finish it: everything is as before.
    pub(crate) fn sleep_in_part(&mut self, backup: Backup, unmaps: bool) {
        let discard = backup == Backup::Discard;
        let live: Vec<Block> = self.instance().oracle.live.values().cloned().collect();
        if !live.iter().all(|block| self.wait_for_foreign_uses(block)) {
            return;
        }
        let had_memory = self.with_memory(&live);
        let before = self.allocator().stats();
        let left = self.write_free_memory();
        let allocator = self.allocator().clone();
        let begin = || {
            let mut falling = allocator.begin_sleep(backup).map_err(of_sleep)?;
            allocator.check();
            if unmaps {
                falling.unmap().map_err(of_sleep)?;
                allocator.check();
            }
            Ok(())
        };
        let mut begun = begin();
        if begun.is_ok() && self.struck() {
            // What was unmapped, and could not be mapped while that was undone, is mapped by the next call.
            begun = begin();
        }
        if let Err(error) = begun {
            if self.excuse_sleep(&error) {
                self.sleep_in_part(backup, unmaps);
            }
            return;
        }
        if self.struck() {
            // What the driver refused to map again is asleep.
            self.instance_mut().oracle.asleep.extend(live.iter().map(|block| block.addr.0));
        }
        let lost = had_memory.difference(&self.with_memory(&live)).copied().collect::<Vec<u64>>();
        let now = self.allocator().stats();
        if !self.struck() {
            assert!(lost.is_empty(), "a sleep that was not finished: {lost:x?}");
            assert!(now.reserved_bytes <= before.reserved_bytes && now.asleep_bytes <= before.asleep_bytes, "{now:?}");
            self.summary.in_part += u64::from(!had_memory.is_empty());
        }
        if self.struck() {
            self.note_pool_asleep(left, discard);
        }
        for addr in lost {
            let block = self.instance_mut().oracle.live.get_mut(&addr).expect("a live block");
            block.content = block.content.filter(|_| !discard);
            block.backup = None;
        }
        if self.struck() {
            self.recover();
        }
        self.check_backups();
    }

    /// Begins to wake what is asleep, and does not finish it: everything is as before.
    pub(crate) fn wake_in_part(&mut self, copies: bool) {
        let before = self.allocator().stats();
        let allocator = self.allocator().clone();
        let begin = || {
            let mut waking = allocator.begin_wake(Duration::ZERO).map_err(of_sleep)?;
            allocator.check();
            if copies { waking.copy().map_err(of_sleep) } else { Ok(()) }
        };
        let mut begun = begin();
        if begun.is_ok() && self.struck() {
            begun = begin();
        }
        match begun {
            Ok(()) if self.struck() => self.recover(),
            Ok(()) => {
                let now = self.allocator().stats();
                assert!(now.asleep_bytes <= before.asleep_bytes, "{now:?}");
                assert!(now.reserved_bytes <= before.reserved_bytes, "{now:?}");
                self.summary.in_part += u64::from(now.asleep_bytes > 0);
            }
            Err(AllocError::OutOfMemory(_)) => {}
            Err(error) => {
                if self.excuse_sleep(&error) {
                    self.wake_in_part(copies);
                }
                return;
            }
        }
        self.check_backups();
    }

    /// The addresses of those of some live blocks that have memory, at least in part.
    fn with_memory(&self, live: &[Block]) -> BTreeSet<u64> {
        let (oracle, witness) = (&self.instance().oracle, self.driver.inner());
        let has_memory =
            |block: &&Block| oracle.backing(&self.world, witness, block.addr, block.bytes.max(1)).next().is_some();
        live.iter().filter(has_memory).map(|block| block.addr.0).collect()
    }

    /// Notes that the current allocator, if it is a pool, was put to sleep, with what a replay `left` in memory that sleeps.
    fn note_pool_asleep(&mut self, left: Vec<Left>, discard: bool) {
        let Self { instances, current, driver, .. } = self;
        let Some(pool) = &mut instances[*current].pool else { return };
        pool.fall_asleep(driver.inner());
        if !discard {
            pool.left.extend(left.into_iter().filter(|it| driver.inner().memory_at(it.addr).is_none()));
        }
    }

    /// Checks that what backups show of blocks is their content as of the last sleep, and that others have none.
    fn check_backups(&mut self) {
        const SAMPLE: u64 = 4096;
        let mut shown_bytes = 0;
        let is_pool = self.instance().pool.is_some();
        for block in self.instance().oracle.live.values().filter(|block| block.bytes > 0) {
            let is_right = |shown: &[u8]| {
                let is_in = |offset: u64| offset < SAMPLE || offset + SAMPLE >= block.bytes;
                let mut sample = (0..).zip(shown).filter(|(offset, _)| is_in(*offset));
                block.backup.map(|seed| sample.all(|(offset, byte)| *byte == pattern_byte(seed, offset)))
            };
            match self.allocator().backup_at(block.addr, block.bytes, is_right) {
                Ok(None | Some(None)) | Err(BackupError::InParts { .. } | BackupError::InFile { .. }) => {}
                Ok(Some(Some(right))) => {
                    assert!(right || is_pool, "invariant 12: the backup of {block:?}");
                    shown_bytes += block.bytes;
                }
                Err(BackupError::Alloc(AllocError::Driver(error))) if error.kind == DriverErrorKind::NotSupported => {}
                Err(error) => panic!("a backup is shown: {error}"),
            }
        }
        self.summary.shown_bytes += shown_bytes;
    }

    /// Wakes what is asleep: whenever the pages that are free cover it.
    pub(crate) fn wake(&mut self, retain: bool) {
        let needed = self.allocator().stats().asleep_bytes;
        let held = self.allocator().reserved_bytes();
        match self.allocator().wake(Wake { wait: Duration::ZERO, retain }).map_err(of_sleep) {
            Ok(woken) => {
                assert!(woken.mapped_bytes <= needed, "{woken:?} of {needed} bytes");
                assert_eq!(self.allocator().stats().asleep_bytes, 0);
                self.summary.woken += u64::from(woken.mapped_bytes > 0);
                self.get_up(retain);
            }
            Err(error @ AllocError::OutOfMemory(_)) => {
                let bytes = error.report().map_or(0, |report| report.requested_bytes);
                assert!(bytes <= needed, "{error}");
                let promise = self.promise(bytes);
                let enough = promise.obtainable_pages >= promise.needed_pages;
                let excused = !self.is_promising() || self.struck() || self.instance().lost;
                assert!(!enough || excused, "the promise of a wake: {promise:?}\n{error}");
                let may_fail =
                    self.may_be_capturing() || self.struck() || self.instance().lost || self.is_short_of(bytes);
                assert!(may_fail, "the promise of a wake of a pool: {error}");
                if self.excuse_uncounted(&error, bytes, held, true) {
                    self.wake(retain);
                }
            }
            Err(error) => {
                if self.excuse_sleep(&error) {
                    self.wake(retain);
                }
            }
        }
    }

    /// Whether idle chunks and what may be created do not come to so many bytes.
    fn is_short_of(&self, bytes: u64) -> bool {
        let stats = self.allocator().stats();
        let free = self.driver.inner().memory_info().map_or(0, |info| info.free);
        let headroom = self.allocator().budget().saturating_sub(stats.reserved_bytes).min(free);
        stats.idle_bytes + headroom / self.world.page_bytes * self.world.page_bytes < bytes
    }

    /// Verifies what has slept.
    fn get_up(&mut self, retain: bool) {
        let Self { instances, current, driver, .. } = self;
        if let Some(pool) = &mut instances[*current].pool {
            pool.wake(driver.inner());
        }
        self.verify_free_memory();
        let asleep = std::mem::take(&mut self.instance_mut().oracle.asleep);
        for addr in asleep {
            let block = self.instance_mut().oracle.live.get_mut(&addr).expect("a live block");
            block.backup = block.backup.filter(|_| retain);
            let block = block.clone();
            self.verify(&block, block.last_user);
        }
        self.check_backups();
    }

    /// Checks that a sleep or a wake may fail with `error`, and that nothing has changed. Returns whether to repeat it.
    fn excuse_sleep(&mut self, error: &AllocError) -> bool {
        match error {
            AllocError::CannotWait { .. } if self.may_be_capturing() => return false,
            AllocError::Driver(cause) | AllocError::OutOfMappings { cause, .. } => self.expect_injected(cause),
            AllocError::Stream(StreamError::Foreign { cause, .. }) => self.expect_injected(cause),
            other => panic!("the call failed: {other}"),
        }
        if self.instance().lost {
            return false;
        }
        let lost = self.struck() && self.is_lost_by(error);
        if lost {
            // Nobody knows how far it came: what goes on falling or waking is claimed, and in no part of the sum.
            let reserved = self.allocator().reserved_bytes();
            let Instance { oracle, pool, .. } = self.instance_mut();
            oracle.asleep = oracle.live.keys().copied().collect();
            oracle.abandoned_bytes = reserved;
            if let Some(pool) = pool {
                pool.asleep = true;
            }
        }
        if self.struck() {
            self.recover();
            return !lost;
        }
        false
    }

    fn is_lost_by(&self, error: &AllocError) -> bool {
        let kind = match error {
            AllocError::Driver(cause) | AllocError::OutOfMappings { cause, .. } => cause.kind,
            AllocError::Stream(StreamError::Foreign { cause, .. }) => cause.kind,
            _ => return false,
        };
        kind == gapless::driver::DriverErrorKind::DeviceLost
    }

    /// Whether a block was put to sleep.
    pub(crate) fn is_asleep(&self, addr: DeviceAddr) -> bool {
        self.instance().oracle.asleep.contains(&addr.0)
    }
}
