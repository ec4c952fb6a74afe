//! The fault sweep of a process: for every operation and every n, the operation's n-th driver call fails, in situations that
//! together make every kind of driver call. Afterwards the state must be as before, or as after the operation, and the same call
//! must succeed.

use super::device::{Simulates, TwoDevices};
use super::op::ProcessOp::{self, *};
use super::runner::{Outcome, ProcessRunner};
use crate::op::Failure;

/// A situation, and the operation that fails in it.
struct Case {
    name: &'static str,
    devices: TwoDevices,
    before: Vec<ProcessOp>,
    op: ProcessOp,
}

fn cases(devices: TwoDevices) -> Vec<Case> {
    let page = devices.page_bytes;
    let alloc = |device, pages, stream| Alloc { device, bytes: pages * page, stream };
    let case = |name, before: &[ProcessOp], op| Case { name, devices, before: before.to_vec(), op };
    let (begin, end) = (Begin { device: 0, pool: 0 }, End { device: 0, pool: 0 });
    let release = Release { device: 0, pool: 0 };
    let budgeted = Budget { device: 0, pages: 8 };
    // A pool of four pages with nothing in it.
    let released = [begin, alloc(0, 4, 0), Free { block: 0 }, end, release];
    let beside_a_pool = [budgeted, begin, alloc(0, 3, 0), end];
    // The third stream that was created is the first one of device 1.
    let foreign = [alloc(1, 1, 0), alloc(0, 2, 0), Hold { stream: 2 }, Use { block: 1, stream: 2 }];
    let deferred = [&foreign[..], &[Free { block: 1 }]].concat();
    vec![
        case("the first allocation", &[], alloc(0, 2, 0)),
        case("the other device's first use", &[alloc(0, 2, 0)], alloc(1, 2, 1)),
        case("access to a pool's memory", &[begin, alloc(0, 2, 0)], alloc(1, 2, 1)),
        case("a pool begins", &[alloc(0, 2, 0)], begin),
        case("a pool begins within a budget", &[budgeted, alloc(0, 2, 0)], begin),
        case("a pool begins where another one was released", &released, begin),
        case("a pool has a user", &[alloc(0, 2, 0)], AddUser { device: 0, pool: 0 }),
        case("a pool's first allocation", &[begin], alloc(0, 3, 1)),
        case(
            "a pool's growth beyond what it was lent",
            &beside_a_pool,
            AllocInPool { device: 0, pool: 0, bytes: 4 * page, stream: 1 },
        ),
        case(
            "a request in a pool for what the device holds free",
            &[budgeted, alloc(0, 6, 0), Free { block: 0 }, begin],
            alloc(0, 5, 1),
        ),
        case("a pool ends", &[budgeted, begin, alloc(0, 3, 0)], end),
        case("a released pool is closed for a request", &[&[budgeted][..], &released].concat(), alloc(0, 7, 0)),
        case("released pools are closed", &released, CloseReleased { device: 0 }),
        case("a budget", &[alloc(0, 6, 0), Free { block: 0 }], Budget { device: 0, pages: 4 }),
        case(
            "a budget beside pools",
            &[alloc(0, 6, 0), Free { block: 0 }, begin, alloc(0, 2, 1)],
            Budget { device: 0, pages: 4 },
        ),
        case("a stream of the other device is recorded", &foreign[..3], Use { block: 1, stream: 2 }),
        case("the default stream is recorded", &foreign[..3], Use { block: 1, stream: 4 }),
        case(
            "a stream of the other device in a pool",
            &[begin, alloc(0, 1, 0), alloc(1, 1, 0)],
            Use { block: 0, stream: 2 },
        ),
        case("a block of the other device's stream is freed", &foreign, Free { block: 1 }),
        case("a free on a stream of the other device", &foreign[..3], FreeOn { block: 1, stream: 2 }),
        case("a free on an own stream", &foreign[..3], FreeOn { block: 1, stream: 1 }),
        case("a request that waits for the other device", &deferred, alloc(0, 15, 0)),
        case("a trim that waits for the other device", &deferred, Trim { device: 0, keep: 0 }),
        case(
            "a trim that closes pools",
            &[&released[..], &[alloc(0, 3, 1), Free { block: 0 }]].concat(),
            Trim { device: 0, keep: 0 },
        ),
    ]
}

/// Makes every driver call of every case fail, on either device, with each of `kinds`. Returns the number of failures.
///
/// # Panics
/// Panics if a check fails afterwards.
pub fn sweep_process<M: Simulates>(devices: TwoDevices, kinds: &[Failure]) -> u64 {
    let mut faults = 0;
    for case in cases(devices) {
        for (kind, device) in kinds.iter().flat_map(|kind| [(*kind, 0), (*kind, 1)]) {
            for nth in 0.. {
                let mut runner = ProcessRunner::<M>::new(&case.devices);
                for op in &case.before {
                    runner.step(*op);
                }
                runner.step(Fail { device, nth, kind });
                let outcome = runner.step(case.op);
                let struck = runner.faults();
                assert!(nth < 200, "{}: {kind:?} never stops occurring", case.name);
                if outcome == Outcome::Injected {
                    assert_eq!(runner.step(case.op), Outcome::Done, "{}: the same call again", case.name);
                }
                faults += runner.finish().faults;
                if struck == 0 {
                    break;
                }
            }
        }
    }
    faults
}
