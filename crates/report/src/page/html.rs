//! HTML of texts and tables, of bounded length.

use std::fmt::Write;

/// Returns a template with its places filled, which are there in this order. What was put in is not looked at again.
pub(super) fn fill(template: &str, parts: &[(&str, &str)]) -> String {
    let mut page = String::new();
    let mut rest = template;
    for (name, part) in parts {
        let (before, after) =
            rest.split_once(&format!("{{{{{name}}}}}")).expect("the template has a place for each part");
        page.push_str(before);
        page.push_str(part);
        rest = after;
    }
    page + rest
}

/// A text as HTML shows it. What comes from outside goes into a page in no other way.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The same with places where a line may be broken, after the marks between settings and between folders.
pub(super) fn breakable(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for part in text.split_inclusive([',', ':', '/', '_']) {
        escaped.push_str(&escape(part));
        if part.ends_with([',', ':', '/', '_']) {
            escaped.push_str("<wbr>");
        }
    }
    escaped
}

/// A text that is no longer than [`MOST_CHARACTERS`].
pub(super) fn cut(text: &str) -> String {
    match text.char_indices().nth(MOST_CHARACTERS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// A column of a table.
#[derive(Clone, Copy)]
pub(super) struct Column {
    pub name: &'static str,
    pub is_number: bool,
}

impl Column {
    pub(super) const fn text(name: &'static str) -> Self {
        Self { name, is_number: false }
    }

    pub(super) const fn number(name: &'static str) -> Self {
        Self { name, is_number: true }
    }
}

/// A row of a table: its attributes, and the HTML of its cells.
pub(super) struct Row {
    pub attributes: String,
    pub cells: Vec<String>,
}

/// Returns a table. Narrow screens show its rows as lists, where each cell has the name of its column.
pub(super) fn table(id: &str, columns: &[Column], rows: &[Row]) -> String {
    let class = |column: &Column| if column.is_number { " class=\"number\"" } else { "" };
    let mut html = format!("<table id=\"{id}\"><thead><tr>");
    for column in columns {
        let _ = write!(html, "<th scope=\"col\"{}>{}</th>", class(column), column.name);
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in rows {
        let _ = write!(html, "<tr{}>", row.attributes);
        for (column, cell) in columns.iter().zip(&row.cells) {
            let _ = write!(html, "<td data-label=\"{}\"{}><span>{cell}</span></td>", column.name, class(column));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table>");
    html
}

/// Returns paragraphs.
pub(super) fn paragraphs<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    lines.into_iter().map(|line| format!("<p>{}</p>\n", breakable(line))).collect()
}

/// Most characters of a sentence, a name or a frame.
const MOST_CHARACTERS: usize = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_is_markup() {
        assert_eq!(
            escape("<img src='x' onerror=\"y\">&amp;"),
            "&lt;img src=&#39;x&#39; onerror=&quot;y&quot;&gt;&amp;amp;"
        );
        assert_eq!(breakable("a:1,<b>"), "a:<wbr>1,<wbr>&lt;b&gt;");
        assert_eq!(paragraphs(["a<", "b"]), "<p>a&lt;</p>\n<p>b</p>\n");
    }

    #[test]
    fn cells_name_their_columns() {
        let rows = [Row { attributes: " class=\"x\"".into(), cells: vec!["1".into()] }];
        let html = table("t", &[Column::number("held")], &rows);
        assert!(
            html.contains("<tr class=\"x\"><td data-label=\"held\" class=\"number\"><span>1</span></td></tr>"),
            "{html}"
        );
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("frame"), "frame");
        let long = cut(&"é".repeat(MOST_CHARACTERS + 5));
        assert_eq!((long.chars().count(), long.chars().last()), (MOST_CHARACTERS + 1, Some('…')));
    }
}
