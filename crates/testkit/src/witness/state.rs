//! What the witness knows: clocks of streams, events and the host, mappings, and all uses of every physical byte.

use gapless::driver::{ChunkHandle, EventHandle};
use gapless::units::{DeviceAddr, StreamId};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// A stream of a device, by the number that no other stream of it has or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Lane {
    pub(super) device: u32,
    pub(super) number: StreamId,
}

/// A chunk of a device.
pub(super) type Chunk = (u32, ChunkHandle);

/// How much of each stream's work comes before a point in time.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(pub(super) BTreeMap<Lane, u64>);

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) chunks: BTreeMap<Chunk, Made>,
    /// Number of chunks created so far.
    pub(super) created: u64,
    pub(super) mappings: BTreeMap<u64, Mapped>,
    pub(super) uses: HashMap<Chunk, Vec<Use>>,
    pub(super) streams: HashMap<Lane, Clock>,
    pub(super) events: HashMap<(u32, EventHandle), Clock>,
    pub(super) host: Clock,
    /// Of each device, the peers that get access with every call of `set_access`.
    pub(super) named: HashMap<u32, Devices>,
    /// Of each device, the peers without whose access nothing counts as accessible.
    pub(super) relied_on: HashMap<u32, Devices>,
    pub(super) observations: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mapped {
    pub(super) bytes: u64,
    pub(super) chunk: Chunk,
    /// Those with access.
    pub(super) access: Devices,
}

/// A set of devices: the own one, and peers by number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Devices(u8);

impl Devices {
    pub(super) const OWN: Self = Self(1);

    pub(super) fn peer(number: u8) -> Self {
        Self(2 << number)
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A chunk as it was created.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    pub bytes: u64,
    /// Its number among all chunks that were created on the device, from 1 on.
    pub number: u64,
}

/// The use of a part of a chunk by one item of work, through one mapping.
#[derive(Clone, Debug)]
pub(super) struct Use {
    pub(super) bytes: Range<u64>,
    pub(super) addr: u64,
    pub(super) stream: Lane,
    pub(super) number: u64,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
}

/// Number of uses of a chunk above which those that the host knows to be complete are removed.
const KEPT_USES: usize = 32;

impl Clock {
    pub(super) fn join(&mut self, other: &Self) {
        for (stream, number) in &other.0 {
            let own = self.0.entry(*stream).or_default();
            *own = (*own).max(*number);
        }
    }

    pub(super) fn covers(&self, stream: Lane, number: u64) -> bool {
        self.0.get(&stream).is_some_and(|known| *known >= number)
    }
}

impl State {
    /// Returns the stream's clock, joined with the host's.
    pub(super) fn now(&mut self, stream: Lane) -> &mut Clock {
        let clock = self.streams.entry(stream).or_default();
        clock.join(&self.host);
        clock
    }

    pub(super) fn submit(&mut self, stream: Lane, addr: DeviceAddr, bytes: u64, kind: Kind) {
        let clock = self.now(stream);
        let number = clock.0.get(&stream).copied().unwrap_or(0) + 1;
        clock.0.insert(stream, number);
        let clock = clock.clone();
        let Some(parts) = self.backing(addr.0, bytes) else {
            self.observations
                .push(format!("work of {stream:?} on {bytes} bytes at {addr}, not all of them accessible"));
            return;
        };
        for (chunk, part, at) in parts {
            let uses = self.uses.entry(chunk).or_default();
            if uses.len() > KEPT_USES {
                uses.retain(|earlier| !self.host.covers(earlier.stream, earlier.number));
            }
            for earlier in uses.iter() {
                let overlap = earlier.bytes.start < part.end && part.start < earlier.bytes.end;
                let conflict = earlier.kind == Kind::Write || kind == Kind::Write;
                if overlap && conflict && !clock.covers(earlier.stream, earlier.number) {
                    self.observations.push(format!(
                        "{kind:?} of {stream:?} at {addr} is not ordered after work {} of {:?} on the same bytes \
                         ({:#x}..{:#x} of {chunk:?}, then at {:#x})",
                        earlier.number, earlier.stream, earlier.bytes.start, earlier.bytes.end, earlier.addr
                    ));
                }
            }
            uses.push(Use { bytes: part, addr: at, stream, number, kind });
        }
    }

    /// Returns the chunk, the range in it and the address of each piece of `[addr, addr + bytes)`, or `None` if a byte
    /// is not accessible to this device or to a peer that is relied on.
    pub(super) fn backing(&self, addr: u64, bytes: u64) -> Option<Vec<(Chunk, Range<u64>, u64)>> {
        let end = addr + bytes;
        let mut parts = Vec::new();
        let mut at = addr;
        while at < end {
            let (start, mapped) = self.mappings.range(..=at).next_back()?;
            let stop = end.min(start + mapped.bytes);
            if stop <= at || !self.is_reached(mapped) {
                return None;
            }
            parts.push((mapped.chunk, at - start..stop - start, at));
            at = stop;
        }
        Some(parts)
    }

    /// Asked for every page of a pool after every operation.
    pub(super) fn memory_at(&self, addr: u64) -> Option<(ChunkHandle, u64)> {
        let (start, mapped) = self.mappings.range(..=addr).next_back()?;
        (addr < start + mapped.bytes && self.is_reached(mapped)).then_some((mapped.chunk.1, addr - start))
    }

    /// Whether a mapping is accessible to its device and to all peers that are relied on.
    pub(super) fn is_reached(&self, mapped: &Mapped) -> bool {
        let relied_on = self.relied_on.get(&mapped.chunk.0).copied().unwrap_or_default();
        mapped.access.contains(relied_on.with(Devices::OWN))
    }

    /// The clocks of the streams of a device.
    pub(super) fn of_device(&self, device: u32) -> Vec<Clock> {
        self.streams.iter().filter(|(lane, _)| lane.device == device).map(|(_, clock)| clock.clone()).collect()
    }

    /// Observes the concerned uses of a chunk that the host does not know to be complete.
    pub(super) fn expect_over(&mut self, what: &str, concerned: impl Fn(&Use) -> bool, chunk: Chunk) {
        for earlier in self.uses.get(&chunk).into_iter().flatten() {
            if concerned(earlier) && !self.host.covers(earlier.stream, earlier.number) {
                self.observations.push(format!(
                    "{what} while the host does not know that work {} of {:?} at {:#x} is complete",
                    earlier.number, earlier.stream, earlier.addr
                ));
            }
        }
    }
}
