//! The C headers. The test that notices an outdated header writes it, too, when it is told to.

use crate::failure::Failure;
use crate::process;
use crate::workspace::Workspace;

pub fn run(workspace: &Workspace) -> Result<(), Failure> {
    let mut test = workspace.cargo(["test", "--quiet", "--package", "gapless-capi", "--test", "header"]);
    process::run(test.arg("the_headers_are_those_of_the_sources").env("GAPLESS_WRITE_HEADER", "1"))
}
