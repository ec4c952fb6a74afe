//! Two processes that share memory of one simulated device, either of which is killed at any point. The importing one may neither
//! take descriptors out of other processes nor trace them.

#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless::driver::cuda::CudaDriver;
use gapless::driver::{MemoryDriver, WorkDriver};
use gapless::units::{DeviceAddr, MIB, StreamId};
use gapless::{Allocator, ChunkPolicy};
use gapless_share::{Exporter, FOLDER, HANDLE_BYTES, Handle, Importer, ShareError, SharedBlock};
use simulated::with_settings;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MAIN: StreamId = StreamId::DEFAULT;
const PAGE: u64 = 2 * MIB;
/// The variable that says that a process is the other one.
const PEER: &str = "GAPLESS_TEST_PEER";
/// The variable that numbers the device that a process uses.
const ORDINAL: &str = "GAPLESS_TEST_ORDINAL";

fn open_device() -> Arc<CudaDriver> {
    let ordinal = std::env::var(ORDINAL).map_or(0, |ordinal| ordinal.parse().unwrap());
    Arc::new(simulated::open(simulated::builder().device(ordinal)).unwrap())
}

fn holds(driver: &CudaDriver, addr: DeviceAddr, bytes: u64, seed: u64) -> bool {
    driver.verify(MAIN, addr, bytes, seed).unwrap();
    driver.synchronize(MAIN).unwrap();
    driver.take_mismatches().is_empty()
}

fn fill(driver: &CudaDriver, addr: DeviceAddr, bytes: u64, seed: u64) {
    driver.fill(MAIN, addr, bytes, seed).unwrap();
    driver.synchronize(MAIN).unwrap();
}

fn to_hex(handle: &Handle) -> String {
    handle.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Handle {
    let bytes: Vec<u8> =
        (0..HANDLE_BYTES).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect();
    Handle::from_bytes(&bytes).unwrap()
}

/// One side: blocks of its own, and blocks of the other process.
struct Side {
    driver: Arc<CudaDriver>,
    allocator: Allocator<CudaDriver>,
    exporter: Exporter<CudaDriver>,
    importer: Importer<CudaDriver>,
    own: HashMap<String, DeviceAddr>,
    shared: HashMap<String, SharedBlock<CudaDriver>>,
}

impl Side {
    fn new() -> Self {
        let driver = open_device();
        let allocator = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap();
        let (exporter, importer) = (Exporter::new(), Importer::new(Arc::clone(&driver)));
        // From its first check on, a driver holds a page for what it finds.
        let addr = allocator.alloc_raw(PAGE, MAIN).unwrap();
        fill(&driver, addr, PAGE, 0);
        assert!(holds(&driver, addr, PAGE, 0));
        allocator.free(addr).unwrap();
        allocator.trim(0).unwrap();
        Self { driver, allocator, exporter, importer, own: HashMap::new(), shared: HashMap::new() }
    }

    fn free(&self) -> u64 {
        self.driver.memory_info().unwrap().free
    }

    fn patience(word: &str) -> Duration {
        if word == "try" { Duration::from_millis(50) } else { Duration::from_secs(600) }
    }

    /// Does what a line says, and answers.
    fn act(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "offer" => {
                let addr = self.allocator.alloc_raw(number(2) * PAGE, MAIN).unwrap();
                fill(&self.driver, addr, number(2) * PAGE, number(3));
                self.own.insert(words[1].to_owned(), addr);
                to_hex(&self.exporter.export(&self.allocator, addr).unwrap())
            }
            "free" => {
                self.allocator.free(self.own.remove(words[1]).unwrap()).unwrap();
                self.allocator.trim(0).unwrap();
                "done".to_owned()
            }
            "open" | "try" => match self.importer.open_within(&from_hex(words[2]), Self::patience(words[0])) {
                Ok(block) => {
                    self.shared.insert(words[1].to_owned(), block);
                    "done".to_owned()
                }
                Err(ShareError::Gone) => "gone".to_owned(),
                Err(ShareError::ExporterGone(_)) => "exporter gone".to_owned(),
                Err(ShareError::NoAnswer { .. }) => "no answer".to_owned(),
                Err(error) => error.to_string(),
            },
            "holds" => {
                let addr = self.own.get(words[1]).copied().unwrap_or_else(|| self.shared[words[1]].addr());
                holds(&self.driver, addr, number(2) * PAGE, number(3)).to_string()
            }
            "fill" => {
                fill(&self.driver, self.shared[words[1]].addr(), number(2) * PAGE, number(3));
                "done".to_owned()
            }
            "close" => {
                self.shared.remove(words[1]).unwrap();
                "done".to_owned()
            }
            "limit" => {
                let set = |rlim_cur| {
                    let limit = libc::rlimit { rlim_cur, rlim_max: 1 << 10 };
                    // SAFETY: the limit is complete.
                    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
                };
                // From now on, so many more descriptors than are open already.
                set(1 << 10);
                let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
                set(open + number(1));
                "done".to_owned()
            }
            "full" => {
                // As "try", while there is no room for a descriptor.
                let others: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
                let opened = self.importer.open_within(&from_hex(words[1]), Self::patience("try"));
                drop(others);
                opened.map_or_else(|error| error.to_string(), |_| "done".to_owned())
            }
            "stop" => {
                // SAFETY: stops this process until it is continued or killed.
                unsafe { libc::raise(libc::SIGSTOP) };
                "done".to_owned()
            }
            other => panic!("{other}"),
        }
    }
}

/// The other process.
struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    fn start(test: &str) -> Self {
        Self::start_with(test, &[])
    }

    fn start_with(test: &str, settings: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(PEER, "1")
            .envs(settings.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut peer = Self { child, to, from };
        assert_eq!(peer.answer(), "ready");
        peer
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.to, "{line}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.from.read_line(&mut line).unwrap() > 0, "the peer has failed");
            if let Some((_, text)) = line.split_once("peer: ") {
                return text.trim().to_owned();
            }
        }
    }

    fn end(mut self) {
        drop(self.to);
        std::io::copy(&mut self.from, &mut std::io::sink()).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Lets this process neither take descriptors out of others nor trace them, as containers do.
fn deny_looking_into_others() {
    let deny = |number: libc::c_long| {
        [
            libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: u32::try_from(number).unwrap() },
            libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x0005_0000 | u32::try_from(libc::EPERM).unwrap() },
        ]
    };
    // Loads the number of the system call; refuses the three; allows the rest.
    let mut program = vec![libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 }];
    for number in [libc::SYS_pidfd_getfd, libc::SYS_ptrace, libc::SYS_process_vm_readv] {
        program.extend(deny(number));
    }
    program.push(libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 });
    let filter = libc::sock_fprog { len: u16::try_from(program.len()).unwrap(), filter: program.as_mut_ptr() };
    // SAFETY: an option without pointers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the filter and its program live during the call.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) }, 0);
    // SAFETY: no pointers; refused.
    assert_eq!(unsafe { libc::syscall(libc::SYS_pidfd_getfd, 0, 0, 0) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
}

/// Runs a test with a device that it shares with its peers, which do what they are told.
fn with_peers(test: &str, main: impl FnOnce()) {
    let folder = tempfile::tempdir().unwrap();
    let (file, sockets) = (folder.path().join("devices"), folder.path().join("sockets"));
    let settings = [
        ("GAPLESS_SIM_SHARED", file.to_str().unwrap()),
        ("GAPLESS_SIM_CAPACITY", "64MiB"),
        ("GAPLESS_SIM_DEVICES", "2"),
        (FOLDER, sockets.to_str().unwrap()),
    ];
    with_settings(test, &settings, || {
        if std::env::var_os(PEER).is_none() {
            return main();
        }
        deny_looking_into_others();
        let mut side = Side::new();
        println!("peer: ready");
        for line in std::io::stdin().lines() {
            let answer = side.act(&line.unwrap());
            println!("peer: {answer}");
        }
    });
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn both_ways_without_privileges() {
    let test = "both_ways_without_privileges";
    with_peers(test, || {
        let mut side = Side::new();
        let mut peer = Peer::start(test);
        let handle = side.act("offer mine 3 1");
        assert_eq!(peer.ask(&format!("open theirs {handle}")), "done");
        assert_eq!(peer.ask("holds theirs 3 1"), "true");
        peer.ask("fill theirs 3 2");
        assert_eq!(side.act("holds mine 3 2"), "true");

        let handle = peer.ask("offer back 2 3");
        assert_eq!(side.act(&format!("open back {handle}")), "done");
        assert_eq!(side.act("holds back 2 3"), "true");

        // Freed by its owner, it stays for the other one, and is memory again after that.
        let before = side.free();
        side.act("free mine");
        assert_eq!(side.free(), before);
        assert_eq!(peer.ask("holds theirs 3 2"), "true");
        peer.ask("close theirs");
        side.allocator.trim(0).unwrap();
        assert_eq!(side.free(), before + 3 * PAGE);
        peer.ask("free back");
        assert_eq!(side.act("holds back 2 3"), "true");
        side.act("close back");
        assert_eq!(peer.ask(&format!("open theirs {handle}")), "gone");
        peer.end();
    });
}

#[test]
fn a_consumer_killed_at_any_point_gives_everything_back() {
    let test = "a_consumer_killed_at_any_point_gives_everything_back";
    with_peers(test, || {
        let mut side = Side::new();
        let handle = side.act("offer mine 4 1");
        let free = side.free();
        let steps = ["open a HANDLE", "holds a 4 1", "open b HANDLE", "close a", "fill b 4 1", "close b"];
        for killed_after in 0..=steps.len() {
            let mut peer = Peer::start(test);
            for step in &steps[..killed_after] {
                peer.ask(&step.replace("HANDLE", &handle));
            }
            peer.kill();
            eventually("the peer's memory is back", || side.free() == free);
            eventually("nothing is pinned", || {
                side.allocator.snapshot().regions.iter().flat_map(|region| &region.blocks).all(|block| block.pins == 0)
            });
            assert_eq!(side.act("holds mine 4 1"), "true");
            side.allocator.check();
        }
        side.act("free mine");
        assert_eq!(side.allocator.stats().reserved_bytes, 0);
    });
}

#[test]
fn an_exporter_killed_at_any_point_leaves_the_data() {
    let test = "an_exporter_killed_at_any_point_leaves_the_data";
    with_peers(test, || {
        let mut side = Side::new();
        let free = side.free();
        for step in 0..4 {
            let mut peer = Peer::start(test);
            let (first, second) = (peer.ask("offer first 4 1"), peer.ask("offer second 1 2"));
            if step == 0 {
                peer.kill();
                assert_eq!(side.act(&format!("open a {first}")), "exporter gone");
                eventually("the peer's memory is back", || side.free() == free);
                continue;
            }
            assert_eq!(side.act(&format!("open a {first}")), "done");
            match step {
                1 => {}
                2 => drop(peer.ask("free first")),
                _ => drop(side.act(&format!("open b {second}"))),
            }
            peer.kill();
            assert_eq!(side.act("holds a 4 1"), "true");
            let start = Instant::now();
            let answer = side.act(&format!("open c {second}"));
            // What is open already needs nobody.
            assert_eq!(answer, if step == 3 { "done" } else { "exporter gone" });
            assert!(start.elapsed() < Duration::from_secs(5));
            for name in side.shared.keys().cloned().collect::<Vec<_>>() {
                side.act(&format!("close {name}"));
            }
            eventually("all memory is back", || side.free() == free);
            assert_eq!(side.importer.imported_chunks(), 0);
        }
    });
}

/// A device is the same one whatever its number is in a process, and another one whatever that is.
#[test]
fn devices_by_other_numbers() {
    let test = "devices_by_other_numbers";
    with_peers(test, || {
        let mut side = Side::new();
        let handle = side.act("offer mine 2 1");
        let mut same = Peer::start_with(test, &[("GAPLESS_SIM_VISIBLE", "1,0"), (ORDINAL, "1")]);
        assert_eq!(same.ask(&format!("open theirs {handle}")), "done");
        assert_eq!(same.ask("holds theirs 2 1"), "true");
        let free = side.free();
        let back = same.ask("offer back 3 2");
        assert_eq!(side.free(), free - 3 * PAGE, "it is the same device's memory");
        assert_eq!(side.act(&format!("open back {back}")), "done");
        assert_eq!(side.act("holds back 3 2"), "true");
        side.act("close back");
        same.end();
        for (visible, ordinal) in [("1,0", "0"), ("1", "0"), ("0,1", "1")] {
            let mut other = Peer::start_with(test, &[("GAPLESS_SIM_VISIBLE", visible), (ORDINAL, ordinal)]);
            let told = other.ask(&format!("open theirs {handle}"));
            let (first, second) = ("GPU-01010101-0101", "GPU-02020202-0202");
            assert!(told.find(first).unwrap() < told.find(second).unwrap(), "{visible}, {ordinal}: {told}");
            other.end();
        }
    });
}

/// With few descriptors left, fewer are passed at a time. Where there is none for a chunk, that is what is said, and nothing is
/// lost.
#[test]
fn few_descriptors() {
    let test = "few_descriptors";
    with_peers(test, || {
        let mut side = Side::new();
        let mut peer = Peer::start(test);
        // The simulated driver keeps one for each chunk that is imported, and one for each that was exported.
        let (first, second) = (side.act("offer a 5 1"), side.act("offer b 9 2"));
        assert_eq!(peer.ask(&format!("open a {first}")), "done");
        for room in 0..=6 {
            peer.ask(&format!("limit {room}"));
            let told = peer.ask(&format!("open b {second}"));
            assert!(told.contains("no file descriptors are left"), "{room}: {told}");
            assert_eq!(peer.ask("holds a 5 1"), "true");
        }
        peer.ask("limit 12");
        assert_eq!(peer.ask(&format!("open b {second}")), "done");
        assert_eq!(peer.ask("holds b 9 2"), "true");
        let again = ["close a", "close b", "limit 20"].map(|line| peer.ask(line));
        assert!(again.iter().all(|answer| answer == "done"));

        let back = peer.ask("offer back 10 4");
        // The peer has no connection to itself yet.
        let told = peer.ask(&format!("full {back}"));
        assert!(told.contains("no file descriptors are left"), "{told}");
        peer.ask("limit 4");
        let told = side.act(&format!("open back {back}"));
        assert!(told.contains("no file descriptors are left"), "{told}");
        peer.ask("limit 20");
        for limit in ["limit 20", "limit 1"] {
            peer.ask(limit);
            assert_eq!(side.act(&format!("open back {back}")), "done", "{limit}");
            assert_eq!(side.act("holds back 10 4"), "true");
            side.act("close back");
        }
        peer.end();
    });
}

/// A process that hangs is given up when the caller's patience is over, and is not said to have ended. What is open is not touched,
/// and what it answers later is not taken for the answer to something else.
#[test]
fn an_exporter_that_hangs_is_given_up() {
    let test = "an_exporter_that_hangs_is_given_up";
    with_peers(test, || {
        let mut side = Side::new();
        let mut peer = Peer::start(test);
        let (first, second) = (peer.ask("offer first 4 1"), peer.ask("offer second 1 2"));
        assert_eq!(side.act(&format!("open a {first}")), "done");
        writeln!(peer.to, "stop").unwrap();
        eventually("it is stopped", || {
            std::fs::read_to_string(format!("/proc/{}/stat", peer.child.id())).unwrap().contains(") T ")
        });
        assert_eq!(side.act(&format!("try b {second}")), "no answer");
        assert_eq!(side.act(&format!("try b {second}")), "no answer");
        assert_eq!(side.act("holds a 4 1"), "true");
        // SAFETY: continues a child of this process.
        assert_eq!(unsafe { libc::kill(peer.child.id().try_into().unwrap(), libc::SIGCONT) }, 0);
        assert_eq!(peer.answer(), "done");
        assert_eq!(side.act(&format!("open b {second}")), "done");
        assert_eq!(side.act("holds b 1 2"), "true");
        side.act("close a");
        side.act("close b");
        peer.ask("free first");
        assert_eq!(peer.ask("offer third 29 4").len(), 2 * HANDLE_BYTES, "all memory is free but for three pages");
        peer.end();
    });
}

/// Whoever closes many blocks of a process that hangs does not wait for it each time.
#[test]
fn blocks_of_an_exporter_that_hangs_are_closed_at_once() {
    let test = "blocks_of_an_exporter_that_hangs_are_closed_at_once";
    with_peers(test, || {
        let mut side = Side::new();
        let mut peer = Peer::start(test);
        let handles: Vec<String> = (0..20).map(|number| peer.ask(&format!("offer {number} 1 1"))).collect();
        for (number, handle) in handles.iter().enumerate() {
            assert_eq!(side.act(&format!("open {number} {handle}")), "done");
        }
        let more = peer.ask("offer more 1 1");
        writeln!(peer.to, "stop").unwrap();
        eventually("it is stopped", || {
            std::fs::read_to_string(format!("/proc/{}/stat", peer.child.id())).unwrap().contains(") T ")
        });
        assert_eq!(side.act(&format!("try more {more}")), "no answer");
        let start = Instant::now();
        for number in 0..20 {
            side.act(&format!("close {number}"));
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        // SAFETY: continues a child of this process.
        assert_eq!(unsafe { libc::kill(peer.child.id().try_into().unwrap(), libc::SIGCONT) }, 0);
        assert_eq!(peer.answer(), "done");
        // All that was closed meanwhile is.
        assert_eq!(side.act(&format!("open more {more}")), "done");
        side.act("close more");
        for number in 0..20 {
            peer.ask(&format!("free {number}"));
        }
        peer.ask("free more");
        assert_eq!(peer.ask("offer all 30 2").len(), 2 * HANDLE_BYTES, "all memory is free but for two pages");
        peer.end();
    });
}
