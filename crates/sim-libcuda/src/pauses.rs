//! Pauses, which move the calls of threads and queued work against each other, as a loaded machine and a busy GPU do.
//!
//! A seed chooses them, by the number of a thread in the order of the first calls, and by the number of its call or its work. With
//! one thread, one stream and one seed they are the same every time. No thread pauses for more than two seconds in all, so that
//! programs with much work end.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// 0 where there are none.
static SEED: AtomicU64 = AtomicU64::new(0);
static THREADS: AtomicU64 = AtomicU64::new(0);

/// The most that one thread pauses in all.
const MOST: Duration = Duration::from_secs(2);

thread_local! {
    /// The state of the generator. 0 before its first use.
    static STATE: Cell<u64> = const { Cell::new(0) };
    static LEFT: Cell<Duration> = const { Cell::new(MOST) };
}

/// Pauses from now on, as the seed says.
pub fn begin(seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
}

/// Pauses before a call of the driver, or not: 0.2 ms at most, and one time in fifty 5 ms.
pub fn before_call() {
    pause(Duration::from_micros(200), Duration::from_millis(5));
}

/// Pauses before queued work begins, or not: 1 ms at most, and one time in fifty 50 ms.
pub fn before_work() {
    pause(Duration::from_millis(1), Duration::from_millis(50));
}

fn pause(short: Duration, long: Duration) {
    let seed = SEED.load(Ordering::Relaxed);
    if seed == 0 {
        return;
    }
    let drawn = drawn(seed);
    // The low bits choose, the others say how long.
    let share = |most: Duration| most.mul_f64((drawn >> 32) as f64 / f64::from(u32::MAX));
    match drawn % 100 {
        0..2 => sleep(long),
        2..15 => sleep(share(short)),
        15..40 => std::thread::yield_now(),
        _ => {}
    }
}

fn sleep(time: Duration) {
    let time = time.min(LEFT.get());
    LEFT.set(LEFT.get() - time);
    std::thread::sleep(time);
}

/// The next number of this thread's generator (SplitMix64, Steele, Lea and Flood 2014).
fn drawn(seed: u64) -> u64 {
    let state = match STATE.get() {
        0 => seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ THREADS.fetch_add(1, Ordering::Relaxed).wrapping_add(1) << 40,
        state => state,
    };
    let state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    STATE.set(state);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
