//! The command with the simulated driver that cargo built, and C programs for it.

#![allow(dead_code, reason = "every test binary uses a part of this module")]

pub mod python;
pub mod pytorch;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with the libraries, and programs.
pub struct World(tempfile::TempDir);

impl World {
    pub fn new() -> Self {
        let world = Self(tempfile::tempdir().unwrap());
        let driver = beside("libgapless_sim_libcuda.so").expect("the simulated driver is built");
        for name in ["libcuda.so.1", "libcuda.so"] {
            std::fs::create_dir_all(world.path("lib")).unwrap();
            symlink(&driver, world.path("lib").join(name)).unwrap();
        }
        world
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Compiles one of `programs`.
    pub fn compile(&self, program: &str, flags: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{program}.c"));
        let lib = self.path("lib");
        let flags: Vec<_> = flags.iter().chain(&["-lcuda", "-ldl"]).collect();
        self.compile_with(&source, program, |cc| {
            cc.arg("-L").arg(lib).args(flags);
        })
    }

    /// Compiles a program with what `link` adds to the compiler's command.
    pub fn compile_with(&self, source: &Path, name: &str, link: impl FnOnce(&mut Command)) -> PathBuf {
        let out = self.path(name);
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"]).arg(source);
        link(&mut cc);
        let output = cc.arg("-o").arg(&out).output().expect("a C compiler called cc");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        out
    }

    /// `gapless-sim run` with these arguments.
    pub fn command(&self, arguments: &[&str], program: &[&Path]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gapless-sim"));
        command.arg("run").arg("--libraries").arg(self.path("lib")).args(arguments).arg("--").args(program);
        command.env_remove("GAPLESS_CONF");
        command
    }

    /// The same, run to its end.
    pub fn run(&self, arguments: &[&str], program: &[&Path]) -> Ended {
        Ended::of(self.command(arguments, program).output().unwrap())
    }
}

/// How a command ended, with all that it wrote.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Asserts that the command was refused with code 2 and a text that has each of these words.
    pub fn expect_refused(&self, words: &[&str]) {
        assert_eq!(self.code, Some(2), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word} is not in {self:?}");
        }
    }

    /// The cells of the rows of a sweep's table.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let lines = self.stdout.lines().filter(|line| line.starts_with('│')).skip(1);
        let cells = |line: &str| line.split(['│', '┆']).map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        lines.map(|line| cells(line)[1..7].to_vec()).collect()
    }
}

/// A library that cargo built beside the test, if it did.
pub fn beside(name: &str) -> Option<PathBuf> {
    Some(std::env::current_exe().unwrap().with_file_name(name)).filter(|path| path.exists())
}

/// What is in the wheel of a published package, in the folder that `GAPLESS_TORCH_MODULES` names.
pub fn module(package: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("GAPLESS_TORCH_MODULES").map(PathBuf::from);
    let folder = folder.map(|folder| folder.join(package)).filter(|folder| folder.is_dir());
    if folder.is_none() {
        println!("skipped: GAPLESS_TORCH_MODULES names no folder with {package}");
    }
    folder
}
