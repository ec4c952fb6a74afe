//! A driver that counts the calls made to another one, and the time spent in them.
//!
//! Threads: any. Cost: two clock readings for each call, about 50 ns together with [`Clock::Wall`]; none with [`Clock::Nothing`].

use gapless::driver::{CallCounter, DriverCall, DriverCalls, DriverResult, Hook, Intercepted};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A driver around `D` whose calls a [`Meter`] counts and times.
pub type Metered<D> = Intercepted<D, Meter>;

/// The clock that measures the time spent in a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// Time that passes: cheap, right for drivers that never block.
    Wall,
    /// Processor time of the calling thread: a system call, right for drivers that block.
    Processor,
    /// Nothing: it is not measured. Reading a clock twice takes longer than many a call of a simulated device.
    Nothing,
}

/// The [`Hook`] that counts driver calls and adds up the time spent in them.
#[derive(Debug)]
pub struct Meter {
    clock: Clock,
    calls: CallCounter,
    nanoseconds: AtomicU64,
}

impl Meter {
    /// Starts from zero.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, calls: CallCounter::default(), nanoseconds: AtomicU64::new(0) }
    }

    /// Returns the calls so far, failed ones included.
    pub fn calls(&self) -> DriverCalls {
        self.calls.calls()
    }

    /// Returns the time spent in the driver so far, summed over all threads.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    /// Returns what time is measured by.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Runs `call` and adds the time that it took.
    pub(crate) fn timed<T>(&self, call: impl FnOnce() -> T) -> T {
        let (result, time) = match self.clock {
            Clock::Wall => {
                let start = Instant::now();
                let result = call();
                (result, start.elapsed())
            }
            Clock::Processor => {
                let start = processor_time();
                let result = call();
                (result, processor_time().saturating_sub(start))
            }
            Clock::Nothing => return call(),
        };
        self.nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        result
    }
}

impl Hook for Meter {
    #[inline]
    fn around<T>(&self, call: DriverCall, run: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        self.calls.around(call, || self.timed(run))
    }
}

/// Processor time of the calling thread.
pub(crate) fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless::driver::{Fault, FaultDriver, MemoryDriver, ModelDriver};
    use std::sync::Arc;

    const DELAY: Duration = Duration::from_millis(20);

    #[test]
    fn calls_are_counted_and_wall_time_includes_a_delay() {
        let slow = FaultDriver::new(ModelDriver::default());
        slow.arm(Fault::delay(0, DELAY));
        let driver = Metered::with_hook(Arc::new(slow), Meter::new(Clock::Wall));
        let chunk = driver.create(2 << 20).unwrap();
        assert!(driver.hook().time() >= DELAY);
        driver.release(chunk).unwrap();
        let calls = driver.hook().calls();
        assert_eq!((calls[DriverCall::Create], calls[DriverCall::Release], calls.total()), (1, 1, 2));
    }

    #[test]
    fn without_a_clock_calls_are_counted_and_not_timed() {
        let slow = FaultDriver::new(ModelDriver::default());
        slow.arm(Fault::delay(0, DELAY));
        let driver = Metered::with_hook(Arc::new(slow), Meter::new(Clock::Nothing));
        driver.create(2 << 20).unwrap();
        assert_eq!((driver.hook().calls().total(), driver.hook().time()), (1, Duration::ZERO));
    }

    #[test]
    fn processor_time_does_not_include_a_sleep() {
        let meter = Meter::new(Clock::Processor);
        meter.timed(|| std::thread::sleep(DELAY));
        assert!(meter.time() < DELAY);
    }
}
