//! Programs that are linked with the CUDA runtime by its name, where none is installed.

mod world;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use world::{Ended, World};

/// The names that the library folder has for the stand-in.
const NAMES: [&str; 2] = ["libcudart.so.12", "libcudart.so.13"];

/// A library with the functions of a runtime, whose answer is `code`.
fn library(world: &World, path: &str, code: u32, versions: &Path) -> PathBuf {
    let source = world.path("cudart.c");
    let text = format!("int cudaMalloc(void) {{ return {code}; }}\nint cudaFree(void) {{ return {code}; }}\n");
    std::fs::write(&source, text).unwrap();
    world.compile_with(&source, path, |cc| {
        cc.args(["-fPIC", "-shared"]).arg(format!("-Wl,--version-script={}", versions.display()));
        cc.arg(format!("-Wl,-soname,{}", Path::new(path).file_name().unwrap().display()));
    })
}

/// A folder of libraries with what takes the stand-in's place, which has its versions.
fn world() -> World {
    let world = World::new();
    let versions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tests/cuda_stand_ins/cuda_runtime.map");
    library(&world, "lib/libcudart-standin.so", 0, &versions);
    std::fs::create_dir(world.path("lib/runtime")).unwrap();
    for name in NAMES {
        symlink("../libcudart-standin.so", world.path("lib/runtime").join(name)).unwrap();
    }
    world
}

/// A program that is linked with a runtime whose symbols have its name for a version, as NVIDIA's have. It is in `real`.
fn program(world: &World, name: &str, flags: &[&str]) -> PathBuf {
    let versions = world.path("real.map");
    std::fs::write(&versions, format!("{name} {{ global: cuda*; local: *; }};\n")).unwrap();
    std::fs::create_dir_all(world.path("real")).unwrap();
    let real = library(world, &format!("real/{name}"), 77, &versions);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/runtime.c");
    world.compile_with(&source, &format!("with-{name}"), |cc| {
        cc.arg(real).args(flags);
    })
}

#[test]
fn a_program_that_finds_no_runtime_is_given_the_stand_in() {
    let world = world();
    for name in NAMES {
        let program = program(&world, name, &["-Wl,-z,now"]);
        let ended = world.run(&["--runtime"], &[&program]);
        // The loader warns of a library that does not say its versions.
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{name}");
        let without = world.run(&[], &[&program]);
        assert!(without.code == Some(127) && without.stderr.contains(name), "{without:?}");
    }
}

/// What the stand-in lacks is left to it.
#[test]
fn a_program_that_finds_its_runtime_has_both() {
    let world = world();
    let real = world.path("real");
    let flag = format!("-Wl,--enable-new-dtags,-rpath,{}", real.display());
    let program = program(&world, NAMES[1], &[&flag]);
    let mut command = world.command(&["--runtime"], &[&program]);
    let ended = Ended::of(command.env("LD_DEBUG", "files").output().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains(real.join(NAMES[1]).to_str().unwrap()), "{ended:?}");
}
