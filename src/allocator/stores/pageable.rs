//! Ordinary memory of the host, with the bytes of what sleeps.

use crate::host_memory;
use crate::sync::Mutex;
use std::collections::TryReserveError;
use std::fmt;

/// Bytes at one address for as long as it lives.
pub struct Pageable {
    /// Never reallocated. Its length is that of what was written so far, which begins at the start and has no gaps.
    bytes: Mutex<Vec<u8>>,
}

impl Pageable {
    /// Allocates memory. The system may commit to it without having it.
    ///
    /// # Errors
    /// Where it does not.
    pub fn new(bytes: u64) -> Result<Self, TryReserveError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(Self { bytes: Mutex::new(host_memory::reserve(bytes)?) })
    }

    /// Writes to a place that was written before, or to the first one that was not.
    pub fn write(&self, place: u64, from: &[u8]) {
        let mut bytes = self.bytes.lock();
        let place = index(place);
        let known = from.len().min(bytes.len() - place);
        bytes[place..place + known].copy_from_slice(&from[..known]);
        assert!(place + from.len() <= bytes.capacity(), "a place in the memory, which keeps its address");
        bytes.extend_from_slice(&from[known..]);
    }

    /// Calls `read` with bytes that were written.
    pub fn show<T>(&self, place: u64, bytes: u64, read: impl FnOnce(&[u8]) -> T) -> T {
        let place = index(place);
        read(&self.bytes.lock()[place..place + index(bytes)])
    }
}

/// Without the bytes.
impl fmt::Debug for Pageable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pageable").finish_non_exhaustive()
    }
}

fn index(place: u64) -> usize {
    usize::try_from(place).expect("a place in memory of this process")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_where_they_were_written() {
        let memory = Pageable::new(1000).unwrap();
        let address = || memory.show(0, 0, |shown| shown.as_ptr().addr());
        let before = address();
        memory.write(0, &[1; 600]);
        memory.write(600, &[2; 300]);
        memory.write(500, &[3; 500]);
        memory.write(100, &[4; 10]);
        let expected = [&[1; 100][..], &[4; 10], &[1; 390], &[3; 500]].concat();
        memory.show(0, 1000, |shown| assert_eq!(shown, expected));
        memory.show(505, 2, |shown| assert_eq!(shown, [3, 3]));
        assert_eq!(address(), before);
    }

    #[test]
    fn what_the_system_does_not_have_is_an_error() {
        Pageable::new(u64::MAX).unwrap_err();
        Pageable::new(1 << 62).unwrap_err();
    }
}
