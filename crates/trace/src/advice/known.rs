//! Outcomes that need no replay, since a recording with the same ops was replayed before: the ranks of one job often run the same
//! program on data of the same shape.
//!
//! Threads: any. Two threads that ask for one outcome at the same time may both replay. Memory: about 1 KB for each different
//! recording.

use crate::replay::pool_streams;
use crate::{Device, ReplayError, Trace};
use gapless::units::StreamId;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};

/// The outcomes of replays so far, for [`AdviceOptions::known`](super::AdviceOptions::known).
#[derive(Debug, Default)]
pub struct KnownReplays(Mutex<HashMap<Question, Replayed>>);

/// All that the outcome of a replay follows from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Question {
    pub ops: Digest,
    pub device: Device,
    /// The policy and the settings that matter to the ops, as text.
    pub setting: String,
    /// Whether the smallest device is wanted.
    pub searches: bool,
}

/// The outcome of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replayed {
    pub oom_op: Option<u64>,
    pub smallest_device_bytes: Option<u64>,
    pub driver_calls: u64,
    pub host_waits: u64,
}

/// What a replay does with a trace follows from this number: 128 bits, so that no two different ones are met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Digest(u64, u64);

impl KnownReplays {
    /// Returns the answer to a question, by `replay` if it is not known.
    pub(super) fn answer(
        &self,
        question: Question,
        replay: impl FnOnce() -> Result<Replayed, ReplayError>,
    ) -> Result<Replayed, ReplayError> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().get(&question).copied();
        match found {
            Some(replayed) => Ok(replayed),
            None => {
                let replayed = replay()?;
                known().insert(question, replayed);
                Ok(replayed)
            }
        }
    }
}

impl Digest {
    /// Returns the digest of what a replay reads of a trace: the ops, which stream is the default one, and the private pools.
    pub(super) fn of(trace: &Trace) -> Self {
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            salt.hash(&mut hasher);
            trace.ops().hash(&mut hasher);
            let streams: Vec<StreamId> = (0..trace.streams().len() as u64)
                // SAFETY: no driver gets them.
                .map(|number| unsafe { StreamId::from_raw(number) })
                .collect();
            pool_streams(trace, &streams).hash(&mut hasher);
            trace.streams().iter().position(|number| *number == 0).hash(&mut hasher);
            streams.len().hash(&mut hasher);
            hasher.finish()
        };
        Self(half(0), half(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::advice::{AdviceOptions, Setting, advise};
    use std::num::NonZero;

    /// Ranks of the same ops share what is known, and each gets the advice that it gets by itself: here on devices of several
    /// sizes.
    #[test]
    fn advice_is_the_same_with_what_others_know() {
        let known = KnownReplays::default();
        let blocks: String = (0..40).map(|id| format!("a {id} 4194304 0\n")).collect();
        let frees: String = (0..40).step_by(2).map(|id| format!("f {id}\n")).collect();
        for header in
            ["# capacity_bytes 178257920\n", "# capacity_bytes 200000000\n", "", "# capacity_bytes 178257920\n"]
        {
            let trace = Trace::read("t", format!("{header}{blocks}{frees}r 67108864 0\n").as_bytes()).unwrap();
            let device = Device::for_trace(&trace).unwrap();
            let advice = |known| {
                let (settings, threads) = (Setting::usual(&trace), NonZero::<usize>::MIN);
                advise(&trace, &AdviceOptions { device, settings, threads, progress: None, known }).unwrap()
            };
            assert_eq!(advice(Some(&known)), advice(None), "{header}");
        }
        // Two devices, since without a header it is as large as the first one; and all settings on each, of which the limits
        // above 64 MiB make no difference.
        let questions = known.0.into_inner().unwrap().len();
        let settings = Setting::usual(&Trace::read("t", "a 1 1 0\n".as_bytes()).unwrap()).len();
        assert_eq!(questions, 2 * (settings - 3));
    }

    fn digest(text: &str) -> Digest {
        Digest::of(&Trace::read("t", text.as_bytes()).unwrap())
    }

    #[test]
    fn what_is_replayed_alike_has_one_digest() {
        let text = "a 1 100 0\na 2 50 7\nf 1\n";
        assert_eq!(digest(text), digest("# capacity_bytes 1000000000\na 5 100 0\na 9 50 8\nf 5\n"));
        for other in [
            "a 1 100 0\na 2 50 7\nf 2\n",
            "a 1 101 0\na 2 50 7\nf 1\n",
            "a 1 100 0\na 2 50 0\nf 1\n",
            "a 1 100 7\na 2 50 0\nf 1\n",
            "a 1 100 6\na 2 50 7\nf 1\n",
            "a 1 100 0\na 2 50 7\nf 1\nm step\n",
            "a 1 100 0\na 2 50 7\nf 1\nr 5 0\n",
            "a 1 100 0\na 2 50 7\n",
        ] {
            assert_ne!(digest(text), digest(other), "{other}");
        }
    }

    #[test]
    fn what_is_known_is_not_replayed() {
        let known = KnownReplays::default();
        let question = |setting: &str| Question {
            ops: digest("a 1 100 0\n"),
            device: Device::of(1 << 30),
            setting: setting.into(),
            searches: true,
        };
        let outcome =
            |driver_calls| Replayed { oom_op: None, smallest_device_bytes: None, driver_calls, host_waits: 0 };
        assert_eq!(known.answer(question("native"), || Ok(outcome(1))).unwrap(), outcome(1));
        assert_eq!(known.answer(question("native"), || panic!("is known")).unwrap(), outcome(1));
        assert_eq!(known.answer(question("gapless"), || Ok(outcome(2))).unwrap(), outcome(2));
    }
}
