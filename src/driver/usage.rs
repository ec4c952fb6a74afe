//! What a simulated driver says about itself: what is alive in it, and how often each call was made.

use super::DriverCall;
use std::fmt;

/// What is alive in a simulated driver. Equal to the default when everything was given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DriverUsage {
    /// Chunks whose memory is held: by their handle, by a mapping, or both. `handles <= chunks`.
    pub chunks: usize,
    /// Chunk handles not yet released.
    pub handles: usize,
    /// Physical bytes of those chunks.
    pub bytes: u64,
    /// Mappings, aliases counted each.
    pub mappings: usize,
    /// Reservations.
    pub reservations: usize,
    /// Bytes of addresses reserved.
    pub reserved_bytes: u64,
    /// Events.
    pub events: usize,
    /// Streams beside the default stream.
    pub streams: usize,
}

impl DriverUsage {
    /// True when nothing is alive: no memory, no addresses, no events, no streams.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How often each driver call was made, failed ones included.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct CallCounts {
    counts: [u64; DriverCall::ALL.len()],
}

impl CallCounts {
    /// Calls of one kind.
    pub fn count(&self, call: DriverCall) -> u64 {
        self.counts[call as usize]
    }

    /// Calls of all kinds, work for tests and replays ([`DriverCall::Work`]) left out.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum::<u64>() - self.count(DriverCall::Work)
    }

    /// Calls that change addresses, chunks or mappings: none of them in a steady state.
    pub fn memory(&self) -> u64 {
        use DriverCall as C;
        [C::Reserve, C::AddressFree, C::Create, C::Release, C::Map, C::SetAccess, C::Unmap]
            .iter()
            .map(|&call| self.count(call))
            .sum()
    }

    /// The calls made since `earlier`, a snapshot of the same driver.
    pub fn since(&self, earlier: &Self) -> Self {
        Self { counts: std::array::from_fn(|call| self.counts[call] - earlier.counts[call]) }
    }

    /// The kinds that were called at all, in the order of [`DriverCall`].
    pub fn iter(&self) -> impl Iterator<Item = (DriverCall, u64)> + '_ {
        DriverCall::ALL.iter().map(|&call| (call, self.count(call))).filter(|&(_, count)| count > 0)
    }

    pub(super) fn add(&mut self, call: DriverCall) {
        self.counts[call as usize] += 1;
    }
}

impl fmt::Debug for CallCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl serde::Serialize for CallCounts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_counter() {
        let mut counts = CallCounts::default();
        for (index, call) in DriverCall::ALL.into_iter().enumerate() {
            assert_eq!(call as usize, index, "{call:?} is out of place in ALL");
            counts.add(call);
        }
        assert!(DriverCall::ALL.iter().all(|&call| counts.count(call) == 1));
        assert_eq!(counts.total(), DriverCall::ALL.len() as u64 - 1);
        assert_eq!(counts.memory(), 7);
        assert_eq!(counts.since(&counts), CallCounts::default());
        assert!(serde_json::to_string(&counts).unwrap().contains("\"set_access\":1"));
    }
}
