//! The sources of the kernels match their checked-in PTX. Where the compiler is installed, a test of `crates/xtask`
//! compiles them again.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

/// No source and no PTX file has changed since `cargo xtask build-kernels` last ran.
#[test]
fn sources_and_ptx_have_not_drifted_apart() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let recorded: Vec<(String, String)> = fs::read_to_string(folder.join("SHA256SUMS"))
        .unwrap()
        .lines()
        .map(|line| line.split_once("  ").expect("sha256sum's format"))
        .map(|(hash, name)| (name.to_owned(), hash.to_owned()))
        .collect();
    let mut present: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "SHA256SUMS")
        .collect();
    present.sort();
    let mut names: Vec<String> = recorded.iter().map(|(name, _)| name.clone()).collect();
    names.sort();
    assert_eq!(present, names, "files of kernels/: run cargo xtask build-kernels");
    for (name, hash) in recorded {
        let digest = Sha256::digest(fs::read(folder.join(&name)).unwrap());
        let found: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, hash, "{name} was changed by hand: run cargo xtask build-kernels");
    }
}

/// The PTX works on devices from compute capability 7.5, and with every driver that gapless accepts. Only an experiment
/// of `gapless probe` needs more: programmatic dependent launch exists from compute capability 9.0 on.
#[test]
fn ptx_is_for_old_drivers_too() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let sources: Vec<_> = files.filter(|path| path.extension().is_some_and(|ending| ending == "ptx")).collect();
    assert_eq!(sources.len(), 6, "{sources:?}");
    for path in sources {
        let ptx = fs::read_to_string(&path).unwrap();
        let newer = path.file_stem().is_some_and(|name| name == "dependent");
        let (version, target) =
            if newer { (".version 7.8", ".target sm_90") } else { (".version 6.4", ".target sm_75") };
        assert!(ptx.lines().any(|line| line == version), "{}", path.display());
        assert!(ptx.lines().any(|line| line == target), "{}", path.display());
    }
}
