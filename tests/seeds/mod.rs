//! The seeds of the fuzz targets, which ordinary tests run too.

use std::path::Path;

/// Calls `check` with each seed of a target. Returns the number of seeds.
pub fn each_seed(target: &str, mut check: impl FnMut(&[u8])) -> usize {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let folder = above.map(|above| above.join("fuzz/corpus").join(target)).find(|folder| folder.exists());
    let folder = folder.unwrap_or_else(|| panic!("no folder fuzz/corpus/{target}"));
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("a folder of seeds") {
        let path = entry.expect("an entry").path();
        println!("{}", path.display());
        check(&std::fs::read(&path).expect("a seed"));
        count += 1;
    }
    assert!(count > 0, "no seeds in {}", folder.display());
    count
}
