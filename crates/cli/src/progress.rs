//! Progress bars on stderr, hidden unless that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};
use std::time::Duration;

/// Whether work on one of several things has bars of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bars {
    Shown,
    /// One bar shows the progress over all of them.
    Hidden,
}

impl Bars {
    /// The progress over steps of about the same length.
    pub(crate) fn of_steps(self, steps: u64, message: String) -> ProgressBar {
        match self {
            Self::Shown => of_steps(steps, message),
            Self::Hidden => ProgressBar::hidden(),
        }
    }

    /// The progress over the bytes of a file.
    pub(crate) fn of_bytes(self, bytes: u64, message: String) -> ProgressBar {
        match self {
            Self::Shown => of_bytes(bytes, message),
            Self::Hidden => ProgressBar::hidden(),
        }
    }
}

/// The progress over steps of about the same length.
pub(crate) fn of_steps(steps: u64, message: String) -> ProgressBar {
    bar(steps, "{msg} {wide_bar} {percent:>3}% {eta:>4}").with_message(message)
}

/// The progress over the bytes of a file.
pub(crate) fn of_bytes(bytes: u64, message: String) -> ProgressBar {
    bar(bytes, "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}").with_message(message)
}

/// The progress over a time, with what was done so far.
pub(crate) fn of_time(length: Duration) -> ProgressBar {
    bar(length.as_secs(), "{elapsed_precise} {bar:30} {msg}")
}

fn bar(length: u64, template: &str) -> ProgressBar {
    let target = if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(length), target).with_style(style)
}
