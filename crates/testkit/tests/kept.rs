//! Memory that stays as it is, because another process has it or a library has registered it, among everything that moves.

use gapless_testkit::{Device, Host, Model, Op, Summary, World, as_test, is_reduced, kept_op, op, prove, run, world};
use proptest::prelude::*;
use std::cell::RefCell;

/// After each operation, every registration is looked at: a stale one panics, and so does kept memory with other bytes.
fn nothing_kept_moves<D: Device>(cases: u32, most: usize) {
    let show = |(world, ops): &(World, Vec<Op>)| as_test(world, ops);
    let ops = prop::collection::vec(prop_oneof![3 => op(D::PAGE_BYTES), 1 => kept_op()], 1..most);
    let sum = RefCell::new(Summary::default());
    prove(cases, &(world(D::PAGE_BYTES), ops), show, |(world, ops)| {
        sum.borrow_mut().add(&run::<D>(world, ops));
    });
    let Summary { ops, kept, notified_unmaps, stats, .. } = sum.into_inner();
    println!(
        "{ops} operations with {kept} blocks pinned or registered: none of them moved; {notified_unmaps} mappings ended, each \
         after its callback; {} free chunks moved meanwhile",
        stats.harvested_chunks
    );
    let happened = [kept, notified_unmaps, stats.harvested_chunks];
    // Far below what is usual, since seeds differ: in 40 cases, one moves 19 free chunks and another 47.
    assert!(is_reduced() || happened.iter().all(|count| *count > u64::from(cases) / 10), "too few: {happened:?}");
}

#[test]
fn on_model() {
    nothing_kept_moves::<Model>(1000, 100);
}

#[test]
fn on_host() {
    nothing_kept_moves::<Host>(40, 80);
}
