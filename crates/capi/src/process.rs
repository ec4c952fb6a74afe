//! One allocator per device for the whole process, made on first use from `GAPLESS_CONF`.
//!
//! - I1  a device's allocator is made once and lives as long as the process. If making it fails, the next use tries
//!   again.
//!
//! Threads: any. Cost: an atomic load once the allocator exists.

use crate::config::{Settings, text};
use crate::foreign::Foreign;
use crate::instance::Instance;
use crate::last_error::guard;
use crate::out::check_out;
use crate::peers::introduce;
use crate::pins::DevicePins;
use crate::pools::Pools;
use crate::registered::RegisteredBlocks;
use crate::registry::{Lifetime, gapless_allocator, register};
use crate::sharing::Sharing;
use crate::status::{Answer, Failure, GAPLESS_ERROR_IN_USE, gapless_status};
use gapless::DeviceAddr;
use gapless::driver::MemoryDriver;
use gapless::units::ByteSize;
use gapless_process::Conf;
use gapless_process::notice;
use parking_lot::Mutex;
use std::ffi::c_char;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

/// A device that this process uses. What it does for the front ends is in `device_memory`.
#[derive(Debug)]
pub(crate) struct Device {
    pub ordinal: u32,
    pub main: Arc<Instance>,
    pub pools: Pools,
    /// Uses of this device's memory by streams of other devices.
    pub foreign: Foreign,
    /// Blocks that stay where they are.
    pub pins: DevicePins,
    /// Blocks that libraries register.
    pub registered: RegisteredBlocks,
    /// What other processes have of this one, and this one of others.
    pub sharing: Sharing,
    handle: usize,
    /// The highest number of freed bytes that was reported so far.
    pub freed_bytes: AtomicU64,
    pub log: bool,
    pub report_on_failure: bool,
    /// Where blocks of a page and more have their chunks for themselves: the bytes of a page.
    pub private_page: Option<u64>,
}

static DEVICES: [OnceLock<Device>; MOST_DEVICES] = [const { OnceLock::new() }; MOST_DEVICES];
/// What `gapless_configure` said. Locked while a device is made.
static MAKING: Mutex<Option<String>> = Mutex::new(None);

impl Device {
    /// The device of that number, with its allocator made now if this is the first use.
    #[inline]
    pub fn get(ordinal: i32) -> Answer<&'static Self> {
        let slot = usize::try_from(ordinal).ok().and_then(|ordinal| DEVICES.get(ordinal));
        let slot = slot.ok_or_else(|| Failure::argument(format!("{ordinal} is not the number of a device")))?;
        match slot.get() {
            Some(device) => Ok(device),
            None => Self::make(slot, ordinal.unsigned_abs()),
        }
    }

    /// The device whose memory an address is in, if it is memory of gapless.
    pub fn owner_of(addr: DeviceAddr) -> Option<&'static Self> {
        Self::all().find(|device| device.holds(addr))
    }

    /// The devices that were used so far.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        DEVICES.iter().filter_map(OnceLock::get)
    }

    #[cold]
    fn make(slot: &'static OnceLock<Self>, ordinal: u32) -> Answer<&'static Self> {
        let configured = MAKING.lock();
        if let Some(device) = slot.get() {
            return Ok(device);
        }
        let conf = read_conf(configured.as_deref())?;
        // Once per process, not once per device.
        if Self::all().next().is_none() {
            for warning in &conf.warnings {
                notice(format_args!("gapless: {VARIABLE}: {warning}"));
            }
        }
        let settings = Settings {
            device: ordinal,
            budget: conf.budget,
            slack: conf.slack,
            chunk: conf.chunk,
            region_bytes: conf.region_bytes,
            ..Settings::default()
        };
        let main = Arc::new(settings.build()?);
        if let Some(path) = &conf.record {
            main.record(&path_for(path, ordinal))?;
        }
        if conf.log {
            notice(format_args!(
                "gapless: device {ordinal} ({}), budget {}",
                main.allocator.driver().info().name,
                ByteSize(main.allocator.budget())
            ));
        }
        let private_page = conf.private.then(|| main.allocator.driver().granularity());
        // SAFETY: the function is extern "C", takes nothing and does not unwind.
        unsafe { libc::atexit(at_exit) };
        let device = Self {
            ordinal,
            handle: register(Arc::clone(&main), Lifetime::Permanent).addr(),
            pools: Pools::new(settings),
            foreign: Foreign::new(),
            pins: DevicePins::default(),
            registered: RegisteredBlocks::default(),
            sharing: Sharing::new(&main.allocator),
            main,
            freed_bytes: AtomicU64::new(0),
            log: conf.log,
            report_on_failure: conf.report_on_failure,
            private_page,
        };
        let others: Vec<&'static Self> = Self::all().collect();
        introduce(&device, &others, &conf.peers)?;
        Ok(slot.get_or_init(|| device))
    }

    /// Writes to the log if it is on.
    pub fn log(&self, text: impl FnOnce() -> String) {
        if self.log {
            notice(format_args!("gapless: device {}: {}", self.ordinal, text()));
        }
    }
}

/// What `gapless_configure` said, else the environment.
fn read_conf(configured: Option<&str>) -> Answer<Conf> {
    let text = match configured {
        Some(text) => text.to_owned(),
        None => std::env::var(VARIABLE).unwrap_or_default(),
    };
    Conf::parse(&text).map_err(|error| Failure::argument(format!("{VARIABLE}: {error}")))
}

/// Replaces `%d` by the device and `%p` by the process. Devices after the first get a file of their own in any case.
fn path_for(path: &std::path::Path, ordinal: u32) -> PathBuf {
    let text = path.to_string_lossy();
    let named = text.replace("%d", &ordinal.to_string()).replace("%p", &std::process::id().to_string());
    if ordinal > 0 && !text.contains("%d") { format!("{named}.device{ordinal}").into() } else { named.into() }
}

extern "C" fn at_exit() {
    guard(|| {
        for device in Device::all() {
            device.sharing.remove_socket();
            if let Err(failure) = device.main.stop_recording()
                && failure.status != crate::status::GAPLESS_ERROR_NOT_FOUND
            {
                let (ordinal, text) = (device.ordinal, &failure.text);
                notice(format_args!("gapless: the recording of device {ordinal} is incomplete: {text}"));
            }
        }
        Ok(())
    });
}

/// Checks a configuration in the syntax of GAPLESS_CONF: key:value,key:value. On failure the text names what is wrong.
///
/// # Safety
/// conf is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_check_conf(conf: *const c_char) -> gapless_status {
    guard(|| {
        // SAFETY: the function's contract.
        let conf = unsafe { text(conf, "configuration") }?;
        Conf::parse(&conf).map(|_| ()).map_err(Failure::argument)
    })
}

/// Uses a configuration in place of GAPLESS_CONF for the process-wide allocators. GAPLESS_ERROR_IN_USE once one of them
/// exists.
///
/// # Safety
/// conf is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_configure(conf: *const c_char) -> gapless_status {
    guard(|| {
        // SAFETY: the function's contract.
        let conf = unsafe { text(conf, "configuration") }?;
        Conf::parse(&conf).map_err(Failure::argument)?;
        let mut configured = MAKING.lock();
        if Device::all().next().is_some() {
            return Err(Failure::new(
                GAPLESS_ERROR_IN_USE,
                "an allocator is in use already: configure before the first use",
            ));
        }
        *configured = Some(conf);
        Ok(())
    })
}

/// Writes the handle of a device's process-wide allocator to *allocator, for its statistics and recordings. It is
/// made on first use from GAPLESS_CONF and lives as long as the process; gapless_destroy refuses it.
///
/// Allocate from it with gapless_device_alloc: calls by handle go past the pools of captured graphs, the memory history, and
/// what other devices' streams use. A budget that is set by handle is that of the device, pools included.
///
/// # Safety
/// allocator points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_device_allocator(
    device: i32,
    allocator: *mut *mut gapless_allocator,
) -> gapless_status {
    guard(|| {
        check_out(allocator, "allocator")?;
        let device = Device::get(device)?;
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { allocator.write(std::ptr::without_provenance_mut(device.handle)) };
        Ok(())
    })
}

const VARIABLE: &str = "GAPLESS_CONF";
/// More than any machine has.
const MOST_DEVICES: usize = 64;

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
