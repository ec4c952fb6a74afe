//! A device of which only the capacity is simulated, for searches: they replay a trace on many devices, to learn where it runs out
//! of memory.
//!
//! To a caller that keeps the driver's contract, it answers as [`ModelDriver`](gapless::driver::ModelDriver) does without a
//! lag. That one checks the contract, and has books of every chunk and mapping for it. This one has sums, and takes the
//! caller's word: a handle is the size of its chunk. Work completes at once, so that no stream and no event is behind any
//! other.
//!
//! - I1  `held` is the sum of the chunks that were created and not released. Callers unmap a chunk before they release it.
//! - I2  where sums do not say what the model would answer, [`is_at_its_limits`](CapacityDriver::is_at_its_limits) says so: it
//!   counts each `unmap` as one mapping, and gives out every address once.
//!
//! Threads: any; one lock, held for the length of a call.

use crate::Device;
use crate::device::PAGE_BYTES;
use gapless::driver::{
    CheckedDriver, ChunkHandle, DriverCall, DriverError, DriverErrorKind, DriverResult, EventHandle, HostMemory,
    MemoryDriver, MemoryInfo, Mismatch, ModelConfig, StreamDriver, StreamIdentity, StreamLifetime, WorkDriver,
};
use gapless::units::{DeviceAddr, StreamId, round_up};
use parking_lot::Mutex;
use std::ops::Range;
use std::time::Duration;

/// The device. See the module documentation.
#[derive(Debug)]
pub(crate) struct CapacityDriver {
    total: u64,
    external: u64,
    /// The limits of a model.
    limits: ModelConfig,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    held: u64,
    mappings: usize,
    next_address: u64,
    next_stream: u64,
    next_event: u64,
    alike: Range<u64>,
    at_its_limits: bool,
}

impl CapacityDriver {
    /// Creates a device with nothing on it. Work on it completes at once, whatever the lag of `device`.
    pub(crate) fn new(device: &Device) -> Self {
        let state = State {
            held: 0,
            mappings: 0,
            next_address: FIRST_ADDRESS + PAGE_BYTES,
            next_stream: FIRST_STREAM,
            next_event: 0,
            alike: 0..u64::MAX,
            at_its_limits: false,
        };
        Self {
            total: device.capacity_bytes.saturating_add(device.external_bytes),
            external: device.external_bytes,
            limits: ModelConfig::default(),
            state: Mutex::new(state),
        }
    }

    /// Returns the capacities, in bytes, with which every `create` so far would have been served or refused as it was.
    pub(crate) fn alike_capacities(&self) -> Range<u64> {
        self.state.lock().alike.clone()
    }

    /// Returns whether a caller came to a limit where a model may answer differently: all its addresses were reserved at some time,
    /// or it had as many mappings as a driver allows.
    pub(crate) fn is_at_its_limits(&self) -> bool {
        self.state.lock().at_its_limits
    }

    /// Memory that the policy and others hold.
    fn taken(&self, state: &State) -> u64 {
        state.held.saturating_add(self.external)
    }
}

impl State {
    fn refuse<T>(&mut self, call: DriverCall) -> DriverResult<T> {
        self.at_its_limits = true;
        Err(DriverError::new(call, DriverErrorKind::OutOfMemory, "a limit of the simulated device"))
    }
}

// SAFETY: it touches no memory but its own books.
unsafe impl CheckedDriver for CapacityDriver {}

impl MemoryDriver for CapacityDriver {
    fn granularity(&self) -> u64 {
        PAGE_BYTES
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        let free = self.total.saturating_sub(self.taken(&self.state.lock()));
        Ok(MemoryInfo::new(free, self.total))
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr> {
        let mut state = self.state.lock();
        let start = round_up(state.next_address, alignment);
        let end = start.and_then(|start| start.checked_add(bytes)).filter(|end| *end <= 1 << self.limits.address_bits);
        let Some((start, end)) = start.zip(end) else { return state.refuse(DriverCall::Reserve) };
        state.next_address = end + PAGE_BYTES;
        Ok(DeviceAddr(start))
    }

    fn address_free(&self, _: DeviceAddr, _: u64) -> DriverResult<()> {
        Ok(())
    }

    fn create(&self, bytes: u64) -> DriverResult<ChunkHandle> {
        let mut state = self.state.lock();
        let with_it = self.taken(&state).saturating_add(bytes);
        if with_it > self.total {
            state.alike.end = state.alike.end.min(with_it);
            return Err(DriverError::new(DriverCall::Create, DriverErrorKind::OutOfMemory, "more than is free"));
        }
        state.alike.start = state.alike.start.max(with_it);
        state.held += bytes;
        Ok(ChunkHandle(bytes))
    }

    fn release(&self, chunk: ChunkHandle) -> DriverResult<()> {
        self.state.lock().held -= chunk.0;
        Ok(())
    }

    fn map(&self, _: DeviceAddr, _: u64, _: ChunkHandle) -> DriverResult<()> {
        let mut state = self.state.lock();
        if state.mappings == self.limits.max_mappings {
            return state.refuse(DriverCall::Map);
        }
        state.mappings += 1;
        Ok(())
    }

    fn set_access(&self, _: DeviceAddr, _: u64) -> DriverResult<()> {
        Ok(())
    }

    fn unmap(&self, _: DeviceAddr, _: u64) -> DriverResult<()> {
        self.state.lock().mappings -= 1;
        Ok(())
    }

    fn host_alloc(&self, _: u64) -> DriverResult<HostMemory> {
        Ok(HostMemory(0))
    }

    fn host_free(&self, _: HostMemory) -> DriverResult<()> {
        Ok(())
    }
}

impl StreamDriver for CapacityDriver {
    fn check_stream(&self, _: StreamId) -> DriverResult<()> {
        Ok(())
    }

    fn identify(&self, stream: StreamId) -> DriverResult<StreamIdentity> {
        let lifetime = if stream == StreamId::DEFAULT { StreamLifetime::Device } else { StreamLifetime::Owner };
        Ok(StreamIdentity { key: stream, number: stream.as_raw() + 1, lifetime })
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        let mut state = self.state.lock();
        state.next_event += 1;
        Ok(EventHandle(state.next_event))
    }

    fn event_destroy(&self, _: EventHandle) -> DriverResult<()> {
        Ok(())
    }

    fn event_record(&self, _: EventHandle, _: StreamId) -> DriverResult<()> {
        Ok(())
    }

    fn event_query(&self, _: EventHandle) -> DriverResult<bool> {
        Ok(true)
    }

    fn event_synchronize(&self, _: EventHandle) -> DriverResult<()> {
        Ok(())
    }

    fn stream_wait(&self, _: StreamId, _: EventHandle) -> DriverResult<()> {
        Ok(())
    }

    fn synchronize_device(&self) -> DriverResult<()> {
        Ok(())
    }

    fn create_copy_stream(&self) -> DriverResult<StreamId> {
        self.create_stream()
    }

    fn destroy_copy_stream(&self, _: StreamId) -> DriverResult<()> {
        Ok(())
    }

    fn copy_out(&self, _: StreamId, _: HostMemory, _: u64, _: DeviceAddr, _: u64) -> DriverResult<()> {
        Ok(())
    }

    fn copy_in(&self, _: StreamId, _: DeviceAddr, _: HostMemory, _: u64, _: u64) -> DriverResult<()> {
        Ok(())
    }
}

impl WorkDriver for CapacityDriver {
    fn create_stream(&self) -> DriverResult<StreamId> {
        let mut state = self.state.lock();
        // SAFETY: a stream of this driver from here on, which looks at what it gets.
        let stream = unsafe { StreamId::from_raw(state.next_stream) };
        state.next_stream += 1;
        Ok(stream)
    }

    fn destroy_stream(&self, _: StreamId) -> DriverResult<()> {
        Ok(())
    }

    fn abandon_stream(&self, _: StreamId) -> DriverResult<()> {
        Ok(())
    }

    fn fill(&self, _: StreamId, _: DeviceAddr, _: u64, _: u64) -> DriverResult<()> {
        Ok(())
    }

    fn verify(&self, _: StreamId, _: DeviceAddr, _: u64, _: u64) -> DriverResult<()> {
        Ok(())
    }

    fn copy(&self, _: StreamId, _: DeviceAddr, _: DeviceAddr, _: u64) -> DriverResult<()> {
        Ok(())
    }

    fn delay(&self, _: StreamId, _: Duration) -> DriverResult<()> {
        Ok(())
    }

    fn synchronize(&self, _: StreamId) -> DriverResult<()> {
        Ok(())
    }

    fn take_mismatches(&self) -> Vec<Mismatch> {
        Vec::new()
    }
}

/// The first reservation and the first stream have the numbers that a model gives them.
const FIRST_ADDRESS: u64 = 1 << 36;
const FIRST_STREAM: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caching::CachingSettings;
    use crate::replay::{PolicySettings, probe, replay_alone};
    use crate::{GaplessSettings, PolicyKind, ReplayResult, Trace};
    use gapless::allocator::ChunkPolicy;
    use std::fmt::Debug;

    const PAGE: u64 = PAGE_BYTES;

    /// What a replay says beside times and the driver's name.
    fn said(result: ReplayResult) -> impl PartialEq + Debug {
        let failed = result.oom.map(|oom| (oom.op_index, oom.requested_bytes, oom.satisfiable));
        let calls = (result.driver_calls, result.driver_calls_per_step);
        (failed, calls, result.host_waits, result.peak_reserved_bytes)
    }

    fn assert_same(trace: &Trace, device: &Device, policy: PolicySettings, what: &str) {
        let (probed, _) = probe(trace, device, policy).unwrap();
        assert_eq!(said(probed), said(replay_alone(trace, device, policy).unwrap()), "{what} on {device:?}");
    }

    fn settings() -> impl Iterator<Item = (String, PolicySettings)> {
        let gapless = |chunk| GaplessSettings { chunk, ..GaplessSettings::default() };
        let gapless = [None, Some(ChunkPolicy::Fixed(8 * PAGE))].map(gapless);
        let gapless = gapless.map(|settings| (PolicyKind::Gapless, settings, CachingSettings::default()));
        let caching = [
            "native",
            "expandable_segments:True",
            "max_split_size_mb:64",
            "roundup_power2_divisions:8,torch.cuda.empty_cache()",
            "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9",
        ];
        let caching = caching.map(|text| (PolicyKind::Caching, GaplessSettings::default(), text.parse().unwrap()));
        gapless.into_iter().chain(caching).map(|policy| (format!("{policy:?}"), policy))
    }

    /// A program on several streams, in steps, of which some requests were refused.
    fn program(seed: u64) -> Trace {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut text, mut live) = (String::new(), Vec::new());
        let streams = 1 + draw(4);
        for id in 0..300 {
            let bytes =
                [0, 300, 70_000, 1 << 20, 3 << 20, 11 << 20, 25 << 20, 70 << 20][draw(8) as usize] + draw(5) * 512;
            text.push_str(&format!("a {id} {bytes} {}\n", draw(streams)));
            live.push(id);
            while live.len() > 30 || draw(3) == 0 && !live.is_empty() {
                text.push_str(&format!("f {}\n", live.swap_remove(draw(live.len() as u64) as usize)));
            }
            match draw(20) {
                0 => text.push_str("m step\n"),
                1 => text.push_str(&format!("r {} 0\n", 400 << 20)),
                _ => {}
            }
        }
        Trace::read("program", text.as_bytes()).unwrap()
    }

    /// On devices from too small to ample, with memory of others; some of the programs sleep between their steps.
    #[test]
    fn it_answers_as_a_model() {
        for seed in 0..12 {
            let sleeps = seed % 3 == 0;
            let trace = if sleeps { program(seed).asleep_between_steps() } else { program(seed) };
            let demand = trace.demand_bytes();
            let (mut failed, mut survived) = (0, 0);
            // Expandable segments are refused where memory sleeps.
            for (what, policy) in settings().filter(|(_, (.., caching))| !(sleeps && caching.expandable_segments)) {
                for percent in [60, 90, 100, 101, 103, 106, 110, 120, 150, 400] {
                    let external_bytes = (percent % 4) * 5 * PAGE;
                    let device =
                        Device { external_bytes, ..Device::of((demand * percent / 100).next_multiple_of(PAGE)) };
                    assert_same(&trace, &device, policy, &format!("seed {seed}, {what}"));
                    let oom = probe(&trace, &device, policy).unwrap().0.oom;
                    if oom.is_some() { failed += 1 } else { survived += 1 }
                }
            }
            assert!(failed > 0 && survived > 0, "seed {seed}");
        }
    }

    /// 40 expandable segments, each with addresses for a device of 4 TiB.
    #[test]
    fn where_addresses_run_out_the_model_answers() {
        let text: String = (0..40).map(|stream| format!("a {stream} 3145728 {stream}\n")).collect();
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        let settings = "expandable_segments:True".parse().unwrap();
        let policy = (PolicyKind::Caching, GaplessSettings::default(), settings);
        let device = Device::of(Device::MOST_BYTES);
        assert_same(&trace, &device, policy, "40 segments");
        let (result, alike) = probe(&trace, &device, policy).unwrap();
        assert_eq!((result.driver, alike), ("model", device.capacity_bytes..device.capacity_bytes + 1));
        assert!(result.oom.is_some(), "28 segments have room");
    }

    #[test]
    fn it_says_where_its_limits_are() {
        let driver = CapacityDriver::new(&Device::of(1 << 40));
        let addr = driver.reserve(PAGE, PAGE).unwrap();
        let chunk = driver.create(PAGE).unwrap();
        for _ in 0..ModelConfig::default().max_mappings {
            driver.map(addr, PAGE, chunk).unwrap();
        }
        driver.unmap(addr, PAGE).unwrap();
        driver.map(addr, PAGE, chunk).unwrap();
        assert!(!driver.is_at_its_limits());
        driver.map(addr, PAGE, chunk).unwrap_err();
        assert!(driver.is_at_its_limits());
        let driver = CapacityDriver::new(&Device::of(1 << 40));
        driver.reserve(1 << 46, PAGE).unwrap();
        driver.create(2 << 40).unwrap_err();
        assert!(!driver.is_at_its_limits());
        driver.reserve(1 << 46, PAGE).unwrap_err();
        assert!(driver.is_at_its_limits());
    }

    #[test]
    fn it_knows_with_which_capacities_it_would_have_been_alike() {
        let driver = CapacityDriver::new(&Device { external_bytes: PAGE, ..Device::of(9 * PAGE) });
        assert_eq!(driver.alike_capacities(), 0..u64::MAX);
        let chunk = driver.create(4 * PAGE).unwrap();
        driver.create(8 * PAGE).unwrap_err();
        driver.create(6 * PAGE).unwrap_err();
        driver.release(chunk).unwrap();
        driver.create(PAGE).unwrap();
        assert_eq!(driver.alike_capacities(), 5 * PAGE..11 * PAGE);
    }
}
