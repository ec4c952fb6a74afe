//! The texts that are written from the table of figures, `Stats::FIGURES`, beside the struct of the header (`header.rs`): the
//! Python package's types and keys, PyTorch's keys in C++, and the table of the documents agree with it. `cargo xtask
//! generate-figures` writes them.

mod wrapped;

use gapless::allocator::{Figure, FigureKind, Stats};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use wrapped::wrapped;

/// The command that writes the files.
const COMMAND: &str = "cargo xtask generate-figures";
/// Where the table of the documents begins and ends.
const TABLE: [&str; 2] =
    ["<!-- The figures. Written by cargo xtask generate-figures. -->\n", "<!-- End of the figures. -->\n"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_default()
}

/// The figures with each of PyTorch's keys.
fn torch_keys() -> impl Iterator<Item = (&'static str, &'static Figure)> {
    Stats::FIGURES.iter().flat_map(|figure| figure.torch_keys.iter().map(move |key| (*key, figure)))
}

fn python() -> String {
    let mut text = format!(
        "\"\"\"The figures of an allocator, and PyTorch's keys for them. Written by {COMMAND}; do not edit.\"\"\"\n\n\
         from __future__ import annotations\n\nfrom typing import Any, TypedDict\n\n\n\
         class Stats(TypedDict):\n    \"\"\"What ``gapless.stats()`` returns. Bytes, unless a name says otherwise.\"\"\"\n\n"
    );
    for figure in Stats::FIGURES {
        // JSON has them by kind.
        let of = if figure.name == "driver_calls" { "dict[str, int]" } else { "int" };
        let doc = wrapped(&figure.doc.replace('`', "``"), 120).join("\n    ");
        writeln!(text, "    {}: {of}\n    \"\"\"{doc}\"\"\"", figure.name).unwrap();
    }
    text.push_str(
        "    sizes: list[dict[str, int]]\n    \"\"\"Number of allocations by size.\"\"\"\n    \
         fragmentation: dict[str, Any]\n    \"\"\"Those of the figures that say how fragmented the free memory is.\"\"\"\n\n\n\
         # The fields of ``gapless_stats`` behind its size, in their order.\nFIELDS = (\n",
    );
    Stats::FIGURES.iter().for_each(|figure| writeln!(text, "    \"{}\",", figure.name).unwrap());
    text.push_str(")\n\n# The figure that has the value of a key of PyTorch's ``memory_stats()``.\nTORCH_KEYS = {\n");
    torch_keys().for_each(|(key, figure)| writeln!(text, "    \"{key}\": \"{}\",", figure.name).unwrap());
    text + "}\n"
}

fn cpp() -> String {
    let mut text = format!("// PyTorch's keys and the figures that they show. Written by {COMMAND}; do not edit.\n");
    for (key, figure) in torch_keys() {
        let line = match key.split('.').collect::<Vec<_>>()[..] {
            [metric, "all", count] => format!("GAPLESS_STAT({metric}, {count}, {})", figure.name),
            [number] => format!("GAPLESS_NUMBER({number}, {})", figure.name),
            _ => panic!("{key} is none of PyTorch's keys"),
        };
        writeln!(text, "{line}").unwrap();
    }
    text
}

fn kind(figure: &Figure) -> &'static str {
    match figure.kind {
        FigureKind::Amount => "amount",
        FigureKind::OwnAmount => "own amount",
        FigureKind::Largest => "largest",
        FigureKind::Count => "count",
        FigureKind::Peak => "peak",
        FigureKind::ShownPeak => "shown peak",
        other => panic!("the documents have no word for {other:?}"),
    }
}

/// The documents, with their table as it has to be.
fn documents() -> String {
    let text = read("docs/using/statistics.md");
    let (before, rest) = text.split_once(TABLE[0]).expect("the table has a begin");
    let (_, after) = rest.split_once(TABLE[1]).expect("the table has an end");
    let mut table = String::from("| figure | kind | what it says | PyTorch's keys |\n| --- | --- | --- | --- |\n");
    for figure in Stats::FIGURES {
        let keys: Vec<String> = figure.torch_keys.iter().map(|key| format!("`{key}`")).collect();
        writeln!(table, "| `{}` | {} | {} | {} |", figure.name, kind(figure), figure.doc, keys.join(", ")).unwrap();
    }
    [before, TABLE[0], &table, TABLE[1], after].concat()
}

#[test]
fn what_is_written_is_what_the_table_says() {
    for (name, expected) in [
        ("python/gapless/_figures.py", python()),
        ("python/src/allocator_object/torch_keys.inc", cpp()),
        ("docs/using/statistics.md", documents()),
    ] {
        if std::env::var_os("GAPLESS_WRITE_FIGURES").is_some() {
            std::fs::write(path(name), expected).unwrap();
        } else {
            assert!(read(name) == expected, "{name} is not what the table of figures says: run {COMMAND}");
        }
    }
}
