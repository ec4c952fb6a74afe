//! Streams that are captured into graphs between other operations, much more often than in the other tests.

use gapless_testkit::{Device, Host, Model, as_test, capture_op, op, prove, run, world};
use proptest::prelude::*;

/// While a stream is captured, only requests for memory may fail: no capture may be invalidated, and nothing lost.
fn captures_come_and_go<D: Device>(cases: u32, most: usize) {
    let show = |(world, ops): &(_, Vec<_>)| as_test(world, ops);
    let any = prop_oneof![8 => op(D::PAGE_BYTES), 1 => capture_op()];
    let input = (world(D::PAGE_BYTES), prop::collection::vec(any, 1..most));
    prove(cases, &input, show, |(world, ops)| {
        run::<D>(world, ops);
    });
}

#[test]
fn on_model() {
    captures_come_and_go::<Model>(400, 80);
}

#[test]
fn on_host() {
    captures_come_and_go::<Host>(40, 60);
}
