//! PyTorch's CUDA build on the simulated device, where `GAPLESS_TORCH_ENV` names an environment with it.

use super::{Ended, World};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An environment with PyTorch, and the stand-ins that it runs on.
pub struct PyTorch {
    pub world: World,
    python: PathBuf,
    cuda_headers: PathBuf,
}

impl PyTorch {
    /// Builds the stand-ins; none where there is no environment.
    pub fn find() -> Option<Self> {
        let environment = std::env::var_os("GAPLESS_TORCH_ENV").filter(|folder| !folder.is_empty());
        let Some(environment) = environment else {
            println!("skipped: GAPLESS_TORCH_ENV names no environment with PyTorch");
            return None;
        };
        let python = Path::new(&environment).join("bin/python");
        let world = World::new();
        let headers = "import nvidia.cu13; print(nvidia.cu13.__path__[0])";
        let output = Command::new(&python).args(["-c", headers]).output().expect("the environment has a Python");
        let headers = Path::new(String::from_utf8(output.stdout).unwrap().trim()).join("include");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tests/cuda_stand_ins");
        let all = [
            ("cuda_runtime.c", "lib/libcudart-standin.so"),
            ("nvml.c", "lib/libnvidia-ml.so.1"),
            ("cublas.c", "lib/libcublas-standin.so"),
        ];
        for (source, library) in all {
            world.compile_with(&sources.join(source), library, |cc| {
                cc.args(["-O1", "-fPIC", "-shared", "-isystem"]).arg(&headers);
                let versions = sources.join(source).with_extension("map");
                if versions.is_file() {
                    cc.arg(format!("-Wl,--version-script={}", versions.display()));
                }
                cc.arg("-L").arg(world.path("lib")).args(["-lcuda", "-ldl"]);
            });
        }
        Some(Self { world, python, cuda_headers: headers })
    }

    /// The folder of the CUDA runtime's headers.
    pub fn cuda_headers(&self) -> &Path {
        &self.cuda_headers
    }

    /// `gapless-sim run` of one of `programs`.
    pub fn command(&self, arguments: &[&str], program: &str, of_program: &[&str]) -> Command {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(program);
        let of_program = of_program.iter().map(Path::new);
        let all: Vec<&Path> = [self.python.as_path(), &program].into_iter().chain(of_program).collect();
        self.world.command(&[&["--runtime"], arguments].concat(), &all)
    }

    /// The same with PyTorch's expandable segments, run to its end.
    pub fn run_expandable(&self, arguments: &[&str], program: &str) -> Ended {
        let mut command = self.command(arguments, program, &[]);
        Ended::of(command.env("PYTORCH_ALLOC_CONF", "expandable_segments:True").output().unwrap())
    }
}
