//! `include/gapless.hpp`: the C++ program of `examples/cxx`, and programs that take its classes apart, over the simulated driver.
//! The resources are compiled with stand-ins for libcu++ and RMM here; with the real ones in `rmm` of `gapless-sim`.

mod libraries;

use libraries::{Libraries, headers};
use std::path::Path;
use std::process::{Command, Output};

const EXAMPLE: &str = "../../examples/cxx/allocate.cpp";
/// The folder of the stand-ins for libcu++.
const LIBCUDACXX: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/tests/programs/libcudacxx");
/// That of the stand-ins for RMM.
const LIBRMM: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/tests/programs/librmm");
/// A program of two halves, of which one is compiled without RMM.
const RMM: [&str; 2] = ["tests/programs/rmm_errors.cpp", "tests/programs/rmm_errors_without.cpp"];

#[test]
fn the_example_runs() {
    let libraries = Libraries::new();
    let text = libraries.run(&libraries.compile_cxx(&[EXAMPLE], &["-lgapless"]));
    assert!(text.starts_with("67108864 bytes live"), "{text}");
    assert!(text.contains("report: GPU out of memory") && text.ends_with("bytes released\n"), "{text}");
}

#[test]
fn what_buffers_own_is_freed_once_and_in_order() {
    let libraries = Libraries::new();
    let text = libraries.run(&libraries.compile_cxx(&["tests/programs/buffers.cpp"], &["-lgapless", "-lcuda"]));
    assert!(text.starts_with("all as expected\n"), "{text}");
    // Of nine destructors whose free fails.
    assert_eq!(text.matches("gapless: memory was not freed: ").count(), 5, "{text}");
}

#[test]
fn the_memory_resource_is_ordered_by_streams() {
    let libraries = Libraries::new();
    let arguments = [LIBCUDACXX, "-lgapless", "-lcuda"];
    let text = libraries.run(&libraries.compile_cxx(&["tests/programs/resource.cpp"], &arguments));
    assert!(text.starts_with("all as expected\n"), "{text}");
    assert_eq!(text.matches("gapless: memory was not freed: ").count(), 1, "{text}");
}

#[test]
fn the_resource_of_rmm_has_its_exceptions() {
    let libraries = Libraries::new();
    let text = libraries.run(&libraries.compile_cxx(&RMM, &[LIBCUDACXX, LIBRMM, "-lgapless", "-lcuda"]));
    assert_eq!(text, "all as expected\n");
}

#[test]
fn ranges_grow_where_they_are() {
    let libraries = Libraries::new();
    let text = libraries.run(&libraries.compile_cxx(&["tests/programs/ranges.cpp"], &["-lgapless", "-lcuda"]));
    assert!(text.starts_with("all as expected\n"), "{text}");
    assert_eq!(text.matches("gapless: a range was not closed: ").count(), 1, "{text}");
}

#[test]
fn what_sleeps_wakes_with_its_bytes() {
    let libraries = Libraries::new();
    let program = libraries.compile_cxx(&["tests/programs/sleeps.cpp"], &["-lgapless", "-lcuda"]);
    let text = libraries.run_with(&program, &[libraries.path()]);
    assert!(text.starts_with("all as expected\n"), "{text}");
    assert_eq!(text.matches("gapless: a tag could not be ended: ").count(), 1, "{text}");
}

/// An inline function that both halves have would be one of both.
#[test]
fn halves_of_a_program_have_default_streams_of_their_own() {
    let libraries = Libraries::new();
    let legacy = libraries.compile_cxx(&["tests/programs/default_streams_legacy.cpp"], &["-c"]);
    let arguments = ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM", legacy.to_str().unwrap(), "-lgapless", "-lcuda"];
    let text = libraries.run(&libraries.compile_cxx(&["tests/programs/default_streams.cpp"], &arguments));
    assert!(text.contains("all as expected"), "{text}");
}

/// Looks at a program of one line on its own.
fn look_at(line: &str, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("program.cpp");
    std::fs::write(&source, format!("#include <gapless.hpp>\n{line}\n")).unwrap();
    looked_at(&source, arguments)
}

fn looked_at(source: &Path, arguments: &[&str]) -> Output {
    let mut compiler = Command::new("c++");
    compiler.args(["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror", "-I"]);
    compiler.arg(headers()).args(arguments).arg(source).output().expect("a C++ compiler called c++")
}

#[test]
fn the_header_needs_nothing_of_cuda() {
    let without = "#ifdef GAPLESS_HAS_MEMORY_RESOURCE\n#error it is there\n#endif";
    for standard in ["-std=c++17", "-std=c++20", "-std=c++23"] {
        let output = look_at(without, &[standard]);
        assert!(output.status.success(), "{standard}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn its_parts_can_be_included_on_their_own() {
    let parts = std::fs::read_dir(headers().join("gapless")).unwrap().map(|part| part.unwrap().file_name());
    for part in parts.map(|part| part.into_string().unwrap()) {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("program.cpp");
        std::fs::write(&source, format!("#include <gapless/{part}>\n#include <gapless.hpp>\n")).unwrap();
        let output = looked_at(&source, &["-std=c++17", LIBCUDACXX, LIBRMM]);
        assert!(output.status.success(), "{part}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_programs_are_of_later_standards_as_well() {
    for program in ["buffers.cpp", "ranges.cpp", "sleeps.cpp", "resource.cpp", "rmm_errors.cpp"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(program);
        let output = looked_at(&source, &["-std=c++20", LIBCUDACXX, LIBRMM]);
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_resource_of_rmm_says_what_it_needs() {
    let output = look_at("#include <gapless/rmm.hpp>", &["-std=c++17", LIBRMM]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("gapless/rmm.hpp needs CUDA's and libcu++'s headers"), "{text}");
}

#[test]
fn the_resource_is_there_where_libcudacxx_has_resources() {
    let has = |arguments: &[&str]| {
        let output = look_at("gapless::memory_resource resource(0);", &[&["-std=c++17"], arguments].concat());
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (old, asked) = ("-DCCCL_VERSION=3000003", "-DGAPLESS_MEMORY_RESOURCE=1");
    let experimental = "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE";
    for there in [&[LIBCUDACXX] as &[&str], &[LIBCUDACXX, asked], &[LIBCUDACXX, old, experimental]] {
        let (is_there, text) = has(there);
        assert!(is_there, "{there:?}: {text}");
    }
    for (missing, told) in [
        (&[] as &[&str], "memory_resource"),
        (&[LIBCUDACXX, "-DGAPLESS_MEMORY_RESOURCE=0"], "memory_resource"),
        (&[LIBCUDACXX, old], "memory_resource"),
        (&[LIBCUDACXX, old, asked], "where LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE is defined"),
        (&[asked], "cuda/memory_resource: No such file"),
    ] {
        let (is_there, text) = has(missing);
        assert!(!is_there && text.contains(told), "{missing:?}: {text}");
    }
}

#[test]
fn the_same_under_the_address_sanitizer() {
    let sanitized = "-fsanitize=address,undefined";
    let libraries = Libraries::new();
    let probe = libraries.path().join("probe.cpp");
    std::fs::write(&probe, "int main() {}\n").unwrap();
    let has = Command::new("c++").arg(sanitized).arg(&probe).arg("-o").arg(libraries.path().join("probe")).output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!("skipped: no AddressSanitizer");
        return;
    }
    let programs: [&[&str]; 6] = [
        &[EXAMPLE],
        &["tests/programs/buffers.cpp"],
        &["tests/programs/resource.cpp"],
        &["tests/programs/ranges.cpp"],
        &["tests/programs/sleeps.cpp"],
        &RMM,
    ];
    for program in programs {
        let arguments = [sanitized, "-fno-sanitize-recover=all", LIBCUDACXX, LIBRMM, "-lgapless", "-lcuda"];
        println!("{}", libraries.run_with(&libraries.compile_cxx(program, &arguments), &[libraries.path()]));
    }
}
