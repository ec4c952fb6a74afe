//! Latency and bandwidth of memory.

use std::time::Duration;

use gapless::driver::{DriverResult, MemoryDriver};
use gapless::units::{DeviceAddr, GIB, MIB, StreamId, round_down};
use serde_json::{Value, json};

use crate::{Measurements, Pass, Question, WHOLE, gb_per_s, median};

const MAIN: StreamId = StreamId::DEFAULT;

pub(super) const LATENCY: Question = Question {
    id: "latency",
    text: "What is the latency of dependent loads, one per page: memory of cuMemAlloc, small chunks, large chunks?",
    parts: WHOLE,
    experiment: |driver| {
        let measurements = Measurements::new(driver)?;
        let page = driver.granularity();
        let free = driver.memory_info()?.free;
        let slots = (free / 2 / page).min(64 * GIB / page).max(8);
        let slots = 1 << slots.ilog2();
        let bytes = slots * page;
        let steps = 50_000.max(slots);
        let chase = |addr: DeviceAddr| {
            // Twice: the first pass warms the caches of the page tables as far as they go.
            measurements.pointer_chase(MAIN, addr, slots, page, steps)?;
            measurements.pointer_chase(MAIN, addr, slots, page, steps)
        };
        let mut answer = serde_json::Map::new();
        answer.insert("bytes".into(), json!(bytes));
        let plain = driver.raw().mem_alloc(bytes)?;
        let latency = chase(plain);
        driver.raw().mem_free(plain)?;
        answer.insert("cu_mem_alloc".into(), json!(latency?));
        for (name, size) in [("chunks_of_one_page", page), ("chunks_of_512_mib", 512 * MIB)] {
            let size = size.min(bytes);
            let addr = driver.reserve(bytes, size.max(page).next_power_of_two())?;
            for at in 0..bytes / size {
                let chunk = driver.create(size)?;
                driver.map(addr.offset(at * size), size, chunk)?;
                driver.release(chunk)?;
            }
            driver.set_access(addr, bytes)?;
            let latency = chase(addr);
            driver.unmap(addr, bytes)?;
            driver.address_free(addr, bytes)?;
            answer.insert(name.into(), json!(latency?));
        }
        Ok(Value::Object(answer))
    },
};

pub(super) const BANDWIDTH: Question = Question {
    id: "bandwidth",
    text: "How many GB/s do passes over memory of cuMemAlloc reach, and over chunks of one page in reverse order?",
    parts: WHOLE,
    experiment: |driver| {
        let measurements = Measurements::new(driver)?;
        let page = driver.granularity();
        let bytes = round_down((driver.memory_info()?.free / 4).min(2 * GIB), 2 * page).max(2 * page);
        let rate = |addr| -> DriverResult<Value> {
            let mut row = serde_json::Map::new();
            for pass in [Pass::Write, Pass::Read, Pass::Copy] {
                let rounds: Vec<Duration> =
                    (0..7).map(|_| measurements.stream_over(MAIN, pass, addr, bytes)).collect::<DriverResult<_>>()?;
                let name = format!("{pass:?}").to_lowercase();
                row.insert(name, json!(gb_per_s(bytes, median(rounds))));
            }
            Ok(Value::Object(row))
        };
        let plain = driver.raw().mem_alloc(bytes)?;
        let plain_rate = rate(plain);
        driver.raw().mem_free(plain)?;
        let addr = driver.reserve(bytes, page)?;
        for at in (0..bytes / page).rev() {
            let chunk = driver.create(page)?;
            driver.map(addr.offset(at * page), page, chunk)?;
            driver.release(chunk)?;
        }
        driver.set_access(addr, bytes)?;
        let mapped_rate = rate(addr);
        driver.unmap(addr, bytes)?;
        driver.address_free(addr, bytes)?;
        Ok(json!({ "bytes": bytes, "cu_mem_alloc": plain_rate?, "remapped": mapped_rate? }))
    },
};
