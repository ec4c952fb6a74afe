//! Counts of what the driver is asked to do, for programs that measure: calls of each function, and bytes that are copied.
//!
//! Nothing is counted until [`restart`] is called.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// What the bytes are counted under that are copied to the host, and from it.
pub const TO_HOST: &str = "bytes_to_host";
pub const FROM_HOST: &str = "bytes_from_host";

static COUNTS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());
static ARE_COUNTED: AtomicBool = AtomicBool::new(false);

/// Counts from zero.
pub fn restart() {
    COUNTS.lock().clear();
    ARE_COUNTED.store(true, Ordering::Release);
}

/// Adds to a count: 1 for a call of the function of that name.
pub fn add(name: &'static str, amount: u64) {
    if ARE_COUNTED.load(Ordering::Acquire) {
        *COUNTS.lock().entry(name).or_default() += amount;
    }
}

/// Returns the count of a name, if it has one.
pub fn of(name: &str) -> Option<u64> {
    COUNTS.lock().get(name).copied()
}

/// Returns all counts, as `name:count,...` in the order of the names.
pub fn text() -> String {
    let mut text = String::new();
    for (name, count) in &*COUNTS.lock() {
        let separator = if text.is_empty() { "" } else { "," };
        write!(text, "{separator}{name}:{count}").expect("a string can be written to");
    }
    text
}
