//! The growth that `--tolerance` allows.

use std::str::FromStr;

/// A growth that is tolerated, in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tolerance(pub f64);

impl Default for Tolerance {
    fn default() -> Self {
        Self(2.0)
    }
}

/// The error returned for a text that is no growth in percent.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is no growth in percent: give a number such as 2 or 0.5")]
pub(super) struct NoTolerance(String);

impl FromStr for Tolerance {
    type Err = NoTolerance;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
        let percent = number.filter(|percent: &f64| percent.is_finite() && *percent >= 0.0);
        percent.map(Self).ok_or_else(|| NoTolerance(text.to_owned()))
    }
}
