//! Tests that are also built for the model checkers (`loom`, `schedules`) and for the sanitizers (`stress`, `faults`). Each
//! of these compiles everything beneath the tests once more, so what they do not need is kept out of this package.
