//! `include/gapless.h` is what the sources say, and the table of figures. `cargo xtask generate-header` writes it.

mod wrapped;

use gapless::allocator::Stats;
use gapless_capi::{GAPLESS_OK, gapless_status, gapless_status_name};
use std::ffi::CStr;
use std::fmt::Write;
use std::path::Path;
use wrapped::wrapped;

const SOURCES: [&str; 24] = [
    "status.rs",
    "error_kind.rs",
    "last_error.rs",
    "version.rs",
    "config.rs",
    "registry.rs",
    "handles.rs",
    "reports.rs",
    "device.rs",
    "streams.rs",
    "listeners.rs",
    "registered.rs",
    "ranges.rs",
    "dlpack.rs",
    "sharing.rs",
    "sleep.rs",
    "pins.rs",
    "replay.rs",
    "explain.rs",
    "torch/plugin.rs",
    "torch/object.rs",
    "torch/history.rs",
    "cupy.rs",
    "abi.rs",
];

fn generate() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let written = tempfile::tempdir().unwrap();
    let stats = written.path().join("stats.rs");
    std::fs::write(&stats, struct_of_stats()).unwrap();
    let builder = cbindgen::Builder::new().with_config(config).with_src(stats);
    let builder = SOURCES.iter().fold(builder, |builder, name| builder.with_src(folder.join("src").join(name)));
    let mut text = Vec::new();
    builder.generate().expect("sources that cbindgen understands").write(&mut text);
    let text = String::from_utf8(text).unwrap();
    with_version(&without_safety(&text))
}

/// The header has the version of the package.
fn with_version(text: &str) -> String {
    text.replace("@MAJOR@", env!("CARGO_PKG_VERSION_MAJOR"))
        .replace("@MINOR@", env!("CARGO_PKG_VERSION_MINOR"))
        .replace("@PATCH@", env!("CARGO_PKG_VERSION_PATCH"))
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
}

/// The struct of statistics as C programs see it: each figure is a field.
fn struct_of_stats() -> String {
    let mut text = String::from(
        "/// Statistics of an allocator at one moment. Set size before the call: a program that was compiled with an older header\n\
         /// gets the fields that it knows.\n\
         #[repr(C)]\npub struct gapless_stats {\n    /// sizeof(gapless_stats).\n    pub size: usize,\n",
    );
    for figure in Stats::FIGURES {
        for line in wrapped(&figure.doc.replace('`', ""), 120) {
            writeln!(text, "    /// {line}").unwrap();
        }
        writeln!(text, "    pub {}: u64,", figure.name).unwrap();
    }
    text + "}\n"
}

/// The sections on safety are for Rust; in C, they go without their heading.
fn without_safety(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| *line != "// # Safety").collect();
    lines.join("\n") + "\n"
}

#[test]
fn the_header_is_that_of_the_sources() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/gapless.h");
    let generated = generate();
    if std::env::var_os("GAPLESS_WRITE_HEADER").is_some() {
        std::fs::write(&path, generated).unwrap();
        return;
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(checked_in == generated, "include/gapless.h is not what the sources say: run cargo xtask generate-header");
}

#[test]
fn every_exported_function_is_in_it() {
    let header = generate();
    let mut left = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        for line in text.lines().filter(|line| line.starts_with("pub ") && line.contains(" fn gapless_")) {
            let name = line.split("fn ").nth(1).unwrap().split('(').next().unwrap();
            assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
        }
    }
}

#[test]
fn every_status_has_its_name() {
    let header = generate();
    let mut seen = Vec::new();
    for line in header.lines().filter_map(|line| line.strip_prefix("#define GAPLESS_")) {
        let Some((name, number)) = line.split_once(' ') else { continue };
        let name = if name == "OK" { Some(name) } else { name.strip_prefix("ERROR_") };
        if let Some(name) = name {
            let number: i32 = number.parse().unwrap();
            assert_eq!(name_of(number), name);
            seen.push(number);
        }
    }
    assert_eq!(seen.first(), Some(&GAPLESS_OK));
    for number in (-2..64).chain([i32::MIN, i32::MAX]).filter(|number| !seen.contains(number)) {
        assert_eq!(name_of(number), "unknown status", "{number}");
    }
}

fn name_of(status: gapless_status) -> &'static str {
    // SAFETY: a text that ends with NUL and lives as long as the library.
    unsafe { CStr::from_ptr(gapless_status_name(status)) }.to_str().unwrap()
}
