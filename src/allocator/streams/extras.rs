//! Extras: records of single blocks beside those of their heap: other users, pins, a ticket.
//!
//! Most blocks have none. The heap marks a block that has as shared, so that the free of any other looks for
//! nothing here.
//!
//! - I1  a block has extras exactly while it is live and its heap has it as shared, and beyond that as long as it is pinned.
//!
//! Not synchronized: a part of a stream's state. `sharing.rs` has what is done with them.

use super::region::RegionId;
use crate::stream::{Fence, StreamIndex};
use std::collections::HashSet;
use std::ops::Range;

/// The region of a block, and its offset there in bytes.
pub type BlockAt = (RegionId, u64);

/// The extras of one block.
#[derive(Clone, Debug)]
pub struct Extras {
    /// The streams that use it.
    pub sharers: Sharers,
    /// Number of its pins.
    pub pins: u32,
    /// Number of its ticket. A block that has been freed has none.
    pub ticket: Option<u64>,
    /// The parts of it, as offsets in the region, that are asleep or about to be: they keep their addresses, and have no memory.
    pub asleep: Vec<Range<u64>>,
    /// Whether the host has its bytes as of a sleep that is over.
    pub has_backup: bool,
    /// Number of times that a part of it was put to sleep.
    pub sleeps: u64,
    /// Whether somebody may keep the memory that it has: that goes back to the driver once the block is freed.
    pub exposed: bool,
    /// Of a block that was freed while it was pinned: what it waits for once the last pin is gone.
    pub freed: Option<Vec<Fence>>,
}

impl Extras {
    /// Of a live block that was allocated on `home`.
    pub fn new(home: StreamIndex) -> Self {
        let sharers = Sharers::new(home);
        let asleep = Vec::new();
        Self { sharers, pins: 0, ticket: None, asleep, has_backup: false, sleeps: 0, exposed: false, freed: None }
    }
}

/// The streams that use a live block besides, or instead of, the stream of its region.
#[derive(Clone, Debug)]
pub struct Sharers {
    /// The stream that the block was allocated on.
    pub home: StreamIndex,
    /// The streams that the block was recorded on, in the order in which it was.
    others: Vec<StreamIndex>,
    /// The same, so that one is found among many.
    listed: HashSet<StreamIndex>,
}

impl Extras {
    /// Bytes of the block that are asleep, or about to be.
    pub fn asleep_bytes(&self) -> u64 {
        self.asleep.iter().map(|part| part.end - part.start).sum()
    }

    /// Whether the block could as well have none.
    pub fn are_needless(&self, owner: StreamIndex) -> bool {
        let alone = self.sharers.home == owner && self.sharers.others.is_empty();
        let is_plain = self.pins == 0 && self.ticket.is_none() && !self.has_backup && !self.exposed;
        alone && is_plain && self.asleep.is_empty() && self.freed.is_none()
    }
}

impl Sharers {
    /// A block that was allocated on `home` and not recorded on another stream yet.
    pub fn new(home: StreamIndex) -> Self {
        Self { home, others: Vec::new(), listed: HashSet::new() }
    }

    /// Notes that `user` uses the block. Costs the same however many do.
    pub fn record(&mut self, user: StreamIndex) {
        if user != self.home && self.listed.insert(user) {
            self.others.push(user);
        }
    }

    /// The streams that use the block besides `owner`, the stream of its region.
    pub fn users_beside(&self, owner: StreamIndex) -> Vec<StreamIndex> {
        let home = Some(self.home).filter(|home| *home != owner);
        self.others.iter().copied().chain(home).collect()
    }

    /// The streams that the block was recorded on, in the order in which it was.
    pub fn others(&self) -> &[StreamIndex] {
        &self.others
    }
}
