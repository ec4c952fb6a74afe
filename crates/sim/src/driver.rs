//! Versions of the driver, and the functions that each has.

use clap::ValueEnum;
use gapless_sim_libcuda::functions::NEWER;

/// A branch of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KnownDriver {
    /// CUDA 11.4
    #[value(name = "470")]
    R470,
    /// CUDA 12.2
    #[value(name = "535")]
    R535,
    /// CUDA 12.4
    #[value(name = "550")]
    R550,
    /// CUDA 13.0
    #[value(name = "580")]
    R580,
}

impl KnownDriver {
    /// What `cuDriverGetVersion` says.
    pub fn version(self) -> i32 {
        match self {
            Self::R470 => 11_040,
            Self::R535 => 12_020,
            Self::R550 => 12_040,
            Self::R580 => 13_000,
        }
    }

    /// The functions that it lacks, of those that the simulation has.
    pub fn lacks(self) -> Vec<&'static str> {
        NEWER.iter().filter(|(_, since)| *since > self.version()).map(|(name, _)| *name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_lacks_what_came_after_it() {
        assert!(KnownDriver::R580.lacks().is_empty());
        let r550 = KnownDriver::R550.lacks();
        assert!(r550.contains(&"cuStreamGetCtx_v2") && !r550.contains(&"cuGreenCtxCreate"), "{r550:?}");
        let r535 = KnownDriver::R535.lacks();
        assert!(r535.contains(&"cuGreenCtxCreate") && !r535.contains(&"cuStreamGetId"), "{r535:?}");
        assert_eq!(KnownDriver::R470.lacks().len(), NEWER.len());
    }
}
