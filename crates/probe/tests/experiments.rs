//! The experiments that `gapless probe` and the device benchmark share, through the simulated driver library.

#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gapless::StreamId;
use gapless::driver::MemoryDriver;
use gapless::driver::cuda::CudaDriver;
use gapless_probe::{Measurements, Pass, Question, Settings, reserve_at_most};

/// Opens the one device of the process, for one test at a time: what another test holds would count as this one's.
fn open() -> (CudaDriver, MutexGuard<'static, ()>) {
    static DEVICE: Mutex<()> = Mutex::new(());
    let alone = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    (simulated::open(simulated::builder()).unwrap(), alone)
}

#[test]
fn reservations_back_off() {
    let (driver, _alone) = open();
    let page = driver.granularity();
    let (addr, bytes) = reserve_at_most(&driver, 1 << 60, page, page).unwrap();
    assert!((1 << 30..1 << 60).contains(&bytes), "{bytes}");
    driver.address_free(addr, bytes).unwrap();
}

#[test]
fn measurements_run() {
    let (driver, _alone) = open();
    let before = driver.memory_info().unwrap().free;
    let bytes = 4 * driver.granularity();
    let addr = driver.reserve(bytes, driver.granularity()).unwrap();
    let chunk = driver.create(bytes).unwrap();
    driver.map(addr, bytes, chunk).unwrap();
    driver.set_access(addr, bytes).unwrap();
    driver.release(chunk).unwrap();

    let measurements = Measurements::new(&driver).unwrap();
    for pass in [Pass::Write, Pass::Copy, Pass::Read] {
        assert!(measurements.stream_over(StreamId::DEFAULT, pass, addr, bytes).unwrap() > Duration::ZERO);
    }
    assert!(measurements.stream_over(StreamId::DEFAULT, Pass::Read, addr.offset(8), 64).is_err());
    let latency = measurements.pointer_chase(StreamId::DEFAULT, addr, 1024, 4096, 10_000).unwrap();
    assert!(latency.cycles > 0.0 && latency.nanoseconds > 0.0);
    assert!(measurements.pointer_chase(StreamId::DEFAULT, addr, 1000, 4096, 1).is_err());

    drop(measurements);
    driver.unmap(addr, bytes).unwrap();
    assert_eq!(driver.memory_info().unwrap().free, before);
}

/// Two questions that lose the device on purpose, one that is asked in processes of its own, and one that leaves half a
/// million mappings to the end of its process, since to remove them may take longer than a question has.
const LEAVE_SOMETHING: [&str; 4] = ["unmap_in_use", "read_only", "dead_stream", "mappings"];

#[test]
fn questions_undo_what_they_did() {
    let (driver, _alone) = open();
    drop(driver);
    // Asked of the library itself, below every driver.
    type Usage = unsafe extern "C" fn(i32, *mut [u64; 4]) -> u32;
    // SAFETY: the library is loaded already.
    let handle = unsafe { libloading::Library::new(simulated::library()) }.unwrap();
    // SAFETY: the type of that function.
    let function = unsafe { handle.get::<Usage>(b"gapless_sim_usage\0") }.unwrap();
    let usage = || {
        let mut counts = [0; 4];
        // SAFETY: a valid out-parameter.
        assert_eq!(unsafe { function(0, &raw mut counts) }, 0);
        counts
    };
    let settings = Settings { rounds: 10, part: None };
    for question in Question::ALL.iter().filter(|question| !LEAVE_SOMETHING.contains(&question.id)) {
        let before = usage();
        let answer = question.ask(simulated::builder(), &settings);
        assert_eq!(answer.error, None, "{}", question.id);
        assert_eq!(usage(), before, "{}: chunks, mappings, reservations, events", question.id);
    }
}

#[test]
fn questions_have_ids_and_sentences_of_their_own() {
    let mut ids: Vec<&str> = Question::ALL.iter().map(|question| question.id).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
    for question in Question::ALL {
        assert!(question.text.contains('?') && question.text.len() < 130, "{}", question.id);
    }
}
