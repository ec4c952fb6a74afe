//! The folder of libraries that a program finds before all others.

use crate::Failure;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The name of the driver's library.
const DRIVER: &str = "libcuda.so.1";
/// The stand-in for the CUDA runtime, which is loaded before the program's own one.
const RUNTIME: &str = "libcudart-standin.so";
/// The stand-in for cuBLAS, which is loaded with that for the runtime.
const CUBLAS: &str = "libcublas-standin.so";
/// A folder with the stand-in by the names of the runtime, for programs that would find none.
const NAMED_RUNTIME: &str = "runtime";
/// Where the libraries are, from the folder of this program.
const PLACES: [&str; 2] = ["../lib/gapless-sim", "lib"];
/// Names the folder of the libraries.
const VARIABLE: &str = "GAPLESS_SIM_LIBRARIES";

/// The libraries for the programs of one command.
#[derive(Debug)]
pub struct Libraries {
    folder: PathBuf,
    /// The folder, where it was made for a driver that lacks functions. It goes with this.
    _made: Option<tempfile::TempDir>,
    runtime: Option<PathBuf>,
}

impl Libraries {
    /// Finds them in the folder that is named, or else beside this program, without the functions of `lacks`.
    pub fn find(named: Option<&Path>, lacks: &[&str], with_runtime: bool) -> Result<Self, Failure> {
        let found = place(named)?;
        let runtime = found.join(RUNTIME);
        if with_runtime && !runtime.is_file() {
            let text =
                format!("{} is missing: cargo xtask build-sim --cuda-headers FOLDER builds it", runtime.display());
            return Err(Failure::Bad(text));
        }
        let made = if lacks.is_empty() { None } else { Some(copy_without(&found, lacks)?) };
        let folder = made.as_ref().map_or(found, |folder| folder.path().to_owned());
        Ok(Self { runtime: with_runtime.then(|| folder.join(RUNTIME)), folder, _made: made })
    }

    /// The variables by which a program finds the libraries.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![("LD_LIBRARY_PATH", before(&self.folder, "LD_LIBRARY_PATH"))];
        // Numba looks for the driver where the system has it.
        variables.push(("NUMBA_CUDA_DRIVER", self.folder.join(DRIVER).into_os_string()));
        if let Some(runtime) = &self.runtime {
            let cublas = Some(self.folder.join(CUBLAS)).filter(|file| file.is_file());
            let both = cublas.iter().fold(runtime.clone().into_os_string(), |list, file| with(list, file.as_os_str()));
            variables.push(("LD_PRELOAD", before(&both, "LD_PRELOAD")));
        }
        variables
    }

    /// The variable by which a program that is linked with the runtime, and finds none, finds the stand-in by name.
    pub fn named_runtime(&self) -> Option<(&'static str, OsString)> {
        let named = self.folder.join(NAMED_RUNTIME);
        let path = before(&self.folder, "LD_LIBRARY_PATH");
        (self.runtime.is_some() && named.is_dir()).then(|| ("LD_LIBRARY_PATH", with(path, named.as_os_str())))
    }
}

fn place(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let named = named.map(Path::to_owned).or_else(|| env::var_os(VARIABLE).map(PathBuf::from));
    if let Some(folder) = named {
        let folder = std::path::absolute(folder)?;
        if folder.join(DRIVER).is_file() {
            return Ok(folder);
        }
        return Err(Failure::Bad(format!("{} has no {DRIVER}: cargo xtask build-sim builds it", folder.display())));
    }
    let program = env::current_exe()?;
    let places = PLACES.map(|place| program.with_file_name(place));
    let found = places.iter().find(|folder| folder.join(DRIVER).is_file());
    found.cloned().ok_or_else(|| {
        let places = places.map(|folder| folder.display().to_string()).join(" and ");
        let text = "`cargo xtask build-sim` builds one, and --libraries names another folder";
        Failure::Bad(format!("no {DRIVER} in {places}: {text}"))
    })
}

/// A folder with the same libraries, of which the driver's lacks the functions `lacks`.
fn copy_without(folder: &Path, lacks: &[&str]) -> Result<tempfile::TempDir, Failure> {
    let copy = tempfile::tempdir()?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("libcuda.so") {
            continue;
        }
        symlink(entry.path(), copy.path().join(name))?;
    }
    let mut library = fs::read(folder.join(DRIVER))?;
    withhold(&mut library, lacks)?;
    fs::write(copy.path().join(DRIVER), library)?;
    symlink(DRIVER, copy.path().join("libcuda.so"))?;
    Ok(copy)
}

/// Gives exported functions of a library names that nobody looks up, which are as long.
fn withhold(library: &mut [u8], names: &[&str]) -> io::Result<()> {
    let mut left: Vec<&str> = names.to_vec();
    let mut at = 0;
    while let Some(zero) = library[at..].iter().position(|byte| *byte == 0) {
        at += zero + 1;
        let rest = &library[at..];
        let is_here = |name: &&str| rest.starts_with(name.as_bytes()) && rest.get(name.len()) == Some(&0);
        if let Some(name) = names.iter().find(|name| is_here(name)) {
            library[at] = b'x';
            left.retain(|other| other != name);
        }
    }
    if left.is_empty() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{DRIVER} does not export {}", left.join(", "))))
    }
}

/// A list of paths with one more in front.
fn before(path: impl AsRef<OsStr>, variable: &str) -> OsString {
    let list = path.as_ref().to_owned();
    match env::var_os(variable).filter(|rest| !rest.is_empty()) {
        Some(rest) => with(list, &rest),
        None => list,
    }
}

fn with(mut list: OsString, more: &OsStr) -> OsString {
    list.push(":");
    list.push(more);
    list
}
