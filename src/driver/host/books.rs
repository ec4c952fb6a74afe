//! Books of the host driver: everything but the queues. What is refused is written down as a violation, unless it is a shortage.

use super::Violation;
use super::pages::Pages;
use super::queues::Run;
use super::task::{Span, Task};
use crate::driver::handles::Handles;
use crate::driver::ledger::{Ledger, Refusal};
use crate::driver::{
    DriverCall, DriverCalls, DriverError, DriverErrorKind, DriverResult, EventHandle, HostMemory, Mismatch,
};
use crate::sync::unseen::{Mutex, MutexGuard, RwLock};
use crate::units::{DeviceAddr, StreamId};
use std::collections::{HashMap, HashSet};

#[derive(Debug)]
pub(super) struct SharedBooks {
    pub(super) books: Mutex<Books>,
    /// Read while a task runs, written while bytes move to another file. Taken before the books.
    pub(super) running: RwLock<()>,
}

/// Everything but the queues.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) ledger: Ledger,
    pub(super) pages: Pages,
    /// The host's memory for copies.
    pub(super) host_memory: HashMap<HostMemory, Vec<u64>>,
    /// What of it is shown to a caller, and whether to be changed.
    pub(super) shown: Vec<(HostMemory, bool)>,
    pub(super) in_flight: HashMap<u64, InFlight>,
    pub(super) handles: Handles,
    /// Lanes of the streams that are being captured.
    pub(super) capturing: HashSet<StreamId>,
    /// Events that were recorded last on a stream that was being captured, and that stream's lane.
    pub(super) captured: HashMap<EventHandle, StreamId>,
    pub(super) next_ticket: u64,
    pub(super) mismatches: Vec<Mismatch>,
    pub(super) violations: Vec<Violation>,
    pub(super) calls: DriverCalls,
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) stream: StreamId,
    pub(super) task: Task,
}

/// Work in a queue. Its ranges stay mapped until its ticket is taken out of `in_flight`.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) ticket: u64,
    pub(super) task: Task,
}

impl SharedBooks {
    pub(super) fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock()
    }
}

impl Run<Work> for SharedBooks {
    fn run(&self, stream: StreamId, work: Work) {
        let running = self.running.read();
        let mismatch = work.task.run(stream);
        drop(running);
        let mut books = self.lock();
        books.in_flight.remove(&work.ticket);
        books.mismatches.extend(mismatch);
    }
}

impl Books {
    /// Turns a refusal into an error, and writes a broken rule down.
    pub(super) fn enforce<T>(&mut self, call: DriverCall, answer: Result<T, Refusal>) -> DriverResult<T> {
        answer.map_err(|refusal| match refusal {
            Refusal::Shortage(text) => DriverError::new(call, DriverErrorKind::OutOfMemory, text),
            Refusal::Misuse(text) => {
                self.violations.push(Violation { call, text: text.clone() });
                DriverError::new(call, DriverErrorKind::InvalidValue, text)
            }
        })
    }

    /// Checks what a task touches; from here on its ranges stay mapped until it has run.
    pub(super) fn admit(&mut self, call: DriverCall, stream: StreamId, task: Task) -> DriverResult<Work> {
        let answer = task.spans().try_for_each(|span| self.ledger.check_access(span.addr, span.bytes));
        let answer = answer.and_then(|()| task.check_overlap());
        let answer = answer.and_then(|()| match task.host_memory() {
            Some(memory) => self.check_not_shown(memory, !task.writes(memory)),
            None => Ok(()),
        });
        self.enforce(call, answer)?;
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.in_flight.insert(ticket, InFlight { stream, task });
        Ok(Work { ticket, task })
    }

    /// Checks that nobody is shown memory of the host, or only to read where the call does no more.
    pub(super) fn check_not_shown(&self, memory: HostMemory, reads: bool) -> Result<(), Refusal> {
        match self.shown.iter().any(|&(shown, changes)| shown == memory && (changes || !reads)) {
            true => Err(Refusal::Misuse(format!("{memory:?} is used while it is shown"))),
            false => Ok(()),
        }
    }

    pub(super) fn check_idle(&self, addr: DeviceAddr, bytes: u64) -> Result<(), Refusal> {
        let range = Span { addr, bytes };
        for InFlight { stream, task } in self.in_flight.values() {
            if let Some(span) = task.spans().find(|span| span.overlaps(range)) {
                return Err(Refusal::Misuse(format!(
                    "unmap of {bytes} bytes at {addr} while a {} in flight on {stream} touches {} bytes at {}",
                    task.name(),
                    span.bytes,
                    span.addr
                )));
            }
        }
        Ok(())
    }
}

impl Drop for Books {
    fn drop(&mut self) {
        for (addr, bytes) in self.ledger.reservations() {
            self.pages.unreserve(addr, bytes);
        }
    }
}
