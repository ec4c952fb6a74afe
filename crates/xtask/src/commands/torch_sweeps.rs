//! Sweeps over a program that runs PyTorch on gapless: each call of the driver that is about memory fails in turn, and no run may
//! crash, hold memory, break a rule of the driver, or end with a request that fails twice.

use super::torch_stand_ins::StandIns;
use crate::failure::Failure;
use crate::process;
use crate::workspace::Workspace;
use std::ffi::OsStr;

const PROGRAM: &str = "crates/sim/tests/programs/on_gapless.py";
/// The functions whose calls fail.
const MEMORY: &str = "cuMemAddressFree,cuMemAddressReserve,cuMemCreate,cuMemMap,cuMemRelease,cuMemSetAccess,cuMemUnmap";
/// Of many calls of a function, each so many fails.
const EVERY: &str = "20";

/// With the allocator object, also of memory that sleeps, and with the plug-in.
pub fn run(workspace: &Workspace, stand_ins: &StandIns) -> Result<(), Failure> {
    process::run(&mut workspace.cargo(["build", "--quiet", "--package", "gapless-sim"]))?;
    let plug_in = ["-W", "ignore", "-m", "gapless.torch"];
    let object = &plug_in[2..];
    let folder = stand_ins.folder().as_os_str();
    for (way, objects, before, after) in [
        ("object", folder, object, None),
        ("object, with sleeps", folder, object, Some("sleeps")),
        ("plug-in", OsStr::new("off"), &plug_in[..], None),
    ] {
        println!("{way}:");
        let python = stand_ins.python(workspace, objects);
        let mut sweep = workspace.command(workspace.target("debug/gapless-sim"));
        let of_libraries = ["LD_LIBRARY_PATH", "LD_PRELOAD"].map(OsStr::new);
        for (name, value) in python.get_envs().filter(|(name, _)| !of_libraries.contains(name)) {
            match value {
                Some(value) => sweep.env(name, value),
                None => sweep.env_remove(name),
            };
        }
        sweep.args(["run", "--runtime", "--libraries"]).arg(stand_ins.folder());
        sweep.args(["--capacity", "256MiB", "--strict", "--sweep", "--every", EVERY, "--only", MEMORY, "--"]);
        sweep.arg(python.get_program()).args(before).arg(workspace.path(PROGRAM)).args(after);
        process::run(&mut sweep)?;
    }
    Ok(())
}
