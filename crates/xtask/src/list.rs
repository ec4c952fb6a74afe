//! The list of all commands, in groups.

use std::fmt::Write;

/// Every command belongs to one group.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Before a change is offered", &["check", "ci", "ci-full"]),
    (
        "Tests of one kind",
        &[
            "test-python",
            "test-page",
            "test-interop",
            "torch-without-gpu",
            "model-check",
            "sanitize",
            "coverage",
            "fuzz-campaign",
            "mutants",
            "planted-bugs",
        ],
    ),
    ("Measurements", &["figures", "gpu-run", "gpu-compare"]),
    (
        "Packages",
        &[
            "build-capi",
            "build-torch-objects",
            "build-wheel",
            "build-sdist",
            "build-python-package",
            "package-crates",
            "check-interface",
            "gpu-bundle",
        ],
    ),
    ("Generated files", &["generate-header", "generate-bindings", "build-kernels"]),
];

/// What `cargo xtask` prints: one line for each command.
pub fn help(command: &clap::Command) -> String {
    let mut text = String::from(
        "The commands of gapless's developers. `cargo xtask <COMMAND> --help` says more about one.\n\n\
         Usage: cargo xtask <COMMAND> [ARGUMENTS]\n",
    );
    for (title, names) in GROUPS {
        let _ = write!(text, "\n{title}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(|command| command.get_about());
            let _ = writeln!(text, "  {name:<20} {}", about.map(ToString::to_string).unwrap_or_default());
        }
    }
    text.push_str("\nEverything is built in the folder that CARGO_TARGET_DIR names, or in target/.\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_is_in_one_group_and_says_what_it_does() {
        let command = crate::Arguments::command();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut present: Vec<&str> = command.get_subcommands().map(|command| command.get_name()).collect();
        listed.sort_unstable();
        present.sort_unstable();
        assert_eq!(listed, present);
        for command in command.get_subcommands() {
            assert!(command.get_about().is_some(), "{} has no description", command.get_name());
        }
    }

    #[test]
    fn the_arguments_are_well_formed() {
        crate::Arguments::command().debug_assert();
    }
}
