//! Driver sequences that succeed or fail as a whole.

use super::listeners::{Audience, MapListeners};
use super::mapping::Mapping;
use crate::driver::{DriverError, DriverResult, MemoryDriver};
use std::cmp::Ordering;

/// The error of a sequence that failed. The sequence was undone, except for the mappings in `stuck`.
#[derive(Debug)]
pub struct Failure {
    /// The driver's error.
    pub error: DriverError,
    /// Mappings that could not be removed: their addresses must never be used again.
    pub stuck: Vec<Mapping>,
}

/// Maps all `mappings`, enables access to them, with one call for each run of adjacent ones, and notifies the listeners. On
/// failure, removes the mappings made so far in reverse order.
///
/// # Errors
/// Returns [`Failure`] with the driver's error, or that of a listener who refused. `stuck` is empty unless the driver, or a
/// listener who had agreed, refused the unmap as well.
pub fn map_all(driver: &impl MemoryDriver, listeners: &MapListeners, mappings: &[Mapping]) -> Result<(), Failure> {
    let audience = listeners.audience(driver);
    let undo = |made: &[Mapping], notified: Notified, error| undo(driver, &audience, made, notified, error);
    for (done, mapping) in mappings.iter().enumerate() {
        if let Err(error) = driver.map(mapping.addr, mapping.bytes, mapping.chunk) {
            return Err(undo(&mappings[..done], Notified::default(), error));
        }
    }
    for run in runs(mappings) {
        let bytes = run.iter().map(|mapping| mapping.bytes).sum();
        if let Err(error) = driver.set_access(run[0].addr, bytes) {
            return Err(undo(mappings, Notified::default(), error));
        }
    }
    for (by_all, mapping) in mappings.iter().enumerate() {
        if let Err(refused) = audience.on_map(mapping) {
            return Err(undo(mappings, Notified { by_all, agreed: refused.agreed }, refused.error));
        }
    }
    Ok(())
}

/// Notifies the listeners, and removes a mapping. No work uses it any more.
///
/// # Errors
/// The driver's, or that of a listener who refused; it is still mapped, and the listeners have been notified of that.
pub fn unmap(driver: &impl MemoryDriver, listeners: &MapListeners, mapping: &Mapping) -> DriverResult<()> {
    let audience = listeners.audience(driver);
    audience.before_unmap(mapping)?;
    driver.unmap(mapping.addr, mapping.bytes).inspect_err(|_| audience.stays(mapping, usize::MAX))
}

/// Which listeners were notified of the mappings of a sequence that has failed.
#[derive(Clone, Copy, Default)]
struct Notified {
    /// Number of mappings, from the first, that all of them were notified of.
    by_all: usize,
    /// Number of listeners that were notified of the next one.
    agreed: usize,
}

impl Notified {
    /// The number of listeners that were notified of a mapping.
    fn of(self, index: usize) -> usize {
        match index.cmp(&self.by_all) {
            Ordering::Less => usize::MAX,
            Ordering::Equal => self.agreed,
            Ordering::Greater => 0,
        }
    }
}

fn undo(
    driver: &impl MemoryDriver,
    audience: &Audience<'_>,
    made: &[Mapping],
    notified: Notified,
    error: DriverError,
) -> Failure {
    let mut stuck = Vec::new();
    for (index, mapping) in made.iter().enumerate().rev() {
        let notified = notified.of(index);
        let withdrawn = audience.withdraw(mapping, notified);
        if withdrawn.is_err() {
            stuck.push(*mapping);
        } else if driver.unmap(mapping.addr, mapping.bytes).is_err() {
            audience.stays(mapping, notified);
            stuck.push(*mapping);
        }
    }
    Failure { error, stuck }
}

/// Splits the mappings into runs with adjacent addresses.
fn runs(mappings: &[Mapping]) -> impl Iterator<Item = &[Mapping]> {
    mappings.chunk_by(|one, next| one.addr.offset(one.bytes) == next.addr)
}
