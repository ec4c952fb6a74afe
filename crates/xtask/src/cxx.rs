//! Shared libraries in C++: compiled by the machine's compiler, since PyTorch's libraries use its standard library, and linked by
//! zig where that is installed, which knows the symbols of older C libraries. So what a new system builds runs on an old one.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process, python};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest C library that wheels are built for: that of manylinux_2_28, which PyTorch's own wheels need.
pub const OLDEST_GLIBC: &str = "2.28";

/// What becomes a shared library.
#[derive(Debug)]
pub struct Library {
    /// The sources.
    pub sources: Vec<PathBuf>,
    /// What the compiler is told beside warnings and optimization.
    pub options: Vec<OsString>,
    /// What the linker is told: libraries, and where they are.
    pub links: Vec<OsString>,
}

impl Library {
    /// Compiles and links it into the file `out`.
    pub fn build(&self, workspace: &Workspace, out: &Path) -> Result<(), Failure> {
        let folder = files::temporary_folder()?;
        let mut objects = Vec::new();
        for source in &self.sources {
            let object = folder.path().join(files::name(source)).with_extension("o");
            let mut command = compiler(workspace);
            command.args(["-O2", "-fPIC", "-Wall", "-Wextra", "-Werror"]).args(&self.options);
            process::run(command.arg("-c").arg(source).arg("-o").arg(&object))?;
            objects.push(object);
        }
        let mut command = linker(workspace)?;
        process::run(command.arg("-shared").args(objects).arg("-o").arg(out).args(&self.links).arg("-ldl"))
    }
}

/// Fails where there is no compiler.
pub fn require_compiler() -> Result<(), Failure> {
    process::require(&[&words()[0]])
}

fn compiler(workspace: &Workspace) -> Command {
    let words = words();
    let mut command = workspace.command(&words[0]);
    command.args(&words[1..]);
    command
}

/// zig with the compiler's own standard library, or the compiler.
fn linker(workspace: &Workspace) -> Result<Command, Failure> {
    let Some(mut zig) = zig(workspace)? else {
        return Ok(compiler(workspace));
    };
    zig.args(["cc", "-target", &format!("{}-linux-gnu.{OLDEST_GLIBC}", std::env::consts::ARCH)]);
    for library in ["libstdc++.so", "libgcc_s.so.1"] {
        let path = process::output(compiler(workspace).arg(format!("-print-file-name={library}")))?;
        zig.arg(path.trim());
    }
    Ok(zig)
}

/// zig, on the path or as PyPI has it.
fn zig(workspace: &Workspace) -> Result<Option<Command>, Failure> {
    if process::find("zig").is_some() {
        return Ok(Some(workspace.command("zig")));
    }
    let python = python::interpreter()?;
    if !python::can_run(workspace, &python, "import ziglang") {
        return Ok(None);
    }
    let mut zig = workspace.command(python);
    zig.args(["-m", "ziglang"]);
    Ok(Some(zig))
}

fn words() -> Vec<String> {
    process::compiler("CXX", "c++")
}
