//! PyTorch's CUDA build on a machine without a GPU, allocating through gapless.
//!
//! Installs PyTorch into an environment of its own, builds a stand-in for the CUDA runtime over the simulated driver, and
//! runs the package's PyTorch tests. No kernel runs; allocation is all that is tested.

use super::guests;
use super::test_page;
use super::time_rmm;
use super::torch_stand_ins::StandIns;
use super::torch_sweeps;
use crate::failure::Failure;
use crate::parts::Parts;
use crate::workspace::Workspace;
use crate::{files, process, python, wheels};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, clap::Args)]
#[command(after_help = "GAPLESS_TORCH_ENV: folder of the environment (default: torch-env in the target folder).\n\
                        TORCH: what to install (default: the newest that has an allocator object).\n\
                        SOURCES is a folder with PyTorch's sources, of which test/test_cuda.py and \
                        torch/utils/viz/MemoryViz.js are used: a checkout, or what Debian's `apt-get source pytorch` unpacks.")]
pub struct TorchArguments {
    /// Time pairs of an allocation and a free through PyTorch's C++ entry, in place of the tests
    #[arg(long)]
    time_pairs: bool,
    /// Time random allocations on resources of RMM and on gapless's, in place of the tests
    #[arg(long)]
    time_rmm: bool,
    /// Run PyTorch's own test_cuda.py natively and on gapless, in place of the tests
    #[arg(long, value_name = "SOURCES")]
    pytorch_tests: Option<PathBuf>,
    /// Show a snapshot in PyTorch's own viewer, in a browser, in place of the tests
    #[arg(long, value_name = "SOURCES")]
    viewer: Option<PathBuf>,
    /// Run vLLM's sleep mode and torch_memory_saver beside and on gapless, in place of the tests
    #[arg(long)]
    modules: bool,
    /// Print what torch_memory_saver, vLLM's sleep mode and gapless come to for some traces, in place of the tests
    #[arg(long)]
    sleep_table: bool,
    /// Let each driver call of a program on gapless fail, in place of the tests
    #[arg(long)]
    sweep: bool,
    /// Train with accelerate, transformers, Lightning and torchrun, natively and on gapless, in place of the tests
    #[arg(long)]
    programs: bool,
    /// Print what works natively, with the plug-in and with the object, in place of the tests
    #[arg(long)]
    table: bool,
    /// Arguments of pytest, names of test_cuda.py's tests, or traces for the table of sleeps
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub fn run(workspace: &Workspace, arguments: &TorchArguments) -> Result<(), Failure> {
    let stand_ins = StandIns::prepare(workspace)?;
    let mut parts = Parts::default();
    let is_chosen = arguments.table
        || arguments.modules
        || arguments.sleep_table
        || arguments.sweep
        || arguments.programs
        || arguments.viewer.is_some()
        || arguments.pytorch_tests.is_some()
        || arguments.time_rmm
        || arguments.time_pairs;
    if !is_chosen {
        // The package runs it for advice.
        process::run(&mut workspace.cargo(["build", "--quiet", "--package", "gapless-cli", "--bin", "gapless"]))?;
        let mut tests = |name: &str, folders: &[&str], objects: &OsStr| {
            let mut pytest = stand_ins.python(workspace, objects);
            pytest.env("GAPLESS_COMMAND", workspace.target("debug/gapless"));
            pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).args(folders).args(&arguments.arguments);
            parts.tests(name, &mut pytest);
        };
        tests("object", &["python/tests/object"], stand_ins.folder().as_os_str());
        tests("native", &["python/tests/native"], stand_ins.folder().as_os_str());
        tests("plug-in, fake", &["python/tests/plug_in", "python/tests/fake"], OsStr::new("off"));
    }
    if arguments.table {
        parts.step("table", || {
            let mut table = stand_ins.python(workspace, stand_ins.folder());
            table.env(
                "PYTHONPATH",
                process::joined(&[&workspace.path("python"), &workspace.path("python/tests/shared")]),
            );
            process::run(table.arg("python/tests/native/table.py"))
        });
    }
    if arguments.modules || arguments.table {
        parts.step("modules", || modules(workspace, &stand_ins));
    }
    if arguments.sleep_table {
        parts.step("table of sleeps", || sleep_table(workspace, &stand_ins, &arguments.arguments));
    }
    if arguments.sweep {
        parts.step("sweep", || torch_sweeps::run(workspace, &stand_ins));
    }
    if arguments.programs || arguments.table {
        parts.step("programs", || programs(workspace, &stand_ins));
    }
    if let Some(sources) = &arguments.viewer {
        parts.step("viewer", || viewer(workspace, &stand_ins, &files::given(sources)?));
    }
    if let Some(sources) = &arguments.pytorch_tests {
        parts.step("PyTorch's tests", || {
            stand_ins.install(workspace, &["expecttest==0.3.0", "hypothesis==6.170.17", "psutil==7.2.2"])?;
            let mut tests = stand_ins.python(workspace, stand_ins.folder());
            tests.arg("python/tests/native/pytorch_tests.py").arg(files::given(sources)?.join("test"));
            process::run(tests.args(&arguments.arguments))
        });
    }
    if arguments.time_rmm {
        parts.step("RMM", || time_rmm::run(workspace, &stand_ins, &workspace.installed("torch-modules")));
    }
    if arguments.time_pairs || arguments.table {
        parts.step("times of pairs", || time_pairs(workspace, &stand_ins));
    }
    parts.finish()
}

/// Pairs of an allocation and a free through PyTorch's C++ entry, with everything optimised.
fn time_pairs(workspace: &Workspace, stand_ins: &StandIns) -> Result<(), Failure> {
    stand_ins.optimise(workspace)?;
    let library =
        stand_ins.compile_on_torch(workspace, "python/tests/object/allocation_pairs.cpp", "allocation_pairs.so")?;
    let mut pairs = stand_ins.python(workspace, stand_ins.folder());
    pairs.arg("python/tests/object/allocation_pairs.py");
    process::run(pairs.env("GAPLESS_ALLOCATION_PAIRS", library))
}

/// vLLM's cumem module and torch_memory_saver in both of its modes, from their wheels, unchanged, each natively and then with the
/// object; vLLM's sleep mode with gapless's allocator behind it; what programs do with torch_memory_saver, case by case; the faults
/// that the simulated driver has found in both; and the programs that measure sleeps, in the small.
fn modules(workspace: &Workspace, stand_ins: &StandIns) -> Result<(), Failure> {
    let (folder, mut path) = module_wheels(workspace)?;
    for module in ["vllm", "torch_memory_saver", PRELOADED] {
        for way in ["native", "object"] {
            let mut script = stand_ins.python(workspace, stand_ins.folder());
            if way == "object" {
                script.args(["-m", "gapless.torch"]);
            }
            script.arg("python/tests/modules/scripts.py").arg(module);
            if module == PRELOADED {
                stand_ins.preload(&mut script, &folder.join(SAVER), PRELOADED_LIBRARY)?;
            }
            let told = process::output(script.env("PYTHONPATH", &path))?;
            let expected = format!("passed on {way}");
            if told.trim() != expected {
                return Err(Failure::new(format!("{module}, {way}: {told}")));
            }
            println!("{module}: {expected}");
        }
    }
    path.push(":");
    path.push(workspace.path("python/tests/shared"));
    sleep_mode(workspace, stand_ins, &path)?;
    let mut saver = stand_ins.python(workspace, stand_ins.folder());
    saver.arg("python/tests/modules/saver/table.py").env("PYTHONPATH", &path);
    stand_ins.preload(&mut saver, &folder.join(SAVER), PRELOADED_LIBRARY)?;
    process::run(&mut saver)?;
    println!("published packages:");
    guests::run(workspace, stand_ins.environment()?, &folder)?;
    println!("measured:");
    let mut measured = measuring(workspace, stand_ins)?;
    process::run(measured.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).arg(workspace.path(MEASURED)))
}

/// The folder of the wheels of modules that bring an allocator of their own, and Python's path with them.
fn module_wheels(workspace: &Workspace) -> Result<(PathBuf, OsString), Failure> {
    let folder = workspace.installed("torch-modules");
    let mut path = workspace.path("python").into_os_string();
    for (package, beginnings) in MODULES {
        let unpacked = folder.join(package);
        wheels::unpacked(workspace, package, &unpacked, beginnings)?;
        path.push(":");
        path.push(unpacked);
    }
    Ok((folder, path))
}

/// torch_memory_saver and vLLM's sleep mode, from their wheels, beside gapless: what some traces come to, and the whole comparison.
fn sleep_table(workspace: &Workspace, stand_ins: &StandIns, traces: &[OsString]) -> Result<(), Failure> {
    let traces = match traces {
        [] => SLEEP_TRACES.iter().map(|trace| workspace.path(trace)).collect(),
        given => given.iter().map(|trace| files::given(Path::new(trace))).collect::<Result<Vec<_>, _>>()?,
    };
    let mut table = measuring(workspace, stand_ins)?;
    process::run(table.arg(workspace.path(MEASURED).join("table.py")).args(traces))
}

/// Python for the programs that measure sleeps.
fn measuring(workspace: &Workspace, stand_ins: &StandIns) -> Result<Command, Failure> {
    let (folder, mut path) = module_wheels(workspace)?;
    for more in ["python/tests/shared", "python/tests/modules", MEASURED] {
        path.push(":");
        path.push(workspace.path(more));
    }
    let mut python = stand_ins.python(workspace, stand_ins.folder());
    python.env("PYTHONPATH", path).env("OMP_NUM_THREADS", "1");
    stand_ins.preload(&mut python, &folder.join(SAVER), PRELOADED_LIBRARY)?;
    Ok(python)
}

/// The programs that measure sleeps.
const MEASURED: &str = "python/tests/modules/measured";

/// The traces of the table of sleeps, where no others are given.
const SLEEP_TRACES: [&str; 4] = [
    "traces/llama7b_lora_ckpt.trace.gz",
    "traces/llama7b_zero3.trace.gz",
    "traces/vit_l_multiscale.trace.gz",
    "traces/turns/grpo_one_process.trace.gz",
];

/// vLLM's sleep mode with its own allocator, and then, by the plug-in for vLLM, with gapless behind it: the same tests. Then two
/// processes that take turns on one device.
fn sleep_mode(workspace: &Workspace, stand_ins: &StandIns, path: &OsStr) -> Result<(), Failure> {
    let mut path = path.to_owned();
    path.push(":");
    path.push(workspace.path("python/tests/modules"));
    let objects = stand_ins.folder().as_os_str();
    let on_gapless: &[&str] = &["-m", "gapless.torch"];
    // That it is the plug-in needs no warning.
    let on_plug_in: &[&str] = &["-W", "ignore", "-m", "gapless.torch"];
    for (way, objects, runner, folder) in [
        ("native", objects, &[] as &[&str], "vllm_allocator"),
        ("object", objects, on_gapless, "vllm_allocator"),
        ("plug-in", OsStr::new("off"), on_plug_in, "vllm_allocator"),
        ("native and object", objects, &[], "turns"),
    ] {
        println!("{folder}, {way}:");
        let mut tests = stand_ins.python(workspace, objects);
        tests.args(runner).args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
        process::run(tests.arg(workspace.path("python/tests/modules").join(folder)).env("PYTHONPATH", &path))?;
    }
    Ok(())
}

const SAVER: &str = "torch_memory_saver==0.0.10";

/// torch_memory_saver's mode that takes the place of `cudaMalloc`, and what the name of its library begins with.
const PRELOADED: &str = "torch_memory_saver_preloaded";
const PRELOADED_LIBRARY: &str = "torch_memory_saver_hook_mode_preload_cu";

/// The files that are unpacked from the wheels of modules that bring an allocator of their own.
const MODULES: [(&str, &[&str]); 2] = [
    (
        "vllm==0.33.0",
        &[
            "vllm/device_allocator/",
            "vllm/cumem_allocator",
            "vllm/compilation/cudagraph_pool.py",
            "vllm/distributed/device_communicators/cuda_wrapper.py",
            "vllm/plugins/__init__.py",
            "vllm/_version.py",
            "vllm/version.py",
        ],
    ),
    (SAVER, &["torch_memory_saver"]),
];

/// Programs of training with libraries of others, each natively and then, by the variable alone, with the object: all of their
/// processes allocate the same.
fn programs(workspace: &Workspace, stand_ins: &StandIns) -> Result<(), Failure> {
    stand_ins.install(workspace, &LIBRARIES)?;
    println!("with {}", LIBRARIES.join(", "));
    // What the wheel installs, in the place of a .pth file.
    let start = files::temporary_folder()?;
    files::copy(&workspace.path("python/gapless_start.pth"), &start.path().join("sitecustomize.py"))?;
    let path = process::joined(&[start.path(), &workspace.path("python")]);
    for (program, launcher) in PROGRAMS {
        let counted = |way: &str, variable: &str| -> Result<Vec<serde_json::Value>, Failure> {
            let mut script = stand_ins.python(workspace, stand_ins.folder());
            stand_ins.add_cublas(&mut script);
            script
                .args(launcher)
                .args(["python/tests/fake/stock.py", &format!("python/tests/modules/programs/{program}.py")]);
            let told = process::output(script.env("PYTHONPATH", &path).env("GAPLESS_TORCH", variable))?;
            let lines: Vec<_> = told.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            let is_served = |line: &serde_json::Value| line["served_by"] == way;
            if lines.is_empty() || !lines.iter().all(is_served) {
                return Err(Failure::new(format!("{program}, {way}: {told}")));
            }
            Ok(lines)
        };
        let (native, object) = (counted("native", "0")?, counted("object", "1")?);
        let figures = |lines: &[serde_json::Value]| -> Vec<String> {
            lines.iter().map(|line| format!("{} bytes at most, {} allocations", line["peak"], line["allocs"])).collect()
        };
        if figures(&native) != figures(&object) {
            return Err(Failure::new(format!("{program}: {native:?} natively, {object:?} on gapless")));
        }
        println!("{program}: {} natively and on gapless", figures(&native).join("; "));
    }
    Ok(())
}

const LIBRARIES: [&str; 3] = ["accelerate==1.15.0", "transformers==5.24.0", "lightning==2.6.6"];

/// Programs of `python/tests/modules/programs`, and how they are started.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("accelerate_loop", &[]),
    ("transformers_trainer", &[]),
    ("lightning_trainer", &[]),
    ("torchrun_gloo", &["-m", "torch.distributed.run", "--nproc-per-node", "2"]),
];

/// PyTorch's viewer with a snapshot of gapless, in a headless browser.
fn viewer(workspace: &Workspace, stand_ins: &StandIns, sources: &Path) -> Result<(), Failure> {
    let browser = test_page::browser().ok_or_else(|| {
        Failure::new("there is no Chromium here (apt-get install chromium); CHROMIUM names another one")
    })?;
    process::require(&["npm"])?;
    let packages = workspace.installed("torch-viewer");
    let d3 = packages.join("node_modules/d3/dist/d3.js");
    if !d3.exists() {
        files::create_folder(&packages)?;
        let mut npm = workspace.command("npm");
        npm.args(["install", "d3@5.16.0", "--silent", "--no-save", "--ignore-scripts", "--prefix"]);
        process::run(npm.arg(&packages))?;
    }
    let page = stand_ins.folder().join("viewer.html");
    let mut script = stand_ins.python(workspace, stand_ins.folder());
    script.args(["-m", "gapless.torch", "python/tests/viewer/script.py"]).arg(&page);
    process::run(&mut script)?;
    let environment = test_page::environment(workspace)?;
    let mut pytest = workspace.command(python::environment(workspace, &environment)?);
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "python/tests/viewer"]);
    pytest.env("CHROMIUM", browser).env("GAPLESS_VIEWER", sources.join("torch/utils/viz/MemoryViz.js"));
    process::run(pytest.env("GAPLESS_VIEWER_D3", d3).env("GAPLESS_VIEWER_PAGE", page))
}
