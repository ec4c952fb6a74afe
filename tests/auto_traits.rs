//! What may be sent to other threads, and used by several at a time.

use gapless::allocator::{
    AllocError, DeviceAllocator, OutOfMemory, Pin, PlainAllocator, RegisteredBlock, StreamMark, Ticket, VirtualRange,
};
use gapless::driver::ModelDriver;
use gapless::{Buffer, Builder, CudaAllocator, StreamId};

const fn anywhere<T: Send + Sync>() {}

#[test]
fn handles_and_errors_are_sent_and_shared() {
    anywhere::<CudaAllocator>();
    anywhere::<PlainAllocator>();
    anywhere::<Box<dyn DeviceAllocator>>();
    anywhere::<Builder<ModelDriver>>();
    anywhere::<Buffer<ModelDriver>>();
    anywhere::<VirtualRange<ModelDriver>>();
    anywhere::<RegisteredBlock<ModelDriver>>();
    anywhere::<(Pin<ModelDriver>, Ticket<ModelDriver>, StreamMark<ModelDriver>)>();
    anywhere::<(AllocError, OutOfMemory, StreamId)>();
}
