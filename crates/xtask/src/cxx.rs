//! Shared libraries in C++: compiled by the machine's compiler, since PyTorch's libraries use its standard library, and linked for
//! older systems where that can be done.

use crate::failure::Failure;
use crate::old_systems;
use crate::workspace::Workspace;
use crate::{files, process};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The sources of a shared library, with the options to build it.
#[derive(Debug)]
pub struct Library {
    /// The sources.
    pub sources: Vec<PathBuf>,
    /// Options of the compiler besides warnings and optimization.
    pub options: Vec<OsString>,
    /// Options of the linker: libraries, and where they are.
    pub links: Vec<OsString>,
}

impl Library {
    /// Compiles and links it into the file `out`.
    pub fn build(&self, workspace: &Workspace, out: &Path) -> Result<(), Failure> {
        let folder = files::temporary_folder()?;
        let mut objects = Vec::new();
        for source in &self.sources {
            let object = folder.path().join(files::name(source)).with_extension("o");
            let mut command = old_systems::cxx(workspace);
            command.args(["-O2", "-fPIC", "-Wall", "-Wextra", "-Werror"]).args(&self.options);
            process::run(command.arg("-c").arg(source).arg("-o").arg(&object))?;
            objects.push(object);
        }
        let linker = old_systems::linker(workspace, folder.path())?;
        let mut command = linker.map_or_else(|| old_systems::cxx(workspace), |linker| workspace.command(linker));
        command.arg("-shared").args(objects).arg("-o").arg(out).args(&self.links);
        process::run(command.args(["-lstdc++", "-lgcc_s", "-ldl"]))
    }
}
