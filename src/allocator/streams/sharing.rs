//! Operations on blocks that have extras: they are marked, pinned, freed, let go.
//!
//! Cost: one look into one map for each step, of these blocks only.

use super::directory::Owner;
use super::extras::{BlockAt, Extras};
use super::pending::Pending;
use super::state::StreamState;
use crate::stream::{Fence, StreamIndex};
use std::collections::btree_map::Entry;
use std::ops::Range;

impl StreamState {
    /// Marks a live block as shared, so that its free comes through `free_shared`, which looks at its extras. Returns its bytes
    /// and those, or `None` if no live block is there.
    pub fn mark_shared(&mut self, owner: Owner, offset: u64) -> Option<(u64, &mut Extras)> {
        let region = self.region(owner.region)?;
        region.heap.share(offset).ok()?;
        let bytes = region.heap.block(offset)?.size;
        Some((bytes, self.extras.entry((owner.region, offset)).or_insert_with(|| Extras::new(owner.stream))))
    }

    /// Counts another pin of a live block. Returns its bytes, or `None` if no live block is there, or one that is asleep.
    pub fn pin(&mut self, owner: Owner, offset: u64) -> Option<u64> {
        if self.is_asleep((owner.region, offset)) {
            return None;
        }
        let (bytes, extras) = self.mark_shared(owner, offset)?;
        extras.pins += 1;
        Some(bytes)
    }

    /// Whether a part of a live block is asleep, or about to be.
    pub fn is_asleep(&self, at: BlockAt) -> bool {
        self.extras.get(&at).is_some_and(|extras| !extras.asleep.is_empty())
    }

    /// Notes that a part of a live block is asleep, or about to be. Does nothing for one that has been freed.
    pub fn put_to_sleep(&mut self, owner: Owner, offset: u64, part: Range<u64>) {
        let bytes = part.end - part.start;
        if let Some((_, extras)) = self.mark_shared(owner, offset) {
            extras.sleeps += 1;
            let at = extras.asleep.partition_point(|other| other.start < part.start);
            match extras.asleep[..at].last_mut() {
                Some(before) if before.end == part.start => before.end = part.end,
                _ => extras.asleep.insert(at, part),
            }
            self.asleep_bytes += bytes;
        }
    }

    /// Notes that a part of a block has its memory again. Once all of it has, a block that nobody else uses is freed as cheaply as
    /// before.
    pub fn wake_up(&mut self, owner: Owner, offset: u64, part: &Range<u64>) {
        let Entry::Occupied(mut of_block) = self.extras.entry((owner.region, offset)) else { return };
        let extras = of_block.get_mut();
        self.asleep_bytes -= extras.asleep_bytes();
        let others = extras
            .asleep
            .iter()
            .flat_map(|other| [other.start..other.end.min(part.start), other.start.max(part.end)..other.end]);
        extras.asleep = others.filter(|other| other.start < other.end).collect();
        self.asleep_bytes += extras.asleep_bytes();
        if of_block.get().are_needless(owner.stream) {
            of_block.remove();
            self.region(owner.region).expect("a block has a region").heap.unshare(offset);
        }
    }

    /// Records that `user` uses a block that is asleep, or about to be. Does nothing for one that has been freed.
    pub fn record_if_asleep(&mut self, at: BlockAt, user: StreamIndex) {
        if let Some(extras) = self.extras.get_mut(&at).filter(|extras| !extras.asleep.is_empty()) {
            extras.sharers.record(user);
        }
    }

    /// Whether the host has the bytes of a live block as of a sleep that is over.
    pub fn has_backup(&self, at: BlockAt) -> bool {
        self.extras.get(&at).is_some_and(|extras| extras.has_backup)
    }

    /// Notes that the host keeps the bytes of a block that wakes. Returns false for one that has been freed.
    pub fn retain_backup(&mut self, at: BlockAt) -> bool {
        let asleep = self.extras.get_mut(&at).filter(|extras| !extras.asleep.is_empty());
        asleep.map(|extras| extras.has_backup = true).is_some()
    }

    /// Notes that the host does not have the bytes of a block any more that falls asleep.
    pub fn forget_backup(&mut self, at: BlockAt) {
        if let Some(extras) = self.extras.get_mut(&at) {
            extras.has_backup = false;
        }
    }

    /// Number of pins.
    pub fn pins(&self) -> usize {
        self.extras.values().map(|extras| extras.pins as usize).sum()
    }

    /// Bytes of a pinned block.
    pub fn pinned_bytes(&self, (region, offset): BlockAt) -> u64 {
        let region = self.regions.get(region).expect("a pinned block keeps its region");
        region.heap.block(offset).map_or(0, |block| block.size)
    }

    /// Notes that somebody may keep the memory of a pinned block of a region of the stream `owner`. One that has been freed already
    /// waits for that stream, too, from now on.
    pub fn expose(&mut self, owner: StreamIndex, at: BlockAt) {
        let open = self.open_epoch();
        let extras = self.extras.get_mut(&at).expect("a pin is counted");
        if !extras.exposed {
            extras.exposed = true;
            extras.freed.iter_mut().for_each(|fences| fences.push(Fence { stream: owner, epoch: open }));
        }
    }

    /// Takes one pin off a block. With the last one, a block that was freed waits for the streams that used it then; returns
    /// whether that is so.
    pub fn unpin(&mut self, at: BlockAt) -> bool {
        let extras = self.extras.get_mut(&at).expect("a pin is counted");
        extras.pins -= 1;
        if extras.pins > 0 {
            return false;
        }
        let Some(fences) = extras.freed.take() else { return false };
        let exposed = extras.exposed;
        self.extras.remove(&at);
        self.open_elsewhere_bytes -= self.pinned_bytes(at);
        self.free_when_passed(Pending { region: at.0, offset: at.1, fences, exposed });
        true
    }

    /// Lets a shared block of a region of the stream `owner` go that has been freed and waits for `fences`: once the last pin is
    /// gone, if there is one. An exposed one waits for that stream, too.
    pub fn let_go(&mut self, owner: StreamIndex, at: BlockAt, mut fences: Vec<Fence>) {
        let (open, mut exposed) = (self.open_epoch(), false);
        if let Entry::Occupied(mut of_block) = self.extras.entry(at) {
            let extras = of_block.get_mut();
            exposed = extras.exposed;
            if exposed {
                fences.push(Fence { stream: owner, epoch: open });
            }
            if !extras.asleep.is_empty() {
                // What has no memory cannot be handed out before it has, and nobody uses it.
                self.asleep_bytes -= extras.asleep_bytes();
                let asleep = of_block.remove().asleep;
                let region = self.region(at.0).expect("a block has a region");
                for awake in region.heap.claim_parts(at.1, &asleep) {
                    self.free_when_passed(Pending { region: at.0, offset: awake, fences: fences.clone(), exposed });
                }
                return;
            }
            if extras.pins > 0 {
                extras.has_backup = false;
                extras.ticket = None;
                extras.freed = Some(fences);
                self.open_elsewhere_bytes += self.pinned_bytes(at);
                return;
            }
            of_block.remove();
        }
        self.free_when_passed(Pending { region: at.0, offset: at.1, fences, exposed });
    }
}
