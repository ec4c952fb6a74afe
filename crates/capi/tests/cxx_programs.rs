//! `include/gapless.hpp`: the C++ program of `examples/cxx`, and programs that take buffers and the memory resource apart, over the
//! simulated driver. The resource is compiled with stand-ins for libcu++ here; with the real one in `rmm` of `gapless-sim`.

mod libraries;

use libraries::{Libraries, headers};
use std::process::{Command, Output};

const EXAMPLE: &str = "../../examples/cxx/allocate.cpp";
/// The folder of the stand-ins for libcu++.
const LIBCUDACXX: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/tests/programs/libcudacxx");

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
    for program in [EXAMPLE, "tests/programs/buffers.cpp", "tests/programs/resource.cpp"] {
        let arguments = [sanitized, "-fno-sanitize-recover=all", LIBCUDACXX, "-lgapless", "-lcuda"];
        println!("{}", libraries.run(&libraries.compile_cxx(&[program], &arguments)));
    }
}
