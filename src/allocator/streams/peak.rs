//! Peak of live bytes over all streams, exact as long as streams do not race, without a shared counter on the hot path.
//!
//! Every stream has a *limit*: live bytes up to which it cannot lift the sum over all streams above the peak, whatever the
//! others do within theirs. A stream that passes its own gets some of what is left to the peak and in no limit: as much as it
//! has live, so that one that grows seldom asks again, and no more, so that much is left to many streams in turn. Where that
//! does not suffice the sum is made, by a visit to the streams that have changed since it was made last. So that those
//! are known, a stream *joins in* when it first allocates or frees after a visit: its limit and its *floor* are its live
//! bytes until then. Each visit is paid for by the joining in of the streams visited.
//!
//! - I1  the limits and what is left come to the peak.
//! - I2  a stream that has not joined in has as many live bytes as were counted; that is its limit, and its floor.
//! - I3  what was counted of the streams is the sum; those that have joined in are listed, once.
//!
//! Lock order: stream states in the order of their numbers, then the ledger. Whoever has the ledger waits for no state, and only
//! tries. Cost: nothing within floor and limit; beyond, O(1) for each operation in the long run, however many streams there are.

use super::live_mark::LiveMark;
use super::state::{AllStates, Stream, StreamState, live_bytes};
use crate::stream::StreamIndex;
use crate::sync::{AtomicU64, HotMutex, Ordering};
use std::ops::DerefMut;

/// What a stream with fewer live bytes is given beyond those it needs, where so much is left.
const LEAST_GIVEN: u64 = 64 << 10;

/// The peak so far.
#[derive(Debug, Default)]
pub struct PeakMeter {
    peak: AtomicU64,
    ledger: HotMutex<Ledger>,
}

/// The counts of the last visit.
#[derive(Debug, Default)]
struct Ledger {
    /// The sum of what was counted of all streams.
    counted: u64,
    /// Bytes below the peak that are in no stream's limit.
    left: u64,
    /// The streams that have joined in.
    joined: Vec<StreamIndex>,
}

/// Whether the streams have to be visited, for which no stream may be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Visit {
    /// All is known.
    Needless,
    /// The peak may have been exceeded.
    Due,
}

impl PeakMeter {
    /// Highest sum of live bytes noted.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Notes that a stream, whose state is locked, has changed. Where it has passed its limit it gets a higher one if it can.
    #[cold]
    #[inline(never)]
    pub fn note<'s>(
        &self,
        index: StreamIndex,
        state: &mut StreamState,
        stream: impl Fn(StreamIndex) -> &'s Stream,
    ) -> Visit {
        let mut ledger = self.ledger.lock();
        if !state.mark.joined {
            state.mark.joined = true;
            state.mark.floor = 0;
            ledger.joined.push(index);
        }
        let beyond = state.live_bytes.saturating_sub(state.mark.limit);
        if beyond > ledger.left {
            return self.visit_few(&mut ledger, (index, state), stream);
        }
        if beyond > 0 {
            let got = beyond + given(ledger.left - beyond, state.live_bytes);
            ledger.left -= got;
            state.mark.limit += got;
        }
        Visit::Needless
    }

    /// Visits the streams that have joined in, where those are `actor` and one other at most: that one at once, if its state is
    /// not locked. Streams that take turns at their common peak pass on from one to the next what is left.
    fn visit_few<'s>(
        &self,
        ledger: &mut Ledger,
        actor: (StreamIndex, &mut StreamState),
        stream: impl Fn(StreamIndex) -> &'s Stream,
    ) -> Visit {
        let index = actor.0;
        let other = match ledger.joined[..] {
            [_] => {
                self.settle(ledger, &mut [actor], index);
                return Visit::Needless;
            }
            [first, second] if first == index => second,
            [first, _] => first,
            _ => return Visit::Due,
        };
        let Some(mut state) = stream(other).try_lock_hot() else { return Visit::Due };
        self.settle(ledger, &mut [actor, (other, &mut state)], index);
        Visit::Needless
    }

    /// Visits the streams that have joined in, and notes the sum. Which stream is due for it is `actor`.
    #[cold]
    pub fn visit<'s>(&self, stream: impl Fn(StreamIndex) -> &'s Stream, actor: StreamIndex) {
        loop {
            let mut joined = self.ledger.lock().joined.clone();
            joined.sort_unstable();
            let mut states: Vec<_> = joined.iter().map(|index| (*index, stream(*index).lock_hot())).collect();
            let mut ledger = self.ledger.lock();
            if ledger.joined.iter().any(|index| joined.binary_search(index).is_err()) {
                // Another one has joined in meanwhile, and without it the sum would be wrong.
                continue;
            }
            // Others may have visited some of them meanwhile.
            states.retain(|(_, state)| state.mark.joined);
            return self.settle(&mut ledger, &mut states, actor);
        }
    }

    /// The sum of all live bytes, after a visit for `actor`.
    pub fn sum<'s>(&self, stream: impl Fn(StreamIndex) -> &'s Stream, actor: StreamIndex) -> u64 {
        self.visit(stream, actor);
        self.ledger.lock().counted
    }

    /// Makes the sum, on a visit to all streams that have joined in, and notes it. Their limits fall to their live bytes; `actor`,
    /// which is likely to go on, gets some of what is left and stays joined in.
    fn settle<S: DerefMut<Target = StreamState>>(
        &self,
        ledger: &mut Ledger,
        visited: &mut [(StreamIndex, S)],
        actor: StreamIndex,
    ) {
        for (_, state) in visited.iter_mut() {
            let live = state.live_bytes;
            ledger.counted = ledger.counted - state.mark.counted + live;
            state.mark = LiveMark { limit: live, floor: live, counted: live, joined: false };
        }
        let peak = self.peak().max(ledger.counted);
        self.peak.store(peak, Ordering::Relaxed);
        // Now nobody has joined in, and all limits are what was counted.
        ledger.left = peak - ledger.counted;
        ledger.joined.clear();
        if let Some((index, state)) = visited.iter_mut().find(|(index, _)| *index == actor) {
            let got = given(ledger.left, state.live_bytes);
            ledger.left -= got;
            state.mark.limit += got;
            (state.mark.floor, state.mark.joined) = (0, true);
            ledger.joined.push(*index);
        }
    }

    /// Resets the peak to the current sum.
    pub fn reset(&self, states: &mut AllStates<'_>) {
        let mut ledger = self.ledger.lock();
        for state in states.iter_mut() {
            let live = state.live_bytes;
            state.mark = LiveMark { limit: live, floor: live, counted: live, joined: false };
        }
        let sum = live_bytes(states);
        self.peak.store(sum, Ordering::Relaxed);
        *ledger = Ledger { counted: sum, left: 0, joined: Vec::new() };
    }

    /// Asserts I1 to I3, with the states of all streams.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn check(&self, states: &AllStates<'_>) {
        let ledger = self.ledger.lock();
        let mut joined: Vec<usize> = ledger.joined.iter().map(|index| index.0 as usize).collect();
        joined.sort_unstable();
        let (mut limits, mut counted, mut have_joined) = (0, 0, Vec::new());
        for (number, state) in states.iter().enumerate() {
            let LiveMark { limit, floor, counted: of_stream, joined } = state.mark;
            limits += limit;
            counted += of_stream;
            if joined {
                have_joined.push(number);
            } else {
                let live = state.live_bytes;
                assert_eq!((limit, floor, of_stream), (live, live, live), "peak I2: stream {number} has not joined in");
            }
        }
        assert_eq!(limits + ledger.left, self.peak(), "peak I1: the limits and what is left");
        assert_eq!(counted, ledger.counted, "peak I3: the sum of what was counted");
        assert_eq!(have_joined, joined, "peak I3: the list of streams that have joined in");
    }
}

/// How many of the bytes that are left a stream gets that has so many live.
fn given(left: u64, live_bytes: u64) -> u64 {
    (left / 2).min(live_bytes.max(LEAST_GIVEN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{StreamIdentity, StreamLifetime};
    use crate::stream::Reach;
    use crate::sync::Arc;
    use crate::testing::{Break, assert_noticed};
    use crate::units::StreamId;

    /// Streams with a meter, and the number of streams visited.
    struct World {
        streams: Vec<Stream>,
        meter: PeakMeter,
        visited: std::cell::Cell<usize>,
    }

    impl World {
        fn new(streams: u32) -> Self {
            let stream = |number: u32| {
                let handle = StreamId(u64::from(number));
                let identity =
                    StreamIdentity { key: handle, number: u64::from(number), lifetime: StreamLifetime::Owner };
                Stream::new(StreamIndex(number), handle, &identity, Reach::Given, &Arc::default())
            };
            let streams = (0..streams).map(stream).collect();
            Self { streams, meter: PeakMeter::default(), visited: std::cell::Cell::new(0) }
        }

        fn states(&self) -> AllStates<'_> {
            self.streams.iter().map(Stream::lock).collect()
        }

        /// Sets a stream's live bytes, and notes that where it has to be noted.
        fn change(&self, number: u32, live_bytes: u64) -> Visit {
            let mut state = self.streams[number as usize].lock();
            state.live_bytes = live_bytes;
            let mark = state.mark;
            let noted = mark.is_passed(live_bytes) || mark.is_left(live_bytes);
            match noted {
                true => self.meter.note(StreamIndex(number), &mut state, |index| self.visited(index)),
                false => Visit::Needless,
            }
        }

        fn visited(&self, index: StreamIndex) -> &Stream {
            self.visited.set(self.visited.get() + 1);
            &self.streams[index.0 as usize]
        }

        /// Sets a stream's live bytes, as an allocation or a free does.
        fn set(&self, number: u32, live_bytes: u64) {
            if self.change(number, live_bytes) == Visit::Due {
                let index = StreamIndex(number);
                self.meter.visit(|index| self.visited(index), index);
            }
        }
    }

    #[test]
    fn what_is_left_to_the_peak_is_given_out() {
        let world = World::new(2);
        let limits = || [0, 1].map(|number: usize| world.streams[number].lock().mark.limit);
        world.set(0, 70);
        world.set(1, 30);
        assert_eq!((world.meter.peak(), limits()), (100, [70, 30]));
        world.set(0, 10);
        world.set(0, 70);
        assert_eq!((world.meter.peak(), limits()), (100, [70, 30]), "within the limit");
        world.set(0, 10);
        world.set(1, 31);
        assert_eq!((world.meter.peak(), limits()), (100, [10, 31 + 29]), "59 are left, half of them for the second");
        world.set(0, 12);
        assert_eq!((world.meter.peak(), limits()), (100, [12 + 14, 60]), "and half of the rest for the first");
        world.meter.reset(&mut world.states());
        assert_eq!((world.meter.peak(), limits()), (43, [12, 31]));
        world.meter.check(&world.states());
    }

    /// The peak is exact, and in the long run no more streams are visited than operations were made.
    #[test]
    fn the_peak_is_exact_and_visits_are_few() {
        for count in [1_u32, 2, 7, 64, 1000] {
            let world = World::new(count);
            let mut live = vec![0_u64; count as usize];
            let (mut sum, mut peak) = (0, 0);
            let mut random = 1_u64;
            let mut next = |below: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) % below
            };
            let ops = 20_000;
            for op in 0..ops {
                // Steadily up, down, at the peak, and on one stream alone.
                let number = if op / 1000 % 5 == 4 { 0 } else { next(u64::from(count)) as usize };
                let bytes = match op / 1000 % 4 {
                    0 => live[number] + next(100),
                    1 => live[number] - next(live[number] + 1),
                    _ => next(1000),
                };
                sum = sum - live[number] + bytes;
                live[number] = bytes;
                peak = peak.max(sum);
                world.set(number as u32, bytes);
                assert_eq!(world.meter.peak(), peak, "op {op} of {count} streams");
                if op % 100 == 0 {
                    world.meter.check(&world.states());
                }
            }
            let visited = world.visited.get();
            assert!(visited <= 2 * ops, "{visited} streams visited for {ops} operations on {count} streams");
        }
    }

    /// A stream that makes one new peak after the other visits nobody else.
    #[test]
    fn new_peaks_of_one_stream_concern_no_other() {
        let world = World::new(1000);
        (0..1000).for_each(|number| world.set(number, 100));
        world.visited.set(0);
        for peak in 1..=100 {
            world.set(3, 100 + peak);
            world.set(3, 0);
            assert_eq!(world.meter.peak(), 100_000 + peak);
        }
        assert!(world.visited.get() <= 2, "{} streams visited", world.visited.get());
    }

    /// Streams that take turns at their common peak find what is left with the one before them, at once.
    #[test]
    fn streams_that_take_turns_pass_on_what_is_left() {
        let world = World::new(1000);
        (0..1000).for_each(|number| world.set(number, 100));
        world.visited.set(0);
        for turn in 0..3000 {
            assert_eq!(world.change(turn % 1000, 200), Visit::Needless, "turn {turn}");
            assert_eq!((world.meter.peak(), world.change(turn % 1000, 100)), (100_100, Visit::Needless));
        }
        assert_eq!(world.visited.get(), 3000);
        world.meter.check(&world.states());
    }

    /// Below the peak every one of many streams gets what it needs, and visits nobody.
    #[test]
    fn below_the_peak_many_streams_take_turns() {
        const KIB: u64 = 1 << 10;
        let world = World::new(1000);
        world.set(0, 300_000 * KIB);
        world.set(0, 0);
        (0..1000).for_each(|number| world.set(number, KIB));
        world.visited.set(0);
        for turn in 0..3000 {
            let mark = world.streams[turn % 1000].lock().mark;
            assert!(!mark.is_passed(90 * KIB) || turn < 1000, "turn {turn}: {mark:?}");
            world.set(turn as u32 % 1000, 90 * KIB);
            world.set(turn as u32 % 1000, KIB);
        }
        assert_eq!(world.visited.get(), 0);
        world.meter.check(&world.states());
    }

    /// One that joins in while others are about to be visited is visited with them, although its own visit is still to come.
    #[test]
    fn who_joins_in_during_a_visit_counts() {
        let world = World::new(3);
        for (number, live_bytes) in [(0, 70), (1, 30), (2, 50)] {
            world.set(number, live_bytes);
        }
        let locked = world.streams[2].lock();
        assert_eq!(world.change(0, 80), Visit::Due, "the other one is locked");
        drop(locked);
        let meanwhile = std::cell::Cell::new(true);
        let stream = |index: StreamIndex| {
            if meanwhile.replace(false) {
                assert_eq!(world.change(1, 45), Visit::Due);
            }
            &world.streams[index.0 as usize]
        };
        world.meter.visit(stream, StreamIndex(0));
        assert_eq!(world.meter.peak(), 80 + 45 + 50);
        world.meter.check(&world.states());
        world.meter.visit(|index| &world.streams[index.0 as usize], StreamIndex(1));
        assert_eq!(world.meter.peak(), 80 + 45 + 50);
        world.meter.check(&world.states());
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<World>] = &[
            ("peak I1: the limits and what is left", |world| world.meter.ledger.lock().left += 1),
            ("peak I1: the limits and what is left", |world| world.streams[1].lock().mark.limit += 1),
            ("peak I2: stream 0 has not joined in", |world| world.streams[0].lock().live_bytes += 1),
            ("peak I2: stream 0 has not joined in", |world| world.streams[0].lock().mark.floor = 0),
            ("peak I3: the sum of what was counted", |world| world.meter.ledger.lock().counted += 1),
            ("peak I3: the list of streams", |world| world.meter.ledger.lock().joined.clear()),
        ];
        let world = || {
            let world = World::new(2);
            world.set(0, 70);
            world.set(1, 30);
            world
        };
        assert_noticed(world, |world| world.meter.check(&world.states()), breaks);
    }

    /// All that is left can be had without a visit, and who frees is given nothing.
    #[test]
    fn a_stream_gets_what_it_needs() {
        let world = World::new(2);
        let limits = || [0, 1].map(|number: usize| world.streams[number].lock().mark.limit);
        world.set(0, 70);
        world.set(1, 30);
        world.set(0, 10);
        world.set(1, 31);
        assert_eq!((world.meter.peak(), limits()), (100, [10, 60]), "30 are left");
        world.set(0, 5);
        assert_eq!(limits(), [10, 60]);
        world.visited.set(0);
        world.set(0, 40);
        assert_eq!((world.meter.peak(), limits(), world.visited.get()), (100, [40, 60], 0));
        world.meter.check(&world.states());
    }
}
