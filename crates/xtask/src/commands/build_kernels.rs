//! The kernels' PTX, and the hashes beside it (`kernels/SHA256SUMS`).
//!
//! The PTX is for compute_75 and every later device. The compiler writes the PTX version of its own release, which a 12.x
//! driver refuses; the kernels use nothing newer than PTX 6.4, so the header says 6.4. `ptxas` assembles the result as the
//! proof that it may. One source has a target of its own (`DEPENDENT`): only an experiment of `gapless probe` loads it.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process, python};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "Installs the compiler from PyPI in the target folder if it is not there.")]
pub struct BuildKernelsArguments {
    /// Compile into a temporary folder and fail when the result differs from what is checked in
    #[arg(long)]
    check: bool,
}

const COMPILER: [&str; 4] =
    ["nvidia-cuda-nvcc==13.0.88", "nvidia-nvvm==13.0.88", "nvidia-cuda-crt==13.0.88", "nvidia-cuda-runtime==13.0.*"];
/// The devices that a source is compiled for.
struct Target {
    architecture: &'static str,
    /// The oldest device, and one that is much newer.
    assembled_for: [&'static str; 2],
    ptx_version: &'static str,
}
const TARGET: Target =
    Target { architecture: "-arch=compute_75", assembled_for: ["-arch=sm_75", "-arch=sm_90"], ptx_version: "6.4" };
/// Programmatic dependent launch needs a newer device, whose drivers know a newer PTX.
const DEPENDENT: Target =
    Target { architecture: "-arch=compute_90", assembled_for: ["-arch=sm_90", "-arch=sm_100"], ptx_version: "7.8" };
/// Where the compiler is installed, and a file of it.
const ENVIRONMENT: &str = "cuda-venv";
const NVCC: &str = "nvidia/cu13/bin/nvcc";

pub fn run(workspace: &Workspace, arguments: &BuildKernelsArguments) -> Result<(), Failure> {
    let tools = compiler(workspace)?;
    let kernels = workspace.path("kernels");
    let out = files::temporary_folder()?;
    for source in files::with_ending(&kernels, "cu")? {
        compile(workspace, &tools, &source, out.path())?;
    }
    let built = files::with_ending(out.path(), "ptx")?;
    if arguments.check {
        return built.iter().try_for_each(|ptx| {
            process::run(workspace.command("diff").arg("-u").arg(kernels.join(files::name(ptx))).arg(ptx))
        });
    }
    for old in files::with_ending(&kernels, "ptx")? {
        files::remove(&old)?;
    }
    for ptx in &built {
        files::copy(ptx, &kernels.join(files::name(ptx)))?;
    }
    write_hashes(workspace, &kernels)?;
    eprintln!("kernels built: {} files", built.len());
    Ok(())
}

/// The folder of `nvcc` and `ptxas`.
fn compiler(workspace: &Workspace) -> Result<PathBuf, Failure> {
    let nvcc = python::packaged(workspace, &workspace.installed(ENVIRONMENT), &COMPILER, NVCC)?;
    Ok(nvcc.with_file_name(""))
}

fn compile(workspace: &Workspace, tools: &Path, source: &Path, out: &Path) -> Result<(), Failure> {
    let target = if files::name(source) == "dependent.cu" { DEPENDENT } else { TARGET };
    let ptx = out.join(files::name(source)).with_extension("ptx");
    let mut nvcc = workspace.command(tools.join("nvcc"));
    process::run(nvcc.args(["-ptx", target.architecture, "-o"]).arg(&ptx).arg(source))?;
    files::write(&ptx, &for_older_drivers(&files::read(&ptx)?, target.ptx_version))?;
    for device in target.assembled_for {
        process::run(workspace.command(tools.join("ptxas")).args([device, "-o", "/dev/null"]).arg(&ptx))?;
    }
    Ok(())
}

/// Comments name the compiler's build; the version line is the one that older drivers read.
fn for_older_drivers(ptx: &str, version: &str) -> String {
    let mut text = String::new();
    for line in ptx.lines().filter(|line| !line.starts_with("//")) {
        if line.starts_with(".version ") {
            text.push_str(&format!(".version {version}"));
        } else {
            text.push_str(line);
        }
        text.push('\n');
    }
    text
}

fn write_hashes(workspace: &Workspace, kernels: &Path) -> Result<(), Failure> {
    let mut names = Vec::new();
    for ending in ["cu", "cuh", "ptx"] {
        names.extend(files::with_ending(kernels, ending)?.iter().map(|path| files::name(path)));
    }
    let hashes = process::output(workspace.command("sha256sum").current_dir(kernels).arg("--").args(names))?;
    files::write(&kernels.join("SHA256SUMS"), &hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_go_and_the_version_is_an_old_one() {
        let written = "//\n// Compiler Build ID: 1\n//\n\n.version 9.0\n.target sm_75\n\t// inside\n";
        assert_eq!(for_older_drivers(written, "6.4"), "\n.version 6.4\n.target sm_75\n\t// inside\n");
    }

    /// Where the compiler has been installed by this command, it still builds the same PTX.
    #[test]
    fn the_compiler_builds_what_is_checked_in() {
        let workspace = Workspace::find().expect("a workspace");
        if python::installed(&workspace.installed(ENVIRONMENT), NVCC).is_none() {
            eprintln!("skipped: the CUDA compiler is not installed (cargo xtask build-kernels installs it)");
            return;
        }
        run(&workspace, &BuildKernelsArguments { check: true })
            .expect("cargo xtask build-kernels, and a look at the difference");
    }
}
