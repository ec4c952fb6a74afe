//! A driver that makes the calls to another one fail, or take longer, where a test wants it.
//!
//! With the feature `testing`.
//!
//! Unarmed, it only counts calls. Armed with a [`Fault`], it counts the calls that the fault concerns and lets them
//! through until the n-th, which fails without reaching the inner driver, or is delayed. "Fail the n-th call, for every
//! n" is then a loop:
//!
//! ```
//! use gapless::driver::{DriverErrorKind, Fault, FaultDriver, MemoryDriver, ModelDriver};
//!
//! let driver = FaultDriver::new(ModelDriver::default());
//! for n in 0.. {
//!     driver.arm(Fault::nth(n, DriverErrorKind::OutOfMemory));
//!     let outcome = driver.create(2 << 20).and_then(|chunk| driver.release(chunk));
//!     driver.disarm();
//!     if driver.fired() == 0 {
//!         break; // n is past the last call: every one has failed once
//!     }
//!     assert!(outcome.is_err());
//! }
//! ```
//!
//! Threads: any; one lock, not held during the inner call. Cost: one lock a call.

use super::intercept::{Hook, Intercepted};
use super::{DriverCall, DriverCalls, DriverError, DriverErrorKind, DriverResult};
use crate::sync::Arc;
use crate::sync::unseen::Mutex;
use std::time::Duration;

/// A driver around `D` that fails on demand.
pub type FaultDriver<D> = Intercepted<D, Faults>;

/// A failure to inject: its kind, the call that fails, and whether it fails once or from then on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a fault does nothing before it is armed"]
pub struct Fault {
    nth: u64,
    calls: Option<Vec<DriverCall>>,
    effect: Effect,
    repeat: Repeat,
}

/// The effect of a fault on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// It fails with an error of this kind and does nothing.
    Fail(DriverErrorKind),
    /// It takes this much longer.
    Delay(Duration),
}

/// The number of times that a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    /// At the n-th call only.
    Once,
    /// At the n-th call and every later one that the fault concerns.
    Always,
}

impl Fault {
    /// Fails call number `n`, counted from 0 since arming, once, with an error of this kind.
    pub fn nth(n: u64, kind: DriverErrorKind) -> Self {
        Self { nth: n, calls: None, effect: Effect::Fail(kind), repeat: Repeat::Once }
    }

    /// Delays call number `n`, counted from 0 since arming, once.
    pub fn delay(n: u64, duration: Duration) -> Self {
        Self { effect: Effect::Delay(duration), ..Self::nth(n, DriverErrorKind::Other) }
    }

    /// Restricts the fault, and its counting, to calls of these kinds.
    pub fn only(mut self, calls: impl IntoIterator<Item = DriverCall>) -> Self {
        self.calls = Some(calls.into_iter().collect());
        self
    }

    /// Makes the fault strike at every call from number `n` on, until disarmed.
    pub fn from_then_on(mut self) -> Self {
        self.repeat = Repeat::Always;
        self
    }

    fn concerns(&self, call: DriverCall) -> bool {
        self.calls.as_ref().is_none_or(|calls| calls.contains(&call))
    }

    fn strikes(&self, index: u64) -> bool {
        match self.repeat {
            Repeat::Once => index == self.nth,
            Repeat::Always => index >= self.nth,
        }
    }
}

impl<D> Intercepted<D, Faults> {
    /// Wraps a driver; no fault is armed.
    pub fn new(inner: D) -> Self {
        Self::with_hook(Arc::new(inner), Faults::default())
    }

    /// Arms `fault` in place of an earlier one. Counting of calls starts at 0.
    pub fn arm(&self, fault: Fault) {
        let mut state = self.hook().state.lock();
        state.fault = Some(fault);
        state.seen = 0;
        state.fired = 0;
    }

    /// Disarms the fault, if any. [`fired`](Self::fired) keeps its value until the next arming.
    pub fn disarm(&self) {
        self.hook().state.lock().fault = None;
    }

    /// Returns true while a fault is armed. A fault that strikes once stays armed after it did.
    pub fn armed(&self) -> bool {
        self.hook().state.lock().fault.is_some()
    }

    /// Returns how many times the fault has struck since the last arming.
    pub fn fired(&self) -> u64 {
        self.hook().state.lock().fired
    }

    /// Returns the calls that reached the inner driver.
    pub fn passed(&self) -> DriverCalls {
        self.hook().state.lock().passed
    }
}

/// The [`Hook`] that fails or delays the calls that a [`Fault`] names.
#[derive(Debug, Default)]
pub struct Faults {
    state: Mutex<State>,
}

impl Hook for Faults {
    fn around<T>(&self, call: DriverCall, run: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        let effect = self.state.lock().next(call);
        match effect {
            Some(Effect::Fail(kind)) => return Err(DriverError::new(call, kind, "injected by the fault driver")),
            Some(Effect::Delay(duration)) => std::thread::sleep(duration),
            None => {}
        }
        run()
    }
}

#[derive(Debug, Default)]
struct State {
    fault: Option<Fault>,
    /// Calls since arming that the fault concerns.
    seen: u64,
    fired: u64,
    passed: DriverCalls,
}

impl State {
    /// Counts a call and returns what is to happen to it.
    fn next(&mut self, call: DriverCall) -> Option<Effect> {
        let mut effect = None;
        if let Some(fault) = self.fault.as_ref().filter(|fault| fault.concerns(call)) {
            effect = fault.strikes(self.seen).then_some(fault.effect);
            self.seen += 1;
            self.fired += u64::from(effect.is_some());
        }
        if !matches!(effect, Some(Effect::Fail(_))) {
            self.passed[call] += 1;
        }
        effect
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{MemoryDriver, ModelDriver};
    use std::time::Instant;

    const PAGE: u64 = 2 << 20;

    fn kind<T>(outcome: DriverResult<T>) -> Option<DriverErrorKind> {
        outcome.err().map(|error| error.kind)
    }

    #[test]
    fn the_nth_call_fails_without_effect() {
        let driver = FaultDriver::new(ModelDriver::default());
        driver.arm(Fault::nth(1, DriverErrorKind::DeviceLost));
        let chunk = driver.create(PAGE).unwrap();
        let error = driver.release(chunk).unwrap_err();
        assert_eq!((error.call, error.kind), (DriverCall::Release, DriverErrorKind::DeviceLost));
        assert_eq!((driver.fired(), driver.inner().usage().chunks), (1, 1));
        driver.release(chunk).unwrap();
        assert_eq!(driver.fired(), 1);
        assert_eq!((driver.passed()[DriverCall::Create], driver.passed()[DriverCall::Release]), (1, 1));
    }

    #[test]
    fn faults_of_some_kinds_from_then_on() {
        let driver = FaultDriver::new(ModelDriver::default());
        driver.arm(Fault::nth(1, DriverErrorKind::OutOfMemory).only([DriverCall::Create]).from_then_on());
        driver.memory_info().unwrap();
        let first = driver.create(PAGE).unwrap();
        driver.memory_info().unwrap();
        for _ in 0..3 {
            assert_eq!(kind(driver.create(PAGE)), Some(DriverErrorKind::OutOfMemory));
        }
        driver.release(first).unwrap();
        assert!(driver.armed());
        driver.disarm();
        assert!(!driver.armed() && driver.fired() == 3);
        driver.create(PAGE).unwrap();
    }

    #[test]
    fn a_delay_is_late_and_succeeds() {
        let driver = FaultDriver::new(ModelDriver::default());
        driver.arm(Fault::delay(0, Duration::from_millis(20)));
        let start = Instant::now();
        driver.create(PAGE).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert_eq!((driver.fired(), driver.inner().usage().chunks), (1, 1));
    }
}
