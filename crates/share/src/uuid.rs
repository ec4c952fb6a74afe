//! Names of physical devices.

use std::fmt;

/// Names a physical device in every process of the host.
pub type Uuid = [u8; 16];

/// A UUID as NVIDIA's tools print those of devices.
pub struct Named<'a>(pub &'a Uuid);

impl fmt::Display for Named<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if [0, 4, 6, 8, 10].contains(&index) { "-" } else { "" };
            write!(formatter, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}
