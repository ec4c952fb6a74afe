//! For unit tests only.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Something broken on purpose, and what the check's message has to contain then.
pub type Break<T> = (&'static str, fn(&mut T));

/// Asserts that `check` accepts what `make` makes, and panics with the right message after each of `breaks`.
pub fn assert_noticed<T>(make: impl Fn() -> T, check: fn(&T), breaks: &[Break<T>]) {
    check(&make());
    for (expected, break_it) in breaks {
        let mut subject = make();
        break_it(&mut subject);
        let panic = catch_unwind(AssertUnwindSafe(|| check(&subject))).expect_err(expected);
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).expect("a panic with a text");
        assert!(text.contains(expected), "'{expected}' was to be found, not '{text}'");
    }
}
