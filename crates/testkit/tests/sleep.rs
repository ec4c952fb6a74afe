//! Sleep and wake among everything else, and often: allocations, frees, records, pins, captures and failing calls while memory is
//! asleep.

use gapless_testkit::{
    Device, Host, Model, Op, Summary, World, as_test, graph_op, is_reduced, kept_op, op, prove, run, sleep_op, world,
};
use proptest::prelude::*;
use std::cell::RefCell;

fn sum_of<D: Device>(cases: u32, ops: impl Strategy<Value = Vec<Op>>) -> Summary {
    let show = |(world, ops): &(World, Vec<Op>)| as_test(world, ops);
    let sum = RefCell::new(Summary::default());
    prove(cases, &(world(D::PAGE_BYTES), ops), show, |(world, ops)| {
        sum.borrow_mut().add(&run::<D>(world, ops));
    });
    sum.into_inner()
}

/// After each operation everything is checked: what is asleep holds no memory, and what wakes has the bytes that it had.
fn nothing_is_lost<D: Device>(cases: u32, most: usize) -> Summary {
    let ops = prop::collection::vec(prop_oneof![4 => op(D::PAGE_BYTES), 1 => kept_op(), 5 => sleep_op()], 1..most);
    let sum = sum_of::<D>(cases, ops);
    let Summary { ops, slept, woken, in_part, verified_bytes, shown_bytes, .. } = &sum;
    println!(
        "{ops} operations with {slept} sleeps, {woken} wakes and {in_part} that were not finished: {verified_bytes} bytes were as \
         they had been, and backups had {shown_bytes}"
    );
    assert!(is_reduced() || (*slept).min(*woken) > u64::from(cases), "too few: {slept} sleeps, {woken} wakes");
    assert!(is_reduced() || *in_part > u64::from(cases) / 4, "too few: {in_part} were not finished");
    sum
}

/// The same of pools, whose graphs use freed memory and stale addresses.
fn nothing_of_graphs_is_lost<D: Device>(cases: u32, most: usize) {
    let any = prop_oneof![6 => op(D::PAGE_BYTES), 1 => kept_op(), 4 => graph_op(), 5 => sleep_op()];
    let ops = prop::collection::vec(any, 1..most).prop_map(|mut ops| {
        ops.insert(0, Op::OpenPool);
        ops
    });
    let Summary { ops, pools_slept, verified_free_bytes, replays, .. } = sum_of::<D>(cases, ops);
    println!(
        "{ops} operations with {pools_slept} sleeps of pools and {replays} replays: {verified_free_bytes} bytes of free memory
        were \
         as they had been"
    );
    let happened = [pools_slept, replays, verified_free_bytes];
    assert!(is_reduced() || happened.iter().all(|count| *count > u64::from(cases) / 4), "too few: {happened:?}");
}

#[test]
fn on_model() {
    nothing_is_lost::<Model>(1000, 80);
}

#[test]
fn on_host() {
    let Summary { shown_bytes, .. } = nothing_is_lost::<Host>(40, 60);
    assert!(is_reduced() || shown_bytes > 0, "no backup was shown");
}

#[test]
fn of_graphs_on_model() {
    nothing_of_graphs_is_lost::<Model>(600, 80);
}

#[test]
fn of_graphs_on_host() {
    nothing_of_graphs_is_lost::<Host>(40, 60);
}
