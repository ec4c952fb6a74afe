//! Sleep and wake: a device's memory, or that of a tag, goes back to the driver, and comes again at the same addresses.
//!
//! Threads: any. One call at a time falls asleep or wakes; while a wake waits for memory, others may.

use crate::device::Device;
use crate::driver::DeviceDriver;
use crate::error::Error;
use gapless::allocator::{AllocError, Backup, MapListeners, SleepError, Slept, Wake, Woken};
use gapless::units::{ByteSize, DeviceAddr};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// What is asleep of a tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TagAsleep {
    /// The tag; `None` for the device's own memory and pools without one.
    pub tag: Option<String>,
    /// Bytes of the live allocations that are asleep, rounding included.
    pub live_bytes: u64,
    /// Bytes of the pages that are asleep: what a wake needs.
    pub asleep_bytes: u64,
}

/// The pause before a wake that found too little memory looks again; it doubles each time,
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

impl<D: DeviceDriver> Device<D> {
    /// Puts the pools of a tag to sleep; without one, all pools and the device's own memory. Nothing where there is no pool of that
    /// tag.
    ///
    /// What was queued before is waited for, also on streams of other devices that were recorded. No work that uses the memory may
    /// be queued from the call on until the [`wake`](Self::wake). What is asleep needs nothing of the budget, and what is allocated
    /// in its pools meanwhile has memory of its own.
    ///
    /// # Errors
    /// [`Error::Capturing`], and those of [`gapless::Allocator::sleep`]. Everything is awake then that was, with its bytes. Only
    /// what the driver refuses to map again is asleep until the next wake.
    pub fn sleep(&self, tag: Option<&str>, backup: Backup) -> Result<Slept, Error> {
        self.sleep_tags(&[(tag, backup)])
    }

    /// As [`sleep`](Self::sleep), for several tags, each with what becomes of its bytes: all of them fall asleep or none. `None`
    /// stands for the device's own memory and all pools whose tag is not named.
    ///
    /// # Errors
    /// As `sleep`.
    pub fn sleep_tags(&self, wanted: &[(Option<&str>, Backup)]) -> Result<Slept, Error> {
        self.expect_may_sleep()?;
        let tags: Vec<Option<&str>> = wanted.iter().map(|(tag, _)| *tag).collect();
        let _alone = self.sleeping.lock();
        let members = self.pools.members(&tags);
        self.foreign.wait_for_uses(|addr| members.iter().any(|(_, member)| member.allocator().contains(addr)))?;
        drop(members);
        self.settle_foreign();
        // Nobody will use what they have, so that it need not sleep. What was settled may have been their last.
        let of_condemned = if tags.contains(&None) { self.pools.close_condemned(None) } else { 0 };
        let members = self.pools.members(&tags);
        let mut slept = self.pools.sleep_all(members.iter().map(|(number, member)| (member, wanted[*number].1)))?;
        slept.released_bytes += of_condemned;
        // In a recording, a sleep without a tag is one of everything that is awake still.
        let (named, rest): (Vec<_>, Vec<_>) = wanted.iter().partition(|(tag, _)| tag.is_some());
        named.into_iter().chain(rest).for_each(|(tag, backup)| self.main.note_sleep(tag, backup));
        self.log(|| {
            let (asleep, released) = (ByteSize(slept.asleep_bytes), ByteSize(slept.released_bytes));
            format!("{asleep} {} fell asleep, {released} released", of(&tags))
        });
        Ok(slept)
    }

    /// Wakes the pools of a tag; without one, all pools and the device's own memory. All of it, or none: where the budget that is
    /// left, what is free on the device and completely free chunks do not cover it, tries again until the wait is over, since
    /// another process, or another thread, may be about to give memory back. Pools for captured graphs retain no backups.
    ///
    /// # Errors
    /// [`Error::Capturing`], and those of [`gapless::Allocator::wake`]. What was asleep is asleep, with its bytes; only what the
    /// driver refuses to take back stays awake.
    pub fn wake(&self, tag: Option<&str>, how: impl Into<Wake>) -> Result<Woken, Error> {
        self.wake_tags(&[tag], how)
    }

    /// As [`wake`](Self::wake), for several tags: all of them wake or none. With `None` among them, everything does.
    ///
    /// # Errors
    /// As `wake`.
    pub fn wake_tags(&self, tags: &[Option<&str>], how: impl Into<Wake>) -> Result<Woken, Error> {
        let Wake { wait, retain } = how.into();
        let began = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let short = match self.wake_now(tags, retain) {
                Err(Error::Alloc(short @ AllocError::OutOfMemory(_))) => short,
                outcome => return outcome,
            };
            loop {
                let left = wait.saturating_sub(began.elapsed());
                if left.is_zero() {
                    return Err(short.into());
                }
                std::thread::sleep(pause.min(left));
                pause = (2 * pause).min(LONGEST_PAUSE);
                if began.elapsed() >= wait || self.pools.may_cover(&self.pools.members(tags)) {
                    break;
                }
            }
        }
    }

    fn wake_now(&self, tags: &[Option<&str>], retain: bool) -> Result<Woken, Error> {
        self.expect_may_sleep()?;
        let _alone = self.sleeping.lock();
        let woken = self.pools.wake_all(&self.pools.members(tags), retain).map_err(|error| match error {
            SleepError::Alloc(error) => Error::from(self.with_pools(error)),
            other => other.into(),
        })?;
        tags.iter().for_each(|tag| self.main.note_wake(*tag));
        self.log(|| format!("{} {} woke", ByteSize(woken.mapped_bytes), of(tags)));
        Ok(woken)
    }

    /// Refuses where nothing may fall asleep or wake.
    fn expect_may_sleep(&self) -> Result<(), Error> {
        MapListeners::expect_outside().map_err(AllocError::from)?;
        // A lock may be held by a thread that this process does not have.
        self.foreign.expect_not_forked()?;
        if self.pools.may_be_captured() { Err(Error::Capturing(self.ordinal)) } else { Ok(()) }
    }

    /// Calls `read` with `bytes` at `addr` as they are in the host's memory, of what is asleep with a backup, or has woken and
    /// retains it; `None` where no byte of them is in one, as of memory that is not of this device. As
    /// [`gapless::Allocator::backup_at`], which see for how long the bytes are there. `read` calls nothing of this device.
    ///
    /// # Errors
    /// Those of [`gapless::Allocator::backup_at`].
    pub fn backup_at<T>(
        &self,
        addr: DeviceAddr,
        bytes: u64,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, Error> {
        match self.allocator_of(addr) {
            Some(allocator) => Ok(allocator.backup_at(addr, bytes, read)?),
            None => Ok(None),
        }
    }

    /// What is asleep, by tag.
    pub fn asleep(&self) -> Vec<TagAsleep> {
        let mut by_tag: BTreeMap<Option<String>, TagAsleep> = BTreeMap::new();
        for (_, member) in self.pools.members(&[None]) {
            let its = member.allocator().asleep();
            if its.asleep_bytes > 0 {
                let tag = member.tag();
                let sum = by_tag.entry(tag.clone()).or_insert_with(|| TagAsleep { tag, ..TagAsleep::default() });
                sum.live_bytes += its.live_bytes;
                sum.asleep_bytes += its.asleep_bytes;
            }
        }
        by_tag.into_values().collect()
    }

    /// Where the live allocations start that are asleep, at least in part, in the order of their addresses.
    pub fn asleep_blocks(&self) -> Vec<DeviceAddr> {
        let members = self.pools.members(&[None]);
        let mut blocks: Vec<DeviceAddr> = members.iter().flat_map(|(_, member)| member.asleep()).collect();
        blocks.sort_unstable();
        blocks
    }

    /// What is asleep, in a sentence for each tag, for whoever looks for memory.
    pub fn describe_asleep(&self) -> String {
        self.asleep().iter().fold(String::new(), |mut text, its| {
            let line_break = if text.is_empty() { "" } else { "\n" };
            let (live, needed) = (ByteSize(its.live_bytes), ByteSize(its.asleep_bytes));
            let _ = write!(text, "{line_break}{live} {} are asleep and need {needed}.", of(&[its.tag.as_deref()]));
            text
        })
    }
}

/// The words for some tags.
fn of(tags: &[Option<&str>]) -> String {
    let words = |tag: &Option<&str>| tag.map_or_else(|| "without a tag".to_owned(), |tag| format!("of tag {tag}"));
    tags.iter().map(words).collect::<Vec<_>>().join(", ")
}
