//! Memory for other processes: what one device offers another one maps, as between two processes.

#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless::StreamId;
use gapless::driver::{HostConfig, HostDriver, WorkDriver};
use gapless::units::MIB;
use gapless_process::{Error, Process, Request, Simulated};
use gapless_share::{FOLDER, ShareError};
use std::sync::Arc;

const MAIN: StreamId = StreamId::DEFAULT;

/// A process with one device, whose memory is the host's.
fn process() -> Process<Simulated<HostDriver>> {
    let process = Process::new(|_, _| unreachable!("the device is added"));
    process.configure("").unwrap();
    let config = HostConfig { capacity_bytes: 64 * MIB, ..HostConfig::default() };
    process.add(0, Arc::new(Simulated::host(0, config).unwrap())).unwrap();
    process
}

#[test]
fn what_is_exported_is_imported_elsewhere() {
    let place = tempfile::tempdir().unwrap();
    let sockets = place.path().join("sockets");
    let settings = [(FOLDER, sockets.to_str().unwrap())];
    simulated::with_settings("what_is_exported_is_imported_elsewhere", &settings, export_and_import);
}

fn export_and_import() {
    let (here, there) = (process(), process());
    let (owner, user) = (here.device(0).unwrap(), there.device(0).unwrap());
    let block = owner.alloc(&Request::new(4 * MIB, MAIN)).unwrap();
    owner.allocator().driver().fill(MAIN, block, 4 * MIB, 7).unwrap();
    owner.allocator().driver().synchronize(MAIN).unwrap();
    let (handle, behind) = owner.export(block.offset(MIB)).unwrap();
    assert_eq!(behind, MIB);
    let (addr, bytes) = user.import(&handle).unwrap();
    assert_eq!(bytes, 4 * MIB);
    let reader = user.allocator().driver();
    reader.verify(MAIN, addr, bytes, 7).unwrap();
    reader.synchronize(MAIN).unwrap();
    assert_eq!(reader.take_mismatches(), []);
    // Each import is closed once, and one that was closed is none.
    assert_eq!(user.import(&handle).unwrap(), (addr, bytes));
    user.close_import(addr).unwrap();
    user.close_import(addr).unwrap();
    assert!(matches!(user.close_import(addr), Err(Error::NotImported(of)) if of == addr));
    owner.free(block, 0, MAIN).unwrap();
    assert!(matches!(user.import(&handle), Err(Error::Share(ShareError::Gone))));
    assert!(matches!(owner.export(block), Err(Error::NotLive(_))));
}
