//! Prints sequences as Rust tests.

use crate::device::World;
use crate::op::Op;
use std::fmt::Write;

/// Returns the source of a test that runs the sequence.
pub fn as_test(world: &World, ops: &[Op]) -> String {
    let mut text = String::from(
        "#[test]\nfn regression() {\n    use gapless_testkit::{Backup::*, Failure::*, Misuse::*, Op::*, *};\n",
    );
    let _ = writeln!(text, "    let world = {world:?};");
    text.push_str("    run::<Model>(\n        &world,\n        &[\n");
    for op in ops {
        let _ = writeln!(text, "            {op:?},");
    }
    text.push_str("        ],\n    );\n}\n");
    text
}

/// Prints a sequence as a test if it is dropped during a panic.
pub struct PrintOnPanic<'a>(pub &'a World, pub &'a [Op]);

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", as_test(self.0, self.1));
        }
    }
}
