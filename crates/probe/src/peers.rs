//! The cost of access for other devices.

use std::time::Duration;

use gapless::driver::cuda::CudaDriver;
use gapless::driver::{DriverResult, MemoryDriver};
use serde_json::{Map, Value, json};

use crate::{Question, WHOLE, median, micros, skipped, timed};

pub(super) const PEER_DESCRIPTOR: Question = Question {
    id: "peer_descriptor",
    text: "How many microseconds do set_access and unmap take with access for one, for two and for every device?",
    parts: WHOLE,
    experiment: |driver| {
        let devices = driver.library().device_count()?;
        let own = driver.info().ordinal;
        if devices < 2 {
            return Ok(skipped("the driver has one device"));
        }
        let mut refused = Map::new();
        let mut peers = Vec::new();
        for peer in (0..devices).filter(|&peer| peer != own) {
            // SAFETY: nothing is asked of it.
            match unsafe { driver.builder.clone().peers([peer]).open() } {
                Ok(_) => peers.push(peer),
                Err(error) => {
                    refused.insert(peer.to_string(), json!(error.to_string()));
                }
            }
        }
        let mut rows = vec![costs(driver, 0)?];
        let counts = if peers.len() > 1 { vec![1, peers.len()] } else { vec![peers.len()] };
        for count in counts.into_iter().filter(|&count| count > 0) {
            // SAFETY: the measurement keeps the traits' rules.
            match unsafe { driver.builder.clone().peers(peers[..count].iter().copied()).open() } {
                Ok(with_peers) => rows.push(costs(&with_peers, count)?),
                Err(error) => {
                    refused.insert(format!("{count} at once"), json!(error.to_string()));
                }
            }
        }
        Ok(json!({ "reachable_peers": peers, "refused": refused, "costs": rows }))
    },
};

/// The medians over a few rounds, for one chunk and for a range of them.
fn costs(driver: &CudaDriver, peers: usize) -> DriverResult<Value> {
    let page = driver.granularity();
    let mut row = Map::new();
    row.insert("peers".into(), json!(peers));
    for count in [1, 64.min(driver.memory_info()?.free / page / 2).max(1)] {
        let addr = driver.reserve(count * page, page)?;
        let chunk = driver.create(page)?;
        let (mut access, mut unmap) = (Vec::<Duration>::new(), Vec::new());
        for _ in 0..ROUNDS {
            (0..count).try_for_each(|at| driver.map(addr.offset(at * page), page, chunk))?;
            access.push(timed(|| driver.set_access(addr, count * page))?.1);
            unmap.push(timed(|| driver.unmap(addr, count * page))?.1);
        }
        driver.release(chunk)?;
        driver.address_free(addr, count * page)?;
        row.insert(format!("set_access_{count}_us"), json!(micros(median(access))));
        row.insert(format!("unmap_{count}_us"), json!(micros(median(unmap))));
    }
    Ok(Value::Object(row))
}

const ROUNDS: usize = 9;
