//! Random sequences of all operations, in small worlds, on each simulated driver.

use gapless_testkit::{Device, Host, Model, Summary, as_test, is_reduced, ops, prove, run, run_scheduled};
use std::cell::RefCell;

fn holds_on<D: Device>(cases: u32, most: usize, happened: impl FnOnce(&Summary)) {
    let show = |(world, ops): &(_, Vec<_>)| as_test(world, ops);
    let sum = RefCell::new(Summary::default());
    prove(cases, &ops::<D>(most), show, |(world, ops)| {
        sum.borrow_mut().add(&run::<D>(world, ops));
    });
    if !is_reduced() {
        happened(&sum.borrow());
    }
}

#[test]
fn any_sequence_on_model() {
    holds_on::<Model>(1500, 80, Summary::assert_everything_happened);
}

#[test]
fn any_sequence_on_host() {
    holds_on::<Host>(300, 60, Summary::assert_much_happened);
}

#[test]
fn any_schedule_of_threads_on_model() {
    let show = |(world, ops): &(_, Vec<_>)| as_test(world, ops);
    prove(200, &ops::<Model>(80), show, |(world, ops)| {
        run_scheduled::<Model>(world, ops, 4);
    });
}
