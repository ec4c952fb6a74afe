//! The slots of pinned memory through which bytes go where the device does not copy to.
//!
//! They are there during copies. Where nobody can say whether the copies are over, or the driver refuses to take them back, they
//! stay until the next ones, or the end of the allocator.

use super::super::host_budget::HostBudget;
use crate::driver::{DriverResult, HostMemory, MemoryDriver};
use crate::sync::Mutex;

/// The slots of an allocator.
#[derive(Debug, Default)]
pub struct Ring {
    /// Each with its bytes.
    slots: Mutex<Vec<(HostMemory, u64)>>,
}

impl Ring {
    /// Number of slots that copies go through.
    pub const SLOTS: u64 = 2;

    /// Allocates slots, which the caller has [taken](HostBudget::take) from the budget. What is left of earlier ones is in no use.
    ///
    /// # Errors
    /// The driver's. What was allocated and taken is given back.
    pub fn open(
        &self,
        driver: &impl MemoryDriver,
        budget: &HostBudget,
        slot_bytes: u64,
    ) -> DriverResult<[HostMemory; Self::SLOTS as usize]> {
        let mut made = [HostMemory(0); Self::SLOTS as usize];
        for (number, slot) in made.iter_mut().enumerate() {
            match driver.host_alloc(slot_bytes) {
                Ok(memory) => {
                    *slot = memory;
                    self.slots.lock().push((memory, slot_bytes));
                }
                Err(error) => {
                    budget.give_back((Self::SLOTS - number as u64) * slot_bytes);
                    // What is refused stays for the end.
                    let _ = self.give_back(driver, budget);
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    /// Gives all slots back, which no copy uses any more. What the driver refuses to take stays.
    ///
    /// # Errors
    /// The driver's first one.
    pub fn give_back(&self, driver: &impl MemoryDriver, budget: &HostBudget) -> DriverResult<()> {
        let mut first = Ok(());
        self.slots.lock().retain(|(memory, bytes)| match driver.host_free(*memory) {
            Ok(()) => {
                budget.give_back(*bytes);
                false
            }
            Err(error) => {
                if first.is_ok() {
                    first = Err(error);
                }
                true
            }
        });
        first
    }

    /// Whether slots are left from copies that failed.
    pub fn is_left_over(&self) -> bool {
        !self.slots.lock().is_empty()
    }
}
