//! The page of `gapless advise --html`, in a real browser.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process, python, tools};
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "GAPLESS names a program that was built before, and tested in place of a new one.\n\
                        Without a browser it skips, and fails where GAPLESS_REQUIRE_BROWSER is set.")]
pub struct TestPageArguments {
    /// Write the pictures of the documents to docs/images
    #[arg(long)]
    screenshots: bool,

    /// Arguments of pytest
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub fn run(workspace: &Workspace, arguments: &TestPageArguments) -> Result<(), Failure> {
    let Some(browser) = browser() else {
        return without("there is no Chromium here (apt-get install chromium); CHROMIUM names another one");
    };
    let own = match environment(workspace) {
        Ok(own) => own,
        Err(failure) => return without(&format!("playwright cannot be installed here: {failure}")),
    };
    let gapless = match env::var_os("GAPLESS") {
        Some(built) => PathBuf::from(built),
        None => {
            process::run(&mut workspace.cargo(["build", "--package", "gapless-cli", "--bin", "gapless"]))?;
            workspace.target("debug/gapless")
        }
    };
    let mut pytest = workspace.command(python::environment(workspace, &own)?);
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "crates/cli/tests/browser"]);
    pytest.args(&arguments.arguments).env("CHROMIUM", browser);
    if arguments.screenshots {
        let folder = workspace.path("docs/images");
        files::create_folder(&folder)?;
        pytest.env("GAPLESS_SCREENSHOTS", folder);
    }
    process::run(pytest.env("GAPLESS", gapless))
}

/// What a machine without a browser comes to: where one has to be, as CI says of its own machines, that is a failure.
fn without(why: &str) -> Result<(), Failure> {
    skip(env::var_os(REQUIRED).is_some_and(|value| !value.is_empty()), why)
}

const REQUIRED: &str = "GAPLESS_REQUIRE_BROWSER";

fn skip(is_required: bool, why: &str) -> Result<(), Failure> {
    if is_required {
        return Err(Failure::new(format!("{why} ({REQUIRED} is set)")));
    }
    println!("skipped: {why}");
    Ok(())
}

/// A virtual environment with playwright and pytest. The package's own browser is not used, and not fetched.
pub fn environment(workspace: &Workspace) -> Result<PathBuf, Failure> {
    let own = workspace.target("page-tests");
    let pytest = tools::from_pypi(workspace, "pytest")?;
    python::packaged(workspace, &own, &["playwright==1.65.2", &pytest], "playwright/__init__.py")?;
    Ok(own)
}

/// The browser that `CHROMIUM` names, or else one of the usual names.
pub fn browser() -> Option<PathBuf> {
    let named = env::var("CHROMIUM").ok().filter(|name| !name.is_empty());
    match named {
        Some(name) => process::find(&name),
        None => ["chromium", "chromium-browser", "google-chrome"].iter().find_map(|name| process::find(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_browser_skips_unless_it_has_to_have_one() {
        assert!(skip(false, "there is none").is_ok());
        let failure = skip(true, "there is none").unwrap_err().to_string();
        assert_eq!(failure, "there is none (GAPLESS_REQUIRE_BROWSER is set)");
    }
}
