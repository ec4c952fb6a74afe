//! Memory by tags: a policy for each, on one device.
//!
//! A tag names a pool of its own, in PyTorch as in `gapless-process`: free memory of one tag serves the others only after it has
//! gone back to the device, which is done before a request fails. Memory of another process (`PROCESS/TAG`) is a policy of its own
//! as well, and nobody gives back anything for the request of another process.

use crate::held::HeldBlock;
use crate::history::Refusal;
use crate::policy::{PhaseBytes, Policy, PolicyError, PolicyStats};
use crate::{Content, Tags, Trace};
use gapless::units::{DeviceAddr, StreamId};

/// The policies of a trace's tags. The first one has the memory without a tag.
pub(crate) struct Tagged<P> {
    of_tag: Vec<P>,
    /// The number of the process of each.
    processes: Vec<usize>,
    /// Peak of what all hold together.
    peak_bytes: u64,
}

impl<P: Policy> Tagged<P> {
    /// Creates a policy for each tag of a trace.
    pub fn new<E>(trace: &Trace, build: impl FnMut() -> Result<P, E>) -> Result<Self, E> {
        let of_tag = std::iter::repeat_with(build).take(1 + trace.tags().len()).collect::<Result<_, _>>()?;
        let names: Vec<&str> = std::iter::once("").chain(trace.tags()).map(process_of).collect();
        let number = |name| names.iter().position(|other| other == name).expect("a name is among the names");
        Ok(Self { of_tag, processes: names.iter().map(number).collect(), peak_bytes: 0 })
    }

    /// Does what [`Policy::keep_streams`] does.
    pub fn keep_streams(&mut self, streams: &[StreamId]) -> Result<(), PolicyError> {
        self.of_tag.iter_mut().try_for_each(|policy| policy.keep_streams(streams))
    }

    /// Allocates `bytes` bytes of a tag.
    pub fn alloc(&mut self, bytes: u64, stream: StreamId, tag: u8) -> Result<DeviceAddr, PolicyError> {
        let addr = self.with_room(usize::from(tag), |policy| policy.alloc(bytes, stream))?;
        self.note_peak();
        Ok(addr)
    }

    /// Asks for memory that the recorded allocator refused; see [`Policy::ask`].
    pub fn ask(&mut self, bytes: u64, stream: StreamId, refusal: Refusal) -> Result<(), PolicyError> {
        self.with_room(0, |policy| policy.ask(bytes, stream, refusal))
    }

    /// Frees a block of a tag.
    pub fn free(&mut self, addr: DeviceAddr, tag: u8) -> Result<(), PolicyError> {
        self.of_tag[usize::from(tag)].free(addr)
    }

    /// Puts what is live of tags to sleep.
    pub fn sleep(&mut self, tags: Tags, content: Content) -> Result<PhaseBytes, PolicyError> {
        let range = tags.within(self.of_tag.len());
        self.of_tag[range].iter_mut().try_fold(PhaseBytes::default(), |sum, policy| Ok(sum + policy.sleep(content)?))
    }

    /// Wakes what is asleep of tags.
    pub fn wake(&mut self, tags: Tags) -> Result<PhaseBytes, PolicyError> {
        let woken = tags
            .within(self.of_tag.len())
            .try_fold(PhaseBytes::default(), |sum, tag| self.with_room(tag, P::wake).map(|woken| sum + woken));
        self.note_peak();
        woken
    }

    /// Does what [`Policy::end_step`] does.
    pub fn end_step(&mut self) -> Result<(), PolicyError> {
        self.of_tag.iter_mut().try_for_each(P::end_step)
    }

    /// Returns the statistics of all together.
    pub fn stats(&self) -> PolicyStats {
        if let [only] = &self.of_tag[..] {
            return only.stats();
        }
        let host_waits = self.of_tag.iter().map(|policy| policy.stats().host_waits).sum();
        PolicyStats { peak_reserved_bytes: self.peak_bytes, host_waits }
    }

    /// Returns all blocks with memory behind them, in any order.
    pub fn held_blocks(&self) -> Vec<HeldBlock> {
        self.of_tag.iter().flat_map(P::held_blocks).collect()
    }

    /// Does what [`Policy::abandon`] does.
    pub fn abandon(self) {
        self.of_tag.into_iter().for_each(P::abandon);
    }

    /// Returns the policies of the tags, the first one for the memory without a tag.
    pub fn policies(&self) -> &[P] {
        &self.of_tag
    }

    /// Makes an attempt, and a second one after all tags of the process have given back what they do not use.
    fn with_room<T>(
        &mut self,
        tag: usize,
        mut attempt: impl FnMut(&mut P) -> Result<T, PolicyError>,
    ) -> Result<T, PolicyError> {
        match attempt(&mut self.of_tag[tag]) {
            Err(PolicyError::OutOfMemory { .. }) if self.of_tag.len() > 1 => {
                let process = self.processes[tag];
                let all = self.of_tag.iter_mut().zip(&self.processes);
                all.filter(|(_, of)| **of == process).try_for_each(|(policy, _)| policy.give_back())?;
                attempt(&mut self.of_tag[tag])
            }
            result => result,
        }
    }

    fn note_peak(&mut self) {
        if self.of_tag.len() > 1 {
            self.peak_bytes = self.peak_bytes.max(self.of_tag.iter().map(P::reserved_bytes).sum());
        }
    }
}

/// The process of a tag: nothing for that of the program.
fn process_of(tag: &str) -> &str {
    tag.split_once('/').map_or("", |(process, _)| process)
}
