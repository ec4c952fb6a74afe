//! Programs that are linked with the CUDA runtime by its name, where none is installed. Skipped unless `GAPLESS_TORCH_ENV` names an
//! environment with CUDA's headers.

mod world;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use world::pytorch::PyTorch;
use world::{Ended, World};

/// A library with the functions of a runtime and a version of their symbols, as NVIDIA's has.
fn runtime(world: &World, folder: &str, name: &str) -> PathBuf {
    let (source, versions) = (world.path("cudart.c"), world.path(&format!("{name}.map")));
    // What it answers shows that the program has called it.
    std::fs::write(&source, "int cudaMalloc(void) { return 77; }\nint cudaFree(void) { return 78; }\n").unwrap();
    std::fs::write(&versions, format!("{name} {{ global: cuda*; local: *; }};\n")).unwrap();
    std::fs::create_dir_all(world.path(folder)).unwrap();
    world.compile_with(&source, &format!("{folder}/{name}"), |cc| {
        cc.args(["-fPIC", "-shared"]).arg(format!("-Wl,-soname,{name}"));
        cc.arg(format!("-Wl,--version-script={}", versions.display()));
    })
}

fn program(world: &World, name: &str, flags: &[&str]) -> PathBuf {
    let real = runtime(world, "real", name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/runtime.c");
    world.compile_with(&source, &format!("with-{name}"), |cc| {
        cc.arg(real).args(flags);
    })
}

#[test]
fn a_program_that_finds_no_runtime_is_given_the_stand_in() {
    let Some(pytorch) = PyTorch::find() else { return };
    let world = &pytorch.world;
    std::fs::create_dir(world.path("lib/runtime")).unwrap();
    for name in ["libcudart.so.12", "libcudart.so.13"] {
        symlink("../libcudart-standin.so", world.path("lib/runtime").join(name)).unwrap();
        let program = program(world, name, &["-Wl,-z,now"]);
        assert_eq!(world.run(&["--runtime"], &[&program]).code, Some(0), "{name}");
        let failed = world.run(&["--runtime", "--fail", "cuMemAlloc:1"], &[&program]);
        assert_eq!((failed.code, failed.stderr.as_str()), (Some(2), ""), "{name}");
        let without = world.run(&[], &[&program]);
        assert!(without.code == Some(127) && without.stderr.contains(name), "{without:?}");
    }
}

/// What the stand-in lacks is left to it.
#[test]
fn a_program_that_finds_its_runtime_has_both() {
    let Some(pytorch) = PyTorch::find() else { return };
    let world = &pytorch.world;
    std::fs::create_dir(world.path("lib/runtime")).unwrap();
    symlink("../libcudart-standin.so", world.path("lib/runtime/libcudart.so.13")).unwrap();
    let real = world.path("real");
    let program = program(world, "libcudart.so.13", &[&format!("-Wl,--enable-new-dtags,-rpath,{}", real.display())]);
    let mut command = world.command(&["--runtime"], &[&program]);
    let ended = Ended::of(command.env("LD_DEBUG", "files").output().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains(real.join("libcudart.so.13").to_str().unwrap()), "{ended:?}");
}
