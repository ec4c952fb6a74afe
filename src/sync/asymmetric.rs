//! A lock for sections of some tens of nanoseconds, for one thread that enters again and again and others that seldom do.
//!
//! A lock and an unlock cost an atomic read-modify-write each, most of what an allocation from cached memory costs. Here an
//! unlock is a plain store, and a look at whether anybody waits:
//!
//! ```text
//!   unlock                                   lock, where spinning did not help
//!     locked = false                           waiters += 1
//!     ── the processor may swap these ──       heavy barrier: one in the midst of every running thread
//!     waiters > 0?  wake one                   still locked?  sleep
//! ```
//!
//! Were the two steps of the unlock swapped, a thread that begins to wait in between would miss both the store and the wake.
//! The waiter's barrier prevents that at the waiter's cost: wherever it falls in the unlock, either the store before it is
//! visible to the waiter, or the look after it sees the waiter. It is Linux's `membarrier(2)`; where a sandbox refuses that,
//! a waiter sleeps for at most [`NAP`] and looks again. This is the asymmetric Dekker synchronization of Dice, Huang and Yang
//! (2001).
//!
//! - I1  at most one thread is between `lock` and `unlock`.
//! - I2  no thread sleeps while the lock is free and nobody is about to wake it.
//!
//! Threads: any. The lock is fair to nobody: a thread that waits looks at it now and then, and takes it if it is free. Between two
//! looks, another can take it many times, with all that it protects in the caches of its core. One that takes it again and again
//! for pieces of its work gives it back with `unlock_fair`, which calls those that wait, lets one take it first, and leaves it
//! alone for about as long as two pieces take: whoever waited wants it again soon, and would wait for a piece each time.

use super::CachePadded;
#[cfg(not(loom))]
use real::{Ordering, Waiters, heavy_barrier, light_barrier};

#[cfg(loom)]
use modelled::{Ordering, Waiters, heavy_barrier, light_barrier};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU32};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU32};

/// The lock without what it protects.
#[derive(Debug)]
pub struct RawAsymmetricMutex {
    locked: AtomicBool,
    /// Number of threads that look at the lock or sleep.
    wanted: AtomicU32,
    waiters: Waiters,
}

/// Pauses of the processor before the first look of a thread that waits. Between two looks there are twice as many each time.
const FIRST_PAUSES: u32 = 4;
/// Most pauses between two looks, about a microsecond.
const MOST_PAUSES: u32 = 64;
/// Pauses for which a thread that has let others in leaves the lock alone: 1.3 us where a pause takes 10 ns.
#[cfg(not(loom))]
const REST: u32 = 128;
#[cfg(loom)]
const REST: u32 = 0;
/// Pauses after which a thread sleeps.
#[cfg(not(loom))]
const PAUSES: u32 = 640;
#[cfg(loom)]
const PAUSES: u32 = 0;

/// Changes when a lock is given back so that another thread takes it, whichever lock that is: those who wait look at theirs.
/// A hint, apart from all locks, so that watching it disturbs nobody.
static OFFERS: CachePadded<std::sync::atomic::AtomicU32> = CachePadded::new(std::sync::atomic::AtomicU32::new(0));

impl RawAsymmetricMutex {
    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> bool {
        self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock, once it is free.
    #[inline]
    pub fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    /// Gives the lock back. The calling thread has it.
    #[inline]
    pub fn unlock(&self) {
        self.locked.store(false, Ordering::Release);
        light_barrier();
        if self.waiters.any() {
            self.waiters.wake_one();
        }
    }

    /// As [`unlock`](Self::unlock). Where a thread wants the lock, that one has the time to take it before this one does again,
    /// and to want it again.
    #[inline]
    pub fn unlock_fair(&self) {
        self.unlock();
        // Whoever begins to want it now does not wait for long.
        if self.wanted.load(Ordering::Relaxed) > 0 {
            self.let_others_in();
        }
    }

    #[cold]
    fn let_others_in(&self) {
        OFFERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let was_taken = || self.is_locked() || self.wanted.load(Ordering::Relaxed) == 0;
        pause_until(PAUSES, was_taken);
        pause_until(REST, || false);
    }

    fn is_locked(&self) -> bool {
        self.locked.load(Ordering::Relaxed)
    }

    /// Looks for a while. Returns whether the lock was taken.
    fn look(&self) -> bool {
        let (mut next, mut left) = (FIRST_PAUSES, PAUSES);
        while left > 0 {
            pause(next);
            if !self.is_locked() && self.try_lock() {
                return true;
            }
            left = left.saturating_sub(next);
            next = (2 * next).min(MOST_PAUSES);
        }
        false
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        if !self.look() {
            self.sleep();
        }
        self.wanted.fetch_sub(1, Ordering::Relaxed);
    }

    /// Sleeps until the lock is taken.
    fn sleep(&self) {
        self.waiters.enter();
        // From the barrier on, until `leave`, every unlock sees that somebody waits.
        let seen = heavy_barrier();
        while !self.try_lock() {
            self.waiters.sleep_while(|| self.is_locked(), seen);
            if self.look() {
                break;
            }
        }
        self.waiters.leave();
    }
}

/// Lets some time pass, less if a lock is offered meanwhile.
fn pause(times: u32) {
    let offers = || OFFERS.load(std::sync::atomic::Ordering::Relaxed);
    let before = offers();
    pause_until(times, || offers() != before);
}

/// Lets some time pass, less if `over` holds.
fn pause_until(times: u32, over: impl Fn() -> bool) {
    for _ in 0..times {
        if over() {
            return;
        }
        std::hint::spin_loop();
    }
}

/// The effect that a barrier has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Every unlock from now on sees the waiters.
    ByAll,
    /// Some may not.
    #[cfg_attr(loom, expect(dead_code, reason = "the barriers of the model always work"))]
    Perhaps,
}

#[cfg(not(loom))]
mod real {
    use super::{RawAsymmetricMutex, Seen};
    pub use std::sync::atomic::Ordering;
    use std::sync::atomic::{AtomicBool, AtomicU32, compiler_fence};
    use std::time::{Duration, Instant};

    /// How long a thread sleeps at most where unlocks may not see it.
    const NAP: Duration = Duration::from_micros(200);

    /// The threads that wait for a lock.
    #[derive(Debug)]
    pub struct Waiters(AtomicU32);

    impl Waiters {
        #[inline]
        pub fn any(&self) -> bool {
            self.0.load(Ordering::Relaxed) > 0
        }

        pub fn enter(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        pub fn leave(&self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }

        /// Sleeps until it is woken, unless the lock is free.
        pub fn sleep_while(&self, locked: impl Fn() -> bool, seen: Seen) {
            let until = (seen == Seen::Perhaps).then(|| Instant::now() + NAP);
            // SAFETY: the key is an address of this lock. The closures do not call back into the parking lot or panic.
            unsafe {
                parking_lot_core::park(
                    self.key(),
                    locked,
                    || {},
                    |_, _| {},
                    parking_lot_core::DEFAULT_PARK_TOKEN,
                    until,
                );
            }
        }

        #[cold]
        #[inline(never)]
        pub fn wake_one(&self) {
            // SAFETY: the key is an address of this lock. The closure does not call back into the parking lot or panic.
            unsafe {
                parking_lot_core::unpark_one(self.key(), |_| parking_lot_core::DEFAULT_UNPARK_TOKEN);
            }
        }

        fn key(&self) -> usize {
            std::ptr::from_ref(self).addr()
        }
    }

    /// The unlocking thread's half of the barrier: keeps the compiler from swapping what is before and after.
    #[inline]
    pub fn light_barrier() {
        compiler_fence(Ordering::SeqCst);
    }

    /// The waiting thread's half: a full barrier in every running thread of the process.
    pub fn heavy_barrier() -> Seen {
        use rustix::thread::{MembarrierCommand, membarrier};
        static REFUSED: AtomicBool = AtomicBool::new(false);
        if REFUSED.load(Ordering::Relaxed) {
            return Seen::Perhaps;
        }
        let barrier = || membarrier(MembarrierCommand::PrivateExpedited);
        // It has to be registered for once in a process.
        let done = barrier().or_else(|_| {
            membarrier(MembarrierCommand::RegisterPrivateExpedited)?;
            barrier()
        });
        REFUSED.store(done.is_err(), Ordering::Relaxed);
        if done.is_ok() { Seen::ByAll } else { Seen::Perhaps }
    }

    // SAFETY: I1, by the one exchange of `locked` that `try_lock` makes. What the section wrote is released by the store in
    // `unlock` and acquired by that exchange.
    unsafe impl parking_lot::lock_api::RawMutex for RawAsymmetricMutex {
        const INIT: Self =
            Self { locked: AtomicBool::new(false), wanted: AtomicU32::new(0), waiters: Waiters(AtomicU32::new(0)) };
        type GuardMarker = parking_lot::lock_api::GuardNoSend;

        #[inline]
        fn lock(&self) {
            Self::lock(self);
        }

        #[inline]
        fn try_lock(&self) -> bool {
            Self::try_lock(self)
        }

        #[inline]
        unsafe fn unlock(&self) {
            Self::unlock(self);
        }
    }

    // SAFETY: as above. Nothing depends on fairness.
    unsafe impl parking_lot::lock_api::RawMutexFair for RawAsymmetricMutex {
        #[inline]
        unsafe fn unlock_fair(&self) {
            Self::unlock_fair(self);
        }
    }
}

/// The same for loom: both halves of the barrier are a full one, and threads sleep on a condition.
#[cfg(loom)]
mod modelled {
    use super::{AtomicBool, RawAsymmetricMutex, Seen};
    pub use loom::sync::atomic::Ordering;
    use loom::sync::atomic::{AtomicU32, fence};
    use loom::sync::{Condvar, Mutex};

    #[derive(Debug)]
    pub struct Waiters {
        count: AtomicU32,
        /// Number of threads that sleep and were not woken.
        asleep: Mutex<u32>,
        woken: Condvar,
    }

    impl Waiters {
        pub fn any(&self) -> bool {
            self.count.load(Ordering::Relaxed) > 0
        }

        pub fn enter(&self) {
            self.count.fetch_add(1, Ordering::SeqCst);
        }

        pub fn leave(&self) {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }

        pub fn sleep_while(&self, locked: impl Fn() -> bool, _: Seen) {
            let mut asleep = self.asleep.lock().expect("a panic ends the run");
            if locked() {
                *asleep += 1;
                // loom wakes nobody without a reason.
                drop(self.woken.wait(asleep).expect("a panic ends the run"));
            }
        }

        pub fn wake_one(&self) {
            let mut asleep = self.asleep.lock().expect("a panic ends the run");
            if *asleep > 0 {
                *asleep -= 1;
                self.woken.notify_one();
            }
        }
    }

    pub fn light_barrier() {
        fence(Ordering::SeqCst);
    }

    pub fn heavy_barrier() -> Seen {
        fence(Ordering::SeqCst);
        Seen::ByAll
    }

    impl RawAsymmetricMutex {
        /// A lock that is free.
        pub fn new() -> Self {
            let waiters = Waiters { count: AtomicU32::new(0), asleep: Mutex::new(0), woken: Condvar::new() };
            Self { locked: AtomicBool::new(false), wanted: AtomicU32::new(0), waiters }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::HotMutex;
    use super::*;
    use std::time::Duration;

    /// Threads that add to a sum, now and then so slowly that the others fall asleep.
    fn sum(threads: u64, rounds: u64) -> u64 {
        let sum = HotMutex::new(0);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let sum = &sum;
                scope.spawn(move || {
                    for round in 0..rounds {
                        let mut sum = sum.lock();
                        let before = *sum;
                        if (round + thread).is_multiple_of(rounds / 4) {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        *sum = before + 1;
                    }
                });
            }
        });
        sum.into_inner()
    }

    #[test]
    fn no_addition_is_lost_and_nobody_sleeps_for_ever() {
        assert_eq!(sum(2, 100_000), 200_000);
        assert_eq!(sum(8, 4000), 32_000);
    }

    /// One that waits takes the lock twice before the thread that has let it in wants it again.
    #[test]
    fn who_is_let_in_may_come_twice() {
        const ROUNDS: u32 = 1000;
        let (lock, taken, done) = (HotMutex::new(()), AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let _held = lock.lock();
                    taken.fetch_add(1, Ordering::Relaxed);
                    pause_until(REST / 8, || false);
                }
            });
            let (mut let_in, mut twice) = (0, 0);
            while let_in < ROUNDS {
                let held = lock.lock();
                let before = taken.load(Ordering::Relaxed);
                pause_until(REST, || false);
                parking_lot::lock_api::MutexGuard::unlock_fair(held);
                let times = taken.load(Ordering::Relaxed) - before;
                let_in += u32::from(times > 0);
                twice += u32::from(times > 1);
            }
            done.store(true, Ordering::Relaxed);
            // Not always: either thread may lose its processor.
            assert!(twice > ROUNDS / 4, "{twice} of {ROUNDS} times");
        });
    }

    #[test]
    fn a_waiter_that_unlocks_may_not_see_wakes_by_itself() {
        let waiters = <RawAsymmetricMutex as parking_lot::lock_api::RawMutex>::INIT.waiters;
        waiters.sleep_while(|| true, Seen::Perhaps);
    }
}
