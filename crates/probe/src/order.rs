//! Questions about order: which calls wait for which work.

use std::time::{Duration, Instant};

use gapless::StreamId;
use gapless::driver::{DriverResult, EventHandle, MemoryDriver, StreamDriver, WorkDriver};
use serde_json::{Value, json};

use crate::{Question, Subject, WHOLE, micros, place, reported, timed};

pub(super) const BUSY: Question = Question {
    id: "busy",
    text: "Does each call wait for a running kernel, and how long does it take beside one and without one?",
    parts: WHOLE,
    experiment: |driver| {
        let page = driver.granularity();
        let busy = Busy { driver, stream: driver.create_stream()?, event: driver.event_create()? };
        // The kernels are loaded before the clock matters.
        driver.delay(busy.stream, Duration::from_micros(1))?;
        driver.synchronize(busy.stream)?;
        let mut calls = serde_json::Map::new();
        // Twice: the first pass is what the calls cost on an idle device.
        for pass in [Pass::Idle, Pass::Busy] {
            let mut step = |name: &str, call: &mut dyn FnMut() -> DriverResult<()>| -> DriverResult<()> {
                let seen = busy.beside_kernel(pass, call)?;
                let entry = calls.entry(name).or_insert_with(|| json!({}));
                seen.into_iter().for_each(|(key, value)| entry[key] = value);
                Ok(())
            };
            let (mut addr, mut chunk, mut event) = (None, None, None);
            step("memory_info", &mut || driver.memory_info().map(drop))?;
            step("reserve", &mut || driver.reserve(page, page).map(|made| addr = Some(made)))?;
            step("create", &mut || driver.create(page).map(|made| chunk = Some(made)))?;
            step("event_create", &mut || driver.event_create().map(|made| event = Some(made)))?;
            let (Some(addr), Some(chunk), Some(event)) = (addr, chunk, event) else { continue };
            step("map", &mut || driver.map(addr, page, chunk))?;
            step("set_access", &mut || driver.set_access(addr, page))?;
            step("unmap", &mut || driver.unmap(addr, page))?;
            step("release", &mut || driver.release(chunk))?;
            step("address_free", &mut || driver.address_free(addr, page))?;
            step("event_destroy", &mut || driver.event_destroy(event))?;
        }
        driver.event_destroy(busy.event)?;
        driver.destroy_stream(busy.stream)?;
        Ok(json!({ "kernel_us": micros(BUSY_FOR), "calls": calls }))
    },
};

pub(super) const UNMAP_IN_USE: Question = Question {
    id: "unmap_in_use",
    text: "Does unmapping memory that queued work will write to wait, fail, or lose the context?",
    parts: WHOLE,
    experiment: |driver| {
        let page = driver.granularity();
        let stream = driver.create_stream()?;
        let (addr, _) = place(driver, page)?;
        driver.fill(stream, addr, page, 1)?;
        driver.synchronize(stream)?;
        driver.delay(stream, BUSY_FOR)?;
        driver.fill(stream, addr, page, 2)?;
        let start = Instant::now();
        let outcome = driver.unmap(addr, page);
        let duration = start.elapsed();
        Ok(json!({
            "unmap": reported(&outcome),
            "us": micros(duration),
            "synchronize": reported(&driver.synchronize(stream)),
            "create_afterwards": reported(&driver.create(page)),
        }))
    },
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Idle,
    Busy,
}

/// A stream to keep busy, and an event to see whether it still is.
struct Busy<'a> {
    driver: &'a Subject,
    stream: StreamId,
    event: EventHandle,
}

impl Busy<'_> {
    /// Makes `call`, beside a kernel of its own in the busy pass; returns what was seen, by name.
    fn beside_kernel(
        &self,
        pass: Pass,
        call: &mut dyn FnMut() -> DriverResult<()>,
    ) -> DriverResult<Vec<(&'static str, Value)>> {
        if pass == Pass::Idle {
            return Ok(vec![("idle_us", json!(micros(timed(call)?.1)))]);
        }
        self.driver.delay(self.stream, BUSY_FOR)?;
        self.driver.event_record(self.event, self.stream)?;
        // Now it runs, and is not only queued.
        std::thread::sleep(STARTED_AFTER);
        let ((), duration) = timed(call)?;
        let finished = self.driver.event_query(self.event)?;
        self.driver.synchronize(self.stream)?;
        Ok(vec![("us", json!(micros(duration))), ("kernel_finished_meanwhile", json!(finished))])
    }
}

/// Much longer than any call takes.
const BUSY_FOR: Duration = Duration::from_millis(200);
/// Longer than a launch takes.
const STARTED_AFTER: Duration = Duration::from_millis(5);
