//! `gapless completions` and `gapless man`: what a shell and `man` know of the command line, written from its own description.

use super::{Failure, Outcome};
use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;
use std::io::{self, Write};

/// Arguments of `gapless completions`.
#[derive(Debug, Args)]
pub(super) struct CompletionsArguments {
    /// The shell
    shell: ShellArgument,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ShellArgument {
    Bash,
    Zsh,
    Fish,
}

/// Arguments of `gapless man`.
#[derive(Debug, Args)]
pub(super) struct ManArguments {
    /// The command that the page is about [default: all of them, in one page that names each]
    command: Option<String>,
}

/// Prints the completions of `program` for a shell.
pub(super) fn completions(arguments: &CompletionsArguments, mut program: Command) -> Result<Outcome, Failure> {
    let shell = match arguments.shell {
        ShellArgument::Bash => Shell::Bash,
        ShellArgument::Zsh => Shell::Zsh,
        ShellArgument::Fish => Shell::Fish,
    };
    let name = program.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut program, name, &mut text);
    io::stdout().write_all(&text)?;
    Ok(Outcome::Success)
}

/// Prints the manual page of `program`, or of one of its commands.
pub(super) fn man(arguments: &ManArguments, mut program: Command) -> Result<Outcome, Failure> {
    // Completes the names of the commands.
    program.build();
    let page = match &arguments.command {
        None => program,
        Some(name) => {
            let found = program.find_subcommand(name).ok_or_else(|| {
                let names: Vec<&str> = program.get_subcommands().map(Command::get_name).collect();
                Failure::BadArguments(format!("there is no command '{name}': use one of {}", names.join(", ")))
            })?;
            let page_name = format!("{}-{name}", program.get_name());
            found.clone().name(page_name).version(env!("CARGO_PKG_VERSION"))
        }
    };
    let mut text = Vec::new();
    Man::new(page).render(&mut text)?;
    io::stdout().write_all(&text)?;
    Ok(Outcome::Success)
}

/// Shown below the list of options.
pub(super) const COMPLETIONS_AFTER_HELP: &str = "\
Example: gapless completions bash > ~/.local/share/bash-completion/completions/gapless";
/// Shown below the list of options.
pub(super) const MAN_AFTER_HELP: &str = "\
Example: gapless man > ~/.local/share/man/man1/gapless.1";
