//! Newtypes for quantities that are easily confused, and one way to parse and print sizes.
//!
//! Addresses are plain numbers: only the drivers dereference a [`DeviceAddr`].

use std::fmt;
use std::str::FromStr;

/// An address in the GPU's (or a simulated device's) virtual address space. A number, not a pointer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct DeviceAddr(pub u64);

impl DeviceAddr {
    /// Returns the address `bytes` higher, or `None` past the end of the address space.
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }

    /// Returns the address `bytes` higher.
    ///
    /// # Panics
    /// In debug builds, panics past the end of the address space. Callers add offsets inside a reservation.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// Returns the distance from `base` in bytes, or `None` if the address is below `base`.
    #[must_use]
    pub fn offset_from(self, base: Self) -> Option<u64> {
        self.0.checked_sub(base.0)
    }

    /// Returns `true` if the address is a multiple of `alignment` bytes (a power of two).
    #[must_use]
    pub const fn is_aligned(self, alignment: u64) -> bool {
        self.0 & (alignment - 1) == 0
    }
}

impl fmt::Debug for DeviceAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for DeviceAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The handle of a stream: a `CUstream`, or a number given by a simulated driver.
/// [`StreamId::DEFAULT`] is the device's default stream.
///
/// ```
/// use gapless::StreamId;
///
/// let handle = 0; // in a program, a `CUstream` of its own, as a number
/// // SAFETY: the default stream is never destroyed.
/// let stream = unsafe { StreamId::from_raw(handle) };
/// assert_eq!((stream, stream.as_raw()), (StreamId::DEFAULT, 0));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize)]
#[serde(transparent)]
pub struct StreamId(pub(crate) u64);

impl StreamId {
    /// The default stream (CUDA's legacy default stream, handle 0).
    pub const DEFAULT: Self = Self(0);

    /// Returns the stream that has this handle.
    ///
    /// # Safety
    /// The handle is 0, or of a stream that exists whenever a call gets the value, and for as long as it is
    /// [kept](crate::Allocator::keep_stream): what a driver does with the handle of a stream that does not exist is undefined.
    /// Drivers that are [checked](crate::driver::CheckedDriver) take any number.
    #[must_use]
    pub const unsafe fn from_raw(handle: u64) -> Self {
        Self(handle)
    }

    /// Returns the handle.
    #[must_use]
    pub const fn as_raw(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:#x}", self.0)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// One KiB in bytes.
pub const KIB: u64 = 1 << 10;
/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;
/// One GiB in bytes.
pub const GIB: u64 = 1 << 30;
/// One TiB in bytes.
pub const TIB: u64 = 1 << 40;

/// Rounds `bytes` up to a multiple of `unit` (a power of two). Returns `None` on overflow.
#[must_use]
pub const fn round_up(bytes: u64, unit: u64) -> Option<u64> {
    match bytes.checked_add(unit - 1) {
        Some(sum) => Some(sum & !(unit - 1)),
        None => None,
    }
}

/// Rounds `bytes` down to a multiple of `unit` (a power of two).
#[must_use]
pub const fn round_down(bytes: u64, unit: u64) -> u64 {
    bytes & !(unit - 1)
}

/// A size in bytes. Parses texts such as `24GiB`, `512MiB`, `1.5 GiB` and `4096`, and prints as `24 GiB`.
///
/// Units are powers of 1024, with or without `i` and `B`, in either case. Sizes that are not a whole number of their
/// unit print with two decimals.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, size) in [("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)] {
            if self.0 >= size {
                #[allow(clippy::cast_precision_loss, reason = "only two decimals are printed")]
                let value = self.0 as f64 / size as f64;
                return if self.0.is_multiple_of(size) {
                    f.pad(&format!("{} {unit}", self.0 / size))
                } else {
                    f.pad(&format!("{value:.2} {unit}"))
                };
            }
        }
        f.pad(&format!("{} B", self.0))
    }
}

impl fmt::Debug for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error returned when a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a size: write a number with an optional unit, as in 24GiB, 512MiB, 1.5GiB or 4096")]
pub struct ParseByteSizeError {
    text: String,
}

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseByteSizeError { text: text.to_owned() };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let scale = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" | "kib" => KIB,
            "m" | "mb" | "mib" => MIB,
            "g" | "gb" | "gib" => GIB,
            "t" | "tb" | "tib" => TIB,
            _ => return Err(error()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(ByteSize).ok_or_else(error);
        }
        let value: f64 = number.parse().map_err(|_| error())?;
        #[allow(clippy::cast_precision_loss, reason = "scale is a power of two")]
        let bytes = value * scale as f64;
        // About 2^63: far above any address range, far below where f64 -> u64 saturates.
        if !(0.0..9.2e18).contains(&bytes) {
            return Err(error());
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just above")]
        Ok(ByteSize(bytes as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_numbers_and_print_in_hex() {
        let addr = DeviceAddr(0x1000);
        assert_eq!((addr.to_string(), format!("{addr:?}")), ("0x1000".into(), "0x1000".into()));
        assert_eq!((addr.checked_add(5), addr.offset(5)), (Some(DeviceAddr(0x1005)), DeviceAddr(0x1005)));
        assert_eq!(DeviceAddr(u64::MAX).checked_add(1), None);
        assert_eq!((addr.offset_from(DeviceAddr(0xff0)), DeviceAddr(0).offset_from(addr)), (Some(16), None));
        assert!(addr.is_aligned(0x1000) && !addr.is_aligned(0x2000));
        assert_eq!(format!("{} {:?}", StreamId(31), StreamId::DEFAULT), "0x1f stream 0x0");
        assert_eq!(format!("{:?}", ByteSize(KIB)), "1 KiB");
    }

    #[test]
    fn sizes_parse_in_the_common_spellings() {
        for (text, bytes) in [
            ("4096", 4096),
            ("24GiB", 24 * GIB),
            ("1.5 GiB", GIB + GIB / 2),
            ("512mb", 512 * MIB),
            ("2M", 2 * MIB),
            ("0", 0),
        ] {
            assert_eq!(text.parse::<ByteSize>().unwrap(), ByteSize(bytes), "{text}");
        }
        for text in ["", "x", "12 parsecs", "-1", "1e400", "99999999999999999999", "20000000TiB", ".", "1.2.3"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn printed_sizes_parse_to_the_same_value() {
        for bytes in [0, 1, 1023, KIB, 3 * MIB, 24 * GIB, 7 * TIB] {
            let text = ByteSize(bytes).to_string();
            assert_eq!(text.parse::<ByteSize>().unwrap().0, bytes, "{text}");
        }
        assert_eq!(ByteSize(GIB + GIB / 2).to_string(), "1.50 GiB");
    }

    #[test]
    fn rounding_is_checked() {
        assert_eq!(round_up(1, 512), Some(512));
        assert_eq!(round_up(0, 512), Some(0));
        assert_eq!(round_up(u64::MAX, 512), None);
        assert_eq!(round_down(1023, 512), 512);
    }
}
