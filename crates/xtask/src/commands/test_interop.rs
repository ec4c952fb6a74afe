//! The examples of the features `cust`, `cuda-driver-sys` and `cudarc`, over the simulated driver.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process};

pub fn run(workspace: &Workspace) -> Result<(), Failure> {
    // The first two link -lcuda and look for it in the folders that CUDA_LIBRARY_PATH lists, under lib64.
    let root = workspace.target("interop");
    let folder = root.join("lib64");
    files::create_folder(&folder)?;
    workspace.install_simulated(&folder)?;
    files::copy(&folder.join("libcuda.so.1"), &folder.join("libcuda.so"))?;
    for feature in ["cust", "cuda-driver-sys", "cudarc"] {
        let example = format!("with_{}", feature.replace('-', "_"));
        let mut build = workspace.cargo(["build", "--features", feature, "--example", &example]);
        process::run(build.env("CUDA_LIBRARY_PATH", &root))?;
        let program = workspace.target("debug/examples").join(&example);
        process::run(workspace.command(program).env("LD_LIBRARY_PATH", &folder))?;
    }
    Ok(())
}
