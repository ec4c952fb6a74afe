//! What a program is told by environment variables, checked before it is started.

use crate::Failure;
use gapless_sim_libcuda::settings::Settings;
use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::process::Command;

/// The variables of this process with changes to them.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// Sets a variable in the place of the one that this process has.
    pub fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.0.insert(name.into(), value.as_ref().to_owned());
    }

    /// The variable, changed or not.
    pub fn get(&self, name: &str) -> Option<OsString> {
        self.0.get(OsStr::new(name)).cloned().or_else(|| env::var_os(name))
    }

    /// Whether the simulation understands all that is said to it.
    ///
    /// # Errors
    /// All that is wrong, a line for each variable.
    pub fn check(&self) -> Result<(), Failure> {
        let wrong = Settings::of(env::vars_os().chain(self.0.clone())).wrong;
        if wrong.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        Err(Failure::Bad(format!("the settings of the simulation are wrong:\n  {}", lines.join("\n  "))))
    }

    /// A command that has these variables.
    pub fn command(&self, program: &[OsString]) -> Command {
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).envs(&self.0);
        command
    }

    /// What is said to the simulation, for reports.
    pub fn settings(&self) -> BTreeMap<String, String> {
        let all = env::vars_os().chain(self.0.clone());
        let text = |text: OsString| text.to_string_lossy().into_owned();
        all.map(|(name, value)| (text(name), text(value)))
            .filter(|(name, _)| name.starts_with("GAPLESS_SIM_"))
            .collect()
    }
}
