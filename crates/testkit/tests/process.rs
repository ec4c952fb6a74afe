//! Two devices of one process: pools, uses by streams of the other device, budgets, peers and sleep, in random order, and with
//! every driver call failing once.

use gapless::units::KIB;
use gapless_testkit::{
    Failure, Host, Model, ProcessOp, ProcessSummary, Simulates, TwoDevices, is_reduced, process_ops, prove,
    run_process, sweep_process,
};
use std::cell::RefCell;

fn random_programs<M: Simulates>(memory: bool, cases: u32, most: usize) {
    let show = |(devices, ops): &(TwoDevices, Vec<ProcessOp>)| format!("{devices:?}\n{ops:#?}");
    let sum = RefCell::new(ProcessSummary::default());
    prove(cases, &process_ops(memory, most), show, |(devices, ops)| {
        sum.borrow_mut().add(&run_process::<M>(devices, ops));
    });
    let sum = sum.into_inner();
    println!("{sum:?}");
    let ProcessSummary { in_pools, foreign_uses, deferred_frees, out_of_memory, slept, faults, .. } = sum;
    let happened = [in_pools, foreign_uses, deferred_frees, out_of_memory, slept, faults];
    assert!(is_reduced() || happened.iter().all(|count| *count > u64::from(cases) / 5), "too few: {happened:?}");
}

#[test]
fn on_model() {
    random_programs::<Model>(false, 600, 90);
}

#[test]
fn on_host() {
    random_programs::<Host>(true, 60, 60);
}

/// What cannot be given back counts against the next request of a pool, too, which has given back what it was lent.
#[test]
fn a_trim_ends_the_loans_of_pools() {
    let devices =
        TwoDevices { pages: 19, page_bytes: 64 * KIB, single_pages: false, kept: false, ..TwoDevices::default() };
    let alloc = |bytes| ProcessOp::Alloc { device: 0, bytes, stream: 0 };
    run_process::<Model>(
        &devices,
        &[
            ProcessOp::Declare { device: 0, pool: 2, ordinary: true },
            alloc(0),
            ProcessOp::Begin { device: 0, pool: 2 },
            alloc(128 * KIB),
            ProcessOp::Budget { device: 0, pages: 0 },
            ProcessOp::FreeOn { block: 1, stream: 0 },
            ProcessOp::Trim { device: 0, keep: 0 },
            alloc(0),
        ],
    );
}

/// The device is not lost: nothing could be given back then.
const KINDS: [Failure; 2] = [Failure::NoMemory, Failure::Invalid];

#[test]
fn every_call_fails_on_model() {
    assert!(sweep_process::<Model>(TwoDevices::default(), &KINDS) > 100);
}

#[test]
fn every_call_fails_on_host() {
    let devices = TwoDevices { page_bytes: 64 * KIB, single_pages: false, ..TwoDevices::default() };
    assert!(sweep_process::<Host>(devices, &KINDS[..1]) > 50);
}
