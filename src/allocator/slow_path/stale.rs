//! Stale views in the order in which they became stale, so that the oldest can go when mappings run short.
//!
//! - I1  every stale view whose last use may pass has an entry. An entry of a view that has become active again, or is gone, is
//!   dropped when it is met.
//!
//! Cost: constant for each view that becomes stale.

use super::SlowPath;
use super::mapper::Mapper;
use crate::driver::{Driver, DriverError};
use crate::physical::ViewAt;
use crate::segment::ViewState;
use crate::stream::Fence;
use std::collections::VecDeque;

/// Entries of views, oldest first.
#[derive(Debug, Default)]
pub struct StaleOrder {
    entries: VecDeque<(ViewAt, Fence)>,
}

impl StaleOrder {
    /// Number of entries, those that are out of date included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Mapper {
    /// Makes an active view stale, since the chunk's bytes are used elsewhere from now on.
    pub fn make_stale(&mut self, at: ViewAt, fence: Fence) {
        self.segments[at.segment as usize].table.set_state(at.page, ViewState::Stale(fence));
        self.stale_order.entries.push_back((at, fence));
        // Programs repeat themselves: most views become active again before they are old. Each entry that is dropped here
        // pays for one that was added.
        if self.stale_order.len() > 2 * self.pool.stale_views() + SPARE_ENTRIES {
            let mut order = std::mem::take(&mut self.stale_order);
            order.entries.retain(|(at, fence)| self.is_stale(*at, *fence));
            self.stale_order = order;
        }
    }

    /// Whether a view is stale whose last use ends with `fence`.
    fn is_stale(&self, at: ViewAt, fence: Fence) -> bool {
        let view = self.segments[at.segment as usize].table.view(at.page);
        view.is_some_and(|view| view.pages.start == at.page && view.state == ViewState::Stale(fence))
    }

    /// Asserts I1.
    ///
    /// # Panics
    /// Panics if the invariant does not hold.
    pub fn check_stale_order(&self) {
        use std::collections::HashSet;
        let listed: HashSet<(ViewAt, Fence)> = self.stale_order.entries.iter().copied().collect();
        for (number, segment) in self.segments.iter().enumerate() {
            for view in segment.table.iter() {
                if let ViewState::Stale(fence) = view.state
                    && fence.epoch != crate::stream::NEVER
                {
                    let at = super::mapper::view_at(number, view.pages.start);
                    assert!(listed.contains(&(at, fence)), "stale I1: the view at {at:?} has no entry");
                }
            }
        }
    }
}

/// Entries that may be out of date before they are looked for.
const SPARE_ENTRIES: usize = 1024;

/// Which stale views to drop.
#[derive(Clone, Copy, Debug)]
pub struct Drop {
    /// Most that are dropped.
    pub most: usize,
    /// Most that are looked at without being dropped, since their last use has not passed.
    pub patience: usize,
}

impl<D: Driver> SlowPath<'_, D> {
    /// Unmaps the oldest stale views whose last use has completed. Returns their number.
    ///
    /// # Errors
    /// The driver's. What was unmapped before stays so.
    pub fn drop_stale_views(&mut self, drop: Drop) -> Result<usize, DriverError> {
        if self.shared.geometry.keeps_mappings {
            return Ok(0);
        }
        let (mut dropped, mut waiting) = (0, Vec::new());
        let result = loop {
            if dropped == drop.most || waiting.len() > drop.patience {
                break Ok(dropped);
            }
            let Some((at, fence)) = self.mapper.stale_order.entries.pop_front() else { break Ok(dropped) };
            if !self.mapper.is_stale(at, fence) {
                continue;
            }
            match self.progress().has_passed(fence.stream, fence.epoch) {
                Ok(true) => {}
                Ok(false) => {
                    waiting.push((at, fence));
                    continue;
                }
                Err(error) => {
                    waiting.push((at, fence));
                    break Err(error);
                }
            }
            match self.unmap_unless_refused(at) {
                Ok(true) => dropped += 1,
                Ok(false) => waiting.push((at, fence)),
                Err(error) => {
                    waiting.push((at, fence));
                    break Err(error);
                }
            }
        };
        // Behind the others: whoever comes next looks at those first.
        self.mapper.stale_order.entries.extend(waiting);
        result
    }
}
