//! What the runner does with handles of allocators, and with several of them on one device.

use crate::device::Device;
use crate::op::Op;
use crate::runner::{Runner, Seat, Summary};
use gapless::allocator::CloseError;

/// Allocators at once.
const MOST_ALLOCATORS: usize = 3;
/// Handles of one allocator.
const MOST_HANDLES: usize = 6;

impl<D: Device> Runner<D> {
    pub(crate) fn act_on_handles(&mut self, op: Op) {
        match op {
            Op::CopyHandle => {
                if self.seat().handles.len() < MOST_HANDLES {
                    let copy = self.allocator().clone();
                    self.seat_mut().handles.push(copy);
                }
            }
            Op::DropHandle { handle } => {
                let (handles, ranges) = (self.seat().handles.len(), self.seat().ranges.len());
                if handles > 1 {
                    drop(self.seat_mut().handles.remove(usize::from(handle) % handles));
                } else if ranges == 0 && !self.is_capturing() {
                    self.reopen(|runner, mut seat| {
                        runner.note(&seat);
                        seat.handles.clear();
                    });
                }
            }
            Op::CloseHandle => self.close_handle(),
            Op::OpenAllocator => {
                if self.seats.len() < MOST_ALLOCATORS {
                    self.seats.push(Seat::open(&self.world, &self.driver));
                    self.current = self.seats.len() - 1;
                }
            }
            Op::UseAllocator { allocator } => self.current = usize::from(allocator) % self.seats.len(),
            _ => unreachable!("an operation on handles"),
        }
    }

    fn close_handle(&mut self) {
        let (handles, ranges) = (self.seat().handles.len(), self.seat().ranges.len());
        if handles == 1 && ranges == 0 {
            // An allocator must not be closed while a stream that used it is captured.
            if !self.is_capturing() {
                self.reopen(Self::end);
            }
            return;
        }
        // A range keeps its allocator alive as a handle does; the last handle is kept to go on with.
        let handle = match handles {
            1 => self.allocator().clone(),
            _ => self.seat_mut().handles.pop().expect("more than one"),
        };
        let others = self.seat().handles.len() + ranges;
        match handle.close() {
            Err(CloseError::InUse(count)) => assert_eq!(count, others, "the handles and ranges that are left"),
            other => panic!("closing with {others} other handles and ranges answered {other:?}"),
        }
    }

    /// Ends the allocator whose turn it is, and opens another in its place.
    fn reopen(&mut self, end: impl FnOnce(&mut Self, Seat<D>)) {
        // Failures of closing have a test of their own.
        self.disarm();
        let seat = self.seats.remove(self.current);
        end(self, seat);
        let next = Seat::open(&self.world, &self.driver);
        self.seats.insert(self.current, next);
        let usage = self.driver.inner().inner().usage();
        if self.seats.len() == 1 {
            let left = (usage.chunks, usage.mappings, usage.reservations, usage.events);
            assert_eq!(left, (0, 0, 0, 0), "invariant 7: left in the driver: {usage:?}");
        }
    }

    /// Closes an allocator.
    pub(crate) fn end(&mut self, mut seat: Seat<D>) {
        self.note(&seat);
        let expected = seat.oracle.live.len();
        seat.ranges.clear();
        let handle = seat.handles.pop().expect("a seat has a handle");
        seat.handles.clear();
        match handle.close() {
            Ok(()) => assert_eq!(expected, 0, "invariant 7: leaks went unnoticed"),
            Err(CloseError::Leaked(leaks)) => assert_eq!(leaks.len(), expected, "invariant 7: {leaks:?}"),
            Err(other) => panic!("close answered {other}"),
        }
    }

    fn note(&mut self, seat: &Seat<D>) {
        self.summary.add(&Summary { stats: seat.allocator().stats(), ..Summary::default() });
    }
}
