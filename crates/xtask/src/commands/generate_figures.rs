//! What is written from the table of figures: the header, the Python package's types and keys, C++, a table in the documents.

use super::generate_header;
use crate::failure::Failure;
use crate::process;
use crate::workspace::Workspace;

pub fn run(workspace: &Workspace) -> Result<(), Failure> {
    generate_header::run(workspace)?;
    let mut test = workspace.cargo(["test", "--quiet", "--package", "gapless-capi", "--test", "figures"]);
    process::run(test.arg("what_is_written").env("GAPLESS_WRITE_FIGURES", "1"))
}
