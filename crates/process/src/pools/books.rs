//! The books of a device's budget while there are pools, and of pools that are gone.

use super::PoolId;
use super::kind::Declared;
use super::past::Past;
use gapless::Allocator;
use gapless::driver::Driver;
use std::collections::HashMap;

/// The books of the device's budget.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// The device's budget while there are pools: what the main allocator may hold without them.
    pub whole: Option<u64>,
    /// Bytes of pools that are being closed, and in no list.
    pub closing_bytes: u64,
    /// Bytes that an allocator beside gapless holds, or may hold at present.
    pub beside_bytes: u64,
    /// Bytes that an allocator beside gapless has from gapless: the main allocator holds them.
    pub segment_bytes: u64,
    /// Counts of the pools that were closed.
    pub past: Past,
    /// What was declared of pools that are still to be made.
    pub declared: HashMap<PoolId, Declared>,
}

impl Books {
    /// Bytes that are neither the main allocator's nor of a pool in the list.
    pub fn elsewhere_bytes(&self) -> u64 {
        self.closing_bytes + self.beside_bytes
    }

    /// Whether the device is the budget. A budget that was set stays the device's while there are pools: `main` has a part of it.
    pub fn follow_device<D: Driver>(&self, main: &Allocator<D>) -> bool {
        self.whole.is_none() && !main.has_set_budget()
    }

    /// The device's budget.
    pub fn whole_budget<D: Driver>(&self, main: &Allocator<D>) -> u64 {
        self.whole.unwrap_or_else(|| main.budget())
    }
}
