//! Whether the crates can be published: what each carries, and that it builds from that alone.

use crate::failure::Failure;
use crate::process;
use crate::workspace::Workspace;

/// The crates that are published, each after those that it needs.
pub const CRATES: [&str; 3] = ["gapless", "gapless-share", "gapless-trace"];
/// The files that each of them has to carry.
const NEEDED: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md"];
/// Beginnings and endings of the paths of a crate's files. Tests, benchmarks and tools stay here.
const BEGINNINGS: [&str; 5] = ["src/", "examples/", "kernels/", "Cargo.", ".cargo_vcs_info"];
const ENDINGS: [&str; 3] = [".md", "LICENSE-APACHE", "LICENSE-MIT"];

pub fn run(workspace: &Workspace) -> Result<(), Failure> {
    for name in CRATES {
        let list = process::output(&mut workspace.cargo(["package", "--list", "--allow-dirty", "--package", name]))?;
        let needless: Vec<&str> = list.lines().filter(|file| !is_wanted(file)).collect();
        if !needless.is_empty() {
            return Err(Failure::new(format!("{name} carries {}", needless.join(", "))));
        }
        if let Some(missing) = NEEDED.into_iter().find(|needed| !list.lines().any(|file| file == *needed)) {
            return Err(Failure::new(format!("{name} lacks {missing}")));
        }
        println!("{name}: {} files", list.lines().count());
    }
    let mut publish = workspace.cargo(["publish", "--dry-run", "--allow-dirty"]);
    process::run(publish.args(CRATES.iter().flat_map(|name| ["--package", name])))
}

fn is_wanted(file: &str) -> bool {
    BEGINNINGS.iter().any(|beginning| file.starts_with(beginning))
        || ENDINGS.iter().any(|ending| file.ends_with(ending))
}
