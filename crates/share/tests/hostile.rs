//! Others that break the rules of the socket.

mod offer;

use gapless::allocator::{MapListener, MappedRange, Refusal};
use gapless::driver::MemoryDriver;
use gapless_share::{Handle, Importer, ShareError};
use offer::{
    BUSY, CLOSED, GONE, LIMIT, MAIN, MUCH_TIME, NO_TIME, OPENED, Offer, PAGE, REFUSED, asked, device, eventually,
    folder, is_closed,
};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[test]
fn nonsense_ends_the_connection_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let mut packets: Vec<Vec<u8>> =
        vec![vec![0xff], vec![0; 1], vec![0; 16], vec![7; 200], vec![1; 1 << 15], vec![0; 100_000]];
    // An `Open` that is cut off, or has something behind it.
    let open: Vec<u8> = [1, 0].into_iter().chain([9; 16]).collect();
    packets.extend((1..open.len()).map(|length| open[..length].to_vec()));
    packets.push([&open[..], &[0]].concat());
    // `Descriptors` that fills the longest packet, with one byte behind it: what arrives makes sense.
    let longest: Vec<u8> = [7, 2, 5, 0xfb, 0x7f].into_iter().chain([0; 16_379]).collect();
    packets.push([&longest[..], &[0]].concat());
    for packet in packets {
        let socket = offer.connect();
        send(&socket, &packet, SendFlags::empty()).unwrap();
        assert!(is_closed(&socket), "{} bytes", packet.len());
    }
    // A question comes without descriptors.
    let socket = offer.connect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with_descriptor = SendAncillaryBuffer::new(&mut space);
    let descriptors = [socket.as_fd()];
    assert!(with_descriptor.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(&socket, &[IoSlice::new(&[7, 3, 0])], &mut with_descriptor, SendFlags::empty()).unwrap();
    assert!(is_closed(&socket));
    offer.still_serves();
    offer.end();
}

#[test]
fn numbers_that_nothing_has_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let socket = offer.connect();
    // `Chunks` and `Close` of something that is not open; `Descriptors` of that. Each with its number before it.
    for packet in [
        &[7, 1, 5, 0][..],
        &[7, 3, 5],
        &[7, 2, 5, 1, 0],
        &[7, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0],
    ] {
        send(&socket, packet, SendFlags::empty()).unwrap();
        let mut bytes = [0; 1 << 14];
        let (got, _) = recv(&socket, &mut bytes[..], RecvFlags::empty()).unwrap();
        assert!(got > 2 && bytes[..2] == [7, REFUSED], "{packet:?}: {:?}", &bytes[..got]);
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
        assert_eq!(offer.open_by(&socket), OPENED);
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
    let open: Vec<u8> = [1, 0].into_iter().chain([9; 16]).collect();
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

/// Where nothing else is open through it, a connection ends with a question that is given up, whatever is answered later.
#[test]
fn an_answer_that_comes_too_late() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let (handle, listener) = offer.handle_of_another(&place.path().join("slow.sock"));
    let importer = Importer::new(device());
    let answer = importer.open_within(&handle, Duration::from_millis(50));
    assert!(matches!(answer, Err(ShareError::NoAnswer { .. })), "{answer:?}");
    let connection = rustix::net::accept(&listener).unwrap();
    // Nobody hears that it is open, and so nobody would close it.
    assert_eq!(asked(&connection)[..2], [1, 0]);
    assert!(send(&connection, &[1, OPENED, 5, 1, 0, 1], SendFlags::NOSIGNAL).is_err() || is_closed(&connection));
    // The next question goes through another one.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let connection = rustix::net::accept(&listener).unwrap();
            assert_eq!(asked(&connection)[..2], [1, 0]);
            send(&connection, &[1, GONE], SendFlags::empty()).unwrap();
        });
        assert!(matches!(importer.open_within(&handle, LIMIT), Err(ShareError::Gone)));
    });
    offer.end();
}

/// Nothing stays open for whoever gives a question up and asks no more.
#[test]
fn what_opens_too_late_is_not_held() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let importer = Importer::new(device());
    // What was open once and is kept here does not hold the connection, either.
    importer.keep_closed(PAGE);
    drop(importer.open(&offer.handle).unwrap());
    let block = offer.allocator.alloc_raw(PAGE, MAIN).unwrap();
    let other = offer.exporter.export(&offer.allocator, block).unwrap();
    let gives_up = || matches!(importer.open_within(&other, NO_TIME), Err(ShareError::NoAnswer { .. }));
    assert!((0..1000).any(|_| gives_up()), "every answer came in time");
    // By the time that the next one has its answer, the question has been read.
    offer.still_serves();
    eventually("something is held", || offer.exporter.holders().is_empty());
    drop(importer);
    offer.allocator.free(block).unwrap();
    offer.end();
}

/// Plays an exporter that opens a block of one page when it is asked.
fn serve_one_block(connection: &OwnedFd, open: u8) {
    let question = asked(connection);
    assert_eq!(question[1], 0, "an open: {question:?}");
    send(connection, &[question[0], OPENED, open, 0x80, 0x80, 0x80, 1, 0, 1], SendFlags::empty()).unwrap();
    let [number, 1, ..] = asked(connection)[..] else { panic!("it asks for chunks") };
    send(connection, &[number, 1, 1, open, 0x80, 0x80, 0x80, 1], SendFlags::empty()).unwrap();
    let [number, 2, ..] = asked(connection)[..] else { panic!("it asks for descriptors") };
    let driver = device();
    let chunk = driver.create(PAGE).unwrap();
    let descriptor = driver.export(chunk).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(connection, &[IoSlice::new(&[number, 2])], &mut ancillary, SendFlags::empty()).unwrap();
    driver.release(chunk).unwrap();
}

/// Where something else is open through the connection, it goes on, and what opens too late is closed when that can be heard.
#[test]
fn what_opens_too_late_beside_an_open_block() {
    const SOON: Duration = Duration::from_millis(20);
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let (handle, listener) = offer.handle_of_another(&place.path().join("slow.sock"));
    let mut bytes = handle.to_bytes();
    bytes[24] ^= 1;
    let another = Handle::from_bytes(&bytes).unwrap();
    let importer = Importer::new(device());
    let (open, connection) = std::thread::scope(|scope| {
        let exporter = scope.spawn(|| {
            let connection = rustix::net::accept(&listener).unwrap();
            serve_one_block(&connection, 5);
            connection
        });
        (importer.open_within(&handle, LIMIT).unwrap(), exporter.join().unwrap())
    });
    let gives_up = |open: u8| {
        let answer = importer.open_within(&another, SOON);
        assert!(matches!(answer, Err(ShareError::NoAnswer { .. })), "{answer:?}");
        let question = asked(&connection);
        assert_eq!(question[1], 0, "an open: {question:?}");
        send(&connection, &[question[0], OPENED, open, 1, 0, 1], SendFlags::empty()).unwrap();
    };
    gives_up(6);
    importer.settle();
    assert_eq!(asked(&connection)[1..], [3, 6]);
    // A late answer is not the answer to the next question.
    gives_up(7);
    std::thread::scope(|scope| {
        let next = scope.spawn(|| importer.open_within(&another, LIMIT));
        let question = asked(&connection);
        send(&connection, &[question[0], GONE], SendFlags::empty()).unwrap();
        assert!(matches!(next.join().unwrap(), Err(ShareError::Gone)));
    });
    assert_eq!(asked(&connection)[1..], [3, 7]);
    gives_up(8);
    drop(open);
    let mut closed = [(); 2].map(|()| asked(&connection)[1..].to_vec());
    closed.sort_unstable();
    assert_eq!(closed, [[3, 5], [3, 8]]);
    // All that was open is closed, so the next question goes through the same connection.
    std::thread::scope(|scope| {
        let next = scope.spawn(|| importer.open_within(&another, LIMIT));
        let question = asked(&connection);
        send(&connection, &[question[0], GONE], SendFlags::empty()).unwrap();
        assert!(matches!(next.join().unwrap(), Err(ShareError::Gone)));
    });
    offer.end();
}

/// While one process does not answer, blocks of others are opened, those that are open already too, and closed.
#[test]
fn nobody_waits_for_an_answer_to_others() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let (silent, offer) = (Offer::new(), Offer::new());
    let (handle, listener) = silent.handle_of_another(&place.path().join("silent.sock"));
    let importer = Importer::new(device());
    let open = importer.open(&offer.handle).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| importer.open_within(&handle, MUCH_TIME));
        let connection = rustix::net::accept(&listener).unwrap();
        asked(&connection);
        assert_eq!(importer.open(&offer.handle).unwrap().addr(), open.addr());
        drop(open);
        drop(importer.open(&offer.handle).unwrap());
        assert!(!waiting.is_finished());
        send(&connection, &[1, GONE], SendFlags::empty()).unwrap();
        assert!(matches!(waiting.join().unwrap(), Err(ShareError::Gone)));
    });
    silent.end();
    offer.end();
}

/// Has whoever unmaps something wait inside the allocator's slow path, as for work on the device.
struct Hold {
    is_inside: Mutex<Sender<()>>,
    may_go_on: Mutex<Receiver<()>>,
}

impl MapListener for Hold {
    fn on_map(&self, _: MappedRange) -> Result<(), Refusal> {
        Ok(())
    }

    fn before_unmap(&self, _: MappedRange) -> Result<(), Refusal> {
        let _ = self.is_inside.lock().unwrap().send(());
        // It goes on when it is told to, or when nobody is left who could.
        let _ = self.may_go_on.lock().unwrap().recv();
        Ok(())
    }
}

#[test]
fn an_exporter_answers_while_its_allocator_waits() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let importer = Importer::new(device());
    let other = offer.allocator.alloc_raw(40 * PAGE, MAIN).unwrap();
    offer.allocator.free(other).unwrap();
    std::thread::scope(|scope| {
        let ((is_inside, inside), (go_on, may_go_on)) = (channel(), channel());
        let hold = Hold { is_inside: Mutex::new(is_inside), may_go_on: Mutex::new(may_go_on) };
        offer.allocator.listeners().add(Arc::new(hold)).unwrap();
        let trim = scope.spawn(|| offer.allocator.trim(0));
        inside.recv_timeout(LIMIT).unwrap();
        let shared = importer.open_within(&offer.handle, LIMIT).unwrap();
        // What is offered already is offered again without a wait, too.
        let again = scope.spawn(|| offer.exporter.export(&offer.allocator, offer.block));
        let start = Instant::now();
        while !again.is_finished() {
            assert!(start.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(again.join().unwrap().unwrap(), offer.handle);
        assert!(!trim.is_finished());
        drop(shared);
        drop(go_on);
        trim.join().unwrap().unwrap();
    });
    offer.end();
}

/// The number of threads that answer for exporters of this process.
fn answering_threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let lines = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    lines.filter(|line| line.contains("(gapless-share)") && !is_exiting(line)).count()
}

/// Whether a thread runs only the system's code any more: whoever has joined it may still see it in the list.
fn is_exiting(stat: &str) -> bool {
    const PF_EXITING: u64 = 4;
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().nth(6).unwrap().parse::<u64>().unwrap() & PF_EXITING != 0
}

/// At the end of a process the driver may go at any moment: nothing calls it any more.
#[test]
fn an_exporter_that_has_ended_has_no_thread() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let shared = Importer::new(device()).open(&offer.handle).unwrap();
    assert_eq!(answering_threads(), 1);
    offer.exporter.end();
    assert_eq!(answering_threads(), 0);
    assert!(!offer.socket.exists());
    assert!(matches!(offer.exporter.export(&offer.allocator, offer.block), Err(ShareError::Ended)));
    assert!(matches!(Importer::new(device()).open(&offer.handle), Err(ShareError::ExporterGone(_))));
    offer.exporter.end();
    drop(shared);
}

/// A block that was freed does not stay in the list of offers for good.
#[test]
fn offers_that_are_gone_are_forgotten() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    for _ in 0..5000 {
        let block = offer.allocator.alloc_raw(4096, MAIN).unwrap();
        offer.exporter.export(&offer.allocator, block).unwrap();
        offer.allocator.free(block).unwrap();
        assert!(offer.exporter.offers() <= 1025, "{} offers of one live block", offer.exporter.offers());
    }
    assert!(offer.exporter.offers() > 1, "what was freed counts for a while");
    offer.still_serves();
    offer.end();
}

/// Of many live offers, those that are gone are looked for each time that as many have been added.
#[test]
fn gone_offers_among_many_live_ones() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let export = || {
        let block = offer.allocator.alloc_raw(4096, MAIN).unwrap();
        offer.exporter.export(&offer.allocator, block).unwrap();
        block
    };
    // The first time that there are more than 1,024, all of them are live.
    let live: Vec<_> = (0..1024).map(|_| export()).collect();
    for added in 1..=1025 {
        offer.allocator.free(export()).unwrap();
        assert_eq!(offer.exporter.offers(), 1025 + added);
    }
    offer.allocator.free(export()).unwrap();
    assert_eq!(offer.exporter.offers(), 1026, "the gone ones are forgotten, but for the last");
    live.into_iter().for_each(|block| offer.allocator.free(block).unwrap());
    offer.end();
}

#[test]
fn answers_that_make_no_sense_are_errors() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let (handle, listener) = offer.handle_of_another(&place.path().join("evil.sock"));
    // The number of the question first. Then opened: number, bytes, offset, chunks, as varints; or chunks: number of them, number
    // and bytes of each.
    let most = [1, OPENED, 0, 1, 0, 0x80, 0x80, 0x40];
    let one_more = [1, OPENED, 0, 1, 0, 0x81, 0x80, 0x40];
    let far_away = [1, OPENED, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1];
    let larger = "a block that is larger than its chunks";
    let too_many = "a block without chunks, or with too many";
    let twice = "more chunks than the block has, or one of them twice";
    let missing = "chunks that are missing or empty";
    let unasked = "an answer to nothing that was asked";
    let answers: [(&[&[u8]], &str); 16] = [
        (&[b"\x01\xff\xff"], "a packet that is none"),
        (&[&[1, CLOSED]], "no block where one was asked for"),
        (&[&[0, GONE]], unasked),
        (&[&[2, GONE]], unasked),
        (&[&[1, OPENED, 0, 1, 0, 0]], too_many),
        (&[&[1, OPENED, 0, 1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]], too_many),
        (&[&one_more], too_many),
        (&[&most, &[2, CLOSED]], "no chunks where these were asked for"),
        (&[&far_away], larger),
        (&[&[1, OPENED, 0, 5, 0, 1], &[2, 1, 1, 7, 4]], larger),
        (&[&[1, OPENED, 0, 1, 0, 2], &[2, 1, 2, 7, 4, 7, 4]], twice),
        (&[&[1, OPENED, 0, 1, 0, 1], &[2, 1, 2, 7, 4, 8, 4]], twice),
        (&[&[1, OPENED, 0, 1, 0, 1], &[2, 1, 0]], missing),
        (&[&[1, OPENED, 0, 1, 0, 1], &[2, 1, 1, 7, 0]], missing),
        (&[&[1, OPENED, 0, 1, 0, 2], &[2, 1, 2, 7, 0, 8, 4]], missing),
        (&[&[1, OPENED, 0, 1, 0, 1], &[2, 1, 1, 7, 4], &[3, 2]], "other descriptors than were asked for"),
    ];
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            for (packets, _) in answers {
                let connection = rustix::net::accept(&listener).unwrap();
                for packet in packets {
                    asked(&connection);
                    send(&connection, packet, SendFlags::NOSIGNAL).unwrap();
                }
            }
        });
        for (packets, says) in answers {
            // Each has a connection of its own.
            let driver = device();
            match Importer::new(Arc::clone(&driver)).open(&handle) {
                Err(ShareError::Message(text)) => assert_eq!(text, says, "{packets:?}"),
                other => panic!("{packets:?}: {other:?}"),
            }
            assert!(driver.usage().is_empty());
        }
        server.join().unwrap();
    });
    offer.end();
}

/// Those who want a block that somebody opens wait as long as they have time, and open it themselves if that one could not.
#[test]
fn whoever_wants_the_same_block_waits() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let (handle, listener) = offer.handle_of_another(&place.path().join("slow.sock"));
    let importer = Importer::new(device());
    std::thread::scope(|scope| {
        let first = scope.spawn(|| importer.open_within(&handle, MUCH_TIME));
        let connection = rustix::net::accept(&listener).unwrap();
        assert_eq!(asked(&connection)[0], 1);
        match importer.open_within(&handle, Duration::from_millis(5)) {
            Err(ShareError::NoAnswer { .. }) => {}
            other => panic!("{other:?}"),
        }
        let second = scope.spawn(|| importer.open_within(&handle, MUCH_TIME));
        // Time for it to begin to wait: else it only asks after the first.
        std::thread::sleep(Duration::from_millis(50));
        send(&connection, &[1, GONE], SendFlags::empty()).unwrap();
        assert!(matches!(first.join().unwrap(), Err(ShareError::Gone)));
        assert_eq!(asked(&connection)[0], 2, "it asks itself");
        send(&connection, &[2, GONE], SendFlags::empty()).unwrap();
        assert!(matches!(second.join().unwrap(), Err(ShareError::Gone)));
    });
    offer.end();
}

/// A connection that was ended for others says so, although it was ended before the next question.
#[test]
fn a_connection_that_was_ended_for_others() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let (handle, listener) = offer.handle_of_another(&place.path().join("busy.sock"));
    let importer = Importer::new(device());
    let connection = std::thread::scope(|scope| {
        let exporter = scope.spawn(|| {
            let connection = rustix::net::accept(&listener).unwrap();
            asked(&connection);
            send(&connection, &[1, GONE], SendFlags::empty()).unwrap();
            connection
        });
        assert!(matches!(importer.open_within(&handle, LIMIT), Err(ShareError::Gone)));
        exporter.join().unwrap()
    });
    send(&connection, &[0, BUSY], SendFlags::empty()).unwrap();
    drop(connection);
    // The next connection is not answered: what is known is that others are served.
    match importer.open_within(&handle, Duration::from_millis(100)) {
        Err(ShareError::Busy) => {}
        other => panic!("{other:?}"),
    }
    offer.end();
}

/// A handle that has an exporter's name and another socket leads to that socket, and takes nothing from the exporter's own.
#[test]
fn a_name_that_is_lent_to_another_socket() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let (lent, listener) = offer.handle_of_another(&place.path().join("lent.sock"));
    let importer = Importer::new(device());
    let open = std::thread::scope(|scope| {
        // The liar has been connected to first, and has not answered.
        let waiting = scope.spawn(|| importer.open_within(&lent, LIMIT));
        let liar = rustix::net::accept(&listener).unwrap();
        assert_eq!(asked(&liar)[..2], [1, 0]);
        let open = importer.open_within(&offer.handle, LIMIT).unwrap();
        assert_eq!(open.bytes(), PAGE);
        // Neither is the exporter's block the liar's, nor is what the liar has freed the exporter's.
        send(&liar, &[1, GONE], SendFlags::empty()).unwrap();
        assert!(matches!(waiting.join().unwrap(), Err(ShareError::Gone)));
        let waiting = scope.spawn(|| importer.open_within(&lent, LIMIT));
        assert_eq!(asked(&liar)[..2], [2, 0]);
        send(&liar, &[2, GONE], SendFlags::empty()).unwrap();
        assert!(matches!(waiting.join().unwrap(), Err(ShareError::Gone)));
        open
    });
    assert_eq!(importer.open_within(&offer.handle, NO_TIME).unwrap().addr(), open.addr());
    drop(open);
    offer.end();
}

/// Nothing that may be printed tells how to open a block.
#[test]
fn tokens_are_in_no_log() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let open = Importer::new(device()).open(&offer.handle).unwrap();
    let token = &offer.handle.to_bytes()[24..40];
    let ways = [format!("{token:?}"), token.iter().map(|byte| format!("{byte:02x}")).collect::<String>()];
    for text in [format!("{:?}", offer.handle), format!("{open:?}"), format!("{:?}", offer.exporter)] {
        let inside = |way: &String| text.contains(way.trim_matches(['[', ']']));
        assert!(!ways.iter().any(inside), "{text}");
    }
    drop(open);
    offer.end();
}

/// The number of the chunk, as another process is told it.
fn listed(socket: &OwnedFd) -> Vec<u8> {
    send(socket, &[3, 1, 0, 0], SendFlags::empty()).unwrap();
    let answer = asked(socket);
    assert_eq!(answer[..3], [3, 1, 1], "one chunk: {answer:?}");
    answer[3..].to_vec()
}

/// A driver's handles are addresses inside of it: the numbers of chunks say nothing of them, and are others for each connection.
#[test]
fn numbers_of_chunks_are_not_the_drivers() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let sockets = [(); 2].map(|()| offer.connect());
    sockets.iter().for_each(|socket| assert_eq!(offer.open_by(socket), OPENED));
    let [first, second] = sockets.each_ref().map(listed);
    assert_ne!(first, second);
    assert_eq!(first, listed(&sockets[0]), "it stays the same");
    drop(sockets);
    offer.end();
}

/// An open that fails because of a lie does not wait to hear that the block is closed: twenty of them would take 18 seconds.
#[test]
fn a_liar_is_not_waited_for_to_say_farewell() {
    const LIES: u32 = 20;
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let (handle, listener) = offer.handle_of_another(&place.path().join("liar.sock"));
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..LIES {
                let liar = rustix::net::accept(&listener).unwrap();
                asked(&liar);
                send(&liar, &[1, OPENED, 5, 1, 0, 1], SendFlags::empty()).unwrap();
                asked(&liar);
                // A chunk of no bytes; then it says no more.
                send(&liar, &[2, 1, 1, 7, 0], SendFlags::empty()).unwrap();
                assert_eq!(asked(&liar), [3, 3, 5], "it is closed");
                assert!(is_closed(&liar), "and the importer has ended");
            }
        });
        for _ in 0..LIES {
            let answer = Importer::new(device()).open_within(&handle, LIMIT);
            assert!(matches!(answer, Err(ShareError::Message(_))), "{answer:?}");
        }
    });
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
    offer.end();
}
