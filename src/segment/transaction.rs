//! Driver sequences that happen whole or not at all.

use crate::driver::{ChunkHandle, DriverError, MemoryDriver};
use crate::units::DeviceAddr;

/// One mapping to make.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// Where.
    pub addr: DeviceAddr,
    /// How much: the chunk's size.
    pub bytes: u64,
    /// What.
    pub chunk: ChunkHandle,
}

/// A sequence that failed and was undone, or could not be undone completely.
#[derive(Debug)]
pub struct Failure {
    /// Why the sequence failed.
    pub error: DriverError,
    /// Mappings that could not be removed again: their addresses must not be used any more.
    pub stuck: Vec<Mapping>,
}

/// Makes all mappings and gives access to them, adjacent ones in one call; on failure removes those made, in reverse.
///
/// # Errors
/// [`Failure`] with the driver's error; `stuck` is empty unless the driver refused the undoing as well.
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

/// The mappings in runs of adjacent addresses.
fn runs(mappings: &[Mapping]) -> impl Iterator<Item = &[Mapping]> {
    mappings.chunk_by(|one, next| one.addr.offset(one.bytes) == next.addr)
}
