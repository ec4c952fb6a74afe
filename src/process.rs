//! Which process this is. Its number does not tell: the first process of a namespace is number 1, and so is the one that it forks
//! into another namespace.
//!
//! A page that the system clears in a forked process holds a mark. Where it is cleared, the next one is written, which is not that
//! of any process that this one comes from.

use crate::sync::unseen::{AtomicU64, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::sync::OnceLock;

/// The process that something was made in. One that is forked from it later is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    number: u32,
    mark: u64,
}

impl ProcessIdentity {
    /// The calling process.
    #[must_use]
    pub fn current() -> Self {
        Self { number: std::process::id(), mark: mark() }
    }

    /// Whether this is the calling process. A load, once something has been asked here.
    #[must_use]
    pub fn is_current(self) -> bool {
        // Before Linux 4.14, no page is cleared.
        if self.mark == UNMARKED { std::process::id() == self.number } else { mark() == self.mark }
    }

    /// Its number, as it saw it.
    #[must_use]
    pub fn number(self) -> u32 {
        self.number
    }
}

/// No mark.
const UNMARKED: u64 = 0;
/// Bytes of the page: those of the largest that Linux has.
const PAGE_BYTES: usize = 64 << 10;

/// The mark of the calling process.
fn mark() -> u64 {
    /// That of the process that this one comes from, or of this one.
    static LAST: AtomicU64 = AtomicU64::new(UNMARKED);
    static HERE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    let Some(here) = HERE.get_or_init(cleared_in_forks) else { return UNMARKED };
    match here.load(Ordering::Acquire) {
        UNMARKED => {
            let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            let before = here.compare_exchange(UNMARKED, next, Ordering::AcqRel, Ordering::Acquire);
            before.err().unwrap_or(next)
        }
        mark => mark,
    }
}

/// A number that is 0 in a process that is forked. `None` where the system has no such memory.
fn cleared_in_forks() -> Option<&'static AtomicU64> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: new memory, at an address of the system's choice.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, protection, flags) }.ok()?;
    // SAFETY: the memory is this function's, and holds nothing yet.
    if unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as before; nobody knows of it.
        let _ = unsafe { munmap(page, PAGE_BYTES) };
        return None;
    }
    // SAFETY: it stays mapped for good, is aligned to a page, and is reached through this reference alone.
    Some(unsafe { AtomicU64::from_ptr(page.cast()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_itself() {
        let made = ProcessIdentity::current();
        assert_eq!((made, made.number()), (ProcessIdentity::current(), std::process::id()));
        assert!(made.is_current());
    }

    /// The number is asked for where there is no mark.
    #[test]
    fn a_process_without_a_mark_is_told_by_its_number() {
        let made = ProcessIdentity { mark: UNMARKED, ..ProcessIdentity::current() };
        assert!(made.is_current());
        assert!(!ProcessIdentity { number: made.number + 1, ..made }.is_current());
    }
}
