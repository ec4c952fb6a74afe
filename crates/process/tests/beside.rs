//! An allocator beside gapless, such as PyTorch's own, within one budget.

use gapless::StreamId;
use gapless::allocator::AllocError;
use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::MIB;
use gapless_process::{Device, PoolId, Process, Request, Simulated};

const POOL: PoolId = (3, 4);

fn process() -> Process<Simulated<ModelDriver>> {
    let process = Process::new(|ordinal, _| {
        Ok(Simulated::model(ordinal, ModelConfig { capacity_bytes: 64 * MIB, ..ModelConfig::default() }))
    });
    process.configure("").expect("no device is in use");
    process
}

fn request(mib: u64) -> Request {
    Request::new(mib * MIB, StreamId::DEFAULT)
}

fn is_refused(device: &Device<Simulated<ModelDriver>>, mib: u64) -> bool {
    match device.alloc(&request(mib)) {
        Ok(addr) => {
            device.free(addr, 0, StreamId::DEFAULT).unwrap();
            false
        }
        Err(AllocError::OutOfMemory(report)) => {
            assert_eq!(report.budget_bytes, 32 * MIB, "the budget of both");
            true
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn what_it_holds_counts_against_the_budget() {
    let process = process();
    let device = process.device(0).unwrap();
    assert_eq!(device.lend_beside(), None, "the device is the budget");
    device.set_budget(32 * MIB).unwrap();
    assert_eq!(device.lend_beside(), Some(32 * MIB));
    device.settle_beside(20 * MIB);
    assert!(is_refused(device, 14) && !is_refused(device, 12));
    device.trim(0).unwrap();
    device.settle_beside(0);
    assert!(!is_refused(device, 32));
}

#[test]
fn it_is_lent_what_gapless_does_not_hold() {
    let process = process();
    let device = process.device(0).unwrap();
    device.set_budget(32 * MIB).unwrap();
    let live = device.alloc(&request(10)).unwrap();
    device.pools().begin(POOL).unwrap();
    let pooled = device.alloc(&request(8)).unwrap();
    device.end_pool(POOL);
    assert_eq!(device.lend_beside(), Some(14 * MIB));
    assert!(is_refused(device, 2), "what is lent is not gapless's");
    device.settle_beside(10 * MIB);
    assert!(!is_refused(device, 4) && is_refused(device, 6));
    for addr in [live, pooled] {
        device.free(addr, 0, StreamId::DEFAULT).unwrap();
    }
}

/// A segment that it has from gapless counts once, whether it was in the loan or is held.
#[test]
fn what_it_has_from_gapless_counts_once() {
    let process = process();
    let device = process.device(0).unwrap();
    device.set_budget(32 * MIB).unwrap();
    assert_eq!(device.lend_beside(), Some(32 * MIB));
    let segment = device.alloc_segment(20 * MIB, StreamId::DEFAULT).unwrap();
    device.settle_beside(20 * MIB);
    assert_eq!(device.lend_beside(), Some(32 * MIB), "20 MiB that it has, and 12 MiB more");
    assert!(device.alloc_segment(14 * MIB, StreamId::DEFAULT).is_err());
    device.settle_beside(24 * MIB);
    assert!(!is_refused(device, 8) && is_refused(device, 10));
    device.free_segment(segment, 20 * MIB).unwrap();
    device.settle_beside(4 * MIB);
    assert!(!is_refused(device, 28) && is_refused(device, 30));
}

/// A segment that could not be had is the loan's again: nobody else gets what the other allocator may take still.
#[test]
fn a_segment_that_could_not_be_had_stays_lent() {
    let process = process();
    let device = process.device(0).unwrap();
    device.set_budget(32 * MIB).unwrap();
    let live = device.alloc(&request(2)).unwrap();
    assert_eq!(device.lend_beside(), Some(30 * MIB));
    // More than the loan, in one piece and on top of another.
    assert!(device.alloc_segment(40 * MIB, StreamId::DEFAULT).is_err());
    assert!(is_refused(device, 2), "all is lent still");
    let segment = device.alloc_segment(20 * MIB, StreamId::DEFAULT).unwrap();
    assert!(device.alloc_segment(12 * MIB, StreamId::DEFAULT).is_err());
    assert!(is_refused(device, 2), "10 MiB are lent still");
    device.settle_beside(20 * MIB);
    assert!(!is_refused(device, 10) && is_refused(device, 12));
    device.free_segment(segment, 20 * MIB).unwrap();
    device.free(live, 0, StreamId::DEFAULT).unwrap();
}

#[test]
fn a_budget_that_comes_later_counts_what_it_holds() {
    let process = process();
    let device = process.device(0).unwrap();
    device.settle_beside(20 * MIB);
    assert!(!is_refused(device, 40), "no budget");
    device.trim(0).unwrap();
    device.set_budget(32 * MIB).unwrap();
    assert!(is_refused(device, 14) && !is_refused(device, 12));
}

#[test]
fn a_limit_holds_for_devices_that_are_made_later_and_a_budget_counts_more() {
    for (conf, part, budget) in [("", 0.5, 32), ("", 0.0, 0), ("", 1.0, 64), ("budget:16MiB", 0.5, 16)] {
        let process = self::process();
        process.configure(conf).unwrap();
        process.limit(part).unwrap();
        assert_eq!(process.device(0).unwrap().allocator().budget(), budget * MIB, "{conf} {part}");
    }
    let process = process();
    let device = process.device(0).unwrap();
    process.limit(0.25).unwrap();
    assert_eq!(device.allocator().budget(), 16 * MIB, "of a device that is in use");
    process.limit(0.5).unwrap();
    assert_eq!(device.allocator().budget(), 16 * MIB, "it has a budget");
    for wrong in [-0.1, 1.1, f64::NAN] {
        assert!(process.limit(wrong).is_err());
    }
}
