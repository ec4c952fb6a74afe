//! Calls that a caller must not make: the runner makes them, and expects the right error and no change.

use super::Runner;
use crate::device::{Device, stream_of};
use crate::op::Misuse;
use gapless::allocator::{AddressFacts, AllocError, FreeError, StreamError};
use gapless::units::{DeviceAddr, StreamId};

/// A stream that exists on no device.
const NO_STREAM: StreamId = stream_of(u64::MAX - 7);

impl<D: Device> Runner<D> {
    pub(crate) fn misuse(&mut self, misuse: Misuse, number: u16) {
        let block = self.instance().oracle.block(number).cloned();
        let live = self.instance().oracle.live.len();
        match (misuse, block) {
            (Misuse::FreeInside, Some(block)) if block.bytes > 512 => {
                let error = self.allocator().free(block.addr.offset(512)).expect_err("an address inside a block");
                self.instance_mut().oracle.refused_frees += 1;
                let FreeError::NotAllocated { facts: AddressFacts::Inside { start, .. }, .. } = error else {
                    panic!("an interior address: {error}");
                };
                assert_eq!(start, block.addr);
            }
            (Misuse::FreeTwice | Misuse::RecordFreed, _) => {
                let Some(addr) =
                    self.instance().oracle.last_freed.filter(|addr| !self.instance().oracle.live.contains_key(addr))
                else {
                    return;
                };
                let result = match misuse {
                    Misuse::FreeTwice => self.allocator().free(DeviceAddr(addr)),
                    _ => self.allocator().record_stream(DeviceAddr(addr), self.stream(0)),
                };
                match result.expect_err("freed before") {
                    FreeError::NotAllocated { .. } => self.instance_mut().oracle.refused_frees += 1,
                    FreeError::Stream(StreamError::Foreign { cause, .. }) => {
                        self.expect_refused(self.stream(0), &cause);
                    }
                    other => panic!("freed before: {other}"),
                }
            }
            (Misuse::FreeForeign, _) => {
                let error = self.allocator().free(DeviceAddr(512)).expect_err("an address outside all regions");
                self.instance_mut().oracle.refused_frees += 1;
                assert!(matches!(error, FreeError::NotAllocated { facts: AddressFacts::Foreign, .. }), "{error}");
            }
            (Misuse::RecordForeignStream, Some(block)) => {
                let error = self.allocator().record_stream(block.addr, NO_STREAM).expect_err("no such stream");
                assert!(matches!(error, FreeError::Stream(StreamError::Foreign { .. })), "{error}");
            }
            (Misuse::AllocForeignStream, _) => {
                let error = self.allocator().alloc_raw(1000, NO_STREAM).expect_err("no such stream");
                assert!(matches!(error, AllocError::Stream(StreamError::Foreign { .. })), "{error}");
            }
            (Misuse::AllocTooMuch, _) => {
                for (bytes, alignment) in [(u64::MAX, 512), (u64::MAX - 600, 1), (1 << 62, 1 << 62)] {
                    let error =
                        self.allocator().alloc_raw_aligned(bytes, alignment, self.stream(0)).expect_err("too much");
                    assert!(matches!(error, AllocError::TooLarge { .. }), "{error}");
                }
            }
            (Misuse::AllocOddAlignment, _) => {
                let error = self.allocator().alloc_raw_aligned(512, 3, self.stream(0)).expect_err("not a power of two");
                assert!(matches!(error, AllocError::Alignment { alignment: 3 }), "{error}");
            }
            (Misuse::FreeInside | Misuse::RecordForeignStream, _) => {}
        }
        assert_eq!(self.instance().oracle.live.len(), live);
    }
}
