//! Sleep and wake among everything else, and often: allocations, frees, records, pins, captures and failing calls while memory is
//! asleep.

use gapless_testkit::{
    Device, Host, Model, Op, Summary, World, as_test, is_reduced, kept_op, op, prove, run, sleep_op, world,
};
use proptest::prelude::*;
use std::cell::RefCell;

/// After each operation everything is checked: what is asleep holds no memory, and what wakes has the bytes that it had.
fn nothing_is_lost<D: Device>(cases: u32, most: usize) {
    let show = |(world, ops): &(World, Vec<Op>)| as_test(world, ops);
    let ops = prop::collection::vec(prop_oneof![4 => op(D::PAGE_BYTES), 1 => kept_op(), 4 => sleep_op()], 1..most);
    let sum = RefCell::new(Summary::default());
    prove(cases, &(world(D::PAGE_BYTES), ops), show, |(world, ops)| {
        sum.borrow_mut().add(&run::<D>(world, ops));
    });
    let Summary { ops, slept, woken, verified_bytes, .. } = sum.into_inner();
    println!("{ops} operations with {slept} sleeps and {woken} wakes: {verified_bytes} bytes were as they had been");
    assert!(is_reduced() || slept.min(woken) > u64::from(cases), "too few: {slept} sleeps, {woken} wakes");
}

#[test]
fn on_model() {
    nothing_is_lost::<Model>(1000, 80);
}

#[test]
fn on_host() {
    nothing_is_lost::<Host>(40, 60);
}
