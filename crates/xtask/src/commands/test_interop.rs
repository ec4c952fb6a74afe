//! The examples with the crates `cust`, `cuda-driver-sys` and `cudarc`, over the simulated driver, and programs that use two of
//! these crates without gapless.

use crate::failure::Failure;
use crate::process;
use crate::workspace::Workspace;

/// The features of gapless for other crates. `ci-full` looks at each by itself.
pub const FEATURES: [&str; 2] = ["cust", "cuda-driver-sys"];

/// The examples, which are built together.
const EXAMPLES: [&str; 3] = ["with_cust", "with_cuda_driver_sys", "with_cudarc"];

/// The crates that programs of `gapless-sim` use.
const ALONE: [&str; 2] = ["cust", "cudarc"];

/// For each of them the function after whose failure it does wrong, as `docs/using/sim.md` says it.
const FOUND: [&str; 2] = ["cuCtxSetCurrent", "cuEventCreate"];

pub fn run(workspace: &Workspace) -> Result<(), Failure> {
    let root = workspace.install_simulated_to_link()?;
    // The features of all other crates are those of the tests if the whole workspace is selected: they are not built again.
    let of_sim = ALONE.map(|feature| format!("gapless-sim/{feature}"));
    let features = [&FEATURES.map(|feature| format!("gapless/{feature}"))[..], &of_sim].concat().join(",");
    let alone = ALONE.map(|feature| format!("native_{feature}"));
    let mut build = workspace.cargo(["build", "--workspace", "--bin", "gapless-sim", "--features", &features]);
    for package in ["gapless", "gapless-sim-libcuda", "cudarc", "proptest"] {
        // They take longer to compile than the examples take to run.
        build.arg("--config").arg(format!("profile.dev.package.{package}.opt-level=0"));
    }
    build.args(EXAMPLES.into_iter().chain(alone.iter().map(String::as_str)).flat_map(|example| ["--example", example]));
    process::run(build.env("CUDA_LIBRARY_PATH", &root))?;
    for example in EXAMPLES {
        let program = workspace.target("debug/examples").join(example);
        process::run(workspace.command(program).env("LD_LIBRARY_PATH", root.join("lib64")))?;
    }
    for (program, function) in alone.iter().zip(FOUND) {
        let program = workspace.target("debug/examples").join(program);
        let sim = |arguments: &[&str]| {
            let mut sim = workspace.command(workspace.target("debug/gapless-sim"));
            sim.args(["run", "--strict", "--libraries"])
                .arg(root.join("lib64"))
                .args(arguments)
                .arg("--")
                .arg(&program);
            sim
        };
        process::run(&mut sim(&[]))?;
        let swept = sim(&["--sweep", "--only", function]).output().map(|output| output.status.code());
        if !matches!(swept, Ok(Some(1))) {
            return Err(Failure::new(format!("{}, {function}: {swept:?}", program.display())));
        }
    }
    Ok(())
}
