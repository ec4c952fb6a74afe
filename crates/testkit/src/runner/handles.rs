//! The runner's operations on handles of allocators, and on several allocators on one device.

use super::Runner;
use super::instance::Instance;
use crate::device::Device;
use crate::kept::Kept;
use crate::op::Op;
use crate::summary::Summary;
use gapless::allocator::CloseError;

/// Maximum number of allocators at the same time.
const MOST_ALLOCATORS: usize = 3;
/// Maximum number of handles of one allocator.
const MOST_HANDLES: usize = 6;

impl<D: Device> Runner<D> {
    pub(crate) fn act_on_handles(&mut self, op: Op) {
        match op {
            Op::CopyHandle => {
                if self.instance().handles.len() < MOST_HANDLES {
                    let copy = self.allocator().clone();
                    self.instance_mut().handles.push(copy);
                }
            }
            Op::DropHandle { handle } => {
                let (handles, keepers) = (self.instance().handles.len(), self.instance().keepers());
                if handles > 1 {
                    drop(self.instance_mut().handles.remove(usize::from(handle) % handles));
                } else if keepers == 0 && !self.is_capturing() {
                    self.reopen(|runner, mut instance| {
                        runner.note(&instance);
                        instance.handles.clear();
                    });
                }
            }
            Op::CloseHandle => self.close_handle(),
            Op::OpenAllocator | Op::OpenPool => {
                if self.instances.len() < MOST_ALLOCATORS {
                    let pool = (op == Op::OpenPool && self.driver.inner().inner().captures_leave_others_alone())
                        .then(|| self.graphs.new_pool());
                    let instance = self.open(pool);
                    self.instances.push(instance);
                    self.current = self.instances.len() - 1;
                }
            }
            Op::UseAllocator { allocator } => self.current = usize::from(allocator) % self.instances.len(),
            _ => unreachable!("an operation on handles"),
        }
    }

    fn close_handle(&mut self) {
        let (handles, keepers) = (self.instance().handles.len(), self.instance().keepers());
        if handles == 1 && keepers == 0 {
            // An allocator must not be closed while a stream that used it is captured.
            if !self.is_capturing() {
                self.reopen(Self::end);
            }
            return;
        }
        // A range, a pin, a registered block or a mark keeps its allocator alive like a handle. The last handle is kept for the
        // next operations.
        let handle = match handles {
            1 => self.allocator().clone(),
            _ => self.instance_mut().handles.pop().expect("more than one"),
        };
        let others = self.instance().handles.len() + keepers + self.instance().marks.len();
        match handle.close() {
            Err(CloseError::InUse(count) | CloseError::Pinned(count)) => {
                assert_eq!(count, others, "number of other handles, ranges, pins, registered blocks and marks")
            }
            other => panic!("closing with {others} others returned {other:?}"),
        }
    }

    /// Ends the current allocator with `end` and opens another one of its kind as its replacement.
    fn reopen(&mut self, end: impl FnOnce(&mut Self, Instance<D>)) {
        // Failures while closing have their own test.
        self.disarm();
        let mut instance = self.instances.remove(self.current);
        self.forget_marks(&mut instance);
        let pool = instance.pool.as_ref().map(|pool| {
            self.graphs.release(pool);
            self.graphs.new_pool()
        });
        end(self, instance);
        let next = self.open(pool);
        self.instances.insert(self.current, next);
        let usage = self.driver.inner().inner().usage();
        if self.instances.len() == 1 {
            let events = usage.events - self.elsewhere.events();
            let left = (usage.chunks, usage.mappings, usage.reservations, events);
            assert_eq!(left, (0, 0, 0, 0), "invariant 11: left in the driver: {usage:?}");
        }
    }

    /// Closes an allocator.
    pub(crate) fn end(&mut self, mut instance: Instance<D>) {
        self.note(&instance);
        let expected = instance.oracle.live.len();
        instance.ranges.clear();
        instance.kept = Kept::default();
        let handle = instance.handles.pop().expect("every allocator has a handle");
        instance.handles.clear();
        match handle.close() {
            Ok(()) => assert_eq!(expected, 0, "invariant 11: leaks were not reported"),
            Err(CloseError::Leaked(leaks)) => assert_eq!(leaks.len(), expected, "invariant 11: {leaks:?}"),
            Err(other) => panic!("close returned {other}"),
        }
    }

    fn note(&mut self, instance: &Instance<D>) {
        let notified_unmaps = instance.registry.ended();
        self.summary.add(&Summary { stats: instance.allocator().stats(), notified_unmaps, ..Summary::default() });
    }
}
