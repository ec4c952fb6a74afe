//! How long an answer of the other process is waited for.

use crate::error::ShareError;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// A wait for the other process that has begun.
#[derive(Clone, Debug)]
pub struct Patience {
    since: Instant,
    /// `None`: for ever.
    until: Option<Instant>,
    /// The other process has said since that it serves others.
    was_busy: Cell<bool>,
}

impl Patience {
    /// Begins a wait of at most `most`.
    pub fn of(most: Duration) -> Self {
        let since = Instant::now();
        Self { since, until: since.checked_add(most), was_busy: Cell::new(false) }
    }

    /// Returns the time that is left of it. `None` when it is over.
    pub fn left(&self) -> Option<Duration> {
        let Some(until) = self.until else { return Some(Duration::MAX) };
        until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// Returns the time that is left, `most` at most. `None` when it is over.
    pub fn left_within(&self, most: Duration) -> Option<Duration> {
        self.left().map(|left| left.min(most))
    }

    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Records that the other process has answered that it serves others.
    pub fn told_to_wait(&self) {
        self.was_busy.set(true);
    }

    /// The error of a wait that is over: one that was told to wait has had an answer.
    pub fn over(&self) -> ShareError {
        if self.was_busy.get() { ShareError::Busy } else { ShareError::NoAnswer { waited: self.since.elapsed() } }
    }
}
