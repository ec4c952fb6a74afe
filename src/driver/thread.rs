//! The default stream that every thread has of its own: one handle stands for all of them.
//!
//! Threads: any. Cost: a load of a thread-local value; the first call of a thread takes a lock, and so does its end.

use super::{StreamIdentity, StreamLifetime};
use crate::sync::unseen::Mutex;
use crate::units::StreamId;

/// The calling thread's default stream (`CU_STREAM_PER_THREAD`).
pub const PER_THREAD_STREAM: StreamId = StreamId(2);

/// Above all handles, which are addresses of the host, and above all numbers that a driver counts up to.
pub(super) const THREAD_KEYS: u64 = 1 << 63;

/// The numbers of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ThreadNumbers {
    /// A small number that no other thread of the process has at this time.
    slot: u64,
    /// A number, from 1 up, that no other thread of the process has or had.
    unique: u64,
}

struct Issued {
    next_unique: u64,
    slots: u64,
    /// Slots of threads that have ended.
    vacant: Vec<u64>,
}

static ISSUED: Mutex<Issued> = Mutex::new(Issued { next_unique: 1, slots: 0, vacant: Vec::new() });

/// The numbers of a thread, until it ends.
struct Held(ThreadNumbers);

impl Drop for Held {
    fn drop(&mut self) {
        ISSUED.lock().vacant.push(self.0.slot);
    }
}

thread_local! {
    static HELD: Held = Held(issue());
}

fn issue() -> ThreadNumbers {
    let mut issued = ISSUED.lock();
    let unique = issued.next_unique;
    issued.next_unique += 1;
    let slot = issued.vacant.pop().unwrap_or_else(|| {
        issued.slots += 1;
        issued.slots - 1
    });
    ThreadNumbers { slot, unique }
}

/// Returns the numbers of the calling thread; `None` while the thread is ending.
fn current() -> Option<ThreadNumbers> {
    HELD.try_with(|held| held.0).ok()
}

/// Returns which stream [`PER_THREAD_STREAM`] stands for on the calling thread; `None` while the thread is ending, and its
/// default stream with it.
pub(super) fn own_stream() -> Option<StreamIdentity> {
    let thread = current()?;
    Some(StreamIdentity {
        key: StreamId(THREAD_KEYS + thread.slot),
        number: THREAD_KEYS + thread.unique,
        lifetime: StreamLifetime::Thread,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_differ_also_from_those_that_have_ended() {
        let here = current().unwrap();
        assert_eq!(current().unwrap(), here);
        let first = std::thread::spawn(|| current().unwrap()).join().unwrap();
        let second = std::thread::spawn(|| current().unwrap()).join().unwrap();
        assert!(first.slot != here.slot && second.slot != here.slot);
        assert!(here.unique < first.unique && first.unique < second.unique);
    }
}
