//! Sequences that once failed, as they were printed.

use gapless_proof::{Op::*, *};

/// Stale views were dropped for the mapping limit between planning and mapping, among them those that the plan took up
/// again.
#[test]
fn the_mapping_limit_does_not_drop_views_that_a_plan_takes_up_again() {
    let world = World { pages: 15, mapping_limit: 12, ..World::default() };
    run::<Model>(
        &world,
        &[
            Alloc { bytes: 262145, align: 9, stream: 113 },
            Alloc { bytes: 119297, align: 9, stream: 53 },
            Alloc { bytes: 65536, align: 9, stream: 79 },
            Alloc { bytes: 76289, align: 9, stream: 77 },
            Alloc { bytes: 0, align: 9, stream: 7 },
            Alloc { bytes: 0, align: 9, stream: 4 },
            Budget { pages: 31 },
            Alloc { bytes: 0, align: 9, stream: 5 },
            Alloc { bytes: 0, align: 9, stream: 41 },
            Free { block: 19840 },
            Free { block: 500 },
            Free { block: 5500 },
            Free { block: 9764 },
            Free { block: 4182 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Free { block: 29123 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Free { block: 1595 },
            Alloc { bytes: 131073, align: 9, stream: 31 },
        ],
    );
}
