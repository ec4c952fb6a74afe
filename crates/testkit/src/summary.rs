//! Summary: the results of sequences of operations, and whether they reached everything that they are meant to test.

use gapless::allocator::Stats;
use gapless::driver::DriverCall;

/// The results of one or more sequences.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Number of operations.
    pub ops: u64,
    /// Number of allocations that failed with the out-of-memory report.
    pub out_of_memory: u64,
    /// Number of allocations that failed since the process had no addresses left.
    pub out_of_addresses: u64,
    /// Number of injected failures that occurred.
    pub faults: u64,
    /// Number of bytes verified on the device.
    pub verified_bytes: u64,
    /// Number of replays of graphs.
    pub replays: u64,
    /// Number of captures.
    pub captures: u64,
    /// Number of captures that began during another.
    pub captures_at_once: u64,
    /// Number of requests that a capture kept free memory from.
    pub stopped_by_captures: u64,
    /// Number of times that a peer was given access.
    pub peers: u64,
    /// Number of times that a context of the program's own was made current.
    pub contexts: u64,
    /// Number of resets of the device.
    pub resets: u64,
    /// Number of blocks that were pinned or registered.
    pub kept: u64,
    /// Number of pinned blocks that were exposed.
    pub exposed: u64,
    /// Number of sleeps that put something to sleep, and of wakes that mapped something again.
    pub slept: u64,
    /// See `slept`.
    pub woken: u64,
    /// Number of sleeps and wakes that were begun and not finished.
    pub in_part: u64,
    /// Number of sleeps that put a part of a pool to sleep.
    pub pools_slept: u64,
    /// Bytes of blocks that backups had, as of the last sleep.
    pub shown_bytes: u64,
    /// Number of bytes of free memory in which a pool that woke had what a replay had left there.
    pub verified_free_bytes: u64,
    /// Number of blocks that came back to a former address.
    pub again: u64,
    /// Number of those whose stream was destroyed.
    pub again_of_destroyed: u64,
    /// Number of mappings whose end a registry was notified of before it came.
    pub notified_unmaps: u64,
    /// The allocators' statistics before they were closed, added up.
    pub stats: Stats,
}

impl Summary {
    /// Adds the results of another sequence.
    pub fn add(&mut self, other: &Self) {
        self.ops += other.ops;
        self.out_of_memory += other.out_of_memory;
        self.out_of_addresses += other.out_of_addresses;
        self.faults += other.faults;
        self.verified_bytes += other.verified_bytes;
        self.replays += other.replays;
        self.captures += other.captures;
        self.captures_at_once += other.captures_at_once;
        self.stopped_by_captures += other.stopped_by_captures;
        self.peers += other.peers;
        self.contexts += other.contexts;
        self.resets += other.resets;
        self.kept += other.kept;
        self.exposed += other.exposed;
        self.slept += other.slept;
        self.woken += other.woken;
        self.in_part += other.in_part;
        self.pools_slept += other.pools_slept;
        self.shown_bytes += other.shown_bytes;
        self.verified_free_bytes += other.verified_free_bytes;
        self.again += other.again;
        self.again_of_destroyed += other.again_of_destroyed;
        self.notified_unmaps += other.notified_unmaps;
        let (sum, more) = (&mut self.stats, &other.stats);
        sum.allocs += more.allocs;
        sum.frees += more.frees;
        sum.failed_allocs += more.failed_allocs;
        sum.refused_frees += more.refused_frees;
        sum.borrowed += more.borrowed;
        sum.harvested_chunks += more.harvested_chunks;
        sum.reused_views += more.reused_views;
        sum.host_waits += more.host_waits;
        sum.driver_calls += more.driver_calls;
        sum.poisoned += more.poisoned;
        sum.peak_live_bytes = sum.peak_live_bytes.max(more.peak_live_bytes);
        sum.metadata_bytes = sum.metadata_bytes.max(more.metadata_bytes);
    }

    /// Asserts that thousands of sequences reached everything that they are meant to test.
    ///
    /// # Panics
    /// Panics if one of these figures is 0.
    pub fn assert_everything_happened(&self) {
        let rare = [
            ("replays", self.replays),
            ("wakes", self.woken),
            ("blocks at former addresses of destroyed streams", self.again_of_destroyed),
        ];
        assert_none_is_0(&rare);
        self.assert_much_happened();
    }

    /// Asserts that hundreds of sequences reached what many of them reach.
    ///
    /// # Panics
    /// Panics if one of these figures is 0.
    pub fn assert_much_happened(&self) {
        let stats = &self.stats;
        assert_none_is_0(&[
            ("out of memory", self.out_of_memory),
            ("faults", self.faults),
            ("verified bytes", self.verified_bytes),
            ("peers", self.peers),
            ("sleeps", self.slept),
            ("blocks at former addresses", self.again),
            ("refused frees", stats.refused_frees),
            ("borrowed", stats.borrowed),
            ("harvested chunks", stats.harvested_chunks),
            ("reused views", stats.reused_views),
            ("host waits", stats.host_waits),
            ("stream waits", stats.driver_calls[DriverCall::StreamWait]),
            ("unmaps", stats.driver_calls[DriverCall::Unmap]),
            ("releases", stats.driver_calls[DriverCall::Release]),
        ]);
    }
}

fn assert_none_is_0(figures: &[(&str, u64)]) {
    eprintln!("{figures:?}");
    assert!(figures.iter().all(|(_, figure)| *figure > 0), "a figure is 0: {figures:?}");
}
