//! The examples of the features `cust`, `cuda-driver-sys` and `cudarc`, over the simulated driver.

use crate::failure::Failure;
use crate::process;
use crate::workspace::Workspace;

/// The features, each with an example. The examples are built together; `ci-full` looks at each by itself.
pub const FEATURES: [&str; 3] = ["cust", "cuda-driver-sys", "cudarc"];

pub fn run(workspace: &Workspace) -> Result<(), Failure> {
    let root = workspace.install_simulated_to_link()?;
    let examples = FEATURES.map(|feature| format!("with_{}", feature.replace('-', "_")));
    // The features of all other crates are those of the tests if the whole workspace is selected: they are not built again.
    let features = FEATURES.map(|feature| format!("gapless/{feature}")).join(",");
    let mut build = workspace.cargo(["build", "--workspace", "--features", &features]);
    for package in ["gapless", "gapless-sim-libcuda", "cudarc", "proptest"] {
        // They take longer to compile than the examples take to run.
        build.arg("--config").arg(format!("profile.dev.package.{package}.opt-level=0"));
    }
    build.args(examples.iter().flat_map(|example| ["--example", example]));
    process::run(build.env("CUDA_LIBRARY_PATH", &root))?;
    for example in examples {
        let program = workspace.target("debug/examples").join(&example);
        process::run(workspace.command(program).env("LD_LIBRARY_PATH", root.join("lib64")))?;
    }
    Ok(())
}
