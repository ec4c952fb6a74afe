//! Published packages over the simulated driver: what they do where a call fails, as `docs/using/sim.md` says it.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{process, python, wheels};
use std::path::Path;

/// The tests that need packages.
const TESTS: [&str; 3] = ["published", "rmm", "numba"];

/// A wheel, and the beginnings of the files that are taken from it.
type Wheel = (&'static str, &'static [&'static str]);

/// The last of RMM whose headers need no library of RMM's, and what they log with.
pub const RMM: Wheel = ("librmm-cu12==25.4.0", &["librmm/include/"]);
pub const RMM_LOGGER: Wheel =
    ("rapids-logger==0.1.19", &["rapids_logger/include/", "rapids_logger/lib64/librapids_logger.so"]);
/// RMM of today.
const RMM_NOW: Wheel = ("librmm-cu13==26.10.0", &["librmm/include/"]);

const NUMBA: &str = "numba-cuda[cu13]==0.30.4";

/// Runs the tests with an environment that has PyTorch, and a folder that has the wheels of modules for it; adds those of others.
pub fn run(workspace: &Workspace, torch: &Path, modules: &Path) -> Result<(), Failure> {
    for (package, beginnings) in [RMM, RMM_NOW, RMM_LOGGER] {
        wheels::unpacked(workspace, package, &modules.join(package), beginnings)?;
    }
    let numba = workspace.installed("numba-env");
    python::packaged(workspace, &numba, &[NUMBA], "numba_cuda")?;
    let packages = ["--package", "gapless-sim", "--package", "gapless-capi"];
    let mut tests = workspace.cargo(["test", "--quiet"]);
    tests.args(packages).args(TESTS.iter().flat_map(|test| ["--test", test]));
    process::run(
        tests.env("GAPLESS_TORCH_ENV", torch).env("GAPLESS_TORCH_MODULES", modules).env("GAPLESS_NUMBA_ENV", numba),
    )
}
