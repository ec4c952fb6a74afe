//! Asks gapless for memory, shares a block, lets memory sleep, and gives everything back; each thing once more where it fails.
//! Fails where something fails twice or a byte is lost.

use gapless::allocator::{Backup, BuildError};
use gapless::driver::cuda::CudaDriver;
use gapless::{Allocator, DeviceAddr, StreamId};
use gapless_share::{Exporter, Importer};
use std::error::Error;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const STREAM: StreamId = StreamId::DEFAULT;

fn again<T, E: Error>(name: &str, mut step: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    step().or_else(|error| {
        println!("{name}: {error}");
        step()
    })
}

/// Blocks, each full of one byte.
struct Blocks<'a> {
    allocator: &'a Allocator<CudaDriver>,
    all: Vec<(DeviceAddr, u64, u8)>,
}

impl Blocks<'_> {
    fn add(&mut self, mib: u64, byte: u8) -> Result<(), Box<dyn Error>> {
        let block = again("alloc", || self.allocator.alloc_raw(mib * MIB, STREAM))?;
        write(block, mib * MIB, byte);
        self.all.push((block, mib * MIB, byte));
        Ok(())
    }

    fn check(&self) {
        for (block, bytes, byte) in &self.all {
            assert!(read(*block, *bytes).iter().all(|found| found == byte), "bytes are lost");
        }
    }
}

/// No kernel runs on the simulated device; its memory is the host's.
fn read(block: DeviceAddr, bytes: u64) -> &'static [u8] {
    // SAFETY: the block is mapped, and stays for as long as the bytes are looked at.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(block.0 as usize), bytes as usize) }
}

fn write(block: DeviceAddr, bytes: u64, byte: u8) {
    // SAFETY: the block is mapped, and nobody else looks at it.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(block.0 as usize).write_bytes(byte, bytes as usize) };
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let open = || CudaDriver::builder().allocator().map_err(BuildError::from)?.budget(96 * MIB).build();
    let allocator = again("open", open)?;
    let mut blocks = Blocks { allocator: &allocator, all: Vec::new() };
    for byte in 0..8 {
        blocks.add(8, byte)?;
    }
    for at in 0..4 {
        let (block, ..) = blocks.all.remove(at);
        again("free", || allocator.free(block))?;
    }
    // Four holes and what is left of the budget.
    blocks.add(56, 8)?;

    let exporter = Exporter::new();
    let importer = Importer::beside(&allocator);
    let (shared, bytes, byte) = blocks.all[0];
    let handle = again("export", || exporter.export(&allocator, shared))?;
    let opened = again("open shared", || importer.open(&handle))?;
    assert!(read(opened.addr(), bytes).iter().all(|found| *found == byte), "bytes are lost");
    drop(opened);
    importer.settle();
    exporter.end();

    again("sleep", || allocator.sleep(Backup::Pinned))?;
    again("wake", || allocator.wake(Duration::ZERO))?;
    blocks.check();
    for (block, ..) in blocks.all.drain(..) {
        again("free", || allocator.free(block))?;
    }
    again("trim", || allocator.trim(0))?;
    drop((importer, exporter));
    // It is gone whatever that says.
    if let Err(error) = allocator.close() {
        println!("close: {error}");
    }
    Ok(())
}
