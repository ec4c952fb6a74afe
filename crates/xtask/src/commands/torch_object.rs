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
    /// The version of this PyTorch.
    pub fn version(&self) -> Result<Version, Failure> {
        Version::of(&self.said("__version__")?)
    }

    /// The commit that this PyTorch was built from.
    fn commit(&self) -> Result<String, Failure> {
        self.said("git_version")
    }

    /// What PyTorch says of itself in `torch/version.py`.
    fn said(&self, name: &str) -> Result<String, Failure> {
        let path = self.torch.join("version.py");
        let text = files::read(&path)?;
        let said = string_in(&text, name).map(str::to_owned);
        said.ok_or_else(|| Failure::new(format!("{} has no {name}", path.display())))
    }

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

/// Compiles the object for these headers into `folder`, under the name that the Python package looks for. Returns its path.
pub fn compile(workspace: &Workspace, headers: &Headers, folder: &Path) -> Result<PathBuf, Failure> {
    let version = headers.version()?;
    // Functions that are alike keep names of their own: the proof of the layout compares them. Nobody puts others in their place,
    // and calls go without stubs.
    let calls = ["-fno-ipa-icf", "-fno-semantic-interposition", "-fno-plt", "-Wno-unused-parameter", "-Iinclude"];
    let mut options = calls.map(OsString::from).to_vec();
    options.push(format!("-DGAPLESS_TORCH={}", version.number()).into());
    options.push(format!("-DGAPLESS_TORCH_VERSION=\"{}\"", version.text).into());
    options.push(format!("-DGAPLESS_TORCH_COMMIT=\"{}\"", headers.commit()?).into());
    let sources = files::with_ending(&workspace.path("python/src/allocator_object"), "cpp")?;
    let library = folder.join(version.file_name());
    headers.library(sources, options).build(workspace, &library)?;
    Ok(library)
}

/// A string that a module of Python gives a name, on a line of its own.
fn string_in<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = '")?.strip_suffix('\''))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pytorch_says_of_itself_is_found() {
        let text =
            "from typing import Optional\n\n__version__ = '2.15.0+cu132'\ndebug = False\ngit_version = 'd0f2af8b'\n";
        assert_eq!(string_in(text, "__version__"), Some("2.15.0+cu132"));
        assert_eq!(string_in(text, "git_version"), Some("d0f2af8b"));
        assert_eq!(string_in(text, "version"), None);
    }

    #[test]
    fn versions_name_files_and_numbers() {
        let version = Version::of("2.15.0+cu132\n").unwrap();
        assert_eq!((version.file_name().as_str(), version.number()), ("_torch_object_2_15.so", 215));
        assert_eq!(version.text, "2.15.0");
        assert_eq!(Version::of("2.9.1").unwrap().number(), 209);
        assert!(Version::of("newest").is_err());
    }
}
