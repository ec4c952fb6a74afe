//! Two devices of a process, a pool, and a block of one device that the other one uses: what the figures say at each step.
//!
//! The devices are simulated. Those of the machine are opened by
//! `Process::new(|ordinal, sharing| unsafe { CudaDriver::builder().device(ordinal).sharing(sharing).open() })`.

use gapless::driver::{HoldStreams, ModelConfig, ModelDriver, WorkDriver};
use gapless::units::MIB;
use gapless::{ByteSize, StreamId};
use gapless_process::{Device, Place, Process, Request, Simulated, StreamLives};

type Driver = Simulated<ModelDriver>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let process: Process<Driver> = Process::new(|ordinal, _| {
        Ok(Simulated::model(ordinal, ModelConfig { capacity_bytes: 256 * MIB, ..ModelConfig::default() }))
    });
    process.configure("budget:128MiB")?;
    let (first, second) = (process.device(0)?, process.device(1)?);
    println!("the first device reaches the second one's memory: {}", first.reaches(second));

    // A block of the device's own memory, and one in a pool, as a captured graph would have it.
    let own = first.alloc(&Request::new(8 * MIB, StreamId::DEFAULT))?;
    const POOL: (u64, u64) = (1, 0);
    first.pools().begin(POOL)?;
    let pooled = first.alloc(&Request::new(32 * MIB, StreamId::DEFAULT))?;
    first.pools().end(POOL);
    print_figures("8 MiB of its own, 32 MiB in a pool", first);

    // A stream of the second device reads the block: its free is deferred until that is done.
    let reader = second.allocator().driver().create_stream()?;
    second.allocator().driver().hold(reader);
    process.record_stream(first, own, reader, StreamLives::Unknown)?;
    first.free(own, 8 * MIB, StreamId::DEFAULT)?;
    print_figures("freed, but in use by the second device", first);
    second.allocator().driver().resume(reader);
    second.allocator().driver().synchronize(reader)?;
    // Any call on the device notices.
    let another = first.alloc_worded(Place::Main, &Request::new(4 * MIB, StreamId::DEFAULT), |error| error)?;
    first.free(another, 4 * MIB, StreamId::DEFAULT)?;
    print_figures("the second device is done with it", first);

    // The pool ends with its last user and its last block; a trim returns what it held.
    first.free(pooled, 32 * MIB, StreamId::DEFAULT)?;
    first.pools().release(POOL);
    let trimmed = first.trim(0)?;
    println!("a trim released {}", ByteSize(trimmed.released_bytes));
    print_figures("the pool is gone", first);
    Ok(())
}

fn print_figures(what: &str, device: &Device<Driver>) {
    let sums = device.figures(None).expect("a device has figures");
    let (live, held, blocks) = (ByteSize(sums.live_bytes), ByteSize(sums.reserved_bytes), sums.live_allocations);
    println!("{what}: {live} live in {blocks} allocations, {held} held");
}
