//! `gapless-sim` with the libraries that it puts before those of a machine: as a folder to install in, or as a wheel.

use super::build_torch_objects;
use super::python_package::{self, Needed};
use super::torch_stand_ins::compile_c;
use crate::failure::Failure;
use crate::old_systems::{self, OLDEST_GLIBC};
use crate::workspace::Workspace;
use crate::{files, process, python};
use std::path::{Path, PathBuf};

/// The name of the program.
const PROGRAM: &str = "gapless-sim";
/// The library of the driver.
const DRIVER: &str = "libcuda.so.1";
/// The folder of the libraries, from the folder of the program.
const LIBRARIES: &str = "lib/gapless-sim";
/// The folder of the Python package, from the root of the repository.
const PROJECT: &str = "python/sim";

#[derive(Debug, Default, clap::Args)]
pub struct BuildSimArguments {
    /// Folder to install in: bin/gapless-sim, and its libraries in lib/gapless-sim [default: target/sim]
    #[arg(conflicts_with = "wheel")]
    pub prefix: Option<PathBuf>,
    /// Folder with CUDA's cuda.h and cuda_runtime_api.h, to build the stand-ins for the CUDA runtime and NVML as well
    #[arg(long, value_name = "FOLDER")]
    pub cuda_headers: Option<PathBuf>,
    /// Build a Python wheel of it in dist, with these stand-ins; downloads CUDA's headers unless a folder has them
    #[arg(long)]
    pub wheel: bool,
}

pub fn run(workspace: &Workspace, arguments: &BuildSimArguments) -> Result<(), Failure> {
    let headers = arguments.cuda_headers.as_deref().map(files::given).transpose()?;
    if let Some(headers) = headers.as_ref().filter(|headers| !headers.join("cuda_runtime_api.h").is_file()) {
        return Err(Failure::new(format!("{} has no cuda_runtime_api.h", headers.display())));
    }
    if arguments.wheel {
        return build_wheel(workspace, headers);
    }
    let prefix = match &arguments.prefix {
        Some(given) => files::given(given)?,
        None => workspace.target("sim"),
    };
    let packages = ["--package", PROGRAM, "--package", "gapless-sim-libcuda"];
    process::run(workspace.cargo(["build", "--profile", "bundle"]).args(packages))?;
    let program = install(workspace, &workspace.target("bundle"), &prefix)?;
    if let Some(headers) = headers {
        add_stand_ins(workspace, Path::new("cc"), &headers, &prefix)?;
    }
    println!("installed: {} run --sweep -- PROGRAM", files::shown(&program));
    Ok(())
}

/// Installs what was built in `built`, and looks whether it runs. Returns the program.
fn install(workspace: &Workspace, built: &Path, prefix: &Path) -> Result<PathBuf, Failure> {
    let (bin, lib) = (prefix.join("bin"), prefix.join(LIBRARIES));
    files::create_folder(&bin)?;
    files::create_folder(&lib)?;
    let program = bin.join(PROGRAM);
    files::install(&built.join(PROGRAM), &program, 0o755)?;
    files::install(&built.join("libgapless_sim_libcuda.so"), &lib.join(DRIVER), 0o755)?;
    files::link(DRIVER, &lib.join("libcuda.so"))?;
    // Where it was installed, it finds what was installed with it.
    process::run(workspace.command(&program).args(["run", "--", "true"]))?;
    Ok(program)
}

/// Compiles the stand-ins for the CUDA runtime, NVML and cuBLAS beside the driver's library.
fn add_stand_ins(workspace: &Workspace, cc: &Path, headers: &Path, prefix: &Path) -> Result<(), Failure> {
    let sources = [
        ("cuda_runtime.c", "libcudart-standin.so"),
        ("nvml.c", "libnvidia-ml.so.1"),
        ("cublas.c", "libcublas-standin.so"),
    ];
    for (source, library) in sources {
        let source = format!("python/tests/cuda_stand_ins/{source}");
        compile_c(workspace.command(cc), headers, &prefix.join(LIBRARIES), &source, library)?;
    }
    // For programs that are linked with the runtime and would find none; the command says who they are.
    let named = prefix.join(LIBRARIES).join("runtime");
    files::create_folder(&named)?;
    for name in ["libcudart.so", "libcudart.so.12", "libcudart.so.13"] {
        files::link("../libcudart-standin.so", &named.join(name))?;
    }
    Ok(())
}

/// A wheel has the same folders inside its package.
fn build_wheel(workspace: &Workspace, headers: Option<PathBuf>) -> Result<(), Failure> {
    process::require(&["cc", "strip", "objdump"])?;
    let python = python::interpreter()?;
    python_package::require_build_tools(workspace, &python)?;
    let headers = headers.map_or_else(|| build_torch_objects::cuda_headers(workspace), Ok)?;
    let profile = ["--profile", "bundle"];
    let built = old_systems::build(workspace, &profile, "bundle", &[PROGRAM, "gapless-sim-libcuda"])?;

    let folder = files::temporary_folder()?;
    let is_cached = |file: &Path| file.components().any(|part| part.as_os_str() == "__pycache__");
    files::copy_below(&workspace.path(PROJECT), folder.path(), |file| !is_cached(file))?;
    python_package::copy_licences(workspace, folder.path())?;
    let package = folder.path().join("gapless_sim");
    let for_old_systems = old_systems::linker(workspace, folder.path())?;
    let cc = for_old_systems.as_deref().unwrap_or(Path::new("cc"));
    let program = install(workspace, &built, &package)?;
    add_stand_ins(workspace, cc, &headers, &package)?;
    let mut binaries = files::entries(&package.join(LIBRARIES))?;
    binaries.retain(|file| file.is_file() && !file.is_symlink());
    binaries.push(program);
    for binary in &binaries {
        process::run(workspace.command("strip").arg("--strip-unneeded").arg(binary))?;
    }
    let newer = python_package::newer(workspace, &binaries, &[("GLIBC_", OLDEST_GLIBC)])?;
    for Needed { file, library, version } in &newer {
        eprintln!("{file} asks for {library}{version}");
    }
    python_package::build_wheel(workspace, &python, folder.path(), &newer, "gapless_sim-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wheel_has_the_version_of_the_crates() {
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PROJECT).join("gapless_sim/__init__.py");
        let version = format!("__version__ = \"{}\"\n", env!("CARGO_PKG_VERSION"));
        assert!(files::read(&module).unwrap().contains(&version), "{version}");
    }
}
