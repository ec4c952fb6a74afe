//! Advice on recorded allocations as people and programs get it, for the command line and for the C interface.
//!
//! ```text
//! words.rs    sentences and rows         summary.rs    the few lines of an error
//! page/       pages of HTML              result.rs     a line of JSON
//! write.rs    files, whole or not at all   count.rs    numbers in text
//! device.rs   the device of the replays
//! ```
//!
//! - I1  all of it follows from the advice and the trace: nothing here replays, except what a page draws.

pub mod count;
mod device;
pub mod page;
pub mod result;
pub mod summary;
pub mod words;
pub mod write;

pub use device::device_for;

/// Returns a text from outside, such as the name of a file, with the characters escaped that would change how the rest of a line is
/// shown: a terminal would obey control characters, and those of bidirectional text let a line read as another one.
pub fn printable(text: &str) -> String {
    let is_shown = |c: char| !c.is_control() && !matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let shown = |c: char| if is_shown(c) { String::from(c) } else { c.escape_default().collect() };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn what_changes_how_a_line_is_shown_is_escaped() {
        assert_eq!(printable("a\u{1b}[2J"), r"a\u{1b}[2J");
        assert_eq!(printable("/m/\u{202e}yp.niart\u{2069}.py"), r"/m/\u{202e}yp.niart\u{2069}.py");
        assert_eq!(printable("Zürich/مثال\u{200f}.py"), "Zürich/مثال\u{200f}.py");
    }
}
