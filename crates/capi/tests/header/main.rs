//! The headers of `include` are what the sources say, and the table of figures. `cargo xtask generate-header` writes them.

mod compilers;
#[path = "../declared/mod.rs"]
mod declared;
mod generate;
#[path = "../wrapped/mod.rs"]
mod wrapped;

use declared::functions;
use gapless_capi::{GAPLESS_OK, gapless_status, gapless_status_name};
use generate::HEADERS;
use std::ffi::CStr;
use std::path::Path;

#[test]
fn the_headers_are_those_of_the_sources() {
    for header in HEADERS {
        let generated = header.generate();
        if std::env::var_os("GAPLESS_WRITE_HEADER").is_some() {
            std::fs::write(header.path(), generated).unwrap();
            continue;
        }
        let checked_in = std::fs::read_to_string(header.path()).unwrap_or_default();
        assert!(
            checked_in == generated,
            "{} is not what the sources say: run cargo xtask generate-header",
            header.name
        );
    }
}

#[test]
fn every_exported_function_is_in_one_of_them() {
    let headers = HEADERS.map(|header| header.generate());
    let mut left = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        for line in text.lines().filter(|line| line.starts_with("pub ") && line.contains(" fn gapless_")) {
            let name = line.split("fn ").nth(1).unwrap().split('(').next().unwrap();
            let declares = |header: &&String| functions(header).iter().any(|function| function.name == name);
            assert_eq!(headers.iter().filter(declares).count(), 1, "headers that declare {name}");
        }
    }
}

#[test]
fn every_status_has_its_name() {
    let header = HEADERS[0].generate();
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
