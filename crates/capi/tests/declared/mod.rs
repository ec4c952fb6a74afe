//! The functions that a header declares, for tests that read it.

/// A function with its parameters as they are declared.
pub struct Function {
    pub name: String,
    pub parameters: Vec<String>,
}

/// Reads a header that `cargo xtask generate-header` has written.
pub fn functions(header: &str) -> Vec<Function> {
    let code = without_directives(&without_comments(header));
    let mut found = Vec::new();
    for piece in code.split(';').filter(|piece| !piece.contains("typedef")) {
        let Some((before, after)) = piece.split_once('(') else { continue };
        let Some((inside, _)) = after.rsplit_once(')').filter(|_| !after.contains('{')) else { continue };
        let name = before.split([' ', '*']).next_back().unwrap_or_default();
        if name.starts_with("gapless_") {
            let parameters = inside.split(',').map(|one| one.split_whitespace().collect::<Vec<_>>().join(" "));
            let parameters = parameters.filter(|one| !one.is_empty() && one != "void").collect();
            found.push(Function { name: name.to_owned(), parameters });
        }
    }
    found
}

fn without_comments(text: &str) -> String {
    let mut pieces = text.split("/*");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |code, piece| code + piece.split_once("*/").map_or("", |(_, behind)| behind))
}

/// Lines of the preprocessor with those that continue them, and line ends.
fn without_directives(code: &str) -> String {
    let code = code.replace("\\\n", " ");
    code.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join(" ")
}
