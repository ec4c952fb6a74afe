//! Writes the seed corpora of the fuzz targets: `cargo run -p gapless-testkit --example seeds` from the root.

mod calls;
mod files;
mod operations;
mod sharing;

use gapless_testkit::encode;
use std::fs;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let seeds = operations::sequences();
    for target in ["ops", "concurrent", "faults"] {
        let folder = Path::new("fuzz/corpus").join(target);
        fs::create_dir_all(&folder)?;
        for (name, pages, chunk, ops) in &seeds {
            let mut bytes = encode(*pages, *chunk, if *name == "four_streams" { 4 } else { 3 }, ops);
            if *name == "further_region" {
                bytes[6] = 3;
            }
            if name.starts_with("large_device") {
                (bytes[0], bytes[2], bytes[7]) = (132, 250, 4 + (12 << 3));
            }
            if name.starts_with("own_stream") {
                bytes[7] = 2;
            }
            if target == "faults" {
                // Before the last operation, the third call fails.
                let end = bytes.len();
                bytes[end - 2..].copy_from_slice(&[2, 1]);
            }
            fs::write(folder.join(name), bytes)?;
        }
    }
    let others = [
        ("trace", files::traces()),
        ("conf", files::configurations()),
        ("capi", calls::calls()),
        ("share", sharing::steps()),
    ];
    for (target, seeds) in others {
        let folder = Path::new("fuzz/corpus").join(target);
        fs::create_dir_all(&folder)?;
        for (name, bytes) in seeds {
            fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}
