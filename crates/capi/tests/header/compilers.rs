//! The headers alone, under the standards that a program may be written in, with warnings as errors.

use crate::generate::HEADERS;
use std::process::{Command, Output};

const C: [&str; 5] = ["c89", "gnu89", "c99", "c11", "c17"];
const CXX: [&str; 3] = ["c++98", "c++11", "c++17"];
const PER_THREAD: &str = "-DCUDA_API_PER_THREAD_DEFAULT_STREAM";

/// A program that includes a header twice, and uses what was declared for it.
fn program(header: &str) -> String {
    format!(
        "#include <{header}>\n#include <{header}>\n\
         gapless_status use(gapless_allocator *allocator, void **pointer);\n\
         gapless_status use(gapless_allocator *allocator, void **pointer) {{\n\
         \x20   return gapless_alloc(allocator, sizeof(gapless_stats), 0, pointer);\n}}\n"
    )
}

fn look_at(text: &str, compiler: &str, standard: &str, more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join(if compiler == "cc" { "program.c" } else { "program.cpp" });
    std::fs::write(&source, text).unwrap();
    let mut command = Command::new(compiler);
    command.arg(format!("-std={standard}")).args(["-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]);
    command.arg("-I").arg(HEADERS[0].path().parent().unwrap()).args(more).arg(source);
    command.output().expect("compilers called cc and c++")
}

fn expect_good(text: &str, compiler: &str, standard: &str, more: &[&str]) {
    let output = look_at(text, compiler, standard, more);
    assert!(output.status.success(), "{standard} {more:?}: {}\n{text}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn compilers_of_every_standard_read_the_headers() {
    for (compiler, standard) in C.map(|standard| ("cc", standard)).into_iter().chain(CXX.map(|one| ("c++", one))) {
        for header in HEADERS {
            for more in [&[] as &[&str], &[PER_THREAD]] {
                expect_good(&program(header.name), compiler, standard, more);
            }
        }
    }
}

/// What the test above would not see if these compilers took anything.
#[test]
fn compilers_refuse_what_their_standard_has_not() {
    let newer = "// a comment of C99\n";
    assert!(!look_at(&(program("gapless.h") + newer), "cc", "c89", &[]).status.success());
    expect_good(&(program("gapless.h") + newer), "cc", "c99", &[]);
    assert!(!look_at(&(program("gapless.h") + "static int a[2] = { [1] = 2 };\n"), "cc", "c89", &[]).status.success());
    assert!(!look_at(&(program("gapless.h") + "auto f() { return 1; }\n"), "c++", "c++98", &[]).status.success());
}
