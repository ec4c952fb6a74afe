//! The driver calls by kind, and how often each was made.

use std::fmt;
use std::ops::{AddAssign, Index, IndexMut};

/// A kind of call to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DriverCall {
    /// Opening the driver, a device or its context.
    Open,
    /// `cuMemGetInfo`.
    MemoryInfo,
    /// `cuMemAddressReserve`.
    Reserve,
    /// `cuMemAddressFree`.
    AddressFree,
    /// `cuMemCreate`.
    Create,
    /// `cuMemRelease`.
    Release,
    /// `cuMemMap`.
    Map,
    /// `cuMemSetAccess`.
    SetAccess,
    /// `cuMemUnmap`.
    Unmap,
    /// `cuMemExportToShareableHandle`.
    Export,
    /// `cuMemImportFromShareableHandle`.
    Import,
    /// `cuMemGetHandleForAddressRange`.
    ExportDmaBuf,
    /// `cuMemAllocHost`.
    HostAlloc,
    /// `cuMemFreeHost`.
    HostFree,
    /// `cuEventCreate`.
    EventCreate,
    /// `cuEventDestroy`.
    EventDestroy,
    /// `cuEventRecord`.
    EventRecord,
    /// `cuEventQuery`.
    EventQuery,
    /// `cuEventSynchronize`.
    EventSynchronize,
    /// `cuStreamWaitEvent`.
    StreamWait,
    /// `cuMemcpyDtoHAsync`.
    CopyOut,
    /// `cuMemcpyHtoDAsync`.
    CopyIn,
    /// `cuMemsetD8Async`.
    Clear,
    /// `cuCtxSynchronize`.
    Synchronize,
    /// Any call that concerns a stream itself: looking it up, creating, destroying, synchronizing.
    Stream,
    /// Work queued for tests and replays: fill, verify, copy, delay.
    Work,
}

impl DriverCall {
    /// Every kind, in order of declaration: `ALL[call as usize] == call`.
    pub const ALL: [Self; 26] = [
        Self::Open,
        Self::MemoryInfo,
        Self::Reserve,
        Self::AddressFree,
        Self::Create,
        Self::Release,
        Self::Map,
        Self::SetAccess,
        Self::Unmap,
        Self::Export,
        Self::Import,
        Self::ExportDmaBuf,
        Self::HostAlloc,
        Self::HostFree,
        Self::EventCreate,
        Self::EventDestroy,
        Self::EventRecord,
        Self::EventQuery,
        Self::EventSynchronize,
        Self::StreamWait,
        Self::CopyOut,
        Self::CopyIn,
        Self::Clear,
        Self::Synchronize,
        Self::Stream,
        Self::Work,
    ];

    /// Returns the name in the CUDA driver API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "cuInit",
            Self::MemoryInfo => "cuMemGetInfo",
            Self::Reserve => "cuMemAddressReserve",
            Self::AddressFree => "cuMemAddressFree",
            Self::Create => "cuMemCreate",
            Self::Release => "cuMemRelease",
            Self::Map => "cuMemMap",
            Self::SetAccess => "cuMemSetAccess",
            Self::Unmap => "cuMemUnmap",
            Self::Export => "cuMemExportToShareableHandle",
            Self::Import => "cuMemImportFromShareableHandle",
            Self::ExportDmaBuf => "cuMemGetHandleForAddressRange",
            Self::HostAlloc => "cuMemAllocHost",
            Self::HostFree => "cuMemFreeHost",
            Self::EventCreate => "cuEventCreate",
            Self::EventDestroy => "cuEventDestroy",
            Self::EventRecord => "cuEventRecord",
            Self::EventQuery => "cuEventQuery",
            Self::EventSynchronize => "cuEventSynchronize",
            Self::StreamWait => "cuStreamWaitEvent",
            Self::CopyOut => "cuMemcpyDtoHAsync",
            Self::CopyIn => "cuMemcpyHtoDAsync",
            Self::Clear => "cuMemsetD8Async",
            Self::Synchronize => "cuCtxSynchronize",
            Self::Stream => "cuStream*",
            Self::Work => "cuLaunchKernel",
        }
    }
}

/// Counts of driver calls, failed ones included: `calls[DriverCall::Create]` is the number of chunks
/// asked for.
///
/// Serialized, it is a map from the name of every kind (`reserve`, `address_free`, ...) to its count, and from `total`
/// to [`total`](Self::total).
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct DriverCalls {
    counts: [u64; DriverCall::ALL.len()],
}

impl DriverCalls {
    /// The kinds that [`total`](Self::total) adds up.
    pub const IN_TOTAL: [DriverCall; 6] = [
        DriverCall::Reserve,
        DriverCall::Create,
        DriverCall::Map,
        DriverCall::SetAccess,
        DriverCall::Unmap,
        DriverCall::Release,
    ];

    /// Returns the number that statistics, replays and benchmarks report as "driver calls": what it takes to put memory
    /// behind addresses and to take it away again. An allocator in a steady state makes no such call.
    ///
    /// `address_free` does not count: addresses without memory behind them cost nothing to keep, so freeing them is
    /// part of teardown and not of serving requests. Events, waits, queries and work do not count either.
    #[must_use]
    pub fn total(&self) -> u64 {
        Self::IN_TOTAL.iter().map(|&call| self[call]).sum()
    }

    /// Counts what `count` returns for each kind.
    pub(super) fn from_fn(count: impl Fn(DriverCall) -> u64) -> Self {
        Self { counts: DriverCall::ALL.map(count) }
    }

    /// Returns the calls made since `earlier`, which is an earlier count of the same calls.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self::from_fn(|call| self[call] - earlier[call])
    }

    /// Returns the kinds with a count above 0, in the order of [`DriverCall`].
    pub fn iter(&self) -> impl Iterator<Item = (DriverCall, u64)> + '_ {
        DriverCall::ALL.iter().map(|&call| (call, self[call])).filter(|&(_, count)| count > 0)
    }
}

impl Index<DriverCall> for DriverCalls {
    type Output = u64;

    fn index(&self, call: DriverCall) -> &u64 {
        &self.counts[call as usize]
    }
}

impl IndexMut<DriverCall> for DriverCalls {
    fn index_mut(&mut self, call: DriverCall) -> &mut u64 {
        &mut self.counts[call as usize]
    }
}

impl AddAssign for DriverCalls {
    fn add_assign(&mut self, other: Self) {
        *self = Self::from_fn(|call| self[call] + other[call]);
    }
}

impl fmt::Debug for DriverCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl serde::Serialize for DriverCalls {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(Some(DriverCall::ALL.len() + 1))?;
        for call in DriverCall::ALL {
            map.serialize_entry(&call, &self[call])?;
        }
        map.serialize_entry("total", &self.total())?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_counter() {
        let mut calls = DriverCalls::default();
        for (index, call) in DriverCall::ALL.into_iter().enumerate() {
            assert_eq!(call as usize, index, "{call:?} is out of place in ALL");
            calls[call] += 1;
        }
        assert!(DriverCall::ALL.iter().all(|&call| calls[call] == 1));
        assert_eq!(calls.iter().count(), DriverCall::ALL.len());
        assert_eq!(calls.since(&calls), DriverCalls::default());
        let once = calls;
        calls += once;
        assert_eq!(calls.since(&once), once);
    }

    #[test]
    fn the_total_leaves_out_what_needs_no_memory() {
        let mut calls = DriverCalls::from_fn(|_| 1);
        assert_eq!(calls.total(), 6);
        for other in [DriverCall::AddressFree, DriverCall::MemoryInfo, DriverCall::EventRecord, DriverCall::Work] {
            calls[other] += 10;
        }
        assert_eq!(calls.total(), 6);
    }

    #[test]
    fn serialized_every_kind_is_there_and_the_total() {
        let mut calls = DriverCalls::default();
        calls[DriverCall::SetAccess] = 2;
        let value = serde_json::to_value(calls).unwrap();
        assert_eq!((&value["set_access"], &value["release"], &value["total"]), (&2.into(), &0.into(), &2.into()));
        assert_eq!(value.as_object().unwrap().len(), DriverCall::ALL.len() + 1);
    }
}
