//! The budget of a device, which its process-wide allocator and the pools share.
//!
//! - B1  what they hold together grows up to the budget and no further.
//! - B2  their budgets add up to no more than the device's, or to what is held already, whenever a pool begins or ends.
//! - B3  the device's budget, once set, is the main allocator's but for what pools hold, and what is free goes back at once.
//! - B4  a request that whole free pages of the device cover is served, whoever held them last.
//!
//! Nothing is expected of an input in which a call of the driver has failed.

use super::*;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// The figures of a device's report about its memory.
#[derive(Debug)]
pub(super) struct Shares {
    /// Of the main allocator: bytes held, and its budget.
    main: (u64, u64),
    /// The sums of the pools.
    pools: (u64, u64),
    /// Bytes of pools that are to be closed.
    pub(super) condemned: u64,
    /// Whether nothing of the main allocator is live, registered or in a range, or waits for a stream.
    main_is_free: bool,
}

impl Shares {
    pub(super) fn held(&self) -> u64 {
        self.main.0 + self.pools.0 + self.condemned
    }
}

/// Memory of a simulated device, less than what the allocators may have: work needs a page.
const MEMORY: u64 = 60 << 20;
const PAGE: u64 = 2 << 20;

/// Devices whose budget was set since the process began: that of the others is the device's memory. Nothing takes a budget away
/// again, so one of two devices never gets one.
static SET: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

pub(super) fn was_set(device: i32) -> bool {
    SET.lock().expect("no panic before").contains(&device)
}

impl Calls {
    /// Notes the budget of a device, in the book of its process-wide allocator.
    pub(super) fn note_budget(&mut self, book: usize, bytes: u64) {
        self.books[book].whole = Some(bytes);
        SET.lock().expect("no panic before").insert(self.books[book].device);
    }

    /// Whether inputs may set a budget for a device.
    pub(super) fn gets_budgets(&self, device: i32) -> bool {
        device == 0 || device != self.second_device()
    }

    pub(super) fn shares(&self, device: i32) -> Shares {
        let report: serde_json::Value = serde_json::from_str(&self.torch_json(device, 0)).expect("a JSON text");
        let number = |value: &serde_json::Value| value.as_u64().expect("a number");
        let share = |stats: &serde_json::Value| (number(&stats["reserved_bytes"]), number(&stats["budget_bytes"]));
        let pools = report["pools"].as_array().expect("a list").iter().map(|pool| share(&pool["stats"]));
        let main = &report["main"];
        Shares {
            main: share(main),
            pools: pools.fold((0, 0), |sum, pool| (sum.0 + pool.0, sum.1 + pool.1)),
            condemned: number(&report["condemned_bytes"]),
            main_is_free: number(&main["live_allocations"]) == 0
                && number(&main["pending_bytes"]) == 0
                && !self.has_registered(device)
                && !self.has_ranges(device),
        }
    }

    /// The budget that was set for a device, if nothing has failed.
    fn whole(&self, device: i32) -> Option<u64> {
        let book = self.books.iter().find(|book| book.lasting && book.device == device)?;
        book.whole.filter(|_| self.is_intact())
    }

    /// Whether no call of the driver has failed.
    fn is_intact(&self) -> bool {
        !self.faulty && self.environment.usage.is_some()
    }

    fn has_pools(&self, device: i32) -> bool {
        self.pools.keys().any(|(its, _)| *its == device)
    }

    /// B1, after a call.
    pub(super) fn check_held(&mut self, device: i32) {
        let Some(number) = self.books.iter().position(|book| book.lasting && book.device == device) else { return };
        if !self.books[number].has_had_pools {
            self.books[number].held_before = self.figures(number).reserved_bytes;
            return;
        }
        // Also while no budget is set: one that comes later may be below what is held.
        let shares = self.shares(device);
        let held_before = std::mem::replace(&mut self.books[number].held_before, shares.held());
        let Some(whole) = self.whole(device) else { return };
        let most = whole.max(held_before);
        assert!(shares.held() <= most, "device {device} may hold {whole}, and held up to {most}: {shares:?}");
    }

    /// B2, after a pool began or ended.
    pub(super) fn check_shares(&self, device: i32) {
        let Some(whole) = self.whole(device).filter(|_| self.has_pools(device)) else { return };
        let shares = self.shares(device);
        let sum = shares.main.1 + shares.pools.1 + shares.condemned;
        assert!(sum <= whole.max(shares.held()), "the budgets on device {device} exceed its own, {whole}: {shares:?}");
    }

    /// B3, after the device's budget was set to a part of its memory.
    pub(super) fn check_new_budget(&mut self, device: i32, part: f64) {
        let Some(book) = self.books.iter().position(|book| book.lasting && book.device == device) else { return };
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part"
        )]
        let whole = ((64_u64 << 20) as f64 * part) as u64;
        self.note_budget(book, whole);
        if self.whole(device).is_none() {
            return;
        }
        let shares = self.shares(device);
        let left = whole.saturating_sub(shares.pools.0 + shares.condemned);
        assert_eq!(shares.main.1, left, "of {whole} on device {device}: {shares:?}");
        assert!(
            !shares.main_is_free || shares.main.0 <= left,
            "{left} are left of {whole} on device {device}: {shares:?}"
        );
    }

    /// B4, after a request ran out of memory.
    pub(super) fn check_refusal(&self, device: i32, bytes: u64) {
        if !self.is_intact() {
            return;
        }
        let whole = self.whole(device).unwrap_or(u64::MAX);
        let shares = self.shares(device);
        let free = whole.min(MEMORY).saturating_sub(shares.pools.0 + shares.condemned);
        // A request for nothing gets a block, too.
        let needed = bytes.max(1).div_ceil(PAGE).saturating_mul(PAGE);
        assert!(!shares.main_is_free || needed > free, "{bytes} bytes were refused, and {free} are free: {shares:?}");
    }
}
