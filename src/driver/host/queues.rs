//! Queues: streams as threads that run one item after the other, and the events between them.
//!
//! An item runs once it is at the front, its stream is not held, and, for a wait, the point it waits for is done.
//! Positions count items from 1; a point is done when its stream's `done` has reached it.
//!
//! - I1  `done + queue.len() (+ 1 while running) == queued`;
//! - I2  a wait points at a position that was queued earlier, so waits never form a circle.
//!
//! Threads: any. One lock over all queues, not held while an item runs. Lock order: queues, then the driver's books.

use crate::driver::EventHandle;
use crate::driver::handles::FIRST_LANE;
use crate::driver::ledger::token_base;
use crate::sync::Arc;
use crate::sync::unseen::{Condvar, Mutex, MutexGuard};
use crate::units::StreamId;
use std::collections::{HashMap, VecDeque};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Runs the items of a queue on its thread: `W` is the work that touches memory.
pub(super) trait Run<W>: Send + Sync + 'static {
    fn run(&self, stream: StreamId, work: W);
}

#[derive(Debug)]
pub(super) struct Queues<W> {
    state: Mutex<State<W>>,
    /// Some item of some stream is done.
    progress: Condvar,
}

#[derive(Debug)]
struct State<W> {
    lanes: HashMap<StreamId, Lane<W>>,
    next_stream: u64,
    events: HashMap<EventHandle, Option<Point>>,
    event_base: u64,
    events_made: u64,
    host_waits: u64,
}

/// A place in a stream. It is done once `position` items are done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    stream: StreamId,
    position: u64,
}

#[derive(Debug)]
struct Lane<W> {
    queue: VecDeque<Step<W>>,
    queued: u64,
    done: u64,
    /// Items up to this position run although the stream is held.
    let_through: u64,
    /// Up to this position, what the items wait for was let through as well.
    forced: u64,
    held: bool,
    closing: bool,
    /// The queue, the hold or `closing` has changed.
    wake: Arc<Condvar>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Step<W> {
    Marker,
    Work(W),
    Delay(Duration),
    Wait(Point),
}

/// The next step of a stream's thread.
enum Next<W> {
    Run(Step<W>),
    /// The queue is empty or held.
    Sleep,
    /// The front waits for another stream.
    Blocked,
    Close,
}

impl<W: Send + 'static> Queues<W> {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(State {
                lanes: HashMap::new(),
                next_stream: StreamId::DEFAULT.0,
                events: HashMap::new(),
                event_base: token_base(),
                events_made: 0,
                host_waits: 0,
            }),
            progress: Condvar::new(),
        }
    }

    /// Creates a stream whose thread passes work to `runner`. The first one is the default stream.
    pub fn create_stream(self: &Arc<Self>, runner: Arc<impl Run<W>>) -> std::io::Result<StreamId> {
        let mut state = self.state.lock();
        let stream = StreamId(state.next_stream);
        self.start(&mut state, stream, runner)?;
        state.next_stream = (stream.0 + 1).max(FIRST_LANE);
        Ok(stream)
    }

    /// Creates the stream of this number, unless there is one.
    pub fn add_stream(self: &Arc<Self>, stream: StreamId, runner: &Arc<impl Run<W>>) -> std::io::Result<()> {
        let mut state = self.state.lock();
        if state.lanes.contains_key(&stream) { Ok(()) } else { self.start(&mut state, stream, Arc::clone(runner)) }
    }

    fn start(
        self: &Arc<Self>,
        state: &mut State<W>,
        stream: StreamId,
        runner: Arc<impl Run<W>>,
    ) -> std::io::Result<()> {
        let wake = Arc::new(Condvar::new());
        let (queues, own_wake) = (Arc::clone(self), Arc::clone(&wake));
        let thread = std::thread::Builder::new()
            .name(format!("host {stream:?}"))
            .spawn(move || queues.serve(stream, &own_wake, &*runner))?;
        let lane = Lane {
            queue: VecDeque::new(),
            queued: 0,
            done: 0,
            let_through: 0,
            forced: 0,
            held: false,
            closing: false,
            wake,
            thread: Some(thread),
        };
        state.lanes.insert(stream, lane);
        Ok(())
    }

    pub fn event_count(&self) -> usize {
        self.state.lock().events.len()
    }

    pub fn host_waits(&self) -> u64 {
        self.state.lock().host_waits
    }

    /// Waits for all work of `stream`, then ends it. Returns false when there is no such stream.
    pub fn destroy_stream(&self, stream: StreamId) -> bool {
        let mut state = self.state.lock();
        let Some(end) = state.end(stream) else { return false };
        self.wait_on_host(&mut state, end);
        let Some(lane) = state.lane(stream) else { return false };
        lane.closing = true;
        lane.wake.notify_all();
        let thread = lane.thread.take();
        drop(state);
        if let Some(thread) = thread {
            // A thread that panicked has reported it; there is nothing more to end.
            let _ = thread.join();
        }
        self.state.lock().lanes.remove(&stream);
        self.progress.notify_all();
        true
    }

    /// Ends every stream after the item that it is running; what is queued is discarded.
    pub fn close(&self) {
        let mut state = self.state.lock();
        let mut threads = Vec::new();
        for lane in state.lanes.values_mut() {
            lane.closing = true;
            lane.wake.notify_all();
            threads.extend(lane.thread.take());
        }
        self.progress.notify_all();
        drop(state);
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Queues work that `admit` makes, called with the queues locked, when the stream exists.
    pub fn work<E>(&self, stream: StreamId, admit: impl FnOnce() -> Result<W, E>) -> Result<(), PushError<E>> {
        let mut state = self.state.lock();
        state.lane(stream).ok_or(PushError::NoStream)?;
        let work = admit().map_err(PushError::Refused)?;
        state.push(stream, Step::Work(work));
        Ok(())
    }

    /// Returns false when there is no such stream.
    pub fn delay(&self, stream: StreamId, duration: Duration) -> bool {
        self.state.lock().push(stream, Step::Delay(duration)).is_some()
    }

    /// Returns false when there is no such stream.
    pub fn synchronize(&self, stream: StreamId) -> bool {
        let mut state = self.state.lock();
        let Some(end) = state.end(stream) else { return false };
        self.wait_on_host(&mut state, end);
        true
    }

    /// Waits for what is queued on all streams now.
    pub fn synchronize_all(&self) {
        let mut state = self.state.lock();
        let streams: Vec<StreamId> = state.lanes.keys().copied().collect();
        let ends: Vec<Point> = streams.into_iter().filter_map(|stream| state.end(stream)).collect();
        for end in ends {
            self.wait_on_host(&mut state, end);
        }
    }

    /// See [`HoldStreams`](crate::driver::HoldStreams).
    pub fn hold(&self, stream: StreamId) {
        self.state.lock().existing(stream).held = true;
    }

    pub fn resume(&self, stream: StreamId) {
        let mut state = self.state.lock();
        let lane = state.existing(stream);
        lane.held = false;
        lane.wake.notify_all();
    }

    pub fn complete(&self, stream: StreamId) {
        let mut state = self.state.lock();
        let lane = state.existing(stream);
        let position = lane.queued;
        lane.let_through = position;
        lane.wake.notify_all();
        let end = Point { stream, position };
        while !state.is_done(end) && !state.is_blocked(stream) {
            self.progress.wait(&mut state);
        }
    }

    pub fn create_event(&self) -> EventHandle {
        let mut state = self.state.lock();
        let event = EventHandle(state.event_base + state.events_made);
        state.events_made += 1;
        state.events.insert(event, None);
        event
    }

    /// Returns false when there is no such event.
    pub fn destroy_event(&self, event: EventHandle) -> bool {
        self.state.lock().events.remove(&event).is_some()
    }

    pub fn record(&self, event: EventHandle, stream: StreamId) -> Result<(), PushError<NoEvent>> {
        let mut state = self.state.lock();
        state.recording(event).map_err(PushError::Refused)?;
        let point = state.push(stream, Step::Marker).ok_or(PushError::NoStream)?;
        state.events.insert(event, Some(point));
        Ok(())
    }

    pub fn query(&self, event: EventHandle) -> Result<bool, NoEvent> {
        let state = self.state.lock();
        Ok(state.recording(event)?.is_none_or(|point| state.is_done(point)))
    }

    pub fn synchronize_event(&self, event: EventHandle) -> Result<(), NoEvent> {
        let mut state = self.state.lock();
        if let Some(point) = state.recording(event)? {
            self.wait_on_host(&mut state, point);
        }
        Ok(())
    }

    pub fn wait(&self, stream: StreamId, event: EventHandle) -> Result<(), PushError<NoEvent>> {
        let mut state = self.state.lock();
        state.lane(stream).ok_or(PushError::NoStream)?;
        if let Some(point) = state.recording(event).map_err(PushError::Refused)?
            && !state.is_done(point)
        {
            state.push(stream, Step::Wait(point));
        }
        Ok(())
    }

    fn wait_on_host(&self, state: &mut MutexGuard<'_, State<W>>, point: Point) {
        if state.is_done(point) {
            return;
        }
        state.host_waits += 1;
        state.let_through(point);
        while !state.is_done(point) {
            self.progress.wait(state);
        }
    }

    /// The thread of one stream.
    fn serve(&self, stream: StreamId, wake: &Condvar, runner: &dyn Run<W>) {
        let mut state = self.state.lock();
        loop {
            match state.next(stream) {
                Next::Run(step) => {
                    self.step(&mut state, stream, step, wake, runner);
                    state.existing(stream).done += 1;
                    self.progress.notify_all();
                }
                Next::Sleep => wake.wait(&mut state),
                Next::Blocked => self.progress.wait(&mut state),
                Next::Close => return,
            }
        }
    }

    fn step(
        &self,
        state: &mut MutexGuard<'_, State<W>>,
        stream: StreamId,
        step: Step<W>,
        wake: &Condvar,
        runner: &dyn Run<W>,
    ) {
        match step {
            Step::Work(work) => MutexGuard::unlocked(state, || runner.run(stream, work)),
            Step::Delay(duration) => {
                let end = Instant::now() + duration;
                while !state.existing(stream).closing && !wake.wait_until(state, end).timed_out() {}
            }
            Step::Marker | Step::Wait(_) => {}
        }
    }
}

impl<W> State<W> {
    fn next(&mut self, stream: StreamId) -> Next<W> {
        let Some(lane) = self.lanes.get(&stream).filter(|lane| !lane.closing) else { return Next::Close };
        if lane.held && lane.done >= lane.let_through {
            return Next::Sleep;
        }
        if self.is_blocked(stream) {
            return Next::Blocked;
        }
        self.existing(stream).queue.pop_front().map_or(Next::Sleep, Next::Run)
    }

    /// Returns true when the front of the queue waits for another stream.
    fn is_blocked(&self, stream: StreamId) -> bool {
        let front = self.lanes.get(&stream).and_then(|lane| lane.queue.front());
        matches!(front, Some(&Step::Wait(point)) if !self.is_done(point))
    }

    fn is_done(&self, point: Point) -> bool {
        self.lanes.get(&point.stream).is_none_or(|lane| lane.done >= point.position)
    }

    /// Lets everything up to `point` run, and what it waits for, held or not.
    fn let_through(&mut self, point: Point) {
        let Some(lane) = self.lanes.get_mut(&point.stream) else { return };
        if lane.forced >= point.position {
            return;
        }
        lane.forced = point.position;
        lane.let_through = lane.let_through.max(point.position);
        lane.wake.notify_all();
        let ahead =
            usize::try_from(lane.queued - point.position).map_or(0, |behind| lane.queue.len().saturating_sub(behind));
        let waits: Vec<Point> = lane
            .queue
            .iter()
            .take(ahead)
            .filter_map(|step| match step {
                Step::Wait(target) => Some(*target),
                _ => None,
            })
            .collect();
        // The last first: it lets the earlier ones of its stream through as well.
        for target in waits.into_iter().rev() {
            self.let_through(target);
        }
    }

    fn push(&mut self, stream: StreamId, step: Step<W>) -> Option<Point> {
        let lane = self.lane(stream)?;
        lane.queue.push_back(step);
        lane.queued += 1;
        lane.wake.notify_all();
        Some(Point { stream, position: lane.queued })
    }

    fn end(&mut self, stream: StreamId) -> Option<Point> {
        Some(Point { stream, position: self.lane(stream)?.queued })
    }

    fn recording(&self, event: EventHandle) -> Result<Option<Point>, NoEvent> {
        self.events.get(&event).copied().ok_or(NoEvent)
    }

    /// Returns the stream, unless it is unknown or about to end.
    fn lane(&mut self, stream: StreamId) -> Option<&mut Lane<W>> {
        self.lanes.get_mut(&stream).filter(|lane| !lane.closing)
    }

    /// # Panics
    /// When there is no such stream.
    fn existing(&mut self, stream: StreamId) -> &mut Lane<W> {
        self.lanes.get_mut(&stream).unwrap_or_else(|| panic!("there is no {stream:?}"))
    }
}

/// There is no such event.
#[derive(Debug)]
pub(super) struct NoEvent;

/// Why nothing was queued.
#[derive(Debug)]
pub(super) enum PushError<E> {
    NoStream,
    Refused(E),
}
