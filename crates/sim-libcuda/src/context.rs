//! Which context of which device something is of.

/// A context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Context {
    /// Number of the device.
    pub device: usize,
    /// 0 for the primary context; others are counted from 1, over all devices.
    pub number: usize,
}

impl Context {
    /// Returns the primary context of the same device.
    pub fn primary(self) -> Self {
        Self { number: 0, ..self }
    }
}

/// A context other than a primary one.
#[derive(Clone, Copy)]
pub struct OtherContext {
    /// Number of the device.
    pub device: usize,
    /// Whether it is a green context: it has some of the processors of the device, and everything else of the primary context.
    pub green: bool,
}
