//! The repository, and where it is built.

use crate::failure::Failure;
use crate::{files, process};
use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Both folders are absolute.
#[derive(Debug)]
pub struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// Asks cargo for the target folder, which `CARGO_TARGET_DIR` and cargo's configuration both may set.
    pub fn find() -> Result<Self, Failure> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/xtask is two levels down");
        let described = described(root)?;
        let target =
            described["target_directory"].as_str().ok_or_else(|| Failure::new("cargo names no target folder"))?;
        Ok(Self { root: root.to_owned(), target: target.into() })
    }

    /// What `cargo metadata` says now of the workspace and its crates.
    pub fn described(&self) -> Result<serde_json::Value, Failure> {
        described(&self.root)
    }

    /// A path inside the repository.
    pub fn path(&self, inside: impl AsRef<Path>) -> PathBuf {
        self.root.join(inside)
    }

    /// A path inside the folder that cargo builds in.
    pub fn target(&self, inside: impl AsRef<Path>) -> PathBuf {
        self.target.join(inside)
    }

    /// A path inside the folder of what is installed once: tools and environments. It is the target folder too, except
    /// under `coverage env`, which has a target folder inside of it.
    pub fn installed(&self, inside: impl AsRef<Path>) -> PathBuf {
        env::var_os("GAPLESS_TARGET_DIR").map_or_else(|| self.target.clone(), PathBuf::from).join(inside)
    }

    /// A program to be started in the root of the repository. What it builds goes to the same target folder.
    ///
    /// Some programs (`cargo llvm-cov` is one) ask rustup for components that they miss. Nothing may be downloaded
    /// without being asked for, so that rustup is given a server that does not answer.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command.env("CARGO_TARGET_DIR", &self.target);
        command.env("RUSTUP_DIST_SERVER", "http://127.0.0.1:9");
        command
    }

    pub fn cargo<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = self.command("cargo");
        command.args(arguments);
        command
    }

    /// `cargo test` of a package with flags of its own, by `RUSTFLAGS`, in the build folder of all that has such flags. They are
    /// not those of build scripts and procedural macros, which are built once for all.
    pub fn instrumented(&self, package: &str) -> Command {
        let mut command = self.cargo(["test", "--target", "host-tuple", "--package", package, "--target-dir"]);
        command.arg(self.target("instrumented"));
        // Lets a stable compiler take -Z. For all of them, since some build scripts ask for it.
        command.env("RUSTC_BOOTSTRAP", "1");
        command
    }

    /// Builds the C library and the simulated driver as the tests have them, so that after these nothing is left to build, and
    /// puts them into `folder` under the names that programs load.
    pub fn install_simulated(&self, folder: &Path) -> Result<(), Failure> {
        // Any test that needs both. Features of dependencies are those of the whole workspace only if all of it is selected.
        process::run(
            self.cargo(["test", "--quiet", "--no-run", "--workspace", "--test", "last_error"]).stdout(Stdio::null()),
        )?;
        files::copy(&self.target("debug/deps/libgapless_sim_libcuda.so"), &folder.join("libcuda.so.1"))?;
        files::copy(&self.target("debug/deps/libgapless_capi.so"), &folder.join("libgapless.so"))
    }

    /// Puts the simulated driver where `cust` and `cuda-driver-sys` find it when they are built: they link `-lcuda` and look for
    /// it under `lib64` in the folders that `CUDA_LIBRARY_PATH` lists. The result is such a folder.
    pub fn install_simulated_to_link(&self) -> Result<PathBuf, Failure> {
        let root = self.target("interop");
        let folder = root.join("lib64");
        files::create_folder(&folder)?;
        self.install_simulated(&folder)?;
        files::copy(&folder.join("libcuda.so.1"), &folder.join("libcuda.so"))?;
        Ok(root)
    }
}

fn described(root: &Path) -> Result<serde_json::Value, Failure> {
    let mut metadata = Command::new("cargo");
    metadata.args(["metadata", "--no-deps", "--format-version=1", "--manifest-path"]).arg(root.join("Cargo.toml"));
    serde_json::from_str(&process::output(&mut metadata)?)
        .map_err(|error| Failure::new(format!("cargo metadata: {error}")))
}
