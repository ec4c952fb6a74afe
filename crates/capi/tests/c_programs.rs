//! The C programs of `examples/c`: compiled with warnings as errors, linked, and run against the simulated driver.

mod libraries;

use libraries::{Libraries, SONAME};
use std::process::Command;

#[test]
fn the_example_runs() {
    let libraries = Libraries::new();
    let text = libraries.run(&libraries.compile("allocate", &["-lgapless"]));
    assert!(text.contains("67108864 bytes live"), "{text}");
    assert!(text.contains("\"satisfiable\":false"), "{text}");
}

/// Memory of the simulated device is the host's. Undefined values are left out: optimised Rust compares some before it knows that
/// they do not matter.
#[test]
fn it_runs_under_valgrind() {
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: no valgrind");
        return;
    }
    let libraries = Libraries::new();
    let program = libraries.compile("allocate", &["-lgapless"]);
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--error-exitcode=9", "--undef-value-errors=no", "--leak-check=full"]);
    valgrind.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]).arg(program);
    let text = libraries.run_command(&mut valgrind);
    assert!(text.contains("67108864 bytes live") && text.contains("ERROR SUMMARY: 0 errors"), "{text}");
}

#[test]
fn it_runs_linked_statically_as_well() {
    let libraries = Libraries::new();
    libraries.run(&libraries.compile("allocate", &["-l:libgapless.a", "-ldl", "-lm"]));
}

#[test]
fn misuse_is_answered() {
    let libraries = Libraries::new();
    let text = libraries.run(&libraries.compile("misuse", &["-lgapless"]));
    assert!(text.contains("as expected"), "{text}");
}

#[test]
fn the_header_has_the_version_of_the_library() {
    let libraries = Libraries::new();
    let text = libraries.run(&libraries.compile_from("tests/programs", "version", &["-lgapless"]));
    let version = env!("CARGO_PKG_VERSION");
    assert!(text.starts_with(&format!("{version}: ")) && text.contains(&format!(", {version}: ")), "{text}");
}

/// Another context's memory is the device's as well: what is freed there can be had here.
#[test]
fn the_default_budget_is_the_device() {
    let libraries = Libraries::new();
    let program = libraries.compile_from("tests/programs", "device_budget", &["-lgapless", "-lcuda"]);
    let text = libraries.run(&program);
    assert!(text.contains("as expected"), "{text}");
}

/// As in cuda.h, which renames its functions there.
#[test]
fn null_is_the_threads_own_stream_where_the_program_is_compiled_so() {
    let libraries = Libraries::new();
    let arguments = ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM", "-lgapless"];
    let program = libraries.compile_from("tests/programs", "per_thread_default", &arguments);
    let text = libraries.run(&program);
    assert!(text.contains("as expected"), "{text}");
}

/// Static destructors of C++ and handlers of `atexit` run when the thread's own variables are gone.
#[test]
fn calls_after_main_are_answered() {
    let libraries = Libraries::new();
    let text = libraries.run(&libraries.compile_from("tests/programs", "at_exit", &["-lgapless"]));
    assert!(text.contains("as expected\n") && text.contains("ended as expected"), "{text}");
}

/// The folder that a program finds the library in may hold a version that it was not linked with.
#[test]
fn the_library_has_the_number_of_its_interface_in_its_name() {
    let libraries = Libraries::new();
    let program = std::fs::read(libraries.compile("allocate", &["-lgapless"])).unwrap();
    let needed = format!("\0{SONAME}\0");
    assert!(program.windows(needed.len()).any(|bytes| bytes == needed.as_bytes()), "the program needs {SONAME}");
}

#[test]
fn copies_of_the_library_refuse_the_handles_of_each_other() {
    let libraries = Libraries::new();
    let program = libraries.compile_from("tests/programs", "two_copies", &["-D_GNU_SOURCE", "-ldl"]);
    let copies = ["one.so", "two.so"].map(|name| libraries.path().join(name));
    for copy in &copies {
        std::fs::copy(libraries.path().join("libgapless.so"), copy).unwrap();
    }
    let text = libraries.run_with(&program, &[&copies[0], &copies[1]]);
    assert!(text.contains("as expected"), "{text}");
}

#[test]
fn eight_threads_on_four_streams() {
    let libraries = Libraries::new();
    println!("{}", libraries.run(&libraries.compile("stress", &["-lgapless", "-lcuda"])));
}

#[test]
fn the_same_under_the_address_sanitizer() {
    let libraries = Libraries::new();
    let probe = libraries.path().join("probe.c");
    std::fs::write(&probe, "int main(void) { return 0; }\n").unwrap();
    let has =
        Command::new("cc").arg("-fsanitize=address").arg(&probe).arg("-o").arg(libraries.path().join("p")).output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!("skipped: no AddressSanitizer");
        return;
    }
    for program in ["misuse", "stress"] {
        let arguments = ["-fsanitize=address", "-lgapless", "-lcuda"];
        println!("{}", libraries.run(&libraries.compile(program, &arguments)));
    }
}
