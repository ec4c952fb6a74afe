//! Compiling PyTorch's allocator object: one shared library for each minor of PyTorch, from that minor's own headers.

use crate::cxx::Library;
use crate::failure::Failure;
use crate::files;
use crate::workspace::Workspace;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where PyTorch's headers and libraries are, and CUDA's headers.
#[derive(Debug)]
pub struct Headers {
    /// The folder `torch` of an installed or unpacked wheel.
    pub torch: PathBuf,
    /// CUDA's headers.
    pub cuda: PathBuf,
}

impl Headers {
    /// A library that calls PyTorch's C++ interface. CUDA's runtime is found through PyTorch's library: its version is PyTorch's
    /// business.
    pub fn library(&self, sources: Vec<PathBuf>, mut options: Vec<OsString>) -> Library {
        options.push("-std=c++20".into());
        for folder in [&self.torch.join("include"), &self.cuda] {
            options.extend(["-isystem".into(), folder.into()]);
        }
        let mut links: Vec<OsString> = vec!["-L".into(), self.torch.join("lib").into()];
        links.extend(["-lc10", "-lc10_cuda", "-Wl,--allow-shlib-undefined"].map(OsString::from));
        Library { sources, options, links }
    }
}

/// A version of PyTorch: 2.15.0 of `2.15.0+cu132`.
#[derive(Debug, PartialEq, Eq)]
pub struct Version {
    major: u32,
    minor: u32,
    text: String,
}

impl Version {
    pub fn of(text: &str) -> Result<Self, Failure> {
        let released = text.trim().split('+').next().unwrap_or_default();
        let mut numbers = released.split('.').map(|number| number.parse::<u32>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => Ok(Self { major, minor, text: released.to_owned() }),
            _ => Err(Failure::new(format!("{text} is no version of PyTorch"))),
        }
    }

    /// The name that the Python package looks for.
    pub fn file_name(&self) -> String {
        format!("_torch_object_{}_{}.so", self.major, self.minor)
    }

    /// Whether there is an object for it: the interface of the versions before is another one.
    pub fn has_object(&self) -> bool {
        (self.major, self.minor) >= (2, 8)
    }

    /// The number that the sources compare: 215 for 2.15.
    fn number(&self) -> u32 {
        self.major * 100 + self.minor
    }
}

/// Compiles the object for a version into `folder`, under the name that the Python package looks for.
pub fn compile(workspace: &Workspace, version: &Version, headers: &Headers, folder: &Path) -> Result<(), Failure> {
    // Functions that are alike keep names of their own: the proof of the layout compares them.
    let mut options = ["-fno-ipa-icf", "-Wno-unused-parameter", "-Iinclude"].map(OsString::from).to_vec();
    options.push(format!("-DGAPLESS_TORCH={}", version.number()).into());
    options.push(format!("-DGAPLESS_TORCH_VERSION=\"{}\"", version.text).into());
    let sources = files::with_ending(&workspace.path("python/src/allocator_object"), "cpp")?;
    headers.library(sources, options).build(workspace, &folder.join(version.file_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_name_files_and_numbers() {
        let version = Version::of("2.15.0+cu132\n").unwrap();
        assert_eq!((version.file_name().as_str(), version.number()), ("_torch_object_2_15.so", 215));
        assert_eq!(version.text, "2.15.0");
        assert_eq!(Version::of("2.9.1").unwrap().number(), 209);
        assert!(Version::of("newest").is_err());
    }
}
