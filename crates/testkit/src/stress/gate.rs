//! A gate in front of the blocks of the stress test: who works with one asks here first, since no work may use what is asleep or
//! about to be.
//!
//! Nobody waits at the gate: a thread that cannot pass does something else.

use parking_lot::Mutex;

/// Says which blocks may be used.
#[derive(Default)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Default)]
struct State {
    /// The number of sleeps and wakes that have begun or ended.
    time: u64,
    /// Since when blocks that were allocated before have been asleep, or are about to be.
    asleep_since: Option<u64>,
    /// Whether the thread that sleeps waits for those who are inside.
    closing: bool,
    inside: u64,
}

impl Gate {
    /// The time, for a block that is allocated from now on.
    pub fn time(&self) -> u64 {
        self.0.lock().time
    }

    /// Runs `work` with a block that was allocated after `born`, unless it may be asleep.
    pub fn pass<T>(&self, born: u64, work: impl FnOnce() -> T) -> Option<T> {
        {
            let mut state = self.0.lock();
            if state.closing || state.asleep_since.is_some_and(|since| born < since) {
                return None;
            }
            state.inside += 1;
        }
        let result = work();
        self.0.lock().inside -= 1;
        Some(result)
    }

    /// Whether everybody who was inside has left. Nobody enters meanwhile.
    pub fn close(&self) -> bool {
        let mut state = self.0.lock();
        state.closing = true;
        state.inside == 0
    }

    pub fn is_asleep(&self) -> bool {
        self.0.lock().asleep_since.is_some()
    }

    /// Opens the gate for blocks that are allocated from now on; for the others as well if they are awake.
    pub fn open(&self, is_asleep: bool) {
        let mut state = self.0.lock();
        state.time += 1;
        state.asleep_since = is_asleep.then_some(state.time);
        state.closing = false;
    }
}
