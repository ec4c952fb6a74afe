//! The C library, installed as C programs expect it: for the compiler alone, for pkg-config and for CMake.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library's own name, which a program asks for that was linked with it: see `crates/capi/build.rs`.
const SONAME: &str = "libgapless.so.0";
/// The libraries that the static library needs besides: `rustc --print native-static-libs`.
const SYSTEM_LIBRARIES: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];
/// Installed files that say where the others are, with the folder of their templates.
const DESCRIPTIONS: [&str; 3] =
    ["pkgconfig/gapless.pc", "cmake/gapless/gaplessConfig.cmake", "cmake/gapless/gaplessConfigVersion.cmake"];
const TEMPLATES: &str = "crates/capi/packaging";

#[derive(Debug, clap::Args)]
pub struct BuildCapiArguments {
    /// Folder to install in: lib/libgapless.so.0, a link libgapless.so to it, lib/libgapless.a, include/gapless.h, and what
    /// pkg-config and CMake read [default: dist/capi]
    prefix: Option<PathBuf>,
    /// Then build a program in each way, and run it over the simulated driver (needs cc, pkg-config and cmake)
    #[arg(long)]
    check: bool,
}

pub fn run(workspace: &Workspace, arguments: &BuildCapiArguments) -> Result<(), Failure> {
    let prefix = match &arguments.prefix {
        Some(given) => files::given(given)?,
        None => workspace.path("dist/capi"),
    };
    process::run(&mut workspace.cargo(["build", "--release", "--package", "gapless-capi"]))?;
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    files::create_folder(&lib)?;
    files::create_folder(&include)?;
    files::install(&workspace.target("release/libgapless_capi.so"), &lib.join(SONAME), 0o755)?;
    files::link(SONAME, &lib.join("libgapless.so"))?;
    files::install(&workspace.target("release/libgapless_capi.a"), &lib.join("libgapless.a"), 0o644)?;
    files::install(&workspace.path("include/gapless.h"), &include.join("gapless.h"), 0o644)?;
    for description in DESCRIPTIONS {
        let to = lib.join(description);
        files::create_folder(to.parent().expect("a folder"))?;
        let template = workspace.path(TEMPLATES).join(format!("{}.in", files::name(&to)));
        files::write(&to, &filled_in(&files::read(&template)?))?;
    }
    let shown = files::shown(&prefix);
    println!("installed in {shown}: cc program.c -I{shown}/include -L{shown}/lib -lgapless");
    if arguments.check { check(workspace, &prefix) } else { Ok(()) }
}

fn filled_in(template: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut numbers = version.split('.');
    template
        .replace("@VERSION@", version)
        .replace("@MAJOR@", numbers.next().unwrap_or_default())
        .replace("@MINOR@", numbers.next().unwrap_or_default())
        .replace("@SONAME@", SONAME)
        .replace("@SYSTEM_LIBRARIES@", &SYSTEM_LIBRARIES.join(" "))
}

/// Builds the first program of the documentation in each way that users have, and runs it.
fn check(workspace: &Workspace, prefix: &Path) -> Result<(), Failure> {
    process::require(&["cc", "pkg-config", "cmake"])?;
    let folder = files::temporary_folder()?;
    // The driver that the program finds; gapless is the one that was installed.
    workspace.install_simulated(folder.path())?;
    files::remove(&folder.path().join("libgapless.so"))?;
    // What was installed has to be found wherever it is moved to.
    let moved = folder.path().join("elsewhere");
    process::run(workspace.command("cp").arg("-a").arg(prefix).arg(&moved))?;

    let flags = |asked: &[&str]| {
        let mut pkg_config = workspace.command("pkg-config");
        pkg_config.env("PKG_CONFIG_PATH", moved.join("lib/pkgconfig"));
        let told = process::output(pkg_config.args(asked).arg("gapless"))?;
        Ok::<_, Failure>(told.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let shared = flags(&["--cflags", "--libs"])?;
    let mut whole = flags(&["--cflags"])?;
    whole.push(moved.join("lib/libgapless.a").to_string_lossy().into_owned());
    let needs: Vec<String> = flags(&["--static", "--libs"])?;
    whole.extend(needs.into_iter().filter(|flag| flag != "-lgapless" && !flag.starts_with("-L")));
    for (way, flags) in [("shared library, pkg-config", shared), ("static library, pkg-config", whole)] {
        let program = folder.path().join("allocate");
        let mut cc = workspace.command("cc");
        cc.args(["-Wall", "-Wextra", "-Werror", "examples/c/allocate.c", "-o"]).arg(&program).args(flags);
        process::run(&mut cc)?;
        try_out(way, &mut workspace.command(&program), folder.path(), &moved)?;
    }

    let (source, build) = (folder.path().join("project"), folder.path().join("build"));
    files::create_folder(&source)?;
    files::copy(&workspace.path("examples/c/allocate.c"), &source.join("allocate.c"))?;
    files::write(&source.join("CMakeLists.txt"), &project())?;
    let mut configure = workspace.command("cmake");
    configure.arg("-S").arg(&source).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", moved.display()));
    process::output(&mut configure)?;
    process::output(workspace.command("cmake").arg("--build").arg(&build))?;
    for (way, program) in [("shared library, CMake", "with_shared"), ("static library, CMake", "with_static")] {
        try_out(way, &mut workspace.command(build.join(program)), folder.path(), &moved)?;
    }
    Ok(())
}

/// A project with a program for each of the libraries.
fn project() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "cmake_minimum_required(VERSION 3.16)\nproject(check C)\nfind_package(gapless {version} REQUIRED)\n\
         add_executable(with_shared allocate.c)\ntarget_link_libraries(with_shared gapless::gapless)\n\
         add_executable(with_static allocate.c)\ntarget_link_libraries(with_static gapless::static)\n"
    )
}

fn try_out(way: &str, program: &mut Command, driver: &Path, installed: &Path) -> Result<(), Failure> {
    program.env("LD_LIBRARY_PATH", format!("{}:{}", driver.display(), installed.join("lib").display()));
    let told = process::output(program)?;
    if !told.contains("report: {") {
        return Err(Failure::new(format!("{way}: the program said\n{told}")));
    }
    println!("{way}: built and run");
    Ok(())
}
