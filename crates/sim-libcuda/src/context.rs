//! Which context of which device something is of.

/// A context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Context {
    /// Number of the device.
    pub device: usize,
    /// 0 for the primary context; others are counted from 1, over all devices.
    pub number: usize,
}
