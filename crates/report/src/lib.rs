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

/// Returns a text from outside, such as the name of a file, with its control characters escaped: a terminal would obey them.
pub fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().collect() } else { String::from(c) };
    text.chars().map(shown).collect()
}
