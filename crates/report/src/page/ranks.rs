//! The page of `advise --html` for several files: the ranks of one job, with a row to open for each.
//!
//! Verdict and table are there without JavaScript; `ranks.js` opens and closes the reports below the rows. There are no pictures of
//! single ranks, so that the page can be made from results alone.
//!
//! - I1  a rank takes at most `MOST_BYTES_OF_RANK` of the file: texts are cut.
//! - I2  whatever comes from a file is escaped.

use super::html::{escape, fill};

/// The row of a rank.
pub struct Row {
    /// Its name.
    pub name: String,
    /// Whether it is the odd one.
    pub is_odd: bool,
    /// Its peak of live bytes.
    pub peak: String,
    /// The op that failed.
    pub failed: String,
    /// The largest holder, or why there is no advice.
    pub holder: String,
    /// The report that the row opens, if there is advice.
    pub report: Option<String>,
}

/// Returns the page.
pub fn render(verdict: &str, rows: &[Row]) -> String {
    let title = format!("{} ranks: what to do about their memory", rows.len());
    let rows: String = rows.iter().enumerate().map(|(number, row)| html(number, row)).collect();
    fill(
        TEMPLATE,
        &[
            ("title", &title),
            ("css", include_str!("page.css")),
            ("more css", include_str!("ranks.css")),
            ("title", &title),
            ("verdict", &escape(verdict)),
            ("rows", &rows),
            ("js", include_str!("ranks.js")),
        ],
    )
}

/// Returns the row, and the one below it with the report.
fn html(number: usize, row: &Row) -> String {
    let name = escape(cut(&row.name, MOST_CHARACTERS));
    let [peak, failed, holder] = [&row.peak, &row.failed, &row.holder].map(|text| escape(cut(text, MOST_CHARACTERS)));
    let (class, odd) = if row.is_odd { (" class=\"odd\"", " <strong>odd</strong>") } else { ("", "") };
    let cells = format!("<td class=\"number\">{peak}</td><td class=\"number\">{failed}</td><td>{holder}</td>");
    match &row.report {
        None => format!("<tr{class}><th scope=\"row\">{name}</th>{cells}</tr>\n"),
        Some(report) => format!(
            "<tr{class}><th scope=\"row\"><button type=\"button\" aria-expanded=\"false\" aria-controls=\"report-{number}\">\
             {name}</button>{odd}</th>{cells}</tr>\n\
             <tr id=\"report-{number}\" hidden><td colspan=\"4\"><pre>{}</pre></td></tr>\n",
            escape(cut(report, MOST_CHARACTERS_OF_REPORT))
        ),
    }
}

/// Returns the first `most` characters.
fn cut(text: &str, most: usize) -> &str {
    text.char_indices().nth(most).map_or(text, |(at, _)| &text[..at])
}

const TEMPLATE: &str = include_str!("ranks.html");
/// Most characters of a cell.
const MOST_CHARACTERS: usize = 300;
/// Most characters of a report. That of one file has about 4,000.
const MOST_CHARACTERS_OF_REPORT: usize = 12_000;
/// A row and its report are smaller than this: a character takes at most six bytes.
#[cfg(test)]
const MOST_BYTES_OF_RANK: usize = 80_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Row {
        let text = text.to_owned();
        let [name, peak, failed, holder] = [0; 4].map(|_| text.clone());
        Row { name, is_odd: true, peak, failed, holder, report: Some(text) }
    }

    #[test]
    fn texts_cannot_leave_their_place() {
        let hostile = "</pre><script>alert('1')</script><img src=x onerror=\"alert(2)\">{{js}}{{rows}}";
        let page = render(hostile, &[row(hostile)]);
        let ours = TEMPLATE.matches("<script").count();
        assert_eq!((page.matches("<script").count(), page.matches("</script").count()), (ours, ours));
        assert!(!page.contains("<img") && page.contains("&lt;img src=x onerror=&quot;alert(2)&quot;&gt;"));
        assert_eq!(page.matches("js").count(), 6, "each is shown as it is");
    }

    #[test]
    fn a_rank_takes_no_more_than_its_share() {
        let long = "\"é".repeat(100_000);
        let (without, with) = (render("", &[]).len(), render("", &[row(&long)]).len());
        assert!(with - without <= MOST_BYTES_OF_RANK, "{}", with - without);
        assert!(with - without > MOST_BYTES_OF_RANK / 2, "the test is about the longest: {}", with - without);
    }

    #[test]
    fn the_page_names_no_address() {
        let page = render("", &[row("x")]);
        for scheme in ["http:", "https:", "//cdn", "@import", "src="] {
            assert!(!page.contains(scheme), "{scheme}");
        }
    }
}
