//! Registered and pinned blocks through the C interface.

mod gpu;
#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless_capi::*;
use gpu::{Gpu, with_devices};
use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;

const MIB: u64 = 1 << 20;
const MAIN: *mut CUstream_st = null_mut();

fn alloc(bytes: u64) -> Result<*mut c_void, gapless_status> {
    let mut pointer = null_mut();
    // SAFETY: the out-parameter is valid.
    match unsafe { gapless_device_alloc_registered(0, bytes, MAIN, &raw mut pointer) } {
        GAPLESS_OK => Ok(pointer),
        status => Err(status),
    }
}

#[test]
fn registered_blocks_come_and_go() {
    with_devices("registered_blocks_come_and_go", &[], || {
        let gpu = Gpu::open(0);
        let (block, other) = (alloc(5 * MIB).unwrap(), alloc(1).unwrap());
        assert_eq!((block.addr() as u64 % (2 * MIB), other.addr() as u64 % (2 * MIB)), (0, 0));
        gpu.fill(MAIN, block, 7, 6 * MIB as usize);
        assert_eq!(gpu.read(MAIN, block, 16), vec![7; 16]);
        let mut handle = null_mut();
        // SAFETY: zeroes are valid in every field.
        let mut stats: gapless_stats = unsafe { std::mem::zeroed() };
        stats.size = size_of::<gapless_stats>() as u64;
        // SAFETY: the out-parameters are valid.
        unsafe {
            assert_eq!(gapless_device_allocator(0, &raw mut handle), GAPLESS_OK);
        }
        // SAFETY: as above.
        assert_eq!(unsafe { gapless_get_stats(handle, &raw mut stats) }, GAPLESS_OK);
        assert_eq!(stats.figures.registered_bytes, 8 * MIB);
        let stream = gpu.stream();
        assert_eq!(gapless_device_record_registered(0, block, stream), GAPLESS_OK);
        assert_eq!(gapless_device_free(0, block, 0), GAPLESS_ERROR_NOT_ALLOCATED, "has a free of its own");
        gpu.delay(stream, 5);
        gpu.fill(stream, block, 8, 64);
        assert_eq!(gapless_device_free_registered(0, block), GAPLESS_OK);
        assert_eq!(gapless_device_free_registered(0, block), GAPLESS_ERROR_NOT_ALLOCATED);
        assert_eq!(gapless_device_record_registered(0, block, stream), GAPLESS_ERROR_NOT_ALLOCATED);
        assert_eq!(gapless_device_free_registered(0, null_mut()), GAPLESS_OK);
        assert_eq!(gapless_device_free_registered(0, other), GAPLESS_OK);
        assert_eq!(alloc(1024 * MIB), Err(GAPLESS_ERROR_OUT_OF_MEMORY));
        // SAFETY: null is refused.
        let status = unsafe { gapless_device_alloc_registered(0, 1, MAIN, null_mut()) };
        assert_eq!(status, GAPLESS_ERROR_INVALID_ARGUMENT);
    });
}

#[test]
fn a_pinned_block_is_not_handed_out_again() {
    with_devices("a_pinned_block_is_not_handed_out_again", &[], || {
        let alloc = |bytes| {
            let mut pointer = null_mut();
            // SAFETY: the out-parameter is valid.
            (unsafe { gapless_device_alloc(0, bytes, MAIN, &raw mut pointer) }, pointer)
        };
        let (_, block) = alloc(200 * MIB);
        assert_eq!(gapless_device_unpin(0, block), GAPLESS_ERROR_NOT_ALLOCATED);
        for _ in 0..2 {
            assert_eq!(gapless_device_pin(0, block), GAPLESS_OK);
        }
        assert_eq!(gapless_device_free(0, block, 0), GAPLESS_OK);
        assert_eq!(gapless_device_pin(0, block), GAPLESS_ERROR_NOT_ALLOCATED, "freed");
        for _ in 0..2 {
            assert_eq!(alloc(100 * MIB).0, GAPLESS_ERROR_OUT_OF_MEMORY);
            assert_eq!(gapless_device_unpin(0, block), GAPLESS_OK);
        }
        assert_eq!(gapless_device_unpin(0, block), GAPLESS_ERROR_NOT_ALLOCATED);
        assert_eq!(alloc(200 * MIB), (GAPLESS_OK, block));
        assert_eq!(gapless_device_pin(0, null_mut()), GAPLESS_ERROR_NOT_ALLOCATED);
    });
}

fn dma_buf(pointer: *mut c_void) -> (gapless_status, i32) {
    let mut descriptor = -7;
    // SAFETY: the out-parameter is valid.
    let status = unsafe { gapless_device_registered_dma_buf(0, pointer, &raw mut descriptor) };
    (status, descriptor)
}

#[test]
fn a_dma_buf_of_a_registered_block() {
    with_devices("a_dma_buf_of_a_registered_block", &[], || {
        let gpu = Gpu::open(0);
        let block = alloc(3 * MIB).unwrap();
        gpu.fill(MAIN, block, 7, 4 * MIB as usize);
        assert_eq!(gpu.read(MAIN, block, 1), [7], "the work is done");
        let (status, descriptor) = dma_buf(block);
        assert_eq!(status, GAPLESS_OK);
        // SAFETY: it was opened for the caller.
        let file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        assert_eq!(file.metadata().unwrap().len(), 4 * MIB);
        file.write_all_at(&[9; 16], 2 * MIB).unwrap();
        assert_eq!(gpu.read(MAIN, block.wrapping_byte_add(2 * MIB as usize), 17)[15..], [9, 7]);
        // SAFETY: null is refused.
        let refused = unsafe { gapless_device_registered_dma_buf(0, block, null_mut()) };
        assert_eq!(refused, GAPLESS_ERROR_INVALID_ARGUMENT);
        assert_eq!(gapless_device_free_registered(0, block), GAPLESS_OK);
        assert_eq!(dma_buf(block), (GAPLESS_ERROR_NOT_ALLOCATED, -7));
    });
}

#[test]
fn a_device_without_dma_bufs() {
    with_devices("a_device_without_dma_bufs", &[("GAPLESS_SIM_RDMA", "no")], || {
        let _gpu = Gpu::open(0);
        let block = alloc(3 * MIB).unwrap();
        assert_eq!(dma_buf(block), (GAPLESS_ERROR_DRIVER, -7));
        assert_eq!(gapless_device_free_registered(0, block), GAPLESS_OK);
    });
}
