//! A driver that counts the calls made to it.
//!
//! Threads: any; no lock. Cost: one or two additions to an atomic counter for each call.

use super::intercept::{Hook, Intercepted};
use super::{DriverCall, DriverCalls, DriverResult};
use crate::sync::{Arc, AtomicU64, Ordering};

/// A driver around `D` that counts the calls made through it, not those that others make to `D` itself. With the feature `testing`.
pub type Counted<D> = Intercepted<D, CallCounter>;

impl<D> Intercepted<D, CallCounter> {
    /// Wraps `driver` and counts from zero.
    pub fn new(driver: Arc<D>) -> Self {
        Self::with_hook(driver, CallCounter::default())
    }

    /// Returns the calls so far, failed ones included.
    pub fn calls(&self) -> DriverCalls {
        self.hook().calls()
    }

    /// Returns the number of calls so far that failed.
    pub fn failures(&self) -> u64 {
        self.hook().failures()
    }
}

/// The [`Hook`] that counts calls. With the feature `testing`.
#[derive(Debug, Default)]
pub struct CallCounter {
    calls: [AtomicU64; DriverCall::ALL.len()],
    failures: AtomicU64,
}

impl CallCounter {
    /// Returns the calls so far, failed ones included.
    pub fn calls(&self) -> DriverCalls {
        DriverCalls::from_fn(|call| self.calls[call as usize].load(Ordering::Relaxed))
    }

    /// Returns the number of calls so far that failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

impl Hook for CallCounter {
    #[inline]
    fn around<T>(&self, call: DriverCall, run: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        let result = run();
        self.calls[call as usize].fetch_add(1, Ordering::Relaxed);
        if result.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{MemoryDriver, ModelConfig, ModelDriver, StreamDriver};
    use crate::units::StreamId;

    #[test]
    fn calls_and_failures_are_counted() {
        let config = ModelConfig { capacity_bytes: 2 << 20, ..ModelConfig::default() };
        let driver = Counted::new(Arc::new(ModelDriver::new(config)));
        let chunk = driver.create(2 << 20).unwrap();
        driver.create(2 << 20).unwrap_err();
        driver.release(chunk).unwrap();
        driver.check_stream(StreamId(77)).unwrap_err();
        driver.inner().memory_info().unwrap();
        let calls = driver.calls();
        let expected = [(DriverCall::Create, 2), (DriverCall::Release, 1), (DriverCall::Stream, 1)];
        assert_eq!(calls.iter().collect::<Vec<_>>(), expected);
        assert_eq!((calls.total(), driver.failures()), (3, 2));
    }
}
