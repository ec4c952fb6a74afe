//! One device of a process: its allocator, its pools, and what is kept about its blocks.
//!
//! Its functions for those who allocate are in `memory`, `restore`, `outside`, `growable`, `sleep`, `figures` and `blocks`.
//!
//! Threads: any. Cost of finding out whose an address is: a look at the main allocator's directory, and at those of the pools while
//! there are some.

use crate::by_address::ByAddress;
use crate::conf::Conf;
use crate::driver::{DeviceDriver, driver_of};
use crate::error::Error;
use crate::foreign::Foreign;
use crate::history::History;
use crate::notice::notice;
use crate::pools::{PoolId, Pools};
use crate::ranges::Ranges;
use crate::recorded::Recorded;
use crate::registered::RegisteredBlocks;
use crate::settings::Settings;
use crate::sharing::Sharing;
use gapless::allocator::{AddressFacts, AllocError, Figures, FreeError, HostBudget, LiveAllocation, Pin, ShownPeaks};
use gapless::units::ByteSize;
use gapless::{Allocator, DeviceAddr, StreamId};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A device that a process uses. [`Process`](crate::Process) makes it.
pub struct Device<D: DeviceDriver> {
    pub(crate) ordinal: u32,
    pub(crate) main: Recorded<D>,
    pub(crate) pools: Arc<Pools<D>>,
    /// Uses of this device's memory by streams of other devices.
    pub(crate) foreign: Foreign<D>,
    /// Blocks that stay where they are.
    pub(crate) pins: ByAddress<Pin<D>>,
    /// Blocks that libraries register.
    pub(crate) registered: RegisteredBlocks<D>,
    /// Memory that grows and shrinks at its end.
    pub(crate) ranges: Ranges<D>,
    /// The memory that other processes have of this one, and this one of others.
    pub(crate) sharing: Sharing<D>,
    /// The history of all devices of the process.
    pub(crate) history: Arc<History>,
    /// The highest sums that statistics have shown.
    pub(crate) shown: ShownPeaks,
    /// Held by whoever puts memory to sleep, or wakes it.
    pub(crate) sleeping: Mutex<()>,
    /// The figures when PyTorch's accumulated statistics were reset last.
    pub(crate) at_reset: Mutex<Figures>,
    log: bool,
    pub(crate) report_on_failure: bool,
    /// Where blocks of a page and more have their chunks for themselves: the bytes of a page.
    pub(crate) private_page: Option<u64>,
    /// Whether blocks may be sent to other processes, as far as the configuration says.
    pub(crate) exports: bool,
}

impl<D: DeviceDriver> Device<D> {
    /// The device behind an open driver, with an allocator of its own as the configuration says. Devices of a process share
    /// `history` and `host_budget`.
    pub(crate) fn new(
        ordinal: u32,
        driver: Arc<D>,
        conf: &Conf,
        history: Arc<History>,
        host_budget: Arc<HostBudget>,
    ) -> Result<Self, Error> {
        let Conf { budget, slack, chunk, region_bytes, .. } = *conf;
        let settings = Settings { budget, slack, chunk, region_bytes };
        let main = Recorded::new(settings.build_within(driver, host_budget, conf.backups.as_deref())?);
        if let Some(path) = &conf.record {
            main.record(&path_for(path, ordinal))?;
        }
        if conf.log {
            notice(format_args!(
                "gapless: device {ordinal} ({}), budget {}",
                driver_of(&main.allocator).name(),
                ByteSize(main.allocator.budget())
            ));
        }
        let pools = Arc::new(Pools::new(settings, main.allocator.clone()));
        let private_page = conf.private.then(|| driver_of(&main.allocator).granularity());
        Ok(Self {
            ordinal,
            foreign: Foreign::new(),
            pins: ByAddress::new(),
            registered: RegisteredBlocks::new(),
            ranges: Ranges::new(),
            sharing: Sharing::new(&main.allocator, Arc::clone(&pools), conf.private),
            pools,
            main,
            history,
            shown: ShownPeaks::default(),
            sleeping: Mutex::new(()),
            at_reset: Mutex::default(),
            log: conf.log,
            report_on_failure: conf.report_on_failure,
            private_page,
            exports: conf.sharing == gapless::driver::cuda::Sharing::WherePossible,
        })
    }

    /// Its number, counted from 0 among those that the process sees.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Its allocator without the pools, with its recording. Memory is better allocated with [`alloc`](Self::alloc): what is
    /// allocated here goes past pools, the memory history and what streams of other devices use.
    pub fn main(&self) -> &Recorded<D> {
        &self.main
    }

    /// Its allocator without the pools.
    pub fn allocator(&self) -> &Allocator<D> {
        &self.main.allocator
    }

    /// Its pools: memory of captured graphs, and of those who want theirs apart.
    pub fn pools(&self) -> &Pools<D> {
        &self.pools
    }

    /// Writes to the log if it is on.
    pub(crate) fn log(&self, text: impl FnOnce() -> String) {
        if self.log {
            notice(format_args!("gapless: device {}: {}", self.ordinal, text()));
        }
    }

    /// Shows the device's allocator and those of its pools to `look`, or that of one pool.
    pub fn each_allocator(&self, wanted: Option<PoolId>, mut look: impl FnMut(PoolId, &Allocator<D>)) {
        if wanted.is_none() {
            look(NO_POOL, &self.main.allocator);
        }
        let pools = self.pools.all();
        let shown = pools.iter().filter(|pool| wanted.is_none_or(|wanted| pool.id == wanted));
        shown.for_each(|pool| look(pool.id, &pool.allocator));
    }

    /// Whether an address cannot be that of a pool's allocation.
    #[inline]
    pub(crate) fn is_of_main(&self, addr: DeviceAddr) -> bool {
        self.pools.none() || self.main.allocator.contains(addr)
    }

    /// Whether an address is among those of the device's allocator or of a pool.
    #[inline]
    pub fn holds(&self, addr: DeviceAddr) -> bool {
        self.main.allocator.contains(addr) || (!self.pools.none() && self.pools.owner(addr).is_some())
    }

    /// The allocator whose addresses an address is among: the main one, or that of a pool.
    pub(crate) fn allocator_of(&self, addr: DeviceAddr) -> Option<Allocator<D>> {
        if self.main.allocator.contains(addr) {
            return Some(self.main.allocator.clone());
        }
        let pools = self.pools.all();
        pools.iter().map(|pool| pool.allocator.clone()).find(|allocator| allocator.contains(addr))
    }

    /// The live allocation that an address lies in, or beside in its block, and its pool; [`NO_POOL`] for none.
    pub fn live_around(&self, addr: DeviceAddr) -> Option<(PoolId, LiveAllocation)> {
        if self.main.allocator.contains(addr) {
            return Some((NO_POOL, self.main.allocator.live_around(addr)?));
        }
        let pool = self.pools.owner(addr)?;
        Some((pool.id, pool.allocator.live_around(addr)?))
    }

    /// The live allocation that `addr` lies in.
    pub fn allocation_around(&self, addr: DeviceAddr) -> Option<LiveAllocation> {
        let inside =
            |live: &LiveAllocation| addr.offset_from(live.addr).is_some_and(|offset| offset < live.bytes.max(1));
        self.live_around(addr).map(|(_, live)| live).filter(inside)
    }

    /// Refuses an allocation that was freed, the free of which is deferred.
    #[inline]
    pub(crate) fn expect_not_deferred(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        if self.foreign.is_deferred(addr) {
            return Err(FreeError::NotAllocated { addr, facts: AddressFacts::Freed { pending: true } });
        }
        Ok(())
    }

    /// Promises that a stream lives until it is forgotten.
    ///
    /// # Errors
    /// The allocator's, for a handle that is no stream of the device.
    pub fn keep_stream(&self, stream: StreamId) -> Result<(), Error> {
        Ok(self.main.allocator.keep_stream(stream).map_err(AllocError::from)?)
    }

    /// Ends that promise for the device's allocator and its pools, right before the stream is destroyed: no work that uses their
    /// memory is queued on it any more.
    ///
    /// # Errors
    /// As for [`keep_stream`](Self::keep_stream).
    pub fn forget_stream(&self, stream: StreamId) -> Result<(), Error> {
        for pool in self.pools.all() {
            pool.allocator.forget_stream(stream).map_err(AllocError::from)?;
        }
        Ok(self.main.allocator.forget_stream(stream).map_err(AllocError::from)?)
    }

    /// Whether this device was given access to the memory of another one, or is the same.
    pub fn reaches(&self, owner: &Self) -> bool {
        self.ordinal == owner.ordinal || driver_of(&owner.main.allocator).peers().contains(&self.ordinal)
    }

    /// Waits for all work on the device. Nothing runs on one that is lost.
    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        match driver_of(&self.main.allocator).synchronize_device() {
            Err(error) if !error.kind.is_sticky() => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// At the end of the process: nobody opens its memory any more, and the recording is completed.
    pub(crate) fn end(&self) {
        self.sharing.end();
        match self.main.stop_recording() {
            Ok(()) | Err(Error::NotRecording) => {}
            Err(error) => {
                notice(format_args!("gapless: the recording of device {} is incomplete: {error}", self.ordinal));
            }
        }
    }
}

/// Replaces `%d` by the device and `%p` by the process. Devices after the first get a file of their own in any case.
fn path_for(path: &Path, ordinal: u32) -> PathBuf {
    let text = path.to_string_lossy();
    let named = text.replace("%d", &ordinal.to_string()).replace("%p", &std::process::id().to_string());
    if ordinal > 0 && !text.contains("%d") { format!("{named}.device{ordinal}").into() } else { named.into() }
}

/// The name that stands for memory of no pool.
pub const NO_POOL: PoolId = (0, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_records_into_a_file_of_its_own() {
        let path = |text: &str, ordinal| path_for(text.as_ref(), ordinal).to_string_lossy().into_owned();
        assert_eq!(path("a.gz", 0), "a.gz");
        assert_eq!(path("a.gz", 1), "a.gz.device1");
        assert_eq!(path("a%d.gz", 1), "a1.gz");
        assert_eq!(path("%p", 0), std::process::id().to_string());
    }
}
