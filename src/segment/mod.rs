//! Segments: ranges of addresses with a page table, and the driver sequences on them, which succeed or fail as a whole.
//!
//! A page of a segment is unmapped or belongs to a *view*: one mapping of one chunk. A view is active while the chunk's
//! bytes are allocated through it. It is stale when they are allocated elsewhere but the mapping was kept. The fence of
//! a stale view marks its last use: the view may be unmapped once the fence has passed.
//!
//! Threads: not synchronized; the owner holds a lock.

pub mod listeners;
mod mapping;
mod page_table;
pub mod transaction;

pub use mapping::Mapping;
pub use page_table::{PageTable, View, ViewState};

use crate::pages::{PageCount, PageIndex};
use crate::units::DeviceAddr;

/// A range of addresses and the views mapped in it.
#[derive(Debug)]
pub struct Segment {
    /// First address of the range.
    pub base: DeviceAddr,
    /// Size of the range in pages.
    pub pages: PageCount,
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// The views mapped in the range.
    pub table: PageTable,
    /// A mapping in the range could neither be used nor removed: its addresses are never allocated again.
    pub poisoned: bool,
}

impl Segment {
    /// Creates a segment of `bytes` bytes, a multiple of `page_bytes`, with nothing mapped.
    pub fn new(base: DeviceAddr, bytes: u64, page_bytes: u64) -> Self {
        Self {
            base,
            pages: PageCount::within(bytes, page_bytes),
            page_bytes,
            table: PageTable::default(),
            poisoned: false,
        }
    }

    /// Returns the address of a page of the segment.
    pub fn address(&self, page: PageIndex) -> DeviceAddr {
        self.base.offset(page.offset(self.page_bytes))
    }
}
