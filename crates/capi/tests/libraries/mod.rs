//! A folder with the libraries that cargo built, for programs in C and C++, which are compiled with warnings as errors, linked, and
//! run against the simulated driver.

#![allow(dead_code, reason = "every test binary uses a part of this module")]

#[path = "../../../../tests/simulated/mod.rs"]
mod simulated;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The name that a program asks for.
pub const SONAME: &str = include_str!("../../soname.txt").trim_ascii();

/// A folder with the two libraries under the names that programs ask for.
pub struct Libraries(tempfile::TempDir);

impl Libraries {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sim = simulated::library();
        let built = sim.parent().unwrap();
        for (file, name) in [
            ("libgapless_capi.so", "libgapless.so"),
            ("libgapless_capi.so", SONAME),
            ("libgapless_capi.a", "libgapless.a"),
        ] {
            let file = built.join(file);
            assert!(file.exists(), "{} is missing", file.display());
            symlink(file, folder.path().join(name)).unwrap();
        }
        symlink(&sim, folder.path().join("libcuda.so.1")).unwrap();
        symlink(&sim, folder.path().join("libcuda.so")).unwrap();
        Self(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Compiles one of `examples/c`.
    pub fn compile(&self, program: &str, arguments: &[&str]) -> PathBuf {
        self.compile_from("../../examples/c", program, arguments)
    }

    pub fn compile_from(&self, folder: &str, program: &str, arguments: &[&str]) -> PathBuf {
        let source = format!("{folder}/{program}.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-pedantic"]).arg(package().join(source));
        self.compiled(program, &mut compiler, arguments)
    }

    /// Compiles sources in C++, of which the first names the program.
    pub fn compile_cxx(&self, sources: &[&str], arguments: &[&str]) -> PathBuf {
        let mut compiler = Command::new("c++");
        compiler.args(["-std=c++17", "-Wpedantic"]).args(sources.iter().map(|source| package().join(source)));
        let name = Path::new(sources[0]).file_stem().unwrap().to_str().unwrap();
        self.compiled(name, &mut compiler, arguments)
    }

    fn compiled(&self, name: &str, compiler: &mut Command, arguments: &[&str]) -> PathBuf {
        let out = self.path().join(name);
        compiler.args(["-Wall", "-Wextra", "-Werror", "-g", "-pthread"]).arg("-I").arg(headers());
        let output = compiler.arg("-L").arg(self.path()).args(arguments).arg("-o").arg(&out).output();
        let output = output.expect("compilers called cc and c++");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        out
    }

    pub fn run(&self, program: &Path) -> String {
        self.run_with(program, &[])
    }

    pub fn run_with(&self, program: &Path, arguments: &[&Path]) -> String {
        let mut command = Command::new(program);
        self.run_command(command.args(arguments))
    }

    /// Runs a program, or another one with its path as an argument.
    pub fn run_command(&self, command: &mut Command) -> String {
        let output = command
            .env("LD_LIBRARY_PATH", self.path())
            .env("GAPLESS_SIM_CAPACITY", "256MiB")
            .env_remove("GAPLESS_CONF")
            .output()
            .unwrap();
        expect_success(&output)
    }
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of `gapless.h` and `gapless.hpp`.
pub fn headers() -> PathBuf {
    package().join("../../include")
}

fn expect_success(output: &Output) -> String {
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{text}", output.status);
    text
}
