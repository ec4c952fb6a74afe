//! Segments: ranges of addresses with a page table, and the driver sequences on them, each all-or-nothing.
//!
//! A page of a segment is unmapped, or inside a *view*: one mapping of one chunk. A view is active when the chunk's bytes
//! are handed out through it, stale when they have moved on and the mapping was kept. What a stale view was last used
//! for is known by its fence: it may be unmapped once that has passed.
//!
//! Threads: none; the owner locks.

mod page_table;
pub mod transaction;

pub use page_table::{PageTable, View, ViewState};

use crate::units::DeviceAddr;

/// A range of addresses and what is mapped in it.
#[derive(Debug)]
pub struct Segment {
    /// First address.
    pub base: DeviceAddr,
    /// Pages of addresses.
    pub pages: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// What is mapped.
    pub table: PageTable,
    /// A mapping here could neither be used nor removed: its addresses are never handed out again.
    pub poisoned: bool,
}

impl Segment {
    /// A segment with nothing mapped.
    pub fn new(base: DeviceAddr, bytes: u64, page_bytes: u64) -> Self {
        Self { base, pages: bytes / page_bytes, page_bytes, table: PageTable::default(), poisoned: false }
    }

    /// Address of a page.
    pub fn address(&self, page: u64) -> DeviceAddr {
        self.base.offset(page * self.page_bytes)
    }
}
