//! Driver sequences that succeed or fail as a whole.

use crate::driver::{ChunkHandle, DriverError, MemoryDriver};
use crate::units::DeviceAddr;

/// One mapping to make.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// Address of the mapping's first byte.
    pub addr: DeviceAddr,
    /// Size of the mapping in bytes, which is the size of the chunk.
    pub bytes: u64,
    /// The chunk to map.
    pub chunk: ChunkHandle,
}

/// The error of a sequence that failed. The sequence was undone, except for the mappings in `stuck`.
#[derive(Debug)]
pub struct Failure {
    /// The driver's error.
    pub error: DriverError,
    /// Mappings that could not be removed: their addresses must never be used again.
    pub stuck: Vec<Mapping>,
}

/// Maps all `mappings` and enables access to them, with one call for each run of adjacent ones. On failure, removes the
/// mappings made so far in reverse order.
///
/// # Errors
/// Returns [`Failure`] with the driver's error. `stuck` is empty unless the driver also refused to unmap.
pub fn map_all(driver: &impl MemoryDriver, mappings: &[Mapping]) -> Result<(), Failure> {
    for (done, mapping) in mappings.iter().enumerate() {
        if let Err(error) = driver.map(mapping.addr, mapping.bytes, mapping.chunk) {
            return Err(undo(driver, &mappings[..done], error));
        }
    }
    for run in runs(mappings) {
        let bytes = run.iter().map(|mapping| mapping.bytes).sum();
        if let Err(error) = driver.set_access(run[0].addr, bytes) {
            return Err(undo(driver, mappings, error));
        }
    }
    Ok(())
}

fn undo(driver: &impl MemoryDriver, made: &[Mapping], error: DriverError) -> Failure {
    let mut stuck = Vec::new();
    for mapping in made.iter().rev() {
        if driver.unmap(mapping.addr, mapping.bytes).is_err() {
            stuck.push(*mapping);
        }
    }
    Failure { error, stuck }
}

/// Splits the mappings into runs with adjacent addresses.
fn runs(mappings: &[Mapping]) -> impl Iterator<Item = &[Mapping]> {
    mappings.chunk_by(|one, next| one.addr.offset(one.bytes) == next.addr)
}
