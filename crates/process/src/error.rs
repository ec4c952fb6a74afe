//! Why something that this crate was asked for did not happen.

/// A failure. What was asked for has not happened, unless the function says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A budget that is no fraction of a device.
    #[error("a budget of {0} of the device: give a fraction above 0 and at most 1")]
    Fraction(f64),
}
