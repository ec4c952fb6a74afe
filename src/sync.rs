//! The locks and atomics of this crate, in one place, so that a model checker can stand in for them: `cfg(loom)` for the
//! small concurrent parts, `cfg(shuttle)` for a whole allocator.
//!
//! The simulated drivers take their locks from [`unseen`]: they stand for a device, and a checker that switched threads
//! inside of them would explore the device.

pub use crossbeam::queue::SegQueue;
pub use crossbeam::utils::CachePadded;
pub use std::sync::Arc;

/// Locks and atomics that no model checker stands in for.
pub mod unseen {
    pub use parking_lot::{Condvar, Mutex, MutexGuard};
    pub use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
}

#[cfg(not(any(loom, shuttle)))]
mod real {
    pub use parking_lot::{Mutex, MutexGuard};
    pub use std::sync::OnceLock;
    pub use std::sync::atomic::{AtomicU64, Ordering};
}

#[cfg(not(any(loom, shuttle)))]
pub use real::*;

#[cfg(any(loom, shuttle))]
pub use checked::*;

/// The model checkers' locks, with the signatures of the real ones.
#[cfg(any(loom, shuttle))]
mod checked {
    #[cfg(loom)]
    use loom::sync as inner;
    #[cfg(shuttle)]
    use shuttle::sync as inner;

    pub use inner::MutexGuard;
    #[cfg(loom)]
    use inner::atomic::AtomicUsize;
    pub use inner::atomic::{AtomicU64, Ordering};

    /// A lock that is never poisoned: a panic ends the run.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(inner::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(inner::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("a panic ends the run")
        }
    }

    /// Shuttle switches threads at its own locks only: a cell that is set without blocking may be the real one.
    #[cfg(shuttle)]
    pub use std::sync::OnceLock;

    /// The part of `std`'s cell that this crate uses, from an atomic flag and a cell that the checker watches.
    #[cfg(loom)]
    #[derive(Debug)]
    pub struct OnceLock<T> {
        state: AtomicUsize,
        value: std::cell::UnsafeCell<Option<T>>,
        watched: loom::cell::UnsafeCell<()>,
    }

    // SAFETY: `value` is written by the one thread that moved `state` from EMPTY to WRITING, and read only after `state`
    // is SET, which that thread stores last.
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
            // SAFETY: set for good; see the impl of `Sync`.
            unsafe { (*self.value.get()).as_ref() }
        }

        pub fn set(&self, value: T) -> Result<(), T> {
            let taken =
                self.state.compare_exchange(Self::EMPTY, Self::WRITING, Ordering::Acquire, Ordering::Acquire).is_ok();
            if !taken {
                // As the real one, which blocks: afterwards the value is there.
                while self.state.load(Ordering::Acquire) != Self::SET {
                    loom::thread::yield_now();
                }
                return Err(value);
            }
            self.watched.with_mut(|_| ());
            // SAFETY: this thread alone is between EMPTY and SET.
            unsafe { *self.value.get() = Some(value) };
            // Pairs with the load in `get`.
            self.state.store(Self::SET, Ordering::Release);
            Ok(())
        }
    }
}
