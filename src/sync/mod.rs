//! The locks and atomics of this crate, in one place, so that a model checker can replace them: `cfg(loom)` for the
//! small concurrent parts, `cfg(shuttle)` for a whole allocator.
//!
//! The simulated drivers take their locks from [`unseen`]: they represent a device, and a checker that switched threads
//! inside them would explore the device instead of the allocator.

#[cfg(not(shuttle))]
mod asymmetric;

#[cfg(loom)]
pub use asymmetric::RawAsymmetricMutex;

pub use crossbeam::queue::SegQueue;
pub use crossbeam::utils::CachePadded;
pub use std::sync::Arc;

/// Locks and atomics that are never replaced by a model checker's.
pub mod unseen {
    pub use parking_lot::Mutex;
    #[cfg(feature = "testing")]
    pub use parking_lot::{Condvar, MutexGuard, RwLock};
    #[cfg(feature = "testing")]
    pub use std::sync::atomic::AtomicU8;
    pub use std::sync::atomic::{AtomicU64, Ordering};
}

#[cfg(not(any(loom, shuttle)))]
mod real {
    pub use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
    pub use std::sync::OnceLock;

    /// A lock of the hot path.
    pub type HotMutex<T> = parking_lot::lock_api::Mutex<super::asymmetric::RawAsymmetricMutex, T>;
    /// The right to use what a [`HotMutex`] protects.
    pub type HotMutexGuard<'a, T> = parking_lot::lock_api::MutexGuard<'a, super::asymmetric::RawAsymmetricMutex, T>;

    pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

#[cfg(not(any(loom, shuttle)))]
pub use real::*;

/// Unlocks, and lets a thread that waits have the lock, also if this one wants it again at once.
#[inline]
#[cfg_attr(test, allow(dead_code, reason = "unit tests watch the locks that are unlocked so"))]
pub fn unlock_fairly<T>(guard: HotMutexGuard<'_, T>) {
    #[cfg(not(any(loom, shuttle)))]
    HotMutexGuard::unlock_fair(guard);
    #[cfg(any(loom, shuttle))]
    drop(guard);
}

#[cfg(any(loom, shuttle))]
pub use checked::*;

/// The model checkers' locks with the signatures of the real ones.
#[cfg(any(loom, shuttle))]
mod checked {
    #[cfg(loom)]
    use loom::sync as inner;
    #[cfg(shuttle)]
    use shuttle::sync as inner;

    #[cfg(loom)]
    use inner::atomic::AtomicUsize;
    pub use inner::atomic::{AtomicBool, AtomicU64, Ordering};
    pub use inner::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    /// A lock without poisoning: a panic ends the run.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(inner::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(inner::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("a panic ends the run")
        }

        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// As [`Mutex`], for many readers at a time.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(inner::RwLock<T>);

    impl<T> RwLock<T> {
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("a panic ends the run")
        }

        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("a panic ends the run")
        }
    }

    pub use {Mutex as HotMutex, MutexGuard as HotMutexGuard};

    /// Shuttle switches threads at its own locks only, so a cell that never blocks can be the real one.
    #[cfg(shuttle)]
    pub use std::sync::OnceLock;

    /// The part of `std::sync::OnceLock` that this crate uses, made of an atomic flag and a cell that the checker
    /// watches.
    #[cfg(loom)]
    #[derive(Debug)]
    pub struct OnceLock<T> {
        state: AtomicUsize,
        value: std::cell::UnsafeCell<Option<T>>,
        watched: loom::cell::UnsafeCell<()>,
    }

    // SAFETY: `value` is written by the one thread that moved `state` from EMPTY to WRITING, and read only after
    // `state` is SET, which that thread stores last.
    #[cfg(loom)]
    unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}

    #[cfg(loom)]
    impl<T> OnceLock<T> {
        const EMPTY: usize = 0;
        const WRITING: usize = 1;
        const SET: usize = 2;

        pub fn new() -> Self {
            Self {
                state: AtomicUsize::new(Self::EMPTY),
                value: std::cell::UnsafeCell::new(None),
                watched: loom::cell::UnsafeCell::new(()),
            }
        }

        pub fn get(&self) -> Option<&T> {
            // Pairs with the store in `set`.
            if self.state.load(Ordering::Acquire) != Self::SET {
                return None;
            }
            self.watched.with(|_| ());
            // SAFETY: the value never changes once it is set; see the impl of `Sync`.
            unsafe { (*self.value.get()).as_ref() }
        }

        pub fn set(&self, value: T) -> Result<(), T> {
            let taken =
                self.state.compare_exchange(Self::EMPTY, Self::WRITING, Ordering::Acquire, Ordering::Acquire).is_ok();
            if !taken {
                // The real one blocks too: when it returns, the value is set.
                while self.state.load(Ordering::Acquire) != Self::SET {
                    loom::thread::yield_now();
                }
                return Err(value);
            }
            self.watched.with_mut(|_| ());
            // SAFETY: only this thread is between EMPTY and SET.
            unsafe { *self.value.get() = Some(value) };
            // Pairs with the load in `get`.
            self.state.store(Self::SET, Ordering::Release);
            Ok(())
        }
    }
}
