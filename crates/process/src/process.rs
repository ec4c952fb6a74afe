//! One allocator per device for a whole process, made on first use as the configuration says.
//!
//! - I1  a device's allocator is made once and lives as long as the process. If making it fails, the next use tries
//!   again.
//!
//! Threads: any. Cost: an atomic load once the allocator exists.

use crate::budget::Budget;
use crate::conf::Conf;
use crate::device::Device;
use crate::driver::{DeviceDriver, driver_of};
use crate::error::Error;
use crate::history::History;
use crate::notice::notice;
use crate::peers::introduce;
use gapless::DeviceAddr;
use gapless::allocator::HostBudget;
use gapless::driver::cuda::{OpenError, Sharing};
use gapless_share::{Handle, ShareError};
use parking_lot::Mutex;
use std::sync::{Arc, LazyLock, OnceLock};

/// The devices that a process uses, and what they share.
pub struct Process<D: DeviceDriver> {
    devices: [OnceLock<Device<D>>; MOST_DEVICES],
    /// Locked while a device is made.
    making: Mutex<Given>,
    history: LazyLock<Arc<History>>,
    open: fn(u32, Sharing) -> Result<D, OpenError>,
}

/// What a program has said of devices that are to be made.
struct Given {
    /// The text that `configure` was given.
    conf: Option<String>,
    /// The part of a device's memory that `limit` was given.
    part: Option<f64>,
}

impl<D: DeviceDriver> Process<D> {
    /// A process that uses no device yet. `open` opens one by its number, when it is used for the first time; the configuration
    /// says whether its chunks may leave the process.
    pub const fn new(open: fn(u32, Sharing) -> Result<D, OpenError>) -> Self {
        Self {
            devices: [const { OnceLock::new() }; MOST_DEVICES],
            making: Mutex::new(Given { conf: None, part: None }),
            history: LazyLock::new(|| Arc::new(History::new())),
            open,
        }
    }

    /// The device of that number, with its allocator made now if this is the first use.
    ///
    /// # Errors
    /// [`Error::NotADevice`], [`Error::Conf`], [`Error::Open`], [`Error::Build`], [`Error::Driver`] or [`Error::Record`] where the
    /// allocator cannot be made.
    #[inline]
    pub fn device(&self, ordinal: u32) -> Result<&Device<D>, Error> {
        let slot = self.slot(ordinal)?;
        match slot.get() {
            Some(device) => Ok(device),
            None => self.make(slot, ordinal, |conf| Ok(Arc::new((self.open)(ordinal, conf.sharing)?))),
        }
    }

    /// The device of that number, if it was used before.
    #[inline]
    pub fn used(&self, ordinal: u32) -> Option<&Device<D>> {
        self.devices.get(ordinal as usize)?.get()
    }

    /// Makes the allocator of a device that the caller has opened.
    ///
    /// # Errors
    /// [`Error::DeviceInUse`] where the device has one, else as [`device`](Self::device).
    pub fn add(&self, ordinal: u32, driver: Arc<D>) -> Result<&Device<D>, Error> {
        let slot = self.slot(ordinal)?;
        let mut driver = Some(driver);
        let device = self.make(slot, ordinal, |_| driver.take().ok_or(Error::DeviceInUse(ordinal)))?;
        if driver.is_none() { Ok(device) } else { Err(Error::DeviceInUse(ordinal)) }
    }

    /// The device whose memory an address is in, if it is memory of gapless.
    #[inline]
    pub fn owner_of(&self, addr: DeviceAddr) -> Option<&Device<D>> {
        self.devices().find(|device| device.holds(addr))
    }

    /// The devices that were used so far.
    pub fn devices(&self) -> impl Iterator<Item = &Device<D>> {
        self.devices.iter().filter_map(OnceLock::get)
    }

    /// The number here of the device that a handle's memory is on; `None` where the process that shared it does not know. Opens
    /// device 0 if none is in use.
    ///
    /// # Errors
    /// [`Error::Share`] for a device that this process does not see, and as [`device`](Self::device).
    pub fn device_of_handle(&self, handle: &Handle) -> Result<Option<u32>, Error> {
        let Some(uuid) = handle.device() else { return Ok(None) };
        let any = match self.devices().next() {
            Some(device) => device,
            None => self.device(0)?,
        };
        let found = driver_of(any.allocator()).ordinal_of(uuid);
        Ok(Some(found.ok_or(ShareError::UnseenDevice(uuid))?))
    }

    /// The newest allocations and frees of all devices.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Uses a configuration, as [`Conf`] reads it, in place of the environment's.
    ///
    /// # Errors
    /// [`Error::Conf`] for one that does not parse, [`Error::Configured`] once a device is in use.
    pub fn configure(&self, conf: &str) -> Result<(), Error> {
        Conf::parse(conf).map_err(Error::Conf)?;
        let mut given = self.making.lock();
        if self.devices().next().is_some() {
            return Err(Error::Configured);
        }
        given.conf = Some(conf.to_owned());
        Ok(())
    }

    /// Has each device, also those that are not in use yet, hold at most a part of its memory, from 0 to 1, where it has no budget.
    ///
    /// # Errors
    /// [`Error::Fraction`] for a part that is none, else as [`Device::set_budget_part`].
    pub fn limit(&self, part: f64) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&part) {
            return Err(Error::Fraction(part));
        }
        self.making.lock().part = Some(part);
        self.devices().filter(|device| !device.has_budget()).try_for_each(|device| device.set_budget_part(part))
    }

    /// At the end of the process: completes the recordings. What cannot be completed is reported on stderr.
    pub fn end(&self) {
        self.devices().for_each(Device::end);
    }

    #[inline]
    fn slot(&self, ordinal: u32) -> Result<&OnceLock<Device<D>>, Error> {
        self.devices.get(ordinal as usize).ok_or(Error::NotADevice(ordinal))
    }

    #[cold]
    fn make<'a>(
        &'a self,
        slot: &'a OnceLock<Device<D>>,
        ordinal: u32,
        open: impl FnOnce(&Conf) -> Result<Arc<D>, Error>,
    ) -> Result<&'a Device<D>, Error> {
        let given = self.making.lock();
        if let Some(device) = slot.get() {
            return Ok(device);
        }
        let mut conf = read_conf(given.conf.as_deref())?;
        // Once per process, not once per device.
        if self.devices().next().is_none() {
            for warning in &conf.warnings {
                notice(format_args!("gapless: {VARIABLE}: {warning}"));
            }
        }
        let limit = given.part.filter(|_| conf.budget.is_none());
        conf.budget = conf.budget.or_else(|| Budget::fraction(limit?));
        let driver = open(&conf)?;
        let host_budget = match self.devices().next() {
            Some(first) => Arc::clone(first.allocator().host_budget()),
            None => Arc::new(conf.host_bytes.map_or_else(HostBudget::default, HostBudget::new)),
        };
        let device = Device::new(ordinal, driver, &conf, Arc::clone(&self.history), host_budget)?;
        if limit == Some(0.0) {
            device.set_budget(0)?;
        }
        let others: Vec<&Device<D>> = self.devices().collect();
        introduce(&device, &others, &conf.peers)?;
        Ok(slot.get_or_init(|| device))
    }
}

/// Reads the configuration that was set, else the environment's.
fn read_conf(configured: Option<&str>) -> Result<Conf, Error> {
    let text = match configured {
        Some(text) => text.to_owned(),
        None => std::env::var(VARIABLE).unwrap_or_default(),
    };
    Conf::parse(&text).map_err(Error::Conf)
}

const VARIABLE: &str = "GAPLESS_CONF";
/// More than any machine has.
pub const MOST_DEVICES: usize = 64;
