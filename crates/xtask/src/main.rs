//! `cargo xtask`: every command that a developer of gapless uses, in one list.
//!
//! Most commands are modules of [`commands`]. The programs in `scripts/`, which run where there is no Rust or analyse sources and
//! results, are started from here with the arguments they are given.

mod commands;
mod cxx;
mod failure;
mod files;
mod list;
mod old_systems;
mod parts;
mod process;
mod python;
mod tools;
mod versions;
mod wheels;
mod workspace;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use commands::{
    build_capi, build_kernels, build_python_package, build_sdist, build_sim, build_torch_objects, build_wheel,
    check_interface, ci, figures, generate_bindings, generate_figures, generate_header, gpu_bundle, gpu_compare,
    model_check, package_crates, release, sanitize, scripts, test_interop, test_page, test_python, test_releases,
    torch_without_gpu,
};
use failure::Failure;
use list::Listed;
use std::process::ExitCode;
use workspace::Workspace;

#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Arguments {
    /// List all commands, not only those that most changes need
    #[arg(long)]
    all: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

/// The first line of each comment is what the list says about the command.
#[derive(Debug, Subcommand)]
enum Command {
    /// Check formatting and lints, and run all tests: what every change needs before it is offered
    Check,
    /// Run everything that has to pass before a change lands (.ci/run)
    Ci,
    /// Run the long version of `ci`: hours of tests, fuzzing, soak and mutation testing
    CiFull(ci::FullArguments),
    /// Build the C library and install it with its header
    BuildCapi(build_capi::BuildCapiArguments),
    /// Build gapless-sim, which runs programs over the simulated driver, with its libraries
    BuildSim(build_sim::BuildSimArguments),
    /// Build PyTorch's allocator objects, which the next wheel carries (downloads headers once)
    BuildTorchObjects(build_torch_objects::TorchObjectsArguments),
    /// Build the Python wheel into dist/
    BuildWheel(build_wheel::WheelArguments),
    /// Build the Python source distribution into dist/
    BuildSdist,
    /// Build the Python package into a folder, as an installation from source does
    BuildPythonPackage(build_python_package::BuildPythonPackageArguments),
    /// Check what the published crates carry, and that they build from it
    PackageCrates,
    /// Walk the list of a release, and say at its end what was not done
    Release(release::ReleaseArguments),
    /// Report what the public interface of the crates has lost since the last release (takes cargo-semver-checks)
    CheckInterface(check_interface::CheckInterfaceArguments),
    /// Build the folder that proves gapless on a machine with a GPU, its driver and nothing else
    GpuBundle(gpu_bundle::GpuBundleArguments),
    /// Write the C headers of include from the sources of crates/capi
    GenerateHeader,
    /// Write what comes from the table of figures: the header, Python's types and keys, C++, the documents
    GenerateFigures,
    /// Write src/driver/cuda/sys from the CUDA toolkit's cuda.h
    GenerateBindings,
    /// Compile kernels/*.cu to the PTX that is checked in
    BuildKernels(build_kernels::BuildKernelsArguments),
    /// Test the Python package over the simulated driver; takes pytest's arguments
    TestPython(test_python::TestPythonArguments),
    /// Test the page of `gapless advise --html` in a headless Chromium; takes pytest's arguments
    TestPage(test_page::TestPageArguments),
    /// Build and run the examples with the crates cust, cuda-driver-sys and cudarc over the simulated driver
    TestInterop,
    /// Test PyTorch's CUDA build over the simulated driver; takes pytest's arguments (installs 5 GB once)
    TorchWithoutGpu(torch_without_gpu::TorchArguments),
    /// Try the wheel beside other versions of PyTorch, one after the other (installs 3 to 6 GB for each, and removes them)
    TestReleases(test_releases::ReleasesArguments),
    /// Go through schedules of threads with loom and shuttle
    ModelCheck(model_check::ModelCheckArguments),
    /// Run the tests that move real bytes under AddressSanitizer and ThreadSanitizer
    Sanitize(sanitize::SanitizeArguments),
    /// Count the lines and branches that tests reach
    #[command(disable_help_flag = true)]
    Coverage(scripts::PassedOn),
    /// Run the fuzz targets for a while and write a report
    #[command(disable_help_flag = true)]
    FuzzCampaign(scripts::PassedOn),
    /// Change the code in one place after another and see whether a test notices
    #[command(disable_help_flag = true)]
    Mutants(scripts::PassedOn),
    /// Plant one bug after another and see whether the tests named for it notice
    #[command(disable_help_flag = true)]
    PlantedBugs(scripts::PassedOn),
    /// Measure the figures that the allocator is held to, on recorded traces
    Figures(figures::FiguresArguments),
    /// Run the bundle of `gpu-bundle` on this machine and write a report
    #[command(disable_help_flag = true)]
    GpuRun(scripts::PassedOn),
    /// Compare two results of `gpu-run`: lost bytes, changed answers of the device, ratios that became worse
    GpuCompare(gpu_compare::GpuCompareArguments),
}

fn main() -> ExitCode {
    let command = Arguments::command();
    let lists = [Listed::Usual, Listed::All].map(|listed| list::help(&command, listed));
    let matches = command.override_help(lists[0].clone()).get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let Some(command) = arguments.command else {
        print!("{}", lists[usize::from(arguments.all)]);
        return ExitCode::SUCCESS;
    };
    match Workspace::find().and_then(|workspace| run(&workspace, command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(workspace: &Workspace, command: Command) -> Result<(), Failure> {
    match command {
        Command::Check => ci::check(workspace),
        Command::Ci => ci::short(workspace),
        Command::CiFull(arguments) => ci::full(workspace, &arguments),
        Command::BuildCapi(arguments) => build_capi::run(workspace, &arguments),
        Command::BuildSim(arguments) => build_sim::run(workspace, &arguments),
        Command::BuildTorchObjects(arguments) => build_torch_objects::run(workspace, &arguments),
        Command::BuildWheel(arguments) => build_wheel::run(workspace, &arguments),
        Command::BuildSdist => build_sdist::run(workspace),
        Command::BuildPythonPackage(arguments) => build_python_package::run(workspace, &arguments),
        Command::PackageCrates => package_crates::run(workspace),
        Command::Release(arguments) => release::run(workspace, &arguments),
        Command::CheckInterface(arguments) => check_interface::run(workspace, &arguments),
        Command::GpuBundle(arguments) => gpu_bundle::run(workspace, &arguments),
        Command::GenerateHeader => generate_header::run(workspace),
        Command::GenerateFigures => generate_figures::run(workspace),
        Command::GenerateBindings => generate_bindings::run(workspace),
        Command::BuildKernels(arguments) => build_kernels::run(workspace, &arguments),
        Command::TestPython(arguments) => test_python::run(workspace, &arguments),
        Command::TestPage(arguments) => test_page::run(workspace, &arguments),
        Command::TestInterop => test_interop::run(workspace),
        Command::TorchWithoutGpu(arguments) => torch_without_gpu::run(workspace, &arguments),
        Command::TestReleases(arguments) => test_releases::run(workspace, &arguments),
        Command::ModelCheck(arguments) => model_check::run(workspace, &arguments),
        Command::Sanitize(arguments) => sanitize::run(workspace, &arguments),
        Command::Coverage(arguments) => scripts::start(workspace, "coverage", &arguments),
        Command::FuzzCampaign(arguments) => scripts::start(workspace, "fuzz-campaign", &arguments),
        Command::Mutants(arguments) => scripts::start(workspace, "mutants", &arguments),
        Command::PlantedBugs(arguments) => scripts::start(workspace, "planted-bugs", &arguments),
        Command::Figures(arguments) => figures::run(workspace, &arguments),
        Command::GpuRun(arguments) => scripts::start_bundle(workspace, &arguments),
        Command::GpuCompare(arguments) => gpu_compare::run(&arguments),
    }
}
