//! The list of commands, in groups.

use std::fmt::Write;

/// Commands that belong together.
struct Group {
    title: &'static str,
    /// The commands that most changes need.
    usual: &'static [&'static str],
    /// The commands that are listed with `--all` only.
    others: &'static [&'static str],
}

/// Every command belongs to one group.
const GROUPS: [Group; 5] = [
    Group { title: "Before a change is offered", usual: &["check", "ci", "ci-full"], others: &[] },
    Group {
        title: "Tests of one kind",
        usual: &["test-python", "torch-without-gpu", "model-check", "fuzz-campaign", "planted-bugs"],
        others: &["test-page", "test-interop", "sanitize", "coverage", "mutants"],
    },
    Group { title: "Measurements", usual: &["figures"], others: &["gpu-run", "gpu-compare"] },
    Group {
        title: "Packages",
        usual: &["build-capi", "build-wheel", "gpu-bundle"],
        others: &[
            "build-sim",
            "build-torch-objects",
            "test-releases",
            "build-sdist",
            "build-python-package",
            "package-crates",
            "check-interface",
            "release",
        ],
    },
    Group {
        title: "Generated files",
        usual: &[],
        others: &["generate-header", "generate-figures", "generate-bindings", "build-kernels"],
    },
];

/// Which commands a list has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    Usual,
    All,
}

impl Group {
    fn names(&self, listed: Listed) -> impl Iterator<Item = &'static str> {
        let others = if listed == Listed::All { self.others } else { &[] };
        self.usual.iter().chain(others).copied()
    }
}

/// Returns the output of `cargo xtask`: one line for each command.
pub fn help(command: &clap::Command, listed: Listed) -> String {
    let mut text = String::from(
        "The commands of gapless's developers. `cargo xtask <COMMAND> --help` says more about one.\n\n\
         Usage: cargo xtask <COMMAND> [ARGUMENTS]\n",
    );
    for group in GROUPS.iter().filter(|group| group.names(listed).next().is_some()) {
        let _ = write!(text, "\n{}:\n", group.title);
        for name in group.names(listed) {
            let about = command.find_subcommand(name).and_then(|command| command.get_about());
            let _ = writeln!(text, "  {name:<20} {}", about.map(ToString::to_string).unwrap_or_default());
        }
    }
    if listed == Listed::Usual {
        let others: usize = GROUPS.iter().map(|group| group.others.len()).sum();
        let _ = write!(text, "\n{others} more are listed by `cargo xtask --all`.\n");
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
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|group| group.names(Listed::All)).collect();
        let mut present: Vec<&str> = command.get_subcommands().map(|command| command.get_name()).collect();
        listed.sort_unstable();
        present.sort_unstable();
        assert_eq!(listed, present);
        for command in command.get_subcommands() {
            assert!(command.get_about().is_some(), "{} has no description", command.get_name());
        }
    }

    #[test]
    fn what_is_listed_by_itself_is_a_dozen_commands_at_most() {
        let usual = GROUPS.iter().flat_map(|group| group.names(Listed::Usual)).count();
        assert!(usual <= 12, "{usual} commands");
    }

    #[test]
    fn the_arguments_are_well_formed() {
        crate::Arguments::command().debug_assert();
    }
}
