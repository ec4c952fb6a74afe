//! Memory for other processes: what owners, users, strangers and liars do to each other over sockets, which anybody of the user can
//! reach.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::LazyLock;

#[path = "../../crates/share/tests/fuzzed/mod.rs"]
mod fuzzed;

/// A folder of this process.
fn place() -> PathBuf {
    std::env::temp_dir().join(format!("gapless-fuzz-{}", std::process::id()))
}

extern "C" fn remove() {
    let _ = std::fs::remove_dir_all(place());
}

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = place();
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).expect("a folder");
    // SAFETY: what is called needs nothing that may have ended by then.
    assert_eq!(unsafe { libc::atexit(remove) }, 0);
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var(gapless_share::FOLDER, &folder) };
    folder
});

fuzz_target!(|bytes: &[u8]| {
    fuzzed::run_steps(bytes, &FOLDER);
});
