//! PyTorch's CUDA build, and what it runs on without a GPU: the simulated driver, and stand-ins for the CUDA runtime, cuBLAS and
//! NVML.

use super::build_torch_objects::VERSIONS;
use super::python_package;
use super::torch_object::{Headers, compile};
use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process, python, tools};
use std::env;
use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An environment with PyTorch, and a folder with all that its processes are given.
#[derive(Debug)]
pub struct StandIns {
    python: String,
    headers: Headers,
    folder: tempfile::TempDir,
}

impl StandIns {
    /// Installs PyTorch where it is not yet, and builds the rest.
    pub fn prepare(workspace: &Workspace) -> Result<Self, Failure> {
        process::require(&["cc", &process::compiler("CXX", "c++")[0]])?;
        let this = Self::around(workspace, install_torch(workspace)?)?;
        python_package::build_torch_throw(workspace, &this.path("_torch_throw.so"))?;
        compile(workspace, &this.headers, this.folder())?;
        this.compile_on_torch(workspace, "python/tests/object/tracker.cpp", "tracker.so")?;
        Ok(this)
    }

    /// Builds what an interpreter's PyTorch runs on, and of gapless what tests are built with.
    pub fn around(workspace: &Workspace, python: String) -> Result<Self, Failure> {
        let headers = Headers { torch: torch_folder(workspace, &python)?, cuda: cuda_headers(workspace, &python)? };
        let this = Self { python, headers, folder: files::temporary_folder()? };
        workspace.install_simulated(this.folder())?;
        let link = this.path("libcuda.so");
        symlink("libcuda.so.1", &link).map_err(|error| Failure::new(format!("{}: {error}", link.display())))?;
        this.compile_c(workspace, "python/tests/cuda_stand_ins/cuda_runtime.c", "libcudart-standin.so")?;
        this.compile_c(workspace, "python/tests/cuda_stand_ins/cublas.c", "libcublas-standin.so")?;
        this.compile_c(workspace, "python/tests/cuda_stand_ins/nvml.c", "libnvidia-ml.so.1")?;
        this.compile_c(workspace, "python/tests/object/own_allocator.c", "own_allocator.so")?;
        Ok(this)
    }

    /// Where the libraries are; the allocator object among them.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of the environment.
    pub fn environment(&self) -> Result<&Path, Failure> {
        let folder = Path::new(&self.python).parent().and_then(Path::parent);
        folder.ok_or_else(|| Failure::new(format!("{} is in no environment", self.python)))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Python with PyTorch on the simulated device, and with the gapless of this repository; `objects` is where it looks for the
    /// allocator object, or `off`.
    pub fn python(&self, workspace: &Workspace, objects: impl AsRef<OsStr>) -> Command {
        let mut command = self.python_as_installed(workspace);
        command.env("GAPLESS_LIBRARY", self.path("libgapless.so")).env("GAPLESS_TORCH_OBJECTS", objects);
        command
            .env("GAPLESS_TORCH_THROW", self.path("_torch_throw.so"))
            .env("GAPLESS_TRACKER", self.path("tracker.so"));
        command.env("PYTHONPATH", workspace.path("python"));
        command
    }

    /// Python with PyTorch on the simulated device, and with what else is installed in the environment.
    pub fn python_as_installed(&self, workspace: &Workspace) -> Command {
        let mut command = workspace.command(&self.python);
        for setting in ["GAPLESS_CONF", "GAPLESS_TORCH", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTHONPATH"]
        {
            command.env_remove(setting);
        }
        command.env("LD_LIBRARY_PATH", process::with_library_path(self.folder()));
        command.env("LD_PRELOAD", self.path("libcudart-standin.so"));
        command.env("GAPLESS_OWN_ALLOCATOR", self.path("own_allocator.so"));
        command.env("GAPLESS_CUBLAS", self.path("libcublas-standin.so")).env("GAPLESS_SIM_CAPACITY", "1GiB");
        command
    }

    /// Has a command load a library of `folder` before all others: that whose name has `beginning` and then CUDA's number. It finds
    /// the CUDA runtime of PyTorch's environment, which it is linked with.
    pub fn preload(&self, command: &mut Command, folder: &Path, beginning: &str) -> Result<(), Failure> {
        let runtimes = self.headers.cuda.with_file_name("lib");
        let numbers = files::below(&runtimes)?;
        let number = numbers.iter().find_map(|file| file.to_str()?.rsplit_once("/libcudart.so.")?.1.split('.').next());
        let number = number.ok_or_else(|| Failure::new(format!("{} has no libcudart", runtimes.display())))?;
        let mut libraries = folder.join(format!("{beginning}{number}.abi3.so")).into_os_string();
        libraries.push(":");
        libraries.push(self.path("libcudart-standin.so"));
        let mut path = process::with_library_path(self.folder());
        path.push(":");
        path.push(runtimes);
        command.env("LD_PRELOAD", libraries).env("LD_LIBRARY_PATH", path);
        Ok(())
    }

    /// Puts the stand-in for cuBLAS beside the others of a command.
    pub fn add_cublas(&self, command: &mut Command) {
        let mut libraries = self.path("libcudart-standin.so").into_os_string();
        libraries.push(":");
        libraries.push(self.path("libcublas-standin.so"));
        command.env("LD_PRELOAD", libraries);
    }

    /// Python packages that are not there yet, with their versions.
    pub fn install(&self, workspace: &Workspace, packages: &[&str]) -> Result<(), Failure> {
        let names: Vec<&str> = packages.iter().filter_map(|package| package.split('=').next()).collect();
        let imports = format!("import {}", names.join(", "));
        if python::can_run(workspace, &self.python, &imports) {
            return Ok(());
        }
        python::install(workspace, &self.python, packages)
    }

    /// Puts optimised builds of gapless and of the simulated driver in the place of the ones for tests.
    pub fn optimise(&self, workspace: &Workspace) -> Result<(), Failure> {
        let packages = ["--package", "gapless-capi", "--package", "gapless-sim-libcuda"];
        process::run(workspace.cargo(["build", "--quiet", "--release"]).args(packages))?;
        files::copy(&workspace.target("release/libgapless_sim_libcuda.so"), &self.path("libcuda.so.1"))?;
        files::copy(&workspace.target("release/libgapless_capi.so"), &self.path("libgapless.so"))
    }

    /// The folder of CUDA's headers.
    pub fn cuda_headers(&self) -> &Path {
        &self.headers.cuda
    }

    /// Compiles a source of C++ that calls PyTorch's own interface.
    pub fn compile_on_torch(&self, workspace: &Workspace, source: &str, library: &str) -> Result<PathBuf, Failure> {
        let library = self.path(library);
        self.headers.library(vec![workspace.path(source)], Vec::new()).build(workspace, &library)?;
        Ok(library)
    }

    fn compile_c(&self, workspace: &Workspace, source: &str, library: &str) -> Result<(), Failure> {
        compile_c(workspace.command("cc"), &self.headers.cuda, self.folder(), source, library)
    }
}

/// Compiles a source of C that calls the driver to a library in a folder, which has a `libcuda.so` already. `cc` is the compiler.
/// Versions of its symbols are in a file with the ending `.map` beside the source.
pub fn compile_c(mut cc: Command, headers: &Path, folder: &Path, source: &str, library: &str) -> Result<(), Failure> {
    cc.args(["-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-isystem"]);
    cc.arg(headers).arg(source).arg("-o").arg(folder.join(library));
    let versions = Path::new(source).with_extension("map");
    if cc.get_current_dir().unwrap_or(Path::new("")).join(&versions).is_file() {
        cc.arg(format!("-Wl,--version-script={}", versions.display()));
    }
    process::run(cc.arg("-L").arg(folder).args(["-lcuda", "-ldl"]))
}

/// The folder `torch` of an environment.
fn torch_folder(workspace: &Workspace, python: &str) -> Result<PathBuf, Failure> {
    let folder = "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])";
    Ok(process::output(workspace.command(python).args(["-c", folder]))?.trim().into())
}

/// The interpreter of an environment with PyTorch, numpy and pytest.
fn install_torch(workspace: &Workspace) -> Result<String, Failure> {
    let environment = match env::var_os("GAPLESS_TORCH_ENV").filter(|folder| !folder.is_empty()) {
        Some(folder) => files::given(Path::new(&folder))?,
        None => workspace.installed("torch-env"),
    };
    let python = python::environment(workspace, &environment)?;
    if !python::can_run(workspace, &python, "import torch, numpy, pytest") {
        let newest = || format!("torch=={}", VERSIONS[VERSIONS.len() - 1]);
        let torch = env::var("TORCH").ok().filter(|torch| !torch.is_empty()).unwrap_or_else(newest);
        python::install(workspace, &python, &[&torch, python::NUMPY, &tools::from_pypi(workspace, "pytest")?])?;
    }
    Ok(python)
}

/// The folder of the CUDA runtime's headers in PyTorch's environment, with the headers that they include.
fn cuda_headers(workspace: &Workspace, python: &str) -> Result<PathBuf, Failure> {
    let site = "import sysconfig; print(sysconfig.get_paths()['purelib'])";
    let site = process::output(workspace.command(python).args(["-c", site]))?;
    let nvidia = Path::new(site.trim()).join("nvidia");
    let found = if nvidia.is_dir() { files::below(&nvidia)? } else { Vec::new() };
    let header = found.iter().find(|path| path.ends_with("cuda_runtime_api.h"));
    let folder = header.and_then(|header| header.parent());
    let folder =
        folder.ok_or_else(|| Failure::new("this PyTorch came without CUDA; TORCH names another one to install"))?;
    if !folder.join("crt/host_defines.h").exists() {
        // CUDA 12's packages have its number in their names, and a folder each.
        let own_crt = nvidia.join("cuda_nvcc/include/crt");
        let is_12 = folder.ends_with("cuda_runtime/include");
        let (runtime, crt) = if is_12 {
            ("nvidia-cuda-runtime-cu12", "nvidia-cuda-nvcc-cu12")
        } else {
            ("nvidia-cuda-runtime", "nvidia-cuda-crt")
        };
        let shown = process::output(workspace.command(python).args(["-m", "pip", "show", runtime]))?;
        let version = release(&shown).ok_or_else(|| Failure::new(format!("{runtime} has no version")))?;
        let wanted = format!("{crt}=={version}.*");
        python::install(workspace, python, &["--no-deps", &wanted])?;
        if is_12 {
            let link = folder.join("crt");
            symlink(&own_crt, &link).map_err(|error| Failure::new(format!("{}: {error}", link.display())))?;
        }
    }
    Ok(folder.to_owned())
}

/// The first two numbers of the version that `pip show` prints.
fn release(shown: &str) -> Option<String> {
    let version = shown.lines().find_map(|line| line.strip_prefix("Version: "))?;
    let mut numbers = version.split('.');
    Some(format!("{}.{}", numbers.next()?, numbers.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_the_first_two_numbers() {
        assert_eq!(release("Name: x\nVersion: 13.0.96\nSummary: y\n").as_deref(), Some("13.0"));
        assert_eq!(release("Name: x\n"), None);
    }
}
