//! The memory of graphs: captures, replays on any stream, and everything else that a pool is used for meanwhile.

use gapless_testkit::{Device, GraphOp, Host, Model, World, prove, run_graphs};
use proptest::prelude::*;

fn graph_op() -> impl Strategy<Value = GraphOp> {
    let granules = prop_oneof![4 => 1_u16..128, 6 => 128_u16..900, 1 => Just(0)];
    prop_oneof![
        3 => any::<u8>().prop_map(|stream| GraphOp::Begin { stream }),
        3 => any::<u8>().prop_map(|capture| GraphOp::End { capture }),
        12 => (any::<u8>(), granules).prop_map(|(stream, granules)| GraphOp::Alloc { stream, granules }),
        8 => any::<u16>().prop_map(|block| GraphOp::Free { block }),
        1 => (any::<u16>(), any::<u8>()).prop_map(|(block, stream)| GraphOp::Record { block, stream }),
        4 => (any::<u8>(), any::<u8>()).prop_map(|(graph, stream)| GraphOp::Replay { graph, stream }),
        1 => Just(GraphOp::Trim),
        1 => (0_u8..20).prop_map(|pages| GraphOp::Budget { pages }),
    ]
}

fn graph_world(page_bytes: u64) -> impl Strategy<Value = World> {
    let limit = prop_oneof![3 => Just(400_000_usize), 2 => 4_usize..24];
    let region_pages = prop_oneof![Just(0_u64), Just(32)];
    (4_u64..24, 1_u64..7, 1_usize..4, limit, region_pages).prop_map(
        move |(pages, chunk_pages, streams, mapping_limit, region_pages)| World {
            pages,
            page_bytes,
            chunk_pages,
            streams,
            mapping_limit,
            region_pages,
            ..World::default()
        },
    )
}

fn graphs_keep_their_memory<D: Device>(cases: u32, most: usize) {
    let show = |(world, ops): &(World, Vec<GraphOp>)| format!("{world:?}\n{ops:#?}");
    let input = (graph_world(D::PAGE_BYTES), prop::collection::vec(graph_op(), 1..most));
    prove(cases, &input, show, |(world, ops)| run_graphs::<D>(world, ops));
}

#[test]
fn on_model() {
    graphs_keep_their_memory::<Model>(1500, 80);
}

#[test]
fn on_host() {
    graphs_keep_their_memory::<Host>(40, 60);
}
