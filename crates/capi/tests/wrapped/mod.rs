//! Texts in lines of a limited length, for what is written by tests.

/// Splits a text between words into lines of at most `columns` characters.
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is a line");
        if line.is_empty() {
            *line = word.to_owned();
        } else if line.len() + 1 + word.len() <= columns {
            *line += &format!(" {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}
