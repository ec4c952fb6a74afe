//! The texts of the repository: documents, sources and scripts.

use std::path::{Path, PathBuf};

/// Folders of build outputs and of inputs of fuzz targets, which are not read. Neither are hidden folders, but `.ci`.
const NOT_READ: [&str; 4] = ["target", "corpus", "artifacts", "dist"];

/// The folder of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the files with one of the `endings`, and all programs in `scripts` and `.ci`.
pub fn texts(endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    texts_in(&root(), endings, &mut found);
    found
}

fn texts_in(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    let has_programs = folder.file_name().is_some_and(|name| name == "scripts" || name == ".ci");
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let name = entry.file_name().into_string().unwrap();
        if path.is_dir() {
            if name == ".ci" || !(name.starts_with('.') || NOT_READ.contains(&name.as_str())) {
                texts_in(&path, endings, found);
            }
        } else if (has_programs && !name.contains('.')) || has_ending(&path, endings) {
            found.push(path);
        }
    }
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    path.extension().is_some_and(|ending| endings.iter().any(|known| ending == *known))
}
