//! A process with a device whose driver refuses what a test wants refused.

use super::{CAPACITY, MAIN};
use gapless::DeviceAddr;
use gapless::driver::{
    DriverCall, DriverError, DriverErrorKind, DriverResult, Hook, HostConfig, HostDriver, Intercepted, WorkDriver,
};
use gapless::units::MIB;
use gapless_process::{Device, Place, PoolId, PoolKind, Process, Request, Simulated};
use std::sync::{Arc, Mutex};

/// Refuses calls of some kinds, after as many of them as were let through, until it is told to stop; and one call once.
#[derive(Default)]
pub struct Refusals(
    pub Mutex<Vec<(DriverCall, u32, DriverErrorKind)>>,
    pub Mutex<Option<Act>>,
    pub Mutex<Option<(DriverCall, u32)>>,
);

/// What happens before each call.
pub type Act = Box<dyn FnMut(DriverCall) + Send>;

impl Hook for Refusals {
    fn around<T>(&self, call: DriverCall, run: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        if let Some(act) = &mut *self.1.lock().unwrap() {
            act(call);
        }
        let mut once = self.2.lock().unwrap();
        if let Some((_, passing)) = once.as_mut().filter(|(refused, _)| *refused == call) {
            if *passing == 0 {
                *once = None;
                return Err(DriverError::new(call, DriverErrorKind::Other, "refused once by the test"));
            }
            *passing -= 1;
        }
        drop(once);
        if let Some((_, passing, kind)) = self.0.lock().unwrap().iter_mut().find(|(refused, ..)| *refused == call) {
            if *passing == 0 {
                return Err(DriverError::new(call, *kind, "refused by the test"));
            }
            *passing -= 1;
        }
        run()
    }
}

pub type Driver = Intercepted<Simulated<HostDriver>, Refusals>;

/// A process with one device, whose memory is the host's.
pub struct World {
    pub process: Process<Driver>,
    pub driver: Arc<Driver>,
}

impl World {
    pub fn new(conf: &str) -> Self {
        let process = Process::new(|_, _| unreachable!("the device is added"));
        process.configure(conf).unwrap();
        let driver = add_device(&process, 0);
        Self { process, driver }
    }

    pub fn device(&self) -> &Device<Driver> {
        self.process.device(0).unwrap()
    }

    /// Refuses these kinds of calls after as many of each, while something is done.
    pub fn refusing<T>(&self, calls: &[(DriverCall, u32)], act: impl FnOnce() -> T) -> T {
        let refused = |(call, passing): &(DriverCall, u32)| (*call, *passing, DriverErrorKind::Other);
        *self.driver.hook().0.lock().unwrap() = calls.iter().map(refused).collect();
        let outcome = act();
        self.driver.hook().0.lock().unwrap().clear();
        outcome
    }

    /// Refuses one call, after as many of its kind, while something is done.
    pub fn refusing_one<T>(&self, call: (DriverCall, u32), act: impl FnOnce() -> T) -> T {
        *self.driver.hook().2.lock().unwrap() = Some(call);
        let outcome = act();
        *self.driver.hook().2.lock().unwrap() = None;
        outcome
    }

    /// Has something happen before each driver call, while something is done.
    pub fn meanwhile<T>(&self, happens: impl FnMut(DriverCall) + Send + 'static, act: impl FnOnce() -> T) -> T {
        *self.driver.hook().1.lock().unwrap() = Some(Box::new(happens));
        let outcome = act();
        *self.driver.hook().1.lock().unwrap() = None;
        outcome
    }

    /// Allocates in a pool, or in the device's own memory, and fills.
    pub fn filled(&self, pool: Option<PoolId>, mib: u64, seed: u64) -> Filled {
        let place = pool.map_or(Place::Main, Place::Pool);
        let addr = self.device().alloc_worded(place, &Request::new(mib * MIB, MAIN), |error| error).unwrap();
        let filled = Filled { addr, bytes: mib * MIB, seed };
        self.driver.fill(MAIN, addr, filled.bytes, seed).unwrap();
        filled
    }

    /// A pool of a tag.
    pub fn tagged(&self, pool: PoolId, kind: PoolKind, tag: &str) {
        let pools = self.device().pools();
        pools.declare(pool, kind, Some(tag)).unwrap();
        pools.add_user(pool).unwrap();
    }

    pub fn expect(&self, blocks: &[Filled]) {
        for block in blocks {
            self.driver.verify(MAIN, block.addr, block.bytes, block.seed).unwrap();
        }
        self.driver.synchronize(MAIN).unwrap();
        assert_eq!(self.driver.take_mismatches(), []);
    }

    pub fn asleep(&self) -> u64 {
        self.device().stats().asleep_bytes / MIB
    }

    pub fn reserved(&self) -> u64 {
        self.device().memory_use().reserved / MIB
    }

    pub fn check(&self) {
        self.device().each_allocator(None, |_, allocator| allocator.check());
    }
}

/// A block with bytes in it.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    pub addr: DeviceAddr,
    pub bytes: u64,
    pub seed: u64,
}

pub fn add_device(process: &Process<Driver>, ordinal: u32) -> Arc<Driver> {
    let config = HostConfig { capacity_bytes: CAPACITY, ..HostConfig::default() };
    let device = Arc::new(Simulated::host(ordinal, config).unwrap());
    let driver = Arc::new(Intercepted::with_hook(device, Refusals::default()));
    process.add(ordinal, Arc::clone(&driver)).unwrap();
    driver
}
