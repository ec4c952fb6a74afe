//! Notices for people, on stderr.

use std::fmt::Arguments;
use std::io::Write;

/// Writes a line to stderr, if it can be written. A host whose stderr is full or closed is no reason to panic.
pub fn notice(line: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
