//! Reservations of addresses.

use gapless::driver::cuda::CudaDriver;
use gapless::driver::{DriverResult, MemoryDriver};
use gapless::units::{ByteSize, DeviceAddr, GIB, TIB, round_down};
use serde_json::{Value, json};

use crate::{Question, WHOLE, micros, refusal, timed};

pub(super) const RESERVE_4_TIB: Question = Question {
    id: "reserve_4_tib",
    text: "What does a reservation of 4 TiB cost, in time and in the process's addresses, and how many can there be?",
    parts: WHOLE,
    experiment: |driver| {
        let page = driver.granularity();
        // Below the driver's own bound on what a process reserves.
        let free = || driver.memory_info().map(|info| i128::from(info.free));
        let (free_before, before) = (free()?, virtual_bytes());
        let (first, reserve) = match timed(|| driver.raw().reserve(4 * TIB, page)) {
            Ok(reserved) => reserved,
            Err(error) => return Ok(json!({ "reserve": refusal(&error), "largest": largest(driver)? })),
        };
        let (after, free_after) = (virtual_bytes(), free()?);
        let host = reserve_of_host(GIB);
        let mut all = vec![first];
        let mut answer = json!("not reached");
        while all.len() < MOST_RESERVATIONS {
            match driver.raw().reserve(4 * TIB, page) {
                Ok(addr) => all.push(addr),
                Err(error) => {
                    answer = refusal(&error);
                    break;
                }
            }
        }
        let host_at_the_end = reserve_of_host(GIB);
        let count = all.len();
        let mut frees = Vec::new();
        for addr in all {
            frees.push(timed(|| driver.raw().address_free(addr, 4 * TIB))?.1);
        }
        Ok(json!({
            "reserve": "ok",
            "reserve_us": micros(reserve),
            "address_free_us": micros(super::median(frees)),
            "virtual_bytes_before": before,
            "virtual_bytes_after": after,
            "change_of_free_bytes": i64::try_from(free_after - free_before).unwrap_or(i64::MIN),
            "one_gib_of_the_host_beside_it": host,
            "reservations_at_once": count,
            "next_answers": answer,
            "one_gib_of_the_host_beside_all": host_at_the_end,
            "largest": largest(driver)?,
        }))
    },
};

pub(super) const RESERVATION: Question = Question {
    id: "reservation",
    text: "What is the largest single reservation, and what does the next size return?",
    parts: WHOLE,
    experiment: |driver| {
        let page = driver.granularity();
        let (mut largest, mut us) = (0, 0.0);
        let mut bytes = GIB;
        let mut answer = Value::Null;
        while bytes <= 256 * TIB {
            match timed(|| driver.raw().reserve(bytes, page)) {
                Ok((addr, duration)) => {
                    (largest, us) = (bytes, micros(duration));
                    driver.raw().address_free(addr, bytes)?;
                }
                Err(error) => {
                    answer = refusal(&error);
                    break;
                }
            }
            bytes *= 2;
        }
        Ok(json!({
            "largest_bytes": largest,
            "largest": ByteSize(largest).to_string(),
            "us": us,
            "next_answers": answer,
        }))
    },
};

/// Reserves up to `bytes` of addresses, halving the size down to `least` as long as the driver refuses; returns the
/// address and the size of the reservation. Both sizes are multiples of the granularity.
///
/// # Errors
/// The driver's last answer, when it refuses even `least` bytes.
pub fn reserve_at_most(driver: &CudaDriver, bytes: u64, least: u64, alignment: u64) -> DriverResult<(DeviceAddr, u64)> {
    let mut wish = bytes.max(least);
    loop {
        match driver.reserve(wish, alignment) {
            Ok(addr) => return Ok((addr, wish)),
            Err(error) if wish <= least || error.kind.is_sticky() => return Err(error),
            Err(_) => wish = round_down(wish / 2, driver.granularity()).max(least),
        }
    }
}

/// The largest of a few sizes that can be reserved at once, as text.
fn largest(driver: &CudaDriver) -> DriverResult<Value> {
    for tib in [128, 112, 96, 80, 64, 48, 32, 16, 8, 4, 2, 1] {
        if let Ok(addr) = driver.raw().reserve(tib * TIB, driver.granularity()) {
            driver.raw().address_free(addr, tib * TIB)?;
            return Ok(json!(ByteSize(tib * TIB).to_string()));
        }
    }
    Ok(json!("less than 1 TiB"))
}

/// The process's `VmSize` in bytes; `None` where the kernel does not report it.
fn virtual_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Whether the process gets `bytes` of its own: the C library maps a block of this size by itself.
fn reserve_of_host(bytes: u64) -> Value {
    let mut block: Vec<u8> = Vec::new();
    match block.try_reserve_exact(usize::try_from(bytes).unwrap_or(usize::MAX)) {
        Ok(()) => {
            // The block is used, so that it cannot be left out.
            std::hint::black_box(block.as_mut_ptr());
            json!("ok")
        }
        Err(error) => json!(error.to_string()),
    }
}

/// More than 47 bits of addresses hold.
const MOST_RESERVATIONS: usize = 40;
