//! Model driver: a device of any size that is state only, with a clock that the test owns.
//!
//! With the feature `testing`.
//!
//! Every rule of the driver contract is enforced by panic, with a message that names the rule: partial unmaps, work on
//! memory without access, an unmap under work in flight, a stale handle. What is a shortage on a real device (memory,
//! addresses, mappings) is an error, and so are a stream that does not exist and a malformed `reserve`.
//!
//! Two clocks that know nothing of each other:
//! - *modelled time* adds up what the calls would have cost the host, by a [`CostTable`];
//! - the *op clock* moves by [`advance`](ModelDriver::advance): work and event recordings queued at op `t` complete at
//!   `t + lag_ops`. A held stream completes nothing by itself, whatever the clock says.
//!
//! A host wait (`event_synchronize`, `synchronize`) takes as long as it takes: it completes what it waits for, held or
//! not, and what that waits for on other streams. It never blocks.
//!
//! Threads: any; one lock, held for the length of a call. Cost: O(log n) a call, plus O(1) a mapping in the range, plus
//! O(work in flight) for an unmap.

mod config;
mod state;
mod streams;
mod timeline;

use super::handles::Handles;
use super::ledger::{Ledger, Refusal};
use super::{
    CheckedDriver, ChunkHandle, DriverCall, DriverCalls, DriverError, DriverErrorKind, DriverResult, DriverUsage,
    HostMemory, MemoryDriver, MemoryInfo,
};
use crate::sync::unseen::{Mutex, MutexGuard};
use crate::units::{ByteSize, DeviceAddr, MIB, StreamId};
use state::{State, broken, enforce};
use std::time::Duration;
use timeline::Timeline;

pub use config::{CostTable, ModelConfig};

/// A simulated device without memory behind it. With the feature `testing`; see the module documentation.
#[derive(Debug)]
pub struct ModelDriver {
    costs: CostTable,
    address_end: u64,
    granularity: u64,
    state: Mutex<State>,
}

impl ModelDriver {
    /// Creates a device with nothing on it.
    ///
    /// # Panics
    /// When the granularity is not a power of two, or `address_bits` leaves no room above the first address.
    #[must_use]
    pub fn new(config: ModelConfig) -> Self {
        let address_end = 1_u64.checked_shl(config.address_bits).unwrap_or(u64::MAX);
        let first = FIRST_ADDRESS + config.granularity;
        assert!(first < address_end, "{} address bits leave no room", config.address_bits);
        Self {
            costs: config.costs,
            address_end,
            granularity: config.granularity,
            state: Mutex::new(State {
                ledger: Ledger::new(
                    config.granularity,
                    config.capacity_bytes,
                    config.external_bytes,
                    config.max_mappings,
                ),
                timeline: Timeline::new(config.lag_ops),
                handles: Handles::new(),
                next_address: first,
                calls: DriverCalls::default(),
                host_waits: 0,
                modelled_micros: 0.0,
            }),
        }
    }

    /// Returns the table of costs that the modelled time follows.
    pub const fn costs(&self) -> &CostTable {
        &self.costs
    }

    /// Returns what all calls so far would have cost the host.
    pub fn modelled_time(&self) -> Duration {
        Duration::from_secs_f64(self.state.lock().modelled_micros * 1e-6)
    }

    /// Returns the calls made so far, failed ones included.
    pub fn calls(&self) -> DriverCalls {
        self.state.lock().calls
    }

    /// Returns how many times the host has waited for work that had not completed.
    pub fn host_waits(&self) -> u64 {
        self.state.lock().host_waits
    }

    /// Returns what is alive on the device.
    pub fn usage(&self) -> DriverUsage {
        let state = self.state.lock();
        DriverUsage { events: state.timeline.event_count(), streams: state.handles.created(), ..state.ledger.usage() }
    }

    /// Sets the number of bytes of the device that other processes hold. If they leave less than is held, nothing is
    /// free.
    pub fn set_external(&self, bytes: u64) {
        self.state.lock().ledger.set_external(bytes);
    }

    /// Moves the op clock forward by `ops`.
    pub fn advance(&self, ops: u64) {
        self.state.lock().timeline.advance(ops);
    }

    /// Returns the number of ops that the op clock has counted.
    pub fn now(&self) -> u64 {
        self.state.lock().timeline.now()
    }

    /// Holds `stream`: nothing on it completes until [`complete`](Self::complete), [`resume`](Self::resume) or a host
    /// wait.
    ///
    /// # Panics
    /// This method and the others that control a stream panic when there is no such stream.
    pub fn hold(&self, stream: StreamId) {
        let mut state = self.state.lock();
        let lane = state.existing(stream);
        state.timeline.hold(lane);
    }

    /// Completes what is queued on `stream` now, except what waits for an event of another stream that has not
    /// completed: that completes with it. A hold stays for what is queued later.
    pub fn complete(&self, stream: StreamId) {
        let mut state = self.state.lock();
        let lane = state.existing(stream);
        state.timeline.let_through(lane);
    }

    /// Ends the hold of `stream`.
    pub fn resume(&self, stream: StreamId) {
        let mut state = self.state.lock();
        let lane = state.existing(stream);
        state.timeline.resume(lane);
    }

    /// Starts a capture of `stream`: until it ends, making the stream wait panics, and so does querying or waiting for
    /// an event that is recorded on it. Events recorded before may still be queried and waited for.
    pub fn begin_capture(&self, stream: StreamId) {
        let mut state = self.state.lock();
        let lane = state.existing(stream);
        state.timeline.set_capturing(lane, true);
    }

    /// Ends the capture of `stream`.
    pub fn end_capture(&self, stream: StreamId) {
        let mut state = self.state.lock();
        let lane = state.existing(stream);
        state.timeline.set_capturing(lane, false);
    }

    /// Locks the state for one call, which is counted and costs `micros`.
    fn call(&self, call: DriverCall, micros: f64) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.calls[call] += 1;
        state.modelled_micros += micros;
        state
    }

    fn work(&self, stream: StreamId, touched: &[(DeviceAddr, u64)]) -> DriverResult<()> {
        Self::queue(self.call(DriverCall::Work, 0.0), DriverCall::Work, stream, touched)
    }

    /// The answer to who wants to see a range of memory of the host.
    fn no_bytes(&self, memory: HostMemory, offset: u64, bytes: u64) -> DriverResult<()> {
        const CALL: DriverCall = DriverCall::HostAlloc;
        enforce(CALL, self.state.lock().ledger.check_host(memory, offset, bytes))?;
        Err(DriverError::new(CALL, DriverErrorKind::NotSupported, "a model has no bytes"))
    }

    /// A copy between memory of the host and of the device.
    fn copy_beside(
        &self,
        call: DriverCall,
        stream: StreamId,
        (memory, offset): (HostMemory, u64),
        (addr, bytes): (DeviceAddr, u64),
    ) -> DriverResult<()> {
        let state = self.call(call, self.costs.copy_per_mib * mib_of(bytes));
        enforce(call, state.ledger.check_host(memory, offset, bytes))?;
        Self::queue(state, call, stream, &[(addr, bytes)])
    }

    /// Queues work that touches at most two ranges.
    fn queue(
        mut state: MutexGuard<'_, State>,
        call: DriverCall,
        stream: StreamId,
        touched: &[(DeviceAddr, u64)],
    ) -> DriverResult<()> {
        let lane = state.lane(call, stream)?;
        let mut ranges = [0..0, 0..0];
        for (range, &(addr, bytes)) in ranges.iter_mut().zip(touched) {
            enforce(call, state.ledger.check_access(addr, bytes))?;
            *range = addr.0..addr.0 + bytes;
        }
        let [first, second] = &ranges;
        if first.start < second.end && second.start < first.end {
            broken(call, "source and target of a copy overlap");
        }
        state.timeline.work(lane, ranges);
        Ok(())
    }
}

impl Default for ModelDriver {
    fn default() -> Self {
        Self::new(ModelConfig::default())
    }
}

// SAFETY: it touches no memory but its own books.
unsafe impl CheckedDriver for ModelDriver {}

impl MemoryDriver for ModelDriver {
    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        Ok(self.call(DriverCall::MemoryInfo, 0.0).ledger.memory_info())
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr> {
        let mut state = self.call(DriverCall::Reserve, self.costs.reserve);
        if let Err(Refusal::Misuse(text) | Refusal::Shortage(text)) = state.ledger.check_reserve(bytes, alignment) {
            return Err(DriverError::new(DriverCall::Reserve, DriverErrorKind::InvalidValue, text));
        }
        let Some(addr) = state.room(bytes, alignment, self.address_end) else {
            let text = format!("no {} of addresses in one piece", ByteSize(bytes));
            return Err(DriverError::new(DriverCall::Reserve, DriverErrorKind::OutOfMemory, text));
        };
        state.ledger.reserve(addr, bytes);
        Ok(DeviceAddr(addr))
    }

    fn address_free(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut state = self.call(DriverCall::AddressFree, self.costs.address_free);
        enforce(DriverCall::AddressFree, state.ledger.check_address_free(addr, bytes))?;
        state.ledger.address_free(addr);
        Ok(())
    }

    fn create(&self, bytes: u64) -> DriverResult<ChunkHandle> {
        let mut state = self.call(DriverCall::Create, self.costs.create);
        enforce(DriverCall::Create, state.ledger.check_create(bytes))?;
        state.modelled_micros += self.costs.create_per_mib * mib_of(bytes);
        Ok(state.ledger.create(bytes, 0))
    }

    fn release(&self, chunk: ChunkHandle) -> DriverResult<()> {
        let mut state = self.call(DriverCall::Release, self.costs.release);
        if let Some(freed) = enforce(DriverCall::Release, state.ledger.release(chunk))? {
            state.modelled_micros += self.costs.release_per_mib * mib_of(freed.bytes);
        }
        Ok(())
    }

    fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()> {
        let mut state = self.call(DriverCall::Map, self.costs.map);
        enforce(DriverCall::Map, state.ledger.check_map(addr, bytes, chunk))?;
        state.modelled_micros += self.costs.map_per_mib * mib_of(bytes);
        state.ledger.map(addr, bytes, chunk);
        Ok(())
    }

    fn set_access(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut state = self.call(DriverCall::SetAccess, 0.0);
        let tiles = enforce(DriverCall::SetAccess, state.ledger.check_set_access(addr, bytes))?;
        state.modelled_micros +=
            self.costs.set_access_per_chunk * f64_of(tiles) + self.costs.set_access_per_mib * mib_of(bytes);
        state.ledger.set_access(addr, bytes);
        Ok(())
    }

    fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut state = self.call(DriverCall::Unmap, 0.0);
        let tiles = enforce(DriverCall::Unmap, state.ledger.check_unmap(addr, bytes))?;
        if let Some((stream, work)) = state.timeline.in_flight(addr.0..addr.0 + bytes) {
            let text = format!(
                "unmap of {bytes} bytes at {addr} while work in flight on {stream} touches {}..{}",
                DeviceAddr(work.start),
                DeviceAddr(work.end)
            );
            broken(DriverCall::Unmap, &text);
        }
        let mut freed = 0;
        state.ledger.unmap(addr, bytes, |chunk| freed += chunk.bytes);
        state.modelled_micros += self.costs.unmap_per_chunk * f64_of(tiles)
            + self.costs.unmap_per_mib * mib_of(bytes)
            + self.costs.release_per_mib * mib_of(freed);
        Ok(())
    }

    fn host_alloc(&self, bytes: u64) -> DriverResult<HostMemory> {
        let mut state = self.call(DriverCall::HostAlloc, self.costs.host_alloc_per_mib * mib_of(bytes));
        Ok(state.ledger.host_alloc(bytes, 0))
    }

    fn host_free(&self, memory: HostMemory) -> DriverResult<()> {
        let mut state = self.call(DriverCall::HostFree, 0.0);
        enforce(DriverCall::HostFree, state.ledger.host_free(memory)).map(drop)
    }

    fn host_read(&self, memory: HostMemory, offset: u64, bytes: u64, _: &mut dyn FnMut(&[u8])) -> DriverResult<()> {
        self.no_bytes(memory, offset, bytes)
    }

    fn host_write(
        &self,
        memory: HostMemory,
        offset: u64,
        bytes: u64,
        _: &mut dyn FnMut(&mut [u8]),
    ) -> DriverResult<()> {
        self.no_bytes(memory, offset, bytes)
    }

    fn host_memory_has_bytes(&self) -> bool {
        false
    }
}

#[allow(clippy::cast_precision_loss, reason = "a cost")]
fn f64_of(count: usize) -> f64 {
    count as f64
}

#[allow(clippy::cast_precision_loss, reason = "a cost")]
fn mib_of(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

/// The first reservation starts one page above: aligned to a page and, unless asked for, to nothing more.
const FIRST_ADDRESS: u64 = 1 << 36;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{StreamDriver, WorkDriver};
    use crate::units::{GIB, TIB};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const PAGE: u64 = 2 * MIB;
    const MAIN: StreamId = StreamId::DEFAULT;

    /// A mapped chunk of one page; the reservation's address.
    fn mapped(driver: &ModelDriver) -> DeviceAddr {
        let addr = driver.reserve(PAGE, PAGE).unwrap();
        let chunk = driver.create(PAGE).unwrap();
        driver.map(addr, PAGE, chunk).unwrap();
        driver.set_access(addr, PAGE).unwrap();
        driver.release(chunk).unwrap();
        addr
    }

    #[test]
    fn modelled_time_adds_up() {
        let driver = ModelDriver::default();
        let addr = driver.reserve(4 * PAGE, PAGE).unwrap();
        let chunks = [0, 1].map(|index| {
            let chunk = driver.create(PAGE).unwrap();
            driver.map(addr.offset(index * PAGE), PAGE, chunk).unwrap();
            chunk
        });
        driver.set_access(addr, 2 * PAGE).unwrap();
        driver.unmap(addr, 2 * PAGE).unwrap();
        for chunk in chunks {
            driver.release(chunk).unwrap();
        }
        driver.address_free(addr, 4 * PAGE).unwrap();
        let event = driver.event_create().unwrap();
        driver.event_record(event, MAIN).unwrap();
        driver.event_query(event).unwrap();
        let micros = 5.0 + 2.0 * (30.0 + 2.0 * 1.9 + 1.5 + 40.0 + 30.0 + 30.0) + 2.0 + 1.0 + 0.5;
        assert!((driver.modelled_time().as_secs_f64() * 1e6 - micros).abs() < 1e-3);
        let all: u64 = driver.calls().iter().map(|(_, count)| count).sum();
        assert_eq!((driver.calls().total(), driver.calls()[DriverCall::AddressFree], all), (9, 1, 13));
    }

    /// What a call has added to the modelled time, in microseconds.
    fn cost_of<T>(driver: &ModelDriver, call: impl FnOnce() -> DriverResult<T>) -> (T, f64) {
        let before = driver.state.lock().modelled_micros;
        let value = call().unwrap();
        let after = driver.state.lock().modelled_micros;
        (value, after - before)
    }

    #[test]
    fn the_parts_that_grow_with_the_size_are_those_of_what_the_call_is_about() {
        let costs = CostTable {
            create_per_mib: 0.1,
            map_per_mib: 0.2,
            set_access_per_mib: 0.3,
            unmap_per_mib: 0.4,
            release_per_mib: 0.5,
            ..CostTable::default()
        };
        let driver = ModelDriver::new(ModelConfig { costs, ..ModelConfig::default() });
        let near = |(_, micros): (_, f64), expected: f64| assert!((micros - expected).abs() < 1e-6, "{micros}");
        let addr = driver.reserve(12 * PAGE, PAGE).unwrap();
        let (small, large) = (driver.create(PAGE).unwrap(), driver.create(8 * PAGE).unwrap());
        near(cost_of(&driver, || driver.map(addr, PAGE, small)), 1.5 + 2.0 * 0.2);
        near(cost_of(&driver, || driver.map(addr.offset(PAGE), 8 * PAGE, large)), 1.5 + 16.0 * 0.2);
        near(cost_of(&driver, || driver.set_access(addr, 9 * PAGE)), 2.0 * 40.0 + 18.0 * 0.3);
        // Its memory is freed by the unmap, that of the other one by its release.
        near(cost_of(&driver, || driver.release(large)), 30.0);
        near(cost_of(&driver, || driver.unmap(addr, 9 * PAGE)), 2.0 * 30.0 + 18.0 * 0.4 + 16.0 * 0.5);
        near(cost_of(&driver, || driver.release(small)), 30.0 + 2.0 * 0.5);
    }

    /// `calls_by_size` of `gapless probe` on an NVIDIA H100 80GB HBM3 with driver 580.159.04: the MiB of a chunk, and the
    /// microseconds of `create`, `map`, `set_access`, `unmap` and `release`.
    const MEASURED: [(u64, [f64; 5]); 5] = [
        (2, [12.6, 7.4, 26.5, 24.3, 12.7]),
        (8, [12.6, 7.9, 28.0, 26.2, 19.6]),
        (32, [13.3, 8.2, 45.1, 33.8, 39.7]),
        (128, [15.8, 8.3, 47.0, 34.3, 78.4]),
        (512, [51.7, 8.8, 62.8, 40.2, 326.5]),
    ];

    #[test]
    fn the_h100_is_as_far_from_what_was_measured_as_its_table_says() {
        let driver = ModelDriver::new(ModelConfig { costs: CostTable::h100(), ..ModelConfig::default() });
        let mut largest = [0.0_f64; 5];
        for (mib, measured) in MEASURED {
            let bytes = mib * MIB;
            let addr = driver.reserve(bytes, PAGE).unwrap();
            let (chunk, create) = cost_of(&driver, || driver.create(bytes));
            let ((), map) = cost_of(&driver, || driver.map(addr, bytes, chunk));
            let ((), set_access) = cost_of(&driver, || driver.set_access(addr, bytes));
            let ((), unmap) = cost_of(&driver, || driver.unmap(addr, bytes));
            let ((), release) = cost_of(&driver, || driver.release(chunk));
            for (at, micros) in [create, map, set_access, unmap, release].into_iter().enumerate() {
                largest[at] = largest[at].max((micros / measured[at] - 1.0).abs());
            }
        }
        assert_eq!(largest.map(|part| (part * 100.0).ceil()), [22.0, 6.0, 29.0, 18.0, 20.0]);
    }

    #[test]
    fn tables_have_names() {
        let one_differs = CostTable { map_per_mib: 0.1, ..CostTable::default() };
        let names = [CostTable::default(), CostTable::h100(), one_differs].map(|costs| costs.name());
        assert_eq!(names, ["literature", "h100", "custom"]);
        assert_eq!(ModelDriver::default().costs(), &CostTable::default());
    }

    #[test]
    fn work_lags_behind_the_op_clock() {
        let driver = ModelDriver::new(ModelConfig { lag_ops: 2, ..ModelConfig::default() });
        let addr = mapped(&driver);
        driver.fill(MAIN, addr, PAGE, 1).unwrap();
        let event = driver.event_create().unwrap();
        driver.event_record(event, MAIN).unwrap();
        driver.advance(1);
        assert!(!driver.event_query(event).unwrap());
        let refused = catch_unwind(AssertUnwindSafe(|| driver.unmap(addr, PAGE))).unwrap_err();
        assert!(refused.downcast_ref::<String>().unwrap().contains("while work in flight"));
        driver.advance(1);
        assert!(driver.event_query(event).unwrap());
        driver.unmap(addr, PAGE).unwrap();
        assert_eq!(driver.host_waits(), 0);
    }

    #[test]
    fn addresses_are_fresh_until_they_run_out() {
        let config = ModelConfig { address_bits: 37, ..ModelConfig::default() };
        let driver = ModelDriver::new(config);
        let quarter = 16 * GIB;
        let first = [(); 3].map(|()| driver.reserve(quarter, PAGE).unwrap());
        driver.address_free(first[1], quarter).unwrap();
        let small = driver.reserve(PAGE, PAGE).unwrap();
        assert!(small > first[2], "fresh ones first");
        assert_eq!(driver.reserve(quarter, PAGE).unwrap(), first[1]);
        assert_eq!(driver.reserve(quarter, PAGE).unwrap_err().kind, DriverErrorKind::OutOfMemory);
        assert_eq!(driver.reserve(PAGE, GIB).unwrap().0 % GIB, 0);
    }

    #[test]
    fn any_size_of_device() {
        let driver = ModelDriver::new(ModelConfig { capacity_bytes: 64 * TIB, ..ModelConfig::default() });
        let chunk = driver.create(63 * TIB).unwrap();
        let addr = driver.reserve(64 * TIB, 128 * MIB).unwrap();
        driver.map(addr, 63 * TIB, chunk).unwrap();
        driver.set_access(addr, 63 * TIB).unwrap();
        driver.fill(MAIN, addr, 63 * TIB, 1).unwrap();
        assert_eq!(driver.memory_info().unwrap().free, TIB);
    }

    #[test]
    fn events_of_a_capture_are_not_queried() {
        let driver = ModelDriver::default();
        let event = driver.event_create().unwrap();
        let refused = |call: &dyn Fn() -> DriverResult<()>, rule: &str| {
            let refused = catch_unwind(AssertUnwindSafe(|| call().is_ok())).unwrap_err();
            assert!(refused.downcast_ref::<String>().unwrap().contains(rule), "{rule}");
        };
        driver.begin_capture(MAIN);
        assert!(driver.is_capturing(MAIN));
        refused(&|| driver.stream_wait(MAIN, event), "is being captured");
        driver.event_record(event, MAIN).unwrap();
        refused(&|| driver.event_query(event).map(|_| ()), "recorded in a capture");
        refused(&|| driver.event_synchronize(event), "recorded in a capture");
        driver.end_capture(MAIN);
        assert_eq!(driver.event_query(event).unwrap_err().kind, DriverErrorKind::Capturing);
        driver.event_record(event, MAIN).unwrap();
        driver.begin_capture(MAIN);
        assert!(driver.event_query(event).unwrap());
        driver.event_synchronize(event).unwrap();
    }
}
