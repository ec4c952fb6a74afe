//! What sequences of operations came to.

/// The results of one or more sequences.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessSummary {
    /// Number of operations.
    pub ops: u64,
    /// Allocations in pools.
    pub in_pools: u64,
    /// Uses by streams of the other device.
    pub foreign_uses: u64,
    /// Blocks that were freed and not free afterwards, since a stream of the other device could use them.
    pub deferred_frees: u64,
    /// Allocations that another pool lent memory for.
    pub lent: u64,
    /// Requests that ran out of memory.
    pub out_of_memory: u64,
    /// Sleeps of something that is live.
    pub slept: u64,
    /// Injected failures that occurred.
    pub faults: u64,
}

impl ProcessSummary {
    /// Adds the results of another sequence.
    pub fn add(&mut self, other: &Self) {
        self.ops += other.ops;
        self.in_pools += other.in_pools;
        self.foreign_uses += other.foreign_uses;
        self.deferred_frees += other.deferred_frees;
        self.lent += other.lent;
        self.out_of_memory += other.out_of_memory;
        self.slept += other.slept;
        self.faults += other.faults;
    }
}
