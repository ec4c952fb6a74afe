//! The allocator objects that a wheel carries, for all minors of PyTorch that have one. The headers come from PyPI's wheels, of
//! which only these are kept.

use super::torch_object::{Headers, Version, compile};
use crate::failure::Failure;
use crate::wheels::unpacked;
use crate::workspace::Workspace;
use crate::{files, old_systems};
use std::path::{Path, PathBuf};

/// The newest release of each minor.
pub const VERSIONS: [&str; 8] = ["2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"];

/// Of CUDA, the interface needs types only, which have not changed between these minors.
const CUDA: [&str; 2] = ["nvidia-cuda-runtime==13.2.86", "nvidia-cuda-crt==13.2.86"];

#[derive(Debug, Default, clap::Args)]
#[command(after_help = "Downloads 0.5 to 1 GB for each version once, and keeps 100 MB of it in the target folder.")]
pub struct TorchObjectsArguments {
    /// Versions of PyTorch, such as 2.15.0 (default: all that a wheel carries)
    versions: Vec<String>,
}

pub fn run(workspace: &Workspace, arguments: &TorchObjectsArguments) -> Result<(), Failure> {
    old_systems::require_cxx()?;
    let versions: Vec<&str> = match arguments.versions.as_slice() {
        [] => VERSIONS.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    let folder = objects(workspace);
    files::create_folder(&folder)?;
    let cuda = cuda_headers(workspace)?;
    for version in versions {
        let torch = torch_headers(workspace, version)?;
        println!("{}", files::shown(&compile(workspace, &Headers { torch, cuda: cuda.clone() }, &folder)?));
    }
    Ok(())
}

/// Fails where an object that a wheel carries is missing, or older than what it is built from.
pub fn require_all(workspace: &Workspace) -> Result<(), Failure> {
    let mut sources = files::below(&workspace.path("python/src/allocator_object"))?;
    sources
        .extend(["gapless.h", "gapless_share.h", "gapless_torch.h"].map(|name| workspace.path("include").join(name)));
    let lacking = lacking(&objects(workspace), &sources)?;
    if lacking.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the allocator objects of PyTorch {} are missing or older than their sources: cargo xtask build-torch-objects builds all \
         (it downloads 0.5 to 1 GB for each version, once); --without-objects builds a wheel with which PyTorch takes the plug-in",
        lacking.join(", ")
    )))
}

/// The versions of PyTorch whose object is not in `folder`, or older than one of `sources`.
fn lacking(folder: &Path, sources: &[PathBuf]) -> Result<Vec<&'static str>, Failure> {
    let changed = sources.iter().map(|source| files::modified(source)).collect::<Result<Vec<_>, _>>()?;
    let mut lacking = Vec::new();
    for version in VERSIONS {
        let object = folder.join(Version::of(version)?.file_name());
        if !object.exists() || Some(files::modified(&object)?) < changed.iter().max().copied() {
            lacking.push(version);
        }
    }
    Ok(lacking)
}

/// Where the objects are.
pub fn objects(workspace: &Workspace) -> PathBuf {
    workspace.target("torch-objects")
}

fn torch_headers(workspace: &Workspace, version: &str) -> Result<PathBuf, Failure> {
    let folder = workspace.installed("torch-headers").join(version);
    let kept = ["torch/include/", "torch/version.py", "torch/lib/libc10.so", "torch/lib/libc10_cuda.so"];
    unpacked(workspace, &format!("torch=={version}"), &folder, &kept)?;
    Ok(folder.join("torch"))
}

/// The headers of CUDA's runtime and driver, which are downloaded where they are not yet.
pub fn cuda_headers(workspace: &Workspace) -> Result<PathBuf, Failure> {
    let folder = workspace.installed("torch-headers").join("cuda");
    for package in CUDA {
        let own = folder.join(package.split('=').next().expect("a split has a first part"));
        unpacked(workspace, package, &own, &["nvidia/"])?;
        // Both packages have parts of one folder.
        for header in files::below(&own)? {
            let inside = header.strip_prefix(&own).expect("it lies below");
            let parts: PathBuf = inside.iter().skip_while(|part| *part != "include").skip(1).collect();
            let all = folder.join("include").join(parts);
            if !all.exists() && header.is_file() && inside.iter().any(|part| part == "include") {
                files::create_folder(all.parent().expect("a file lies in a folder"))?;
                files::copy(&header, &all)?;
            }
        }
    }
    Ok(folder.join("include"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wheels::requirement;
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    /// Those of x86-64 and of aarch64.
    #[test]
    fn what_a_release_is_compiled_against_has_recorded_hashes() {
        let torch = VERSIONS.map(|version| format!("torch=={version}"));
        for package in torch.iter().map(String::as_str).chain(CUDA) {
            assert_eq!(requirement(package).matches(" --hash=sha256:").count(), 2, "{package}");
        }
        assert_eq!(requirement("torch==2.15"), "torch==2.15");
    }

    #[test]
    fn objects_that_are_missing_or_older_than_a_source_lack() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("object.cpp");
        files::write(&source, "").unwrap();
        assert_eq!(lacking(folder.path(), std::slice::from_ref(&source)).unwrap(), VERSIONS);
        for version in VERSIONS {
            let object = File::create(folder.path().join(Version::of(version).unwrap().file_name())).unwrap();
            object.set_modified(SystemTime::now() + Duration::from_secs(60)).unwrap();
        }
        assert!(lacking(folder.path(), std::slice::from_ref(&source)).unwrap().is_empty());
        let old = File::options().write(true).open(folder.path().join("_torch_object_2_9.so")).unwrap();
        old.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
        assert_eq!(lacking(folder.path(), &[source]).unwrap(), ["2.9.1"]);
    }
}
