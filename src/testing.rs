//! Helpers for unit tests.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A text that the check's message must contain, and a function that breaks the invariant on purpose.
pub type Break<T> = (&'static str, fn(&mut T));

/// Asserts that `check` accepts a value from `make`, and that it panics with the expected message after each of
/// `breaks`.
pub fn assert_noticed<T>(make: impl Fn() -> T, check: fn(&T), breaks: &[Break<T>]) {
    check(&make());
    for (expected, break_it) in breaks {
        let mut subject = make();
        break_it(&mut subject);
        let panic = catch_unwind(AssertUnwindSafe(|| check(&subject))).expect_err(expected);
        let text = panic.downcast_ref::<String>().cloned();
        let text =
            text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).expect("the panic has a message");
        assert!(text.contains(expected), "expected '{expected}', found '{text}'");
    }
}

thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts one step of a search on this thread.
pub fn step() {
    STEPS.set(STEPS.get() + 1);
}

/// Returns how many steps `work` takes on this thread.
pub fn steps_of(work: impl FnOnce()) -> u64 {
    let before = STEPS.get();
    work();
    STEPS.get() - before
}
