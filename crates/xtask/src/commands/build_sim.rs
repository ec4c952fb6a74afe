//! `gapless-sim` with the libraries that it puts before those of a machine.

use super::torch_stand_ins::compile_c;
use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process};
use std::path::PathBuf;

/// The name of the program.
const PROGRAM: &str = "gapless-sim";
/// The folder of the libraries, from the folder of the program.
const LIBRARIES: &str = "lib/gapless-sim";

#[derive(Debug, clap::Args)]
pub struct BuildSimArguments {
    /// Folder to install in: bin/gapless-sim, and its libraries in lib/gapless-sim [default: target/sim]
    prefix: Option<PathBuf>,
    /// Folder with CUDA's cuda.h and cuda_runtime_api.h, to build the stand-ins for the CUDA runtime and NVML as well
    #[arg(long, value_name = "FOLDER")]
    cuda_headers: Option<PathBuf>,
}

pub fn run(workspace: &Workspace, arguments: &BuildSimArguments) -> Result<(), Failure> {
    let prefix = match &arguments.prefix {
        Some(given) => files::given(given)?,
        None => workspace.target("sim"),
    };
    let headers = arguments.cuda_headers.as_deref().map(files::given).transpose()?;
    if let Some(headers) = headers.as_ref().filter(|headers| !headers.join("cuda_runtime_api.h").is_file()) {
        return Err(Failure::new(format!("{} has no cuda_runtime_api.h", headers.display())));
    }
    let packages = ["--package", PROGRAM, "--package", "gapless-sim-libcuda"];
    process::run(workspace.cargo(["build", "--profile", "bundle"]).args(packages))?;
    let (bin, lib) = (prefix.join("bin"), prefix.join(LIBRARIES));
    files::create_folder(&bin)?;
    files::create_folder(&lib)?;
    let program = bin.join(PROGRAM);
    files::install(&workspace.target("bundle").join(PROGRAM), &program, 0o755)?;
    files::install(&workspace.target("bundle/libgapless_sim_libcuda.so"), &lib.join("libcuda.so.1"), 0o755)?;
    files::link("libcuda.so.1", &lib.join("libcuda.so"))?;
    if let Some(headers) = headers {
        let stand_ins = [("cuda_runtime.c", "libcudart-standin.so"), ("nvml.c", "libnvidia-ml.so.1")];
        for (source, library) in stand_ins {
            compile_c(workspace, &headers, &lib, &format!("python/tests/cuda_stand_ins/{source}"), library)?;
        }
    }
    // Where it was installed, it finds what was installed with it.
    process::run(workspace.command(&program).args(["run", "--", "true"]))?;
    println!("installed: {} run --sweep -- PROGRAM", files::shown(&program));
    Ok(())
}
