//! The locks and atomics of this crate, in one place, so that a model checker can stand in for them.

pub use parking_lot::{Mutex, MutexGuard};
pub use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
pub use std::sync::{Arc, OnceLock};
