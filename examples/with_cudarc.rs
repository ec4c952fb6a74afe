//! gapless with `cudarc`: memory from gapless, everything else from `cudarc`, through its `DevicePtr` traits.
//!
//! `cargo run -p gapless-sim --features cudarc --example with_cudarc` on a machine with a GPU; with the simulated driver, see
//! `cargo xtask test-interop`.

use std::error::Error;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaContext, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, LaunchConfig, PushKernelArg, SyncOnDrop,
};
use cudarc::nvrtc::Ptx;
use gapless::allocator::AllocError;
use gapless::driver::cuda::CudaDriver;
use gapless::driver::pattern_byte;
use gapless::{Allocator, Buffer, StreamId};

/// Values of type `T` in memory from gapless, like `CudaSlice` for cudarc's own memory.
struct GaplessSlice<T> {
    buffer: Buffer<CudaDriver>,
    stream: Arc<CudaStream>,
    len: usize,
    values: PhantomData<T>,
}

impl<T: DeviceRepr> GaplessSlice<T> {
    /// Allocates memory for `len` values, for use on `stream`. The memory is uninitialized.
    fn new(allocator: &Allocator<CudaDriver>, stream: &Arc<CudaStream>, len: usize) -> Result<Self, AllocError> {
        // Dropping the buffer frees it. Work queued by then may still use the memory: it is reused only after that work.
        let buffer = allocator.alloc((len * size_of::<T>()) as u64, id_of(stream))?;
        Ok(Self { buffer, stream: Arc::clone(stream), len, values: PhantomData })
    }
}

impl<T> GaplessSlice<T> {
    /// Orders later work on another stream after the work queued on this one, and records the stream with gapless.
    fn share(&self, stream: &CudaStream) {
        if stream.cu_stream() != self.stream.cu_stream() {
            stream.join(&self.stream).expect("both streams are of this context");
            self.buffer.record_stream(id_of(stream)).expect("a stream of this device");
        }
    }
}

fn id_of(stream: &CudaStream) -> StreamId {
    // SAFETY: the stream exists during the calls that get it, and is not kept.
    unsafe { StreamId::from_raw(stream.cu_stream().expose_provenance() as u64) }
}

impl<T> DeviceSlice<T> for GaplessSlice<T> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T> DevicePtr<T> for GaplessSlice<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.share(stream);
        (self.buffer.addr().0, SyncOnDrop::Record(None))
    }
}

impl<T> DevicePtrMut<T> for GaplessSlice<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.share(stream);
        (self.buffer.addr().0, SyncOnDrop::Record(None))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let allocator = CudaDriver::builder().allocator()?.budget(64 << 20).build()?;

    let numbers: Vec<u32> = (0..1000).collect();
    let mut slice = GaplessSlice::<u32>::new(&allocator, &stream, numbers.len())?;
    stream.memcpy_htod(&numbers, &mut slice)?;
    let mut back = vec![0; numbers.len()];
    stream.memcpy_dtoh(&slice, &mut back)?;
    stream.synchronize()?;
    assert_eq!(back, numbers);
    drop(slice);

    let module = context.load_module(Ptx::from_src(include_str!("../kernels/fill_pattern.ptx")))?;
    let fill = module.load_function("fill_pattern")?;
    let mut bytes = GaplessSlice::<u8>::new(&allocator, &stream, 1 << 20)?;
    let (count, seed) = (bytes.len() as u64, 7_u64);
    {
        let (pointer, _guard) = bytes.device_ptr_mut(&stream);
        let mut launch = stream.launch_builder(&fill);
        launch.arg(&pointer).arg(&count).arg(&seed);
        // SAFETY: the kernel takes a pointer, a number of bytes and a seed, and writes only that many bytes.
        unsafe { launch.launch(LaunchConfig::for_num_elems(1 << 16)) }?;
    }
    let mut filled = vec![0_u8; bytes.len()];
    stream.memcpy_dtoh(&bytes, &mut filled)?;
    stream.synchronize()?;
    assert!((0..).zip(&filled).all(|(at, byte)| *byte == pattern_byte(seed, at)));
    drop(bytes);
    println!("a kernel filled {} bytes of gapless memory; {} allocations", filled.len(), allocator.stats().allocs);
    allocator.close()?;
    Ok(())
}
