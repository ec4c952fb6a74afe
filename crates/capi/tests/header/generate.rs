//! The headers, made from the sources of the package, the table of figures, and the texts of `headers`.

use crate::declared::functions;
use crate::wrapped::wrapped;
use gapless::allocator::Stats;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A header, and the sources that it has the functions of. That of `gapless.h` has the struct of statistics besides.
pub struct Header {
    pub name: &'static str,
    sources: &'static [&'static str],
}

/// Those that a program includes, and the last one, which is for this project's own front ends.
pub const HEADERS: [Header; 3] = [
    Header {
        name: "gapless.h",
        sources: &[
            "status.rs",
            "error_kind.rs",
            "last_error.rs",
            "version.rs",
            "config.rs",
            "registry.rs",
            "device.rs",
            "handles.rs",
            "reports.rs",
            "streams.rs",
            "registered.rs",
            "ranges.rs",
            "dlpack.rs",
            "sleep.rs",
            "listeners.rs",
            "replay.rs",
            "explain.rs",
            "abi.rs",
        ],
    },
    Header { name: "gapless_share.h", sources: &["sharing.rs", "pins.rs", "abi.rs"] },
    Header {
        name: "gapless_torch.h",
        sources: &["torch/plugin.rs", "torch/object.rs", "torch/segments.rs", "torch/history.rs", "cupy.rs", "abi.rs"],
    },
];

impl Header {
    /// Where it is checked in.
    pub fn path(&self) -> PathBuf {
        package().join("../../include").join(self.name)
    }

    pub fn generate(&self) -> String {
        let text = std::fs::read_to_string(package().join("headers").join(format!("{}.in", self.name))).unwrap();
        let declarations = self.declarations();
        text.replace("@MAJOR@", env!("CARGO_PKG_VERSION_MAJOR"))
            .replace("@MINOR@", env!("CARGO_PKG_VERSION_MINOR"))
            .replace("@PATCH@", env!("CARGO_PKG_VERSION_PATCH"))
            .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
            .replace("@PER_THREAD@", &per_thread(&declarations))
            .replace("@DECLARATIONS@", &declarations)
    }

    fn declarations(&self) -> String {
        let mut builder = cbindgen::Builder::new();
        builder = builder.with_config(cbindgen::Config::from_file(package().join("cbindgen.toml")).unwrap());
        let written = tempfile::tempdir().unwrap();
        if self.sources.contains(&"reports.rs") {
            let stats = written.path().join("stats.rs");
            std::fs::write(&stats, struct_of_stats()).unwrap();
            builder = builder.with_src(stats);
        }
        for source in self.sources {
            builder = builder.with_src(package().join("src").join(source));
        }
        let mut text = Vec::new();
        builder.generate().expect("sources that cbindgen understands").write(&mut text);
        with_comments_of_c89(&without_safety(&String::from_utf8(text).unwrap()))
    }
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The struct of statistics as C programs see it: each figure is a field.
fn struct_of_stats() -> String {
    let mut text = String::from(
        "/// Statistics of an allocator at one moment. Set size before the call: a program that was compiled with an older header\n\
         /// gets the fields that it knows.\n\
         #[repr(C)]\npub struct gapless_stats {\n    /// sizeof(gapless_stats).\n    pub size: u64,\n",
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
    lines.join("\n").trim().to_owned()
}

/// The comments that stand on lines of their own, as compilers for C89 read them.
fn with_comments_of_c89(text: &str) -> String {
    let mut out = String::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in text.lines() {
        if let Some(said) = line.trim_start().strip_prefix("//") {
            comment.push(said.trim_start());
            continue;
        }
        if !comment.is_empty() {
            let indentation = &line[..line.len() - line.trim_start().len()];
            out += &comment_of_c89(&comment, indentation);
            comment.clear();
        }
        out += line;
        out.push('\n');
    }
    assert!(comment.is_empty(), "each comment is about what follows");
    out.trim_end().to_owned()
}

fn comment_of_c89(lines: &[&str], indentation: &str) -> String {
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let begins = if index == 0 { "/*" } else { " *" };
        writeln!(text, "{}", format!("{indentation}{begins} {line}").trim_end()).unwrap();
    }
    let last = text.lines().next_back().unwrap_or_default().chars().count();
    text.truncate(text.trim_end().len());
    if last + 3 <= MOST_COLUMNS { text + " */\n" } else { format!("{text}\n{indentation} */\n") }
}

const MOST_COLUMNS: usize = 132;

/// A macro for each function that takes a stream.
fn per_thread(declarations: &str) -> String {
    let mut text = String::new();
    for function in functions(declarations) {
        let names: Vec<&str> = function.parameters.iter().map(|one| name_of(one)).collect();
        if names.contains(&"stream") {
            let handed: Vec<&str> =
                names.iter().map(|name| if *name == "stream" { "gapless_per_thread(stream)" } else { name }).collect();
            let (name, names, handed) = (function.name, names.join(", "), handed.join(", "));
            writeln!(text, "#define {name}({names}) \\\n    {name}({handed})").unwrap();
        }
    }
    text.trim_end().to_owned()
}

/// That of a parameter, which stands last.
fn name_of(parameter: &str) -> &str {
    parameter.rsplit([' ', '*']).next().unwrap_or_default()
}
