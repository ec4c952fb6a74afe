//! Listeners hear of every mapping once it is made and before it goes, and may refuse either.

use gapless::allocator::{AllocError, CloseError, MapListener, MappedRange, RangeError, Refusal};
use gapless::driver::{
    DriverCall, DriverErrorKind, Fault, FaultDriver, HoldStreams, MemoryDriver, ModelConfig, ModelDriver, WorkDriver,
};
use gapless::{Allocator, ChunkPolicy, DeviceAddr, StreamId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

const PAGE: u64 = 2 << 20;
const MAIN: StreamId = StreamId::DEFAULT;

type Device = FaultDriver<ModelDriver>;

/// The answer of a listener.
#[derive(Default)]
enum Answer {
    #[default]
    Yes,
    No,
    Panic,
}

/// Remembers what is mapped, and answers as it is set to.
#[derive(Default)]
struct Ears {
    mapped: Mutex<BTreeMap<DeviceAddr, u64>>,
    to_map: Mutex<Answer>,
    to_unmap: Mutex<Answer>,
    /// The only address that is answered so; none: all.
    only: Mutex<Option<DeviceAddr>>,
    heard: AtomicU64,
}

impl Ears {
    fn answer(&self, answer: &Mutex<Answer>, range: MappedRange) -> Result<(), Refusal> {
        if self.only.lock().unwrap().is_some_and(|only| only != range.addr) {
            return Ok(());
        }
        // Not locked during the panic.
        let says = std::mem::take(&mut *answer.lock().unwrap());
        let (result, again) = match says {
            Answer::Yes => (Ok(()), Answer::Yes),
            Answer::No => (Err(Refusal::new("not now")), Answer::No),
            Answer::Panic => panic!("on purpose"),
        };
        *answer.lock().unwrap() = again;
        result
    }

    fn set_to_unmap(&self, answer: Answer) {
        *self.to_unmap.lock().unwrap() = answer;
    }

    fn set_to_map(&self, answer: Answer) {
        *self.to_map.lock().unwrap() = answer;
    }

    fn bytes(&self) -> u64 {
        self.mapped.lock().unwrap().values().sum()
    }
}

impl MapListener for Ears {
    fn on_map(&self, range: MappedRange) -> Result<(), Refusal> {
        self.heard.fetch_add(1, Ordering::Relaxed);
        self.answer(&self.to_map, range)?;
        let before = self.mapped.lock().unwrap().insert(range.addr, range.bytes);
        assert!(before.is_none_or(|bytes| bytes == range.bytes), "{range:?} is mapped already");
        Ok(())
    }

    fn before_unmap(&self, range: MappedRange) -> Result<(), Refusal> {
        self.heard.fetch_add(1, Ordering::Relaxed);
        self.answer(&self.to_unmap, range)?;
        assert_eq!(self.mapped.lock().unwrap().remove(&range.addr), Some(range.bytes), "{range:?} is not mapped");
        Ok(())
    }
}

fn device(pages: u64) -> Arc<Device> {
    Arc::new(FaultDriver::new(ModelDriver::new(ModelConfig { capacity_bytes: pages * PAGE, ..ModelConfig::default() })))
}

fn allocator(device: &Arc<Device>) -> Allocator<Device> {
    Allocator::builder(Arc::clone(device)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap()
}

fn listening(allocator: &Allocator<Device>) -> Arc<Ears> {
    let ears = Arc::new(Ears::default());
    allocator.listeners().add(Arc::<Ears>::clone(&ears)).unwrap();
    ears
}

/// The kind of the driver's error in an answer.
fn kind<T: std::fmt::Debug>(answer: Result<T, AllocError>) -> DriverErrorKind {
    match answer {
        Err(AllocError::Driver(error)) => error.kind,
        other => panic!("{other:?}"),
    }
}

/// Whichever goes, those that stay hear of all that is mapped and unmapped.
#[test]
fn those_that_stay_go_on_hearing_when_one_is_removed() {
    for gone in 0..3 {
        let device = device(16);
        let allocator = allocator(&device);
        let mut ears = [(); 3].map(|()| Arc::new(Ears::default())).to_vec();
        let ids: Vec<_> = ears
            .iter()
            .map(|ears| {
                let listener: Arc<dyn MapListener> = Arc::<Ears>::clone(ears);
                allocator.listeners().add(listener).unwrap()
            })
            .collect();
        let block = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
        assert_eq!(allocator.listeners().remove(ids[gone]), Ok(true));
        assert_eq!(allocator.listeners().remove(ids[gone]), Ok(false));
        let removed = ears.remove(gone);
        let other = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
        assert_eq!(ears.iter().map(|ears| ears.bytes() / PAGE).collect::<Vec<_>>(), [6, 6], "without {gone}");
        for block in [block, other] {
            allocator.free(block).unwrap();
        }
        allocator.trim(0).unwrap();
        assert_eq!(ears.iter().map(|ears| ears.bytes()).collect::<Vec<_>>(), [0, 0], "without {gone}");
        assert_eq!(removed.bytes(), 2 * PAGE, "it was not notified of what happened later");
        allocator.close().unwrap();
    }
}

#[test]
fn every_mapping_is_notified_and_every_unmap_before_it_happens() {
    let device = device(16);
    let allocator = allocator(&device);
    let ears = listening(&allocator);
    let agrees = |when: &str| assert_eq!(ears.bytes(), device.inner().usage().mappings as u64 * PAGE, "{when}");
    let blocks: Vec<_> = (0..4).map(|_| allocator.alloc_raw(4 * PAGE, MAIN).unwrap()).collect();
    agrees("mapped");
    allocator.free(blocks[0]).unwrap();
    allocator.free(blocks[2]).unwrap();
    // Remapped: mapped a second time, and the first mappings stay.
    let joined = allocator.alloc_raw(8 * PAGE, MAIN).unwrap();
    assert_eq!(ears.bytes(), 24 * PAGE);
    agrees("remapped");
    allocator.free(joined).unwrap();
    allocator.trim(0).unwrap();
    agrees("trimmed");
    assert_eq!(ears.bytes(), 8 * PAGE);
    let mut range = allocator.reserve_range(8 * PAGE).unwrap();
    range.grow(3 * PAGE, MAIN).unwrap();
    agrees("a range");
    range.shrink(PAGE).unwrap();
    agrees("a shorter range");
    drop(range);
    agrees("no range");
    allocator.free(blocks[1]).unwrap();
    allocator.free(blocks[3]).unwrap();
    allocator.close().unwrap();
    assert_eq!(ears.bytes(), 0);
    assert!(device.inner().usage().is_empty());
}

#[test]
fn a_refused_mapping_is_undone() {
    for answer in [Answer::No, Answer::Panic] {
        let device = device(16);
        let allocator = allocator(&device);
        let first = listening(&allocator);
        let second = listening(&allocator);
        let kept = allocator.alloc_raw(PAGE, MAIN).unwrap();
        second.set_to_map(answer);
        // The third mapping of four.
        *second.only.lock().unwrap() = Some(kept.offset(3 * PAGE));
        assert_eq!(kind(allocator.alloc_raw(4 * PAGE, MAIN)), DriverErrorKind::Refused);
        let usage = device.inner().usage();
        assert_eq!((usage.mappings, usage.bytes), (1, PAGE), "nothing has changed");
        assert_eq!((first.bytes(), second.bytes()), (PAGE, PAGE), "both know of it");
        second.set_to_map(Answer::Yes);
        allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
        assert_eq!((first.bytes(), second.bytes()), (5 * PAGE, 5 * PAGE));
        allocator.check();
    }
}

#[test]
fn what_a_listener_wants_to_keep_is_not_unmapped() {
    for answer in [Answer::No, Answer::Panic] {
        let device = device(16);
        let allocator = allocator(&device);
        let (first, second) = (listening(&allocator), listening(&allocator));
        let block = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
        allocator.free(block).unwrap();
        second.set_to_unmap(answer);
        *second.only.lock().unwrap() = Some(block.offset(PAGE));
        assert_eq!(allocator.trim(0).unwrap().held_bytes, PAGE, "all but one chunk went");
        assert_eq!((first.bytes(), second.bytes()), (PAGE, PAGE));
        allocator.check();
        second.set_to_unmap(Answer::Yes);
        assert_eq!(allocator.trim(0).unwrap().held_bytes, 0);
        assert_eq!((first.bytes(), second.bytes()), (0, 0));
    }
}

/// Free chunks have to be released before larger ones can be created: where a listener keeps some, others serve.
#[test]
fn a_growth_goes_another_way_when_a_listener_refuses() {
    let device = device(8);
    let allocator = allocator(&device);
    let ears = listening(&allocator);
    let mut range = allocator.reserve_range(8 * PAGE).unwrap();
    let block = allocator.alloc_raw(8 * PAGE, MAIN).unwrap();
    allocator.free(block).unwrap();
    ears.set_to_unmap(Answer::No);
    *ears.only.lock().unwrap() = Some(block);
    range.grow(7 * PAGE, MAIN).unwrap();
    allocator.check();
    assert!(
        matches!(range.grow(PAGE, MAIN), Err(RangeError::Alloc(AllocError::OutOfMemory(_)))),
        "the last page is kept"
    );
    ears.set_to_unmap(Answer::Yes);
    range.grow(PAGE, MAIN).unwrap();
    assert_eq!(ears.bytes(), 8 * PAGE);
}

#[test]
fn stale_mappings_that_are_kept_do_not_stop_others_from_going() {
    let device = device(8);
    let builder = Allocator::builder(Arc::clone(&device)).chunk_policy(ChunkPolicy::Fixed(PAGE)).mapping_limit(12);
    let allocator = builder.build().unwrap();
    let ears = listening(&allocator);
    let blocks: Vec<_> = (0..8).map(|_| allocator.alloc_raw(PAGE, MAIN).unwrap()).collect();
    blocks.iter().step_by(2).for_each(|block| allocator.free(*block).unwrap());
    let joined = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
    assert_eq!(ears.bytes(), 12 * PAGE, "at the limit");
    ears.set_to_unmap(Answer::No);
    *ears.only.lock().unwrap() = Some(blocks[0]);
    allocator.free(joined).unwrap();
    blocks.iter().skip(1).step_by(2).for_each(|block| allocator.free(*block).unwrap());
    allocator.alloc_raw(8 * PAGE, MAIN).unwrap();
    assert!(ears.mapped.lock().unwrap().contains_key(&blocks[0]));
    allocator.check();
}

#[test]
fn what_is_refused_at_the_end_stays_mapped() {
    let device = device(8);
    let allocator = allocator(&device);
    let ears = listening(&allocator);
    let block = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
    allocator.free(block).unwrap();
    ears.set_to_unmap(Answer::No);
    *ears.only.lock().unwrap() = Some(block);
    match allocator.close() {
        Err(CloseError::Driver(error)) => assert_eq!(error.kind, DriverErrorKind::Refused),
        other => panic!("{other:?}"),
    }
    assert_eq!(ears.bytes(), PAGE);
    assert_eq!(device.inner().usage().mappings, 1);
}

#[test]
fn what_a_listener_says_is_in_the_error() {
    let device = device(8);
    let allocator = allocator(&device);
    let ears = listening(&allocator);
    for (answer, text) in [(Answer::No, "not now"), (Answer::Panic, "it panicked: on purpose")] {
        ears.set_to_map(answer);
        let error = allocator.alloc_raw(PAGE, MAIN).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn listeners_know_when_the_driver_refuses() {
    let device = device(8);
    let allocator = allocator(&device);
    let ears = listening(&allocator);
    let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
    allocator.free(block).unwrap();
    device.arm(Fault::nth(0, DriverErrorKind::Other).only([DriverCall::Unmap]));
    assert_eq!(kind(allocator.trim(0)), DriverErrorKind::Other);
    assert_eq!(ears.bytes(), PAGE, "notified that it stays");
    assert_eq!(allocator.trim(0).unwrap().held_bytes, 0);
    assert_eq!(ears.bytes(), 0);
    // No access: not usable yet, so nobody is notified.
    let heard = ears.heard.load(Ordering::Relaxed);
    device.arm(Fault::nth(0, DriverErrorKind::Other).only([DriverCall::SetAccess]));
    assert_eq!(kind(allocator.alloc_raw(PAGE, MAIN)), DriverErrorKind::Other);
    assert_eq!(ears.heard.load(Ordering::Relaxed), heard);
    // A listener refuses, and the driver does not take the mapping back: those who knew of it know that it stays.
    let second = listening(&allocator);
    second.set_to_map(Answer::No);
    device.arm(Fault::nth(0, DriverErrorKind::Other).only([DriverCall::Unmap]));
    assert_eq!(kind(allocator.alloc_raw(PAGE, MAIN)), DriverErrorKind::Refused);
    assert_eq!((ears.bytes(), second.bytes()), (PAGE, 0));
    device.disarm();
    allocator.check();
}

#[test]
fn a_mapping_whose_end_is_refused_twice_is_never_used() {
    let device = device(8);
    let allocator = allocator(&device);
    let (first, second) = (listening(&allocator), listening(&allocator));
    first.set_to_unmap(Answer::No);
    second.set_to_map(Answer::No);
    assert_eq!(kind(allocator.alloc_raw(PAGE, MAIN)), DriverErrorKind::Refused);
    let mapped = *first.mapped.lock().unwrap().first_key_value().expect("it stays, and the first knows").0;
    first.set_to_unmap(Answer::Yes);
    second.set_to_map(Answer::Yes);
    assert_ne!(allocator.alloc_raw(PAGE, MAIN).unwrap(), mapped);
    allocator.check();
}

/// Uses the allocator from inside a callback.
#[derive(Default)]
struct Greedy {
    allocator: OnceLock<Allocator<Device>>,
    cached: AtomicBool,
    tried: AtomicBool,
}

impl MapListener for Greedy {
    fn on_map(&self, _: MappedRange) -> Result<(), Refusal> {
        let Some(allocator) = self.allocator.get() else { return Ok(()) };
        self.tried.store(true, Ordering::Relaxed);
        assert!(matches!(allocator.alloc_raw(64 * PAGE, MAIN), Err(AllocError::InListener(_))));
        assert!(matches!(allocator.trim(0), Err(AllocError::InListener(_))));
        assert!(matches!(allocator.set_budget(0), Err(AllocError::InListener(_))));
        assert!(matches!(allocator.reserve_range(PAGE), Err(AllocError::InListener(_))));
        let error = allocator.listeners().add(Arc::new(Self::default())).unwrap_err();
        assert_eq!(Err(error), allocator.listeners().remove(gapless::allocator::ListenerId(1)));
        assert!(error.to_string().contains("while it is being notified"), "{error}");
        assert!(allocator.stats().reserved_bytes >= PAGE);
        // Cached memory takes no lock that is held.
        if let Ok(block) = allocator.alloc_raw(512, MAIN) {
            allocator.free(block).unwrap();
            self.cached.store(true, Ordering::Relaxed);
        }
        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| allocator.snapshot()));
        assert!(asked.is_err(), "refused rather than stuck");
        Ok(())
    }

    fn before_unmap(&self, _: MappedRange) -> Result<(), Refusal> {
        Ok(())
    }
}

#[test]
fn an_allocation_in_a_callback_is_refused() {
    let device = device(64);
    let allocator = allocator(&device);
    allocator.alloc_raw(512, MAIN).unwrap();
    let greedy = Arc::new(Greedy::default());
    let id = allocator.listeners().add(Arc::<Greedy>::clone(&greedy)).unwrap();
    greedy.allocator.set(allocator.clone()).unwrap();
    allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
    assert!(greedy.tried.load(Ordering::Relaxed) && greedy.cached.load(Ordering::Relaxed));
    assert_eq!(allocator.listeners().remove(id), Ok(true));
    assert_eq!(allocator.listeners().remove(id), Ok(false));
    greedy.tried.store(false, Ordering::Relaxed);
    allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
    assert!(!greedy.tried.load(Ordering::Relaxed));
    // Outside again: the thread may do what it likes.
    allocator.trim(0).unwrap();
}

#[test]
fn allocators_may_share_their_listeners() {
    let device = device(8);
    let one = allocator(&device);
    let other = Allocator::builder(Arc::clone(&device)).listeners(Arc::clone(one.listeners())).build().unwrap();
    let ears = listening(&one);
    one.alloc_raw(PAGE, MAIN).unwrap();
    other.alloc_raw(PAGE, MAIN).unwrap();
    assert_eq!(ears.mapped.lock().unwrap().len(), 2);
    assert_eq!(device.ordinal(), 0);
}

/// Memory that is about to be unmapped is not in use by the device when a listener is notified.
#[test]
fn work_has_completed_before_a_listener_is_notified() {
    let device = device(4);
    let allocator = allocator(&device);
    let stream = device.create_stream().unwrap();
    allocator.keep_stream(stream).unwrap();
    let block = allocator.alloc_raw(4 * PAGE, stream).unwrap();
    device.fill(stream, block, 4 * PAGE, 1).unwrap();
    device.hold(stream);
    allocator.free(block).unwrap();
    let waits = Arc::new(Waits { device: Arc::clone(&device), heard: AtomicU64::new(0) });
    allocator.listeners().add(Arc::<Waits>::clone(&waits)).unwrap();
    allocator.trim(0).unwrap();
    assert_eq!(waits.heard.load(Ordering::Relaxed), 4);
}

struct Waits {
    device: Arc<Device>,
    heard: AtomicU64,
}

impl MapListener for Waits {
    fn on_map(&self, _: MappedRange) -> Result<(), Refusal> {
        Ok(())
    }

    fn before_unmap(&self, _: MappedRange) -> Result<(), Refusal> {
        assert_eq!(self.device.host_waits(), 1, "notified before the work had completed");
        self.heard.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
