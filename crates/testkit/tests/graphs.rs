//! The memory of graphs: captures into a pool, replays on any stream, and everything else that the pool, its streams and the
//! allocators beside it are used for meanwhile.

use gapless_testkit::{Device, Host, Model, Op, Summary, World, as_test, graph_op, is_reduced, op, prove, run, world};
use proptest::prelude::*;
use std::cell::RefCell;

/// Worlds with chunks of any size, since the pages of a larger one are handed out one by one.
fn graph_world(page_bytes: u64) -> impl Strategy<Value = World> {
    (world(page_bytes), 0_u64..7).prop_map(|(world, chunk_pages)| World { chunk_pages, ..world })
}

fn graphs_keep_their_memory<D: Device>(cases: u32, most: usize) {
    let show = |(world, ops): &(World, Vec<Op>)| as_test(world, ops);
    let any = prop_oneof![3 => op(D::PAGE_BYTES), 2 => graph_op()];
    let ops = prop::collection::vec(any, 1..most).prop_map(|mut ops| {
        ops.insert(0, Op::OpenPool);
        ops
    });
    let sum = RefCell::new(Summary::default());
    prove(cases, &(graph_world(D::PAGE_BYTES), ops), show, |(world, ops)| {
        sum.borrow_mut().add(&run::<D>(world, ops));
    });
    let replays = sum.borrow().replays;
    assert!(is_reduced() || replays > u64::from(cases), "{replays} replays");
}

#[test]
fn on_model() {
    graphs_keep_their_memory::<Model>(1500, 80);
}

#[test]
fn on_host() {
    graphs_keep_their_memory::<Host>(40, 60);
}
