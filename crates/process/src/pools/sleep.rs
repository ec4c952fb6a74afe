//! Sleep and wake of several allocators: of all of them, or of none.
//!
//! Each step of a sleep or a wake is one of all allocators: nothing is given up before all have their backups, nothing goes back to
//! the driver before all are unmapped, and nothing is copied back before all have memory. The main allocator comes last: others
//! allocate from it all the time.
//!
//! What sleeps holds no part of the budget, and gets one when it wakes.

use super::{Pool, PoolKind, Pools};
use crate::driver::{DeviceDriver, driver_of};
use gapless::allocator::{AllocError, Backup, FallingAsleep, SleepError, Slept, Waking, Woken};
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
    /// The allocators of the pools of some tags, each with the number of its tag; `None` stands for all other pools and the main
    /// allocator, which is the last one.
    pub(crate) fn members(&self, tags: &[Option<&str>]) -> Vec<(usize, Member<D>)> {
        let rest = tags.iter().position(Option::is_none);
        let number = |pool: &Pool<D>| tags.iter().position(|tag| tag.is_some_and(|tag| pool.is_of(tag))).or(rest);
        let pools = self.all().into_iter();
        let mut members: Vec<(usize, Member<D>)> =
            pools.filter_map(|pool| Some((number(&pool)?, Member::Pool(pool)))).collect();
        members.extend(rest.map(|rest| (rest, Member::Main(self.main.clone()))));
        members
    }

    /// Puts several allocators to sleep, all of them or none.
    pub(crate) fn sleep_all<'a>(
        &self,
        members: impl IntoIterator<Item = (&'a Member<D>, Backup)>,
    ) -> Result<Slept, SleepError> {
        let outcome = fall_asleep(members);
        self.share_budget(&mut self.books());
        outcome
    }

    /// Wakes several allocators, all of them or none.
    pub(crate) fn wake_all(&self, members: &[(usize, Member<D>)], retain: bool) -> Result<Woken, SleepError> {
        let outcome = self.wake_together(members, retain);
        self.share_budget(&mut self.books());
        outcome
    }

    fn wake_together(&self, members: &[(usize, Member<D>)], retain: bool) -> Result<Woken, SleepError> {
        let mut waking = Vec::with_capacity(members.len());
        for (_, member) in members {
            waking.push(self.begin_wake(member)?);
        }
        waking.iter_mut().try_for_each(Waking::copy)?;
        let mut woken = Woken::default();
        for one in waking {
            let its = one.finish(retain)?;
            woken.mapped_bytes += its.mapped_bytes;
            woken.copied_bytes += its.copied_bytes;
        }
        Ok(woken)
    }

    /// Maps what is asleep of one allocator, if need be with the memory that others have free.
    fn begin_wake<'a>(&self, member: &'a Member<D>) -> Result<Waking<'a, D>, SleepError> {
        self.lend_to(member);
        let outcome = member.allocator().begin_wake(Duration::ZERO);
        if !matches!(&outcome, Err(SleepError::Alloc(AllocError::OutOfMemory(_)))) {
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
        member.allocator().begin_wake(Duration::ZERO)
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
    pub(crate) fn may_cover(&self, members: &[(usize, Member<D>)]) -> bool {
        let needed: u64 = members.iter().map(|(_, member)| member.asleep_bytes()).sum();
        let free_of = |allocator: &Allocator<D>| {
            let stats = allocator.stats();
            stats.free_chunk_bytes + stats.idle_bytes
        };
        let pools = self.all();
        let gives = |pool: &Pool<D>| {
            pool.kind == PoolKind::Ordinary
                || members.iter().filter_map(|(_, member)| member.pool()).any(|member| std::ptr::eq(&**member, pool))
        };
        let free: u64 = pools.iter().filter(|pool| gives(pool)).map(|pool| free_of(&pool.allocator)).sum();
        let on_device = driver_of(&self.main).memory_info().map_or(u64::MAX, |info| info.free);
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

/// Puts allocators to sleep. Those that have begun are awake again where one cannot.
fn fall_asleep<'a, D: DeviceDriver>(
    members: impl IntoIterator<Item = (&'a Member<D>, Backup)>,
) -> Result<Slept, SleepError> {
    let mut falling = Vec::new();
    for (member, backup) in members {
        falling.push(member.allocator().begin_sleep(backup)?);
    }
    falling.iter_mut().try_for_each(FallingAsleep::unmap)?;
    let mut slept = Slept::default();
    for one in falling {
        add_slept(&mut slept, &one.finish()?);
    }
    Ok(slept)
}

fn add_slept(sum: &mut Slept, its: &Slept) {
    sum.asleep_bytes += its.asleep_bytes;
    sum.live_bytes += its.live_bytes;
    sum.copied_bytes += its.copied_bytes;
    sum.released_bytes += its.released_bytes;
    sum.left_awake += its.left_awake;
}
