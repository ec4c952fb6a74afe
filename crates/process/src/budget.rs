//! The largest number of bytes to hold, as a number or a part of a device.

/// The largest number of bytes to hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// A number of bytes.
    Bytes(u64),
    /// A fraction of the device's memory, above 0 and at most 1.
    Fraction(f64),
}

impl Budget {
    /// A budget that is a fraction of a device; `None` for one that is not above 0 and at most 1.
    pub fn fraction(part: f64) -> Option<Self> {
        (part > 0.0 && part <= 1.0).then_some(Self::Fraction(part))
    }

    /// The budget in bytes on a device with `total` bytes.
    #[allow(clippy::cast_precision_loss, reason = "devices are far below 2^53 bytes")]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a u64")]
    pub fn of(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Fraction(part) => (total as f64 * part) as u64,
        }
    }
}
