//! Others that break the rules of the socket, and folders that are not the user's own.

use gapless::driver::{HostConfig, HostDriver};
use gapless::units::StreamId;
use gapless::{Allocator, DeviceAddr};
use gapless_share::{Exporter, FOLDER, Handle, Importer, ShareError};
use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recv, send,
    socket_with,
};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE: u64 = 2 << 20;
const MAIN: StreamId = StreamId::DEFAULT;

/// Names the folder of the sockets, for one test at a time.
fn folder(path: &Path) -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: whatever else this process does at the same time reads the environment through std, if at all, which locks it.
    unsafe { std::env::set_var(FOLDER, path) };
    turn
}

fn device() -> Arc<HostDriver> {
    Arc::new(HostDriver::new(HostConfig::default()).unwrap())
}

/// An allocator with one block that is offered, and the path of the socket.
struct Offer {
    allocator: Allocator<HostDriver>,
    exporter: Exporter<HostDriver>,
    block: DeviceAddr,
    handle: Handle,
    socket: PathBuf,
}

impl Offer {
    fn new() -> Self {
        let allocator = Allocator::builder(device()).build().unwrap();
        let exporter = Exporter::new();
        let block = allocator.alloc(PAGE, MAIN).unwrap();
        let handle = exporter.export(&allocator, block).unwrap();
        let bytes = handle.to_bytes();
        let path = &bytes[41..41 + usize::from(bytes[40])];
        let socket = PathBuf::from(std::ffi::OsStr::from_bytes(path));
        Self { allocator, exporter, block, handle, socket }
    }

    fn connect(&self) -> OwnedFd {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(&self.socket).unwrap()).unwrap();
        socket
    }

    /// A name in the same folder as the process's sockets have, of none of them.
    fn another_name(&self) -> PathBuf {
        let name = self.socket.file_stem().unwrap().to_str().unwrap();
        let (rest, last) = name.split_at(name.len() - 1);
        self.socket.with_file_name(format!("{rest}{}.sock", if last == "0" { "1" } else { "0" }))
    }

    /// Whether others are served still, and nothing stays pinned.
    fn still_serves(&self) {
        let shared = Importer::new(device()).open(&self.handle).unwrap();
        assert_eq!(shared.bytes(), PAGE);
        drop(shared);
        self.allocator.check();
    }

    fn end(self) {
        drop(self.exporter);
        self.allocator.free(self.block).unwrap();
        self.allocator.close().unwrap();
    }
}

/// Leaves the socket of a process that was killed: bound, and nobody listens.
fn leave_dead_socket(path: &Path) {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 1).unwrap();
}

/// The end of a connection that the other side has closed.
fn is_closed(socket: &OwnedFd) -> bool {
    let mut bytes = [0; 1 << 14];
    match recv(socket, &mut bytes[..], RecvFlags::empty()) {
        Ok((got, _)) => got == 0,
        Err(_) => true,
    }
}

#[test]
fn nonsense_ends_the_connection_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let mut packets: Vec<Vec<u8>> =
        vec![vec![0xff], vec![0; 1], vec![0; 16], vec![7; 200], vec![1; 1 << 15], vec![0; 100_000]];
    // An `Open` that is cut off, or has something behind it.
    let open: Vec<u8> = std::iter::once(0).chain([9; 16]).collect();
    packets.extend((1..open.len()).map(|length| open[..length].to_vec()));
    packets.push([&open[..], &[0]].concat());
    for packet in packets {
        let socket = offer.connect();
        send(&socket, &packet, SendFlags::empty()).unwrap();
        assert!(is_closed(&socket), "{} bytes", packet.len());
    }
    offer.still_serves();
    offer.end();
}

#[test]
fn numbers_that_nothing_has_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let socket = offer.connect();
    // `Chunks` and `Close` of something that is not open; `Descriptors` of that.
    for packet in
        [&[1, 5, 0][..], &[3, 5], &[2, 5, 1, 0], &[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0]]
    {
        send(&socket, packet, SendFlags::empty()).unwrap();
        let mut bytes = [0; 1 << 14];
        let (got, _) = recv(&socket, &mut bytes[..], RecvFlags::empty()).unwrap();
        assert!(got > 1 && bytes[0] == 6, "{packet:?}: {:?}", &bytes[..got]);
    }
    offer.still_serves();
    offer.end();
}

/// A process that ended right before the exporter has nothing open any more, whether or not that was noticed.
#[test]
fn what_ended_before_the_exporter_is_not_kept() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    for _ in 0..50 {
        let offer = Offer::new();
        let socket = offer.connect();
        let open: Vec<u8> = std::iter::once(0).chain(offer.handle.to_bytes()[24..40].iter().copied()).collect();
        send(&socket, &open, SendFlags::empty()).unwrap();
        let mut bytes = [0; 100];
        let (got, _) = recv(&socket, &mut bytes[..], RecvFlags::empty()).unwrap();
        assert!(got > 1 && bytes[0] == 0, "it is open: {:?}", &bytes[..got]);
        drop(socket);
        offer.end();
    }
}

#[test]
fn a_thousand_connections_and_one_that_does_not_read() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let silent = offer.connect();
    // It asks and asks. When the answers that it does not read fill the socket, it is given up.
    let open: Vec<u8> = std::iter::once(0).chain([9; 16]).collect();
    let asked =
        (0..100_000).take_while(|_| send(&silent, &open, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()).count();
    assert!(asked > 0);
    offer.still_serves();
    let mut many = Vec::new();
    for _ in 0..1000 {
        many.push(offer.connect());
    }
    offer.still_serves();
    drop(many);
    offer.still_serves();
    offer.end();
}

#[test]
fn folders_of_others_are_not_used() {
    let place = tempfile::tempdir().unwrap();
    let export = || {
        let allocator = Allocator::builder(device()).build().unwrap();
        let block = allocator.alloc(PAGE, MAIN).unwrap();
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

/// In a folder of several programs or hosts, nobody else's dead sockets are removed.
#[test]
fn sockets_of_others_stay() {
    let place = tempfile::tempdir().unwrap();
    let sockets = place.path().join("sockets");
    let _turn = folder(&sockets);
    let first = Offer::new();
    let own = first.another_name().file_name().unwrap().to_str().unwrap().to_owned();
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
    let block = allocator.alloc(PAGE, MAIN).unwrap();
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
#[ignore = "takes a minute: cargo test -p gapless-share --test hostile -- --ignored"]
fn a_hundred_thousand_exporters_that_start_at_once_keep_their_sockets() {
    assert_eq!(lost_of(100_000, 8), 0);
}

#[test]
fn answers_that_make_no_sense_are_errors() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let mut bytes = offer.handle.to_bytes();
    let path = place.path().join("evil.sock");
    let name = path.as_os_str().as_bytes();
    bytes[40] = u8::try_from(name.len()).unwrap();
    bytes[41..].fill(0);
    bytes[41..41 + name.len()].copy_from_slice(name);
    let handle = Handle::from_bytes(&bytes).unwrap();
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 8).unwrap();
    // Opened: number, bytes, offset, chunks, as varints; then chunks: number of them, number and bytes of each.
    let answers: [&[&[u8]]; 9] = [
        &[b"\xff\xff"],
        &[&[3]],
        &[&[0, 0, 1, 0, 0]],
        &[&[0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]],
        &[&[0, 0, 5, 0, 1], &[1, 1, 7, 4]],
        &[&[0, 0, 1, 0, 2], &[1, 2, 7, 4, 7, 4]],
        &[&[0, 0, 1, 0, 1], &[1, 2, 7, 4, 8, 4]],
        &[&[0, 0, 1, 0, 1], &[1, 1, 7, 0]],
        &[&[0, 0, 1, 0, 1], &[1, 1, 7, 4], &[2]],
    ];
    let server = std::thread::spawn(move || {
        for answer in answers {
            let connection = rustix::net::accept(&listener).unwrap();
            for packet in answer {
                recv(&connection, &mut [0; 1 << 14][..], RecvFlags::empty()).unwrap();
                send(&connection, packet, SendFlags::NOSIGNAL).unwrap();
            }
        }
    });
    for (number, _) in answers.iter().enumerate() {
        // Each has a connection of its own.
        let driver = device();
        let error = Importer::new(Arc::clone(&driver)).open(&handle).unwrap_err();
        assert!(matches!(error, ShareError::Message(_)), "answer {number}: {error}");
        assert!(driver.usage().is_empty());
    }
    server.join().unwrap();
    offer.end();
}
