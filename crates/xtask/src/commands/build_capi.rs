//! The C library, installed as C programs expect it: for the compiler alone, for pkg-config and for CMake.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{files, process};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library's own name, which a program asks for that was linked with it: see `crates/capi/build.rs`.
pub const SONAME: &str = include_str!("../../../capi/soname.txt").trim_ascii();
/// The libraries that the static library needs besides: `rustc --print native-static-libs`.
const SYSTEM_LIBRARIES: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];
/// For C, and for C++ over it. Those of PyTorch's entry points are private.
const HEADERS: [&str; 3] = ["gapless.h", "gapless_share.h", "gapless.hpp"];
/// The folder of the parts of `gapless.hpp`.
const PARTS: &str = "gapless";
/// Installed files that say where the others are, with the folder of their templates.
const DESCRIPTIONS: [&str; 3] =
    ["pkgconfig/gapless.pc", "cmake/gapless/gaplessConfig.cmake", "cmake/gapless/gaplessConfigVersion.cmake"];
const TEMPLATES: &str = "crates/capi/packaging";

#[derive(Debug, Default, clap::Args)]
pub struct BuildCapiArguments {
    /// Folder to install in: lib/libgapless.so.N, a link libgapless.so to it, lib/libgapless.a, include/gapless.h,
    /// gapless_share.h, gapless.hpp and its parts in gapless/, and what pkg-config and CMake read [default: dist/capi].
    /// Where there is an objcopy, the shared library's line tables are beside it, in lib/libgapless.so.N.debug
    pub prefix: Option<PathBuf>,
    /// Then build a program in each way, and run it over the simulated driver (needs cc, c++, pkg-config and cmake)
    #[arg(long)]
    pub check: bool,
}

pub fn run(workspace: &Workspace, arguments: &BuildCapiArguments) -> Result<(), Failure> {
    let prefix = match &arguments.prefix {
        Some(given) => files::given(given)?,
        None => workspace.path("dist/capi"),
    };
    process::run(&mut workspace.cargo(["build", "--release", "--package", "gapless-capi"]))?;
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    files::create_folder(&lib)?;
    files::create_folder(&include.join(PARTS))?;
    files::install(&workspace.target("release/libgapless_capi.so"), &lib.join(SONAME), 0o755)?;
    take_out_line_tables(workspace, &lib.join(SONAME))?;
    files::link(SONAME, &lib.join("libgapless.so"))?;
    files::install(&workspace.target("release/libgapless_capi.a"), &lib.join("libgapless.a"), 0o644)?;
    for header in HEADERS {
        files::install(&workspace.path("include").join(header), &include.join(header), 0o644)?;
    }
    for part in files::with_ending(&workspace.path("include").join(PARTS), "hpp")? {
        files::install(&part, &include.join(PARTS).join(files::name(&part)), 0o644)?;
    }
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

/// Puts the symbols and line tables of an installed library into a file beside it, where debuggers look for them.
fn take_out_line_tables(workspace: &Workspace, library: &Path) -> Result<(), Failure> {
    if process::find(OBJCOPY).is_none() {
        println!("there is no {OBJCOPY}: {} keeps its line tables", files::shown(library));
        return Ok(());
    }
    let tables = line_tables(library);
    process::run(workspace.command(OBJCOPY).arg("--only-keep-debug").arg(library).arg(&tables))?;
    files::set_permissions(&tables, 0o644)?;
    let mut objcopy = workspace.command(OBJCOPY);
    objcopy.arg("--strip-unneeded").arg(format!("--add-gnu-debuglink={}", tables.display())).arg(library);
    process::run(&mut objcopy)
}

fn line_tables(library: &Path) -> PathBuf {
    library.with_file_name(format!("{}.debug", files::name(library)))
}

const OBJCOPY: &str = "objcopy";

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

/// The first program of the documentation in each language, with the compiler and its options.
const PROGRAMS: [(&str, &[&str]); 2] =
    [("examples/c/allocate.c", &["cc"]), ("examples/cxx/allocate.cpp", &["c++", "-std=c++17"])];

/// Builds the first programs of the documentation in each way that users have, and runs them.
fn check(workspace: &Workspace, prefix: &Path) -> Result<(), Failure> {
    process::require(&["cc", "c++", "pkg-config", "cmake"])?;
    let folder = files::temporary_folder()?;
    // The driver that the program finds; gapless is the one that was installed.
    workspace.install_simulated(folder.path())?;
    files::remove(&folder.path().join("libgapless.so"))?;
    // What was installed has to be found wherever it is moved to.
    let moved = folder.path().join("elsewhere");
    process::run(workspace.command("cp").arg("-a").arg(prefix).arg(&moved))?;

    check_line_tables(workspace, &moved.join("lib").join(SONAME))?;

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
        for (source, compiler) in PROGRAMS {
            let program = folder.path().join("allocate");
            let mut command = workspace.command(compiler[0]);
            command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", source, "-o"]).arg(&program).args(&flags);
            process::run(&mut command)?;
            try_out(&format!("{source}, {way}"), &mut workspace.command(&program), folder.path(), Some(&moved))?;
        }
    }

    let installed = format!("find_package(gapless {} REQUIRED)", env!("CARGO_PKG_VERSION"));
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", moved.display());
    check_cmake(workspace, folder.path(), "CMake", &installed, &prefix)?;
    let fetched = format!(
        "include(FetchContent)\nFetchContent_Declare(gapless SOURCE_DIR {} SOURCE_SUBDIR crates/capi)\n\
         FetchContent_MakeAvailable(gapless)",
        workspace.path("").display()
    );
    let target = format!("-DGAPLESS_TARGET_DIR={}", workspace.target("").display());
    check_cmake(workspace, folder.path(), "CMake's FetchContent", &fetched, &target)
}

/// Builds the first programs with CMake, where `found` makes its targets, and runs them.
fn check_cmake(workspace: &Workspace, folder: &Path, way: &str, found: &str, setting: &str) -> Result<(), Failure> {
    let inside = files::temporary_folder()?;
    let (source, build) = (inside.path().join("project"), inside.path().join("build"));
    files::create_folder(&source)?;
    for (program, _) in PROGRAMS {
        let path = workspace.path(program);
        files::copy(&path, &source.join(files::name(&path)))?;
    }
    files::write(&source.join("CMakeLists.txt"), &project(found))?;
    let mut configure = workspace.command("cmake");
    process::output(configure.arg("-S").arg(&source).arg("-B").arg(&build).arg(setting))?;
    process::output(workspace.command("cmake").arg("--build").arg(&build))?;
    for (program, _) in PROGRAMS {
        for library in ["shared", "static"] {
            let mut built = workspace.command(build.join(format!("{}_{library}", files::name(Path::new(program)))));
            try_out(&format!("{program}, {library} library, {way}"), &mut built, folder, None)?;
        }
    }
    Ok(())
}

/// A project with a target for each program on each of the libraries.
fn project(found: &str) -> String {
    let mut project =
        format!("cmake_minimum_required(VERSION 3.18)\nproject(check C CXX)\nset(CMAKE_CXX_STANDARD 17)\n{found}\n");
    for (program, _) in PROGRAMS {
        let source = files::name(Path::new(program));
        for (library, target) in [("shared", "gapless::gapless"), ("static", "gapless::static")] {
            let built = format!("{source}_{library}");
            project += &format!("add_executable({built} {source})\ntarget_link_libraries({built} {target})\n");
        }
    }
    project
}

/// The library has no line tables, and they are found beside it wherever both are.
fn check_line_tables(workspace: &Workspace, library: &Path) -> Result<(), Failure> {
    if !line_tables(library).exists() {
        return Ok(());
    }
    process::require(&["readelf", "nm", "addr2line"])?;
    let sections = process::output(workspace.command("readelf").args(["--wide", "--sections"]).arg(library))?;
    if sections.contains(" .debug_line ") || sections.contains(" .symtab ") {
        return Err(Failure::new(format!("{} has its line tables in it:\n{sections}", library.display())));
    }
    let symbols = process::output(workspace.command("nm").arg("--dynamic").arg(library))?;
    let address = symbols.lines().find_map(|line| line.strip_suffix(" T gapless_alloc_aligned")).unwrap_or_default();
    let line = process::output(workspace.command("addr2line").arg("--exe").arg(library).arg(address))?;
    if !line.contains("crates/capi/src/handles.rs:") {
        return Err(Failure::new(format!("gapless_alloc_aligned is at {line}")));
    }
    println!("line tables: found beside the library");
    Ok(())
}

/// Runs a program over the simulated driver. `installed` is where it finds gapless, where it does not know that by itself.
fn try_out(way: &str, program: &mut Command, driver: &Path, installed: Option<&Path>) -> Result<(), Failure> {
    let folders = [Some(driver.to_owned()), installed.map(|prefix| prefix.join("lib"))];
    let folders =
        std::env::join_paths(folders.into_iter().flatten()).map_err(|error| Failure::new(error.to_string()))?;
    program.env("LD_LIBRARY_PATH", folders);
    let told = process::output(program)?;
    if !told.contains("\nreport: ") {
        return Err(Failure::new(format!("{way}: the program said\n{told}")));
    }
    println!("{way}: built and run");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source folder has the targets of an installed library, with the same names and needs.
    #[test]
    fn the_targets_of_a_source_folder_are_those_of_an_installed_library() {
        let workspace = Workspace::find().unwrap();
        let fetched = files::read(&workspace.path("crates/capi/CMakeLists.txt")).unwrap();
        let installed = files::read(&workspace.path(TEMPLATES).join("gaplessConfig.cmake.in")).unwrap();
        for target in ["gapless::gapless SHARED", "gapless::static STATIC"] {
            assert!([&fetched, &installed].iter().all(|text| text.contains(target)), "{target}");
        }
        assert!(fetched.contains("/soname.txt\" _gapless_soname)"));
        assert!(fetched.contains(&format!("INTERFACE_LINK_LIBRARIES \"{}\"", SYSTEM_LIBRARIES.join(" "))));
    }

    #[test]
    fn the_name_of_the_library_in_the_document_is_its_own() {
        let document = files::read(&Workspace::find().unwrap().path("docs/using/c.md")).unwrap();
        assert!(document.contains(&format!("own name is `{SONAME}`")), "{SONAME}");
    }
}
