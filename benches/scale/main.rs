//! The cost of the work as it grows: n against cost, with what it is compared with and the goal beside it.
//!
//! `cargo bench --bench scale` prints the whole table; `cargo bench --bench scale -- heap` the rows of one module. Times are
//! those of the fastest of several rounds, on the model of a device, so that they are the allocator's own. They are for
//! reading: tests count operations instead.
//!
//! Each module holds the rows of one subject. A new one is added to [`SUBJECTS`] and hands its rows to [`Table`].

mod beside;
mod growth;
mod heap;
mod looks;
mod sleep;
mod streams;
mod table;

use table::Table;

/// Prints the rows of one subject.
type Rows = fn(&mut Table);

/// The subjects that can be selected by name, each with the function that prints its rows.
const SUBJECTS: [(&str, Rows); 7] = [
    ("heap", heap::rows),
    ("growth", growth::rows),
    ("streams", streams::rows),
    ("looks", looks::rows),
    ("sleep", sleep::rows),
    ("beside", beside::rows),
    ("pair_beside_a_sleep", beside::sleep_rows),
];

fn main() {
    // Cargo passes `--bench`.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let mut table = Table::default();
    for (name, rows) in SUBJECTS {
        if wanted.is_empty() || wanted.iter().any(|word| word == name) {
            rows(&mut table);
        }
    }
    table.finish();
}
