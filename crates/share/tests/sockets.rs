//! The files of the sockets: whose folders are used, which files are removed, and none that is lost.

mod offer;

use gapless::Allocator;
use gapless_share::{Exporter, FOLDER, Handle, Importer, ShareError};
use offer::{MAIN, Offer, PAGE, device, folder};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Leaves the socket of a process that was killed: bound, and nobody listens.
fn leave_dead_socket(path: &Path) {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 1).unwrap();
}

#[test]
fn folders_of_others_are_not_used() {
    let place = tempfile::tempdir().unwrap();
    let export = || {
        let allocator = Allocator::builder(device()).build().unwrap();
        let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
        Exporter::new().export(&allocator, block).map(drop)
    };
    let open = place.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o770)).unwrap();
    let link = place.path().join("link");
    let private = place.path().join("private");
    std::fs::create_dir(&private).unwrap();
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o700)).unwrap();
    symlink(&private, &link).unwrap();
    let file = place.path().join("file");
    std::fs::write(&file, "").unwrap();
    let long = place.path().join("x".repeat(100));
    for (path, says) in [(&open, "mode 770"), (&link, "is no folder"), (&file, "is no folder"), (&long, "too long")] {
        let _turn = folder(path);
        let error = export().unwrap_err().to_string();
        assert!(error.contains(says) && error.contains(FOLDER), "{error}");
    }
    let _turn = folder(&private);
    export().unwrap();
    assert_eq!(std::fs::read_dir(&private).unwrap().count(), 0, "the socket is gone with its exporter");
}

/// A path may be as long as the system takes one for a socket, and no longer.
#[test]
fn the_longest_path_of_a_socket() {
    let place = tempfile::tempdir().unwrap();
    // `BOOT-PROCESS-RANDOM.sock` behind the folder and a slash.
    let name = "/0123456789ab-".len() + std::process::id().to_string().len() + "-0123456789abcdef.sock".len();
    let of_folder = 107 - name - place.path().as_os_str().len() - 1;
    {
        let _turn = folder(&place.path().join("x".repeat(of_folder)));
        let offer = Offer::new();
        assert_eq!(offer.socket.as_os_str().len(), 107);
        assert_eq!(Handle::from_bytes(&offer.handle.to_bytes()).unwrap(), offer.handle);
        offer.still_serves();
        offer.end();
    }
    let _turn = folder(&place.path().join("x".repeat(of_folder + 1)));
    let allocator = Allocator::builder(device()).build().unwrap();
    let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
    match Exporter::new().export(&allocator, block) {
        Err(ShareError::LongPath(path)) => assert_eq!(path.as_os_str().len(), 108),
        other => panic!("{other:?}"),
    }
}

/// A program that this process starts inherits none of its sockets and events.
#[test]
fn no_descriptor_is_inherited() {
    const CLOSED_BY_EXEC: u32 = 0o2_000_000;
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let shared = Importer::new(device()).open(&offer.handle).unwrap();
    let mut kinds = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(link) = entry.path().read_link() else { continue };
        let kind = link.to_string_lossy().into_owned();
        if kind.starts_with("socket:") || kind.contains("eventfd") {
            let info = std::fs::read_to_string(Path::new("/proc/self/fdinfo").join(entry.file_name())).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            assert!(u32::from_str_radix(flags, 8).unwrap() & CLOSED_BY_EXEC != 0, "{kind}: {flags}");
            kinds.push(kind);
        }
    }
    assert!(kinds.len() >= 5, "the listener, both ends of the connection, the event twice: {kinds:?}");
    drop(shared);
    offer.end();
}

#[test]
fn sockets_of_processes_that_ended_are_removed() {
    let place = tempfile::tempdir().unwrap();
    let sockets = place.path().join("sockets");
    let _turn = folder(&sockets);
    let first = Offer::new();
    let stale = first.another_name();
    leave_dead_socket(&stale);
    let second = Offer::new();
    assert!(!stale.exists());
    first.still_serves();
    second.still_serves();
    first.end();
    second.end();
    assert_eq!(std::fs::read_dir(&sockets).unwrap().count(), 0);
}

/// A socket that never got its name is removed when whoever made it can no longer be about to name it.
#[test]
fn sockets_that_never_got_their_name_are_removed() {
    let place = tempfile::tempdir().unwrap();
    let sockets = place.path().join("sockets");
    let _turn = folder(&sockets);
    let first = Offer::new();
    let beginning = first.another_name().with_extension("new");
    for (age, stays) in [(0, true), (50, true), (3600, false)] {
        let file = std::fs::File::create(&beginning).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        Offer::new().end();
        assert_eq!(beginning.exists(), stays, "{age} seconds old");
    }
    first.end();
}

/// In a folder of several programs or hosts, nobody else's dead sockets are removed.
#[test]
fn sockets_of_others_stay() {
    let place = tempfile::tempdir().unwrap();
    let sockets = place.path().join("sockets");
    let _turn = folder(&sockets);
    let first = Offer::new();
    let own = first.another_name().file_name().unwrap().to_str().unwrap().to_owned();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().replace('-', "");
    assert!(own.starts_with(&boot[..12]), "{own} of boot {boot}");
    // Another host has another boot: its first digit differs.
    let of_another_host = format!("{}{}", if own.starts_with('0') { '1' } else { '0' }, &own[1..]);
    let others = ["wayland-0.sock", "17-agent.sock", &of_another_host, &own.replace(".sock", "x.sock")];
    others.iter().for_each(|name| leave_dead_socket(&sockets.join(name)));
    let second = Offer::new();
    for name in others {
        assert!(sockets.join(name).exists(), "{name} was removed");
    }
    first.end();
    second.end();
}

/// Whatever cleans the folder takes the file of a socket that is in use: the next offer makes it again.
#[test]
fn a_socket_whose_file_was_removed_is_made_again() {
    let place = tempfile::tempdir().unwrap();
    let sockets = place.path().join("sockets");
    let _turn = folder(&sockets);
    let offer = Offer::new();
    let before = Importer::new(device());
    let open = before.open(&offer.handle).unwrap();
    let file = || std::fs::metadata(&offer.socket).unwrap().ino();
    let made = file();
    assert_eq!(offer.exporter.export(&offer.allocator, offer.block).unwrap(), offer.handle);
    assert_eq!(file(), made, "it is there");
    for remove_all in [false, true] {
        if remove_all {
            std::fs::remove_dir_all(&sockets).unwrap();
        } else {
            std::fs::remove_file(&offer.socket).unwrap();
        }
        assert!(matches!(Importer::new(device()).open(&offer.handle), Err(ShareError::ExporterGone(_))));
        assert_eq!(offer.exporter.export(&offer.allocator, offer.block).unwrap(), offer.handle);
        offer.still_serves();
        assert_eq!(before.open(&offer.handle).unwrap().addr(), open.addr());
    }
    drop(open);
    offer.end();
}

/// Starts exporters on several threads at once, each of which looks whether its socket is there, and returns how many lost it.
fn lost_of(starts: usize, threads: usize) -> usize {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let allocator = Allocator::builder(device()).build().unwrap();
    let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let start = || {
        let exporter = Exporter::new();
        let bytes = exporter.export(&allocator, block).unwrap().to_bytes();
        let is_there = Path::new(std::ffi::OsStr::from_bytes(&bytes[41..41 + usize::from(bytes[40])])).exists();
        usize::from(!is_there)
    };
    let lost = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| (0..starts / threads).map(|_| start()).sum::<usize>())).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    allocator.free(block).unwrap();
    lost
}

#[test]
fn exporters_that_start_at_once_keep_their_sockets() {
    assert_eq!(lost_of(4_000, 8), 0);
}

#[test]
#[ignore = "takes a minute: cargo test -p gapless-share --test sockets -- --ignored"]
fn a_hundred_thousand_exporters_that_start_at_once_keep_their_sockets() {
    assert_eq!(lost_of(100_000, 8), 0);
}
