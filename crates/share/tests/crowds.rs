//! Many importers of one exporter: how much each connection, each process and all together may have open.

mod apart;
mod offer;

use apart::{Apart, role};
use gapless_share::{Importer, ShareError};
use offer::{
    BUSY, CLOSED, GONE, MUCH_TIME, OPENED, Offer, PAGE, REFUSED, asked, device, eventually, folder, is_closed,
};
use rustix::fd::OwnedFd;
use rustix::net::{SendFlags, send};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Most connections that the exporter serves, and how many of them are one process's at most.
const MOST_CONNECTIONS: usize = 256;
const MOST_OF_ONE_PROCESS: usize = 128;

/// How often blocks are pinned.
fn pins(offer: &Offer) -> u32 {
    let snapshot = offer.allocator.snapshot();
    snapshot.regions.iter().flat_map(|region| &region.blocks).map(|block| block.pins).sum()
}

/// As many connections, through each of which the block is open.
fn holders(offer: &Offer, number: usize) -> Vec<OwnedFd> {
    let connections = (0..number).map(|_| offer.connect());
    connections.inspect(|socket| assert_eq!(offer.open_by(socket), OPENED)).collect()
}

#[test]
fn a_thousand_importers_at_once_are_all_served() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let (target, start) = (device(), Barrier::new(1000));
    let open = || {
        let importer = Importer::new(Arc::clone(&target));
        start.wait();
        importer.open_within(&offer.handle, MUCH_TIME).map(drop)
    };
    let refused: Vec<ShareError> = std::thread::scope(|scope| {
        let importers: Vec<_> =
            (0..1000).map(|_| std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, open)).collect();
        importers.into_iter().filter_map(|importer| importer.unwrap().join().unwrap().err()).collect()
    });
    assert!(refused.is_empty(), "{} of 1,000 were not served: {}", refused.len(), refused[0]);
    assert!(target.usage().is_empty());
    offer.end();
}

/// One connection more than are served ends none through which something is open: it is told to wait, and served later.
#[test]
fn one_that_is_too_many_is_told_to_wait() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let mut holders: Vec<OwnedFd> = Vec::new();
    for _ in 0..MOST_OF_ONE_PROCESS {
        let socket = offer.connect();
        assert_eq!(offer.open_by(&socket), OPENED);
        holders.push(socket);
    }
    let importer = Importer::new(device());
    match importer.open_within(&offer.handle, Duration::from_secs(1)) {
        Err(ShareError::Busy) => {}
        other => panic!("{other:?}"),
    }
    // Those that are too many are told when they ask, each as the answer to its question, and not before.
    let [first, second] = [(); 2].map(|()| offer.connect());
    for socket in [second, first] {
        assert_eq!(offer.open_by(&offer.connect()), BUSY);
        send(&socket, &[7, 3, 0], SendFlags::NOSIGNAL).unwrap();
        assert_eq!(asked(&socket), [7, BUSY]);
        assert!(is_closed(&socket));
    }
    for socket in &holders {
        send(socket, &[2, 3, 0], SendFlags::NOSIGNAL).unwrap();
        assert_eq!(asked(socket), [2, CLOSED], "it is open still");
        assert_eq!(offer.open_by(socket), OPENED);
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| importer.open_within(&offer.handle, MUCH_TIME));
        drop(holders.remove(100));
        assert_eq!(waiting.join().unwrap().unwrap().bytes(), PAGE);
    });
    // Through one of these nothing is open: it ends for another.
    send(&holders[7], &[9, 3, 1], SendFlags::empty()).unwrap();
    assert_eq!(asked(&holders[7]), [9, CLOSED]);
    let late = offer.connect();
    assert_eq!(offer.open_by(&late), OPENED);
    drop((late, holders));
    drop(importer);
    offer.still_serves();
    offer.end();
}

#[test]
fn one_connection_opens_so_much_and_no_more() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let socket = offer.connect();
    let opened = (0..(1 << 16) + 10).take_while(|_| offer.open_by(&socket) == OPENED).count();
    assert_eq!(opened, 1 << 16);
    assert_eq!(offer.open_by(&socket), REFUSED);
    offer.still_serves();
    drop(socket);
    offer.end();
}

/// A block that stayed mapped is opened through another connection, since its own has ended: it is closed through that one.
#[test]
fn what_stays_mapped_outlives_its_connection() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let importer = Importer::new(device());
    importer.keep_closed(u64::MAX);
    let addr = importer.open(&offer.handle).unwrap().addr();
    // Nothing is open through it: as many others as are served end it.
    let others: Vec<OwnedFd> = (0..MOST_OF_ONE_PROCESS).map(|_| offer.connect()).collect();
    for socket in &others {
        assert_eq!(offer.open_by(socket), OPENED);
    }
    drop(others);
    let again = importer.open(&offer.handle).unwrap();
    assert_eq!(again.addr(), addr);
    drop(again);
    eventually("nothing is pinned", || pins(&offer) == 0);
    offer.end();
}

/// One process that has open as much as it may shuts out itself, and nobody else.
#[test]
fn one_process_does_not_shut_out_others() {
    const NAME: &str = "one_process_does_not_shut_out_others";
    if let Some(handle) = role() {
        let answer = Importer::new(device()).open_within(&handle, MUCH_TIME);
        return apart::say(&answer.map_or_else(|error| error.to_string(), |_| "open".to_owned()));
    }
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let held = holders(&offer, MOST_OF_ONE_PROCESS);
    assert_eq!(offer.open_by(&offer.connect()), BUSY);
    let mut other = Apart::start(NAME, &[], &offer.handle);
    assert_eq!(other.hear(), "open");
    other.end();
    drop(held);
    offer.still_serves();
    offer.end();
}

/// As many as are served have something open, of several processes: the next one waits until one of these has ended.
#[test]
fn so_many_are_served_at_a_time() {
    const NAME: &str = "so_many_are_served_at_a_time";
    if let Some(handle) = role() {
        let importers: Vec<_> = (0..MOST_OF_ONE_PROCESS).map(|_| Importer::new(device())).collect();
        let open: Vec<_> = importers.iter().map(|importer| importer.open_within(&handle, MUCH_TIME)).collect();
        apart::say(&open.iter().filter(|block| block.is_ok()).count().to_string());
        return apart::wait_to_end();
    }
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let mut others: Vec<_> =
        (0..MOST_CONNECTIONS / MOST_OF_ONE_PROCESS).map(|_| Apart::start(NAME, &[], &offer.handle)).collect();
    for other in &mut others {
        assert_eq!(other.hear(), MOST_OF_ONE_PROCESS.to_string());
    }
    let importer = Importer::new(device());
    match importer.open_within(&offer.handle, Duration::from_millis(300)) {
        Err(ShareError::Busy) => {}
        other => panic!("{other:?}"),
    }
    others.pop().unwrap().kill();
    drop(importer.open_within(&offer.handle, MUCH_TIME).unwrap());
    others.into_iter().for_each(Apart::end);
    eventually("nothing is pinned", || pins(&offer) == 0);
    offer.end();
}

/// However often a connection opens a block, that is pinned and listed once, and closed with the last time.
#[test]
fn a_connection_pins_a_block_once() {
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let (first, second) = (offer.connect(), offer.connect());
    for _ in 0..100 {
        assert_eq!(offer.open_by(&first), OPENED);
        assert_eq!(pins(&offer), 1);
    }
    assert_eq!(offer.open_by(&second), OPENED);
    assert_eq!(pins(&offer), 2);
    for left in (0..100).rev() {
        send(&first, &[7, 3, 0], SendFlags::empty()).unwrap();
        assert_eq!(asked(&first), [7, CLOSED]);
        assert_eq!(pins(&offer), if left == 0 { 1 } else { 2 });
    }
    send(&first, &[7, 3, 0], SendFlags::empty()).unwrap();
    assert_eq!(asked(&first)[..2], [7, REFUSED], "it was open a hundred times");
    // One that was freed is gone, although this connection has it open.
    offer.allocator.free(offer.block).unwrap();
    assert_eq!(offer.open_by(&second), GONE);
    send(&second, &[7, 3, 0], SendFlags::empty()).unwrap();
    assert_eq!(asked(&second), [7, CLOSED]);
    drop(offer.exporter);
    offer.allocator.close().unwrap();
}
