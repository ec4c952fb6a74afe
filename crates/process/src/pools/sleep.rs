//! Sleep and wake of several allocators: of all of them, or of none.
//!
//! An allocator sleeps whole or not at all. Of several, those that have fallen asleep wake again where a later one cannot sleep;
//! and those that woke sleep again where there is no memory for a later one. The main allocator comes last: others allocate from
//! it all the time.
//!
//! What sleeps holds no part of the budget, and gets one when it wakes.

use super::{Pool, PoolKind, Pools};
use crate::driver::DeviceDriver;
use gapless::allocator::{AllocError, Backup, LeftAwake, Pin, Slept, Wake, Woken};
use gapless::{Allocator, DeviceAddr};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// One of a device's allocators.
pub(crate) enum Member<D: DeviceDriver> {
    /// That of a pool.
    Pool(Arc<Pool<D>>),
    /// The device's own.
    Main(Allocator<D>),
}

impl<D: DeviceDriver> Member<D> {
    pub fn allocator(&self) -> &Allocator<D> {
        match self {
            Self::Pool(pool) => &pool.allocator,
            Self::Main(main) => main,
        }
    }

    /// The tag of the pool.
    pub fn tag(&self) -> Option<String> {
        self.pool()?.tag()
    }

    fn pool(&self) -> Option<&Arc<Pool<D>>> {
        match self {
            Self::Pool(pool) => Some(pool),
            Self::Main(_) => None,
        }
    }

    fn asleep_bytes(&self) -> u64 {
        self.allocator().stats().asleep_bytes
    }

    /// The live allocations that are asleep, at least in part.
    pub fn asleep(&self) -> HashSet<DeviceAddr> {
        let live = self.allocator().live().into_iter();
        live.filter(|live| live.asleep).map(|live| live.addr).collect()
    }
}

impl<D: DeviceDriver> Pools<D> {
    /// The allocators of the pools of a tag, or all of them, the main one last.
    pub(crate) fn members(&self, tag: Option<&str>) -> Vec<Member<D>> {
        let pools = self.all().into_iter().filter(|pool| tag.is_none_or(|tag| pool.is_of(tag)));
        let mut members: Vec<Member<D>> = pools.map(Member::Pool).collect();
        if tag.is_none() {
            members.push(Member::Main(self.main.clone()));
        }
        members
    }

    /// Puts several allocators to sleep. Where one refuses, those that slept before wake again, unless the driver refuses that,
    /// too.
    pub(crate) fn sleep_all(&self, members: &[Member<D>], backup: Backup) -> Result<Slept, AllocError> {
        let mut slept = Slept::default();
        for (number, member) in members.iter().enumerate() {
            match member.allocator().sleep(backup) {
                Ok(its) => add_slept(&mut slept, &its),
                Err(error) => {
                    for earlier in &members[..number] {
                        let _ = self.wake_one(earlier, false);
                    }
                    self.share_budget(&mut self.books());
                    return Err(error);
                }
            }
        }
        self.share_budget(&mut self.books());
        Ok(slept)
    }

    /// Wakes several allocators. Where there is no memory for one, what has woken before sleeps again.
    pub(crate) fn wake_all(&self, members: &[Member<D>], retain: bool) -> Result<Woken, AllocError> {
        let mut woken = Woken::default();
        let mut before = Vec::new();
        for (number, member) in members.iter().enumerate() {
            // Behind the last one, nothing could fail.
            let is_last = number + 1 == members.len();
            let sleepers = if is_last { HashSet::new() } else { member.asleep() };
            // What was discarded has no backup afterwards, either.
            let backup = member.allocator().asleep().backup;
            match self.wake_one(member, retain) {
                Ok(its) => {
                    woken.mapped_bytes += its.mapped_bytes;
                    woken.copied_bytes += its.copied_bytes;
                    if its.mapped_bytes > 0 {
                        before.push((member, sleepers, backup));
                    }
                }
                Err(error) => {
                    before.iter().for_each(|(earlier, sleepers, backup)| sleep_again(earlier, sleepers, *backup));
                    self.share_budget(&mut self.books());
                    return Err(error);
                }
            }
        }
        self.share_budget(&mut self.books());
        Ok(woken)
    }

    /// Wakes one allocator, if need be with the memory that others have free.
    fn wake_one(&self, member: &Member<D>, retain: bool) -> Result<Woken, AllocError> {
        let now = Wake { wait: Duration::ZERO, retain };
        self.lend_to(member);
        let outcome = member.allocator().wake(now);
        if !matches!(&outcome, Err(AllocError::OutOfMemory(_))) {
            return outcome;
        }
        self.close_condemned(None);
        if let Some(pool) = member.pool() {
            // If a trim fails, so does the second try.
            let _ = self.main.trim(0);
            self.trim_ordinary(Some(pool));
        } else {
            self.trim_ordinary(None);
        }
        self.lend_to(member);
        member.allocator().wake(now)
    }

    /// Lets an allocator hold all that nobody holds.
    fn lend_to(&self, member: &Member<D>) {
        let mut books = self.books();
        match member.pool() {
            Some(pool) => self.lend_all(&mut books, pool),
            None => self.share_budget(&mut books),
        }
    }

    /// Whether what is free may cover what is asleep in these allocators, so that it is worth while to try.
    pub(crate) fn may_cover(&self, members: &[Member<D>]) -> bool {
        let needed: u64 = members.iter().map(Member::asleep_bytes).sum();
        let free_of = |allocator: &Allocator<D>| {
            let stats = allocator.stats();
            stats.free_chunk_bytes + stats.idle_bytes
        };
        let pools = self.all();
        let gives = |pool: &Pool<D>| {
            pool.kind == PoolKind::Ordinary
                || members.iter().filter_map(Member::pool).any(|member| std::ptr::eq(&**member, pool))
        };
        let free: u64 = pools.iter().filter(|pool| gives(pool)).map(|pool| free_of(&pool.allocator)).sum();
        let on_device = self.main.driver().memory_info().map_or(u64::MAX, |info| info.free);
        let headroom = match self.main.has_set_budget() {
            true => {
                let held = self.main.reserved_bytes() + self.held_bytes();
                self.whole_budget().saturating_sub(held).min(on_device)
            }
            false => on_device,
        };
        headroom.saturating_add(free + free_of(&self.main)) >= needed
    }
}

/// Puts to sleep again what has woken of an allocator, and nothing else. What cannot sleep stays awake.
fn sleep_again<D: DeviceDriver>(member: &Member<D>, sleepers: &HashSet<DeviceAddr>, backup: Backup) {
    let allocator = member.allocator();
    let others = allocator.live().into_iter().map(|live| live.addr).filter(|addr| !sleepers.contains(addr));
    let _awake: Vec<Pin<D>> = others.filter_map(|addr| allocator.pin(addr).ok()).collect();
    let _ = allocator.sleep(backup);
}

fn add_slept(sum: &mut Slept, its: &Slept) {
    sum.asleep_bytes += its.asleep_bytes;
    sum.live_bytes += its.live_bytes;
    sum.copied_bytes += its.copied_bytes;
    sum.released_bytes += its.released_bytes;
    add_left_awake(&mut sum.left_awake, &its.left_awake);
}

fn add_left_awake(sum: &mut LeftAwake, its: &LeftAwake) {
    sum.pinned_bytes += its.pinned_bytes;
    sum.refused_bytes += its.refused_bytes;
}
