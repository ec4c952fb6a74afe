//! Sleep and wake as torch_memory_saver and vLLM have them for a pool of this allocator: segment by segment, each whole.
//!
//! ```text
//!   sleep: free what has no live block (torch.cuda.empty_cache) ─▶ copy each segment to the host ─▶ unmap and release it
//!   wake:  create and map memory for each segment at its address ─▶ copy it back
//! ```
//!
//! - I1  free blocks of asleep segments are in pools of their own, and serve nothing.
//!
//! The host waits for the device before a sleep, as vLLM does. A wake that finds too little memory leaves awake what it has mapped.

use super::segments::{AsleepSegment, SegmentBytes};
use super::{CachingAllocator, CachingError};
use gapless::driver::{Driver, DriverResult};
use gapless::units::{DeviceAddr, StreamId};

impl<D: Driver> CachingAllocator<D> {
    /// Puts every segment with a live block to sleep, after all others were given back. With `keep`, their bytes are copied to the
    /// host.
    ///
    /// # Errors
    /// Returns [`CachingError::Expandable`] with expandable segments, and [`CachingError::Driver`] if the driver fails.
    pub fn sleep(&mut self, keep: bool) -> Result<SegmentBytes, CachingError> {
        if self.settings.expandable_segments {
            return Err(CachingError::Expandable);
        }
        self.empty_cache()?;
        self.waits.for_device()?;
        let lane = self.lane()?;
        let mut done = SegmentBytes::default();
        let mut segments = Vec::new();
        if let Err(error) = self.copy_all_out(keep, lane, &mut segments) {
            // Nothing is asleep. What copies may still write to is kept for good.
            if self.waits.for_stream(lane).is_ok() {
                for backup in segments.iter().filter_map(|(_, segment): &(_, AsleepSegment)| segment.backup) {
                    self.driver.host_free(backup)?;
                }
            }
            return Err(error.into());
        }
        for (addr, segment) in segments {
            self.segments.put_to_sleep(addr, segment)?;
            done.mapped_bytes += segment.bytes;
            done.copied_bytes += segment.backup.map_or(0, |_| segment.bytes);
        }
        self.move_blocks(true);
        self.figures.reserved_bytes -= done.mapped_bytes;
        Ok(done)
    }

    /// Copies the segments that are awake, where they are kept, and waits for the copies. Has all in `segments` whose backup was
    /// allocated, also where it fails.
    fn copy_all_out(
        &mut self,
        keep: bool,
        lane: StreamId,
        segments: &mut Vec<(DeviceAddr, AsleepSegment)>,
    ) -> DriverResult<()> {
        for (addr, bytes) in self.segments.awake() {
            let backup = keep.then(|| self.driver.host_alloc(bytes)).transpose()?;
            segments.push((addr, AsleepSegment { bytes, backup }));
            backup.map_or(Ok(()), |backup| self.driver.copy_out(lane, backup, 0, addr, bytes))?;
        }
        self.waits.for_stream(lane)
    }

    /// Wakes every segment that is asleep.
    ///
    /// # Errors
    /// Returns [`CachingError::OutOfMemory`] if the device has too little memory, also after what is not used was given back;
    /// some segments have memory then, and the next wake goes on and counts them. Returns [`CachingError::Driver`] if the driver
    /// fails otherwise.
    pub fn wake(&mut self) -> Result<SegmentBytes, CachingError> {
        let asleep = self.segments.asleep();
        if asleep.is_empty() {
            return Ok(SegmentBytes::default());
        }
        let mut done = std::mem::take(&mut self.half_awake);
        let mut left: u64 = asleep.iter().map(|(_, segment)| segment.bytes).sum();
        let lane = self.lane()?;
        for (addr, segment) in &asleep {
            if !self.segments.wake(*addr)? {
                self.empty_cache()?;
                if !self.segments.wake(*addr)? {
                    self.half_awake = done;
                    return Err(CachingError::OutOfMemory(self.report(left)?));
                }
            }
            self.figures.reserve(segment.bytes);
            left -= segment.bytes;
            done.mapped_bytes += segment.bytes;
            if let Some(backup) = segment.backup {
                self.driver.copy_in(lane, *addr, backup, 0, segment.bytes)?;
                self.waits.for_stream(lane)?;
                self.driver.host_free(backup)?;
                done.copied_bytes += segment.bytes;
            }
        }
        self.move_blocks(false);
        Ok(done)
    }

    /// Notes of all blocks that they are asleep, or that they are not.
    fn move_blocks(&mut self, asleep: bool) {
        for block in self.blocks.which_are(!asleep) {
            if self.blocks.is_free(block) {
                self.take_free(block);
                self.blocks.set_asleep(block, asleep);
                self.put_free(block);
                continue;
            }
            self.blocks.set_asleep(block, asleep);
            let (live, bytes) = (&mut self.figures.live_bytes, self.blocks.bytes(block));
            if asleep { *live -= bytes } else { *live += bytes }
        }
    }

    /// The stream of the copies.
    fn lane(&mut self) -> DriverResult<StreamId> {
        let lane = match self.lane {
            Some(lane) => lane,
            None => self.driver.create_copy_stream()?,
        };
        self.lane = Some(lane);
        self.waits.note(lane)?;
        Ok(lane)
    }
}
