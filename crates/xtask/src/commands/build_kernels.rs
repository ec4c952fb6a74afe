//! The kernels' PTX, and the hashes beside it (`kernels/SHA256SUMS`).
//!
//! The PTX is for compute_75 and every later device. The compiler writes the PTX version of its own release, which a 12.x
//! driver refuses; the kernels use nothing newer than PTX 6.4, so the header says 6.4. `ptxas` assembles the result as the
//! proof that it may.

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
const ARCHITECTURE: &str = "-arch=compute_75";
/// The oldest device, and one that is much newer.
const ASSEMBLED_FOR: [&str; 2] = ["-arch=sm_75", "-arch=sm_90"];
const PTX_VERSION: &str = "6.4";

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
    eprintln!("kernels built: {} files, PTX {PTX_VERSION} for compute_75", built.len());
    Ok(())
}

/// The folder of `nvcc` and `ptxas`.
fn compiler(workspace: &Workspace) -> Result<PathBuf, Failure> {
    const NVCC: &str = "nvidia/cu13/bin/nvcc";
    let environment = workspace.installed("cuda-venv");
    if python::installed(&environment, NVCC).is_none() {
        let python = python::environment(workspace, &environment)?;
        let mut pip = workspace.command(python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        process::run(pip.args(COMPILER))?;
    }
    let nvcc = python::installed(&environment, NVCC).ok_or_else(|| Failure::new("the packages held no nvcc"))?;
    Ok(nvcc.with_file_name(""))
}

fn compile(workspace: &Workspace, tools: &Path, source: &Path, out: &Path) -> Result<(), Failure> {
    let ptx = out.join(files::name(source)).with_extension("ptx");
    process::run(workspace.command(tools.join("nvcc")).args(["-ptx", ARCHITECTURE, "-o"]).arg(&ptx).arg(source))?;
    files::write(&ptx, &for_older_drivers(&files::read(&ptx)?))?;
    for device in ASSEMBLED_FOR {
        process::run(workspace.command(tools.join("ptxas")).args([device, "-o", "/dev/null"]).arg(&ptx))?;
    }
    Ok(())
}

/// Comments name the compiler's build; the version line is the one that older drivers read.
fn for_older_drivers(ptx: &str) -> String {
    let mut text = String::new();
    for line in ptx.lines().filter(|line| !line.starts_with("//")) {
        if line.starts_with(".version ") {
            text.push_str(&format!(".version {PTX_VERSION}"));
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
        assert_eq!(for_older_drivers(written), "\n.version 6.4\n.target sm_75\n\t// inside\n");
    }
}
