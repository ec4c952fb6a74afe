//! What checks install: each tool with its version, as the files in `.ci` name it.

use crate::failure::Failure;
use crate::files;
use crate::workspace::Workspace;

const FROM_PYPI: &str = ".ci/requirements.txt";
const OF_CARGO: &str = ".ci/cargo-tools.txt";

/// A package from PyPI, such as `pytest==9.2.0`.
pub fn from_pypi(workspace: &Workspace, name: &str) -> Result<String, Failure> {
    named(workspace, FROM_PYPI, &format!("{name}=="))
}

/// What `cargo install` takes for a tool, such as `cargo-mutants@27.1.0`.
pub fn of_cargo(workspace: &Workspace, name: &str) -> Result<String, Failure> {
    named(workspace, OF_CARGO, &format!("{name}@"))
}

/// The first word of the line that begins so.
fn named(workspace: &Workspace, list: &str, beginning: &str) -> Result<String, Failure> {
    let text = files::read(&workspace.path(list))?;
    let line = text.lines().find(|line| line.starts_with(beginning));
    let tool = line.and_then(|line| line.split(' ').next());
    tool.map(str::to_owned).ok_or_else(|| Failure::new(format!("{list} has no line {beginning}VERSION")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_comes_with_its_version() {
        let workspace = Workspace::find().expect("a workspace");
        let pytest = from_pypi(&workspace, "pytest").unwrap();
        assert!(pytest.starts_with("pytest==") && pytest.ends_with(char::is_numeric), "{pytest}");
        let mutants = of_cargo(&workspace, "cargo-mutants").unwrap();
        assert!(mutants.starts_with("cargo-mutants@") && mutants.ends_with(char::is_numeric), "{mutants}");
        let failure = of_cargo(&workspace, "cargo-mutant").unwrap_err().to_string();
        assert_eq!(failure, ".ci/cargo-tools.txt has no line cargo-mutant@VERSION");
    }
}
