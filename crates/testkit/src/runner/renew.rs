//! The end of streams: owners destroy them while their work is running, and handles come back.

use super::Runner;
use crate::device::Device;
use crate::oracle::keep;
use gapless::driver::WorkDriver;
use gapless::units::StreamId;

impl<D: Device> Runner<D> {
    /// Destroys a stream and creates another in its place. The default stream takes over the live blocks and pages that
    /// it used last, behind its work; the new stream is not ordered behind anything.
    pub(crate) fn renew(&mut self, number: u16) {
        let index = usize::from(number) % self.streams.len();
        if index == 0 || self.is_capturing() || self.is_displaced(StreamId::DEFAULT) {
            return;
        }
        let old = self.streams[index];
        assert!(self.order(old, StreamId::DEFAULT), "nothing is being captured");
        let current = self.current;
        for instance in 0..self.instances.len() {
            self.current = instance;
            if !self.take_over(old) {
                self.current = current;
                return;
            }
            if self.world.kept {
                self.allocator().forget_stream(old).expect("a stream can be forgotten");
            }
        }
        self.current = current;
        self.rename_in_pools(old, StreamId::DEFAULT);
        let device = self.driver.inner();
        device.abandon_stream(old).expect("the stream can be destroyed");
        let new = device.create_stream().expect("the device can create streams");
        self.streams[index] = new;
        self.renewed.insert(old);
        if self.world.kept {
            for instance in &self.instances {
                keep(instance.allocator(), new);
            }
        }
    }

    /// Records the default stream on what `old` used, as whoever destroys a stream has to. Returns `false` if an injected
    /// failure prevented it.
    fn take_over(&mut self, old: StreamId) -> bool {
        let used: Vec<_> = self.instance().oracle.live.values().filter(|block| block.uses(old)).cloned().collect();
        for block in used {
            if !self.record(block.addr, StreamId::DEFAULT) {
                return false;
            }
            let block = self.instance_mut().oracle.live.get_mut(&block.addr.0).expect("a live block");
            block.leave(old);
        }
        let former = self.instance_mut().oracle.former.iter_mut();
        former.filter(|former| former.home == Some(old)).for_each(|former| former.home = None);
        for index in 0..self.instance().ranges.len() {
            let range = &self.instance().oracle.ranges[index];
            let uses = range.users.contains(&old) || range.pages.iter().any(|page| page.last_user == old);
            if uses && !self.grow_range(index, 0, StreamId::DEFAULT) {
                return false;
            }
            let range = &mut self.instance_mut().oracle.ranges[index];
            range.users.retain(|user| *user != old);
            for page in range.pages.iter_mut().filter(|page| page.last_user == old) {
                page.last_user = StreamId::DEFAULT;
            }
        }
        true
    }
}
