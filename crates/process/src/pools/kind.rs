//! What pools are for: their kinds, and what is declared of one before it has memory.

use serde::Serialize;

/// What a pool does with its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// For captured graphs, whose replays use its memory at any time: what is mapped stays until the pool is closed.
    #[default]
    Graph,
    /// As the device's own memory, only apart from it: free memory is remapped where it is needed, and trims return it to the
    /// driver. No graph may be captured into it.
    Ordinary,
}

/// What is declared of a pool.
#[derive(Clone, Debug, Default)]
pub(super) struct Declared {
    pub kind: PoolKind,
    pub tag: Option<String>,
}
