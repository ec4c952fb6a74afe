//! One allocator under test, and what its callers hold of it.

use crate::device::{Device, World};
use crate::graphs::Pool;
use crate::kept::{Kept, Registry};
use crate::oracle::{Oracle, Subject, keep};
use crate::witness::Witness;
use gapless::Allocator;
use gapless::allocator::{StreamMark, VirtualRange};
use gapless::driver::{EventHandle, FaultDriver};
use gapless::units::StreamId;
use std::sync::Arc;

/// A mark that the allocator made, and the event before it.
#[derive(Debug)]
pub(crate) struct Mark<D: Device> {
    pub(crate) mark: StreamMark<FaultDriver<Witness<D>>>,
    pub(crate) before: EventHandle,
}

/// One allocator: its handles, its growable ranges and its oracle. During a panic they are leaked, since closing a broken
/// allocator would panic again. Captures end, which would concern the sequences after this one.
#[derive(Debug)]
pub(crate) struct Instance<D: Device> {
    /// Operations use the last one.
    pub(crate) handles: Vec<Subject<D>>,
    /// In the order of the oracle's ranges.
    pub(crate) ranges: Vec<VirtualRange<FaultDriver<Witness<D>>>>,
    pub(crate) kept: Kept<D>,
    pub(crate) registry: Arc<Registry<D>>,
    pub(crate) oracle: Oracle,
    pub(crate) marks: Vec<Mark<D>>,
    /// For an allocator that keeps its mappings.
    pub(crate) pool: Option<Pool>,
    pub(crate) lost: bool,
}

impl<D: Device> Instance<D> {
    pub(super) fn open(
        world: &World,
        driver: &Arc<FaultDriver<Witness<D>>>,
        streams: &[StreamId],
        pool: Option<Pool>,
    ) -> Self {
        let mut builder = world.settings(Allocator::builder(Arc::clone(driver)));
        builder = match world.slack_percent {
            0 => builder.slack(f64::INFINITY),
            percent => builder.slack(1.0 + f64::from(percent) / 100.0),
        };
        if pool.is_some() {
            builder = builder.keep_mappings();
        }
        let allocator = builder.build().expect("a world has valid settings");
        if world.kept {
            streams.iter().for_each(|stream| keep(&allocator, *stream));
        }
        let oracle = Oracle { budget: world.bytes(), ceiling: world.bytes(), ..Oracle::default() };
        let registry = Arc::new(Registry::new(driver));
        allocator.listeners().add(Arc::<Registry<D>>::clone(&registry)).expect("not in a callback");
        let (ranges, kept, marks) = (Vec::new(), Kept::default(), Vec::new());
        Self { handles: vec![allocator], ranges, kept, registry, oracle, marks, pool, lost: false }
    }

    pub(crate) fn allocator(&self) -> &Subject<D> {
        self.handles.last().expect("every allocator has a handle")
    }

    /// The number of ranges, pins and registered blocks, each of which keeps the allocator.
    pub(crate) fn keepers(&self) -> usize {
        self.ranges.len() + self.kept.len()
    }
}

impl<D: Device> Drop for Instance<D> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            if let Some(handle) = self.handles.last() {
                handle.driver().inner().inner().end_captures();
            }
            std::mem::forget(std::mem::take(&mut self.handles));
            std::mem::forget(std::mem::take(&mut self.ranges));
            std::mem::forget(std::mem::take(&mut self.kept));
        }
    }
}
