//! PyTorch's CUDA build on a machine without a GPU, allocating through gapless.
//!
//! Installs PyTorch into an environment of its own, builds a stand-in for the CUDA runtime over the simulated driver, and
//! runs the package's PyTorch tests. No kernel runs; allocation is all that is tested.

use super::python_package;
use super::torch_object::{Headers, Version, compile};
use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process, python};
use std::env;
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "GAPLESS_TORCH_ENV: folder of the environment (default: torch-env in the target folder).\n\
                        TORCH: what to install (default: torch).")]
pub struct TorchArguments {
    /// Time pairs of an allocation and a free through PyTorch's C++ entry, in place of the tests
    #[arg(long)]
    time_pairs: bool,
    /// Arguments of pytest
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub fn run(workspace: &Workspace, arguments: &TorchArguments) -> Result<(), Failure> {
    process::require(&["cc", &process::compiler("CXX", "c++")[0]])?;
    let python = install_torch(workspace)?;
    let headers = cuda_headers(workspace, &python)?;

    let folder = files::temporary_folder()?;
    let folder = folder.path();
    workspace.install_simulated(folder)?;
    let link = folder.join("libcuda.so");
    symlink("libcuda.so.1", &link).map_err(|error| Failure::new(format!("{}: {error}", link.display())))?;
    let runtime = folder.join("libcudart-standin.so");
    let mut cc = workspace.command("cc");
    cc.args(["-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-isystem"]).arg(&headers);
    cc.arg("python/tests_torch/cuda_runtime.c").arg("-o").arg(&runtime);
    process::run(cc.arg("-L").arg(folder).args(["-lcuda", "-ldl"]))?;
    let cublas = folder.join("libcublas-standin.so");
    let mut cc = workspace.command("cc");
    cc.args(["-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "python/tests_torch/cublas.c"]);
    process::run(cc.arg("-o").arg(&cublas))?;
    let throw = folder.join("_torch_throw.so");
    python_package::build_torch_throw(workspace, &throw)?;

    let torch = torch_folder(workspace, &python)?;
    let version = files::read(&torch.join("version.py"))?;
    let version = Version::of(version_in(&version).ok_or_else(|| Failure::new("torch/version.py has no version"))?)?;
    compile(workspace, &version, &Headers { torch: torch.clone(), cuda: headers.clone() }, folder)?;
    let own_allocator = folder.join("own_allocator.so");
    let mut cc = workspace.command("cc");
    cc.args(["-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-isystem"]).arg(&headers);
    cc.arg("python/tests_torch_object/own_allocator.c").arg("-o").arg(&own_allocator);
    process::run(cc.arg("-L").arg(folder).arg("-lcuda"))?;

    let on_device = |objects: &Path| {
        let mut command = workspace.command(&python);
        for setting in ["GAPLESS_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"] {
            command.env_remove(setting);
        }
        command.env("LD_LIBRARY_PATH", process::with_library_path(folder)).env("LD_PRELOAD", &runtime);
        command.env("GAPLESS_LIBRARY", folder.join("libgapless.so")).env("GAPLESS_TORCH_THROW", &throw);
        command.env("GAPLESS_TORCH_OBJECTS", objects).env("GAPLESS_OWN_ALLOCATOR", &own_allocator);
        command.env("GAPLESS_CUBLAS", &cublas);
        command.env("GAPLESS_SIM_CAPACITY", "1GiB").env("PYTHONPATH", "python");
        command
    };
    if arguments.time_pairs {
        let pairs = time_pairs_library(workspace, &Headers { torch, cuda: headers }, folder)?;
        let mut command = on_device(folder);
        command.arg("python/tests_torch_object/allocation_pairs.py");
        return process::run(command.env("GAPLESS_ALLOCATION_PAIRS", pairs));
    }
    let run = |tests: &str, objects: &Path| {
        let mut pytest = on_device(objects);
        pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", tests]);
        process::run(pytest.args(&arguments.arguments))
    };
    run("python/tests_torch_object", folder)?;
    run("python/tests_torch_native", folder)?;
    run("python/tests_torch", Path::new("off"))
}

/// The library that times pairs, with optimised builds of gapless and of the simulated driver beside it.
fn time_pairs_library(workspace: &Workspace, headers: &Headers, folder: &Path) -> Result<PathBuf, Failure> {
    let packages = ["--package", "gapless-capi", "--package", "gapless-sim-libcuda"];
    process::run(workspace.cargo(["build", "--quiet", "--profile", "bundle"]).args(packages))?;
    files::copy(&workspace.target("bundle/libgapless_sim_libcuda.so"), &folder.join("libcuda.so.1"))?;
    files::copy(&workspace.target("bundle/libgapless_capi.so"), &folder.join("libgapless.so"))?;
    let library = folder.join("allocation_pairs.so");
    let compiler = process::compiler("CXX", "c++");
    let mut command = workspace.command(&compiler[0]);
    command.args(&compiler[1..]).args(["-std=c++20", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]);
    command.arg("-isystem").arg(headers.torch.join("include")).arg("-isystem").arg(&headers.cuda);
    command.arg("python/tests_torch_object/allocation_pairs.cpp").arg("-o").arg(&library);
    process::run(command.arg("-L").arg(headers.torch.join("lib")).args(["-lc10", "-lc10_cuda"]))?;
    Ok(library)
}

/// The folder `torch` of an environment.
fn torch_folder(workspace: &Workspace, python: &str) -> Result<PathBuf, Failure> {
    let folder = "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])";
    Ok(process::output(workspace.command(python).args(["-c", folder]))?.trim().into())
}

/// The version in the text of `torch/version.py`.
fn version_in(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("__version__ = '")?.strip_suffix('\''))
}

/// The interpreter of an environment with PyTorch, numpy and pytest.
fn install_torch(workspace: &Workspace) -> Result<String, Failure> {
    let environment = match env::var_os("GAPLESS_TORCH_ENV").filter(|folder| !folder.is_empty()) {
        Some(folder) => files::given(Path::new(&folder))?,
        None => workspace.installed("torch-env"),
    };
    let python = python::environment(workspace, &environment)?;
    if !python::can_run(workspace, &python, "import torch, numpy, pytest") {
        let torch = env::var("TORCH").ok().filter(|torch| !torch.is_empty()).unwrap_or_else(|| "torch".to_owned());
        process::run(workspace.command(&python).args(["-m", "pip", "install", "--quiet", &torch, "numpy", "pytest"]))?;
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
        let shown = process::output(workspace.command(python).args(["-m", "pip", "show", "nvidia-cuda-runtime"]))?;
        let version = release(&shown).ok_or_else(|| Failure::new("nvidia-cuda-runtime has no version"))?;
        let wanted = format!("nvidia-cuda-crt=={version}.*");
        process::run(workspace.command(python).args(["-m", "pip", "install", "--quiet", "--no-deps", &wanted]))?;
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
    fn the_version_is_found_in_the_module() {
        assert_eq!(
            version_in("from typing import Optional\n__version__ = '2.15.0+cu132'\ncuda = ''\n"),
            Some("2.15.0+cu132")
        );
        assert_eq!(version_in("version = '2'\n"), None);
    }

    #[test]
    fn the_release_is_the_first_two_numbers() {
        assert_eq!(release("Name: x\nVersion: 13.0.96\nSummary: y\n").as_deref(), Some("13.0"));
        assert_eq!(release("Name: x\n"), None);
    }
}
