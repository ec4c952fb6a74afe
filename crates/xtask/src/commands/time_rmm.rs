//! RMM's random allocations, on its own resources and on gapless's, over the simulated driver.

use super::build_capi;
use super::guests::{RMM, RMM_LOGGER};
use super::torch_stand_ins::StandIns;
use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process, wheels};
use std::path::Path;

/// The program, with the numbers of its requests and its rounds.
const RANDOM: &str = "crates/capi/benches/rmm_random.cpp";
const REQUESTS: [&str; 3] = ["1000", "10000", "100000"];
const ROUNDS: &str = "5";

/// Prints what a step of random allocations takes on RMM's resources of 25.4, beside gapless's in the same run.
pub fn run(workspace: &Workspace, stand_ins: &StandIns, modules: &Path) -> Result<(), Failure> {
    let (rmm, logger) = (modules.join(RMM.0), modules.join(RMM_LOGGER.0).join("rapids_logger"));
    for (package, beginnings) in [RMM, RMM_LOGGER] {
        wheels::unpacked(workspace, package, &modules.join(package), beginnings)?;
    }
    stand_ins.optimise(workspace)?;
    let (folder, program) = (stand_ins.folder(), stand_ins.folder().join("rmm_random"));
    files::link("libgapless.so", &folder.join(build_capi::SONAME))?;
    let mut compiler = workspace.command("c++");
    compiler.args(["-std=c++17", "-O2", "-DNDEBUG", "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE"]);
    for include in ["", "rapids", "rapids/libcudacxx"] {
        compiler.arg("-isystem").arg(rmm.join("librmm/include").join(include));
    }
    compiler.arg("-isystem").arg(logger.join("include")).arg("-isystem").arg(stand_ins.cuda_headers());
    compiler.args(["-I", "include", RANDOM, "-o"]).arg(&program).arg(folder.join("libcudart-standin.so"));
    compiler.arg("-L").arg(folder).arg("-L").arg(logger.join("lib64"));
    process::run(compiler.args(["-lrapids_logger", "-lcuda", "-ldl", "-lgapless"]))?;
    for requests in REQUESTS {
        let mut timed = workspace.command(&program);
        timed.args([requests, ROUNDS]).env("GAPLESS_SIM_CAPACITY", "40GiB");
        timed.env("LD_LIBRARY_PATH", process::joined(&[folder, &logger.join("lib64")]));
        let told = process::output(&mut timed)?;
        println!("{requests} requests, ns a step, and how many times gapless's:");
        let rows: Vec<(&str, f64)> = told.lines().filter_map(row).collect();
        let gapless = rows.first().ok_or_else(|| Failure::new(format!("the program said: {told}")))?.1;
        for (name, nanoseconds) in rows {
            println!("  {name:20} {nanoseconds:8.0} {:6.2}", nanoseconds / gapless);
        }
    }
    Ok(())
}

fn row(line: &str) -> Option<(&str, f64)> {
    let (name, nanoseconds) = line.split_once(' ')?;
    Some((name, nanoseconds.parse().ok()?))
}
