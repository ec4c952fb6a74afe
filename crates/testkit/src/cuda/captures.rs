//! The program's captures of streams into graphs: in every mode, by the thread that runs the sequence or by another one.
//!
//! Work that is queued on a stream during its capture would become part of the graph, and in sequences it runs immediately. So
//! another stream, its *stand-in*, runs it meanwhile: behind what was queued on the stream before the capture, and before what is
//! queued there afterwards. The graph is empty, since replays are sequences of calls. While a blocking stream is captured,
//! nothing can be queued on the legacy default stream either, and it has a stand-in, too.
//!
//! - I1  a captured stream is captured until its owner ends it, and the capture ends with a graph: else something has broken it.

use super::program::Program;
use crate::op::CaptureMode;
use gapless::driver::cuda::CudaDriver;
use gapless::driver::{PER_THREAD_STREAM, StreamDriver, WorkDriver};
use gapless::units::StreamId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

/// The captures in progress.
#[derive(Debug, Default)]
pub(super) struct Captures {
    by_stream: HashMap<StreamId, Capture>,
    /// The stand-in of the legacy default stream, while a blocking stream is captured.
    legacy: Option<StreamId>,
    /// Those that ended without a graph.
    lost: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
struct Capture {
    stand_in: StreamId,
    mode: CaptureMode,
    by: By,
    blocking: bool,
}

/// The thread that begins and ends a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The one that runs the sequence.
    Caller,
    /// One that does nothing else.
    Another,
}

impl Captures {
    /// Begins the capture of a stream, unless it is captured already.
    pub(super) fn begin(
        &mut self,
        (driver, program): (&CudaDriver, &Arc<Program>),
        stream: StreamId,
        (mode, by): (CaptureMode, By),
        blocking: bool,
    ) {
        if self.by_stream.contains_key(&stream) {
            return;
        }
        let stand_in = driver.create_stream().expect("the device can create streams");
        order(driver, stream, stand_in);
        if blocking && self.legacy.is_none() {
            let legacy = driver.create_stream().expect("the device can create streams");
            order(driver, StreamId::DEFAULT, legacy);
            self.legacy = Some(legacy);
        }
        // Other threads have default streams of their own.
        let by = if stream == PER_THREAD_STREAM { By::Caller } else { by };
        let program = Arc::clone(program);
        on_thread(by, move || program.begin_capture(stream, mode));
        self.by_stream.insert(stream, Capture { stand_in, mode, by, blocking });
    }

    /// Ends the capture of a stream, if it is captured.
    pub(super) fn end(&mut self, (driver, program): (&CudaDriver, &Arc<Program>), stream: StreamId) {
        let Some(capture) = self.by_stream.remove(&stream) else { return };
        let program = Arc::clone(program);
        if let Err(code) = on_thread(capture.by, move || program.end_capture(stream)) {
            self.lost.push(format!("the capture of {stream:?} was lost ({code}): {capture:?}"));
        }
        let mut over = vec![(capture.stand_in, stream)];
        if self.by_stream.values().all(|other| !other.blocking) {
            over.extend(self.legacy.take().map(|legacy| (legacy, StreamId::DEFAULT)));
        }
        for (stand_in, stream) in over {
            order(driver, stand_in, stream);
            driver.abandon_stream(stand_in).expect("a stream of the device");
        }
    }

    /// Ends all captures.
    pub(super) fn end_all(&mut self, device: (&CudaDriver, &Arc<Program>)) {
        let streams: Vec<StreamId> = self.by_stream.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.end(device, stream));
    }

    /// Returns the stream that runs the work of a stream now.
    pub(super) fn place(&self, stream: StreamId) -> StreamId {
        if stream == StreamId::DEFAULT {
            return self.legacy.unwrap_or(stream);
        }
        self.by_stream.get(&stream).map_or(stream, |capture| capture.stand_in)
    }

    /// Returns whether only the thread that began the capture of a stream can end it.
    pub(super) fn is_of_caller(&self, stream: StreamId) -> bool {
        let bound = |capture: &Capture| capture.mode != CaptureMode::Relaxed || stream == PER_THREAD_STREAM;
        self.by_stream.get(&stream).is_some_and(|capture| capture.by == By::Caller && bound(capture))
    }

    /// Returns the captures that were lost since the last call.
    pub(super) fn take_lost(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lost)
    }
}

/// Orders later work of one stream behind what is queued on another.
fn order(driver: &CudaDriver, earlier: StreamId, later: StreamId) {
    let event = driver.event_create().expect("the device can create events");
    driver.event_record(event, earlier).expect("a stream of the device");
    driver.stream_wait(later, event).expect("a stream of the device");
    driver.event_destroy(event).expect("an event of the device");
}

type Job = Box<dyn FnOnce() + Send>;

fn on_thread<T: Send + 'static>(by: By, call: impl FnOnce() -> T + Send + 'static) -> T {
    static OTHER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    if by == By::Caller {
        return call();
    }
    let other = OTHER.get_or_init(|| {
        let (jobs, queue) = channel::<Job>();
        let work = move || queue.into_iter().for_each(|job| job());
        std::thread::Builder::new().name("captures".into()).spawn(work).expect("a thread can be started");
        Mutex::new(jobs)
    });
    let (done, wait) = channel();
    let job: Job = Box::new(move || {
        let _ = done.send(call());
    });
    other.lock().send(job).expect("the thread never ends");
    wait.recv().expect("the thread replies to every job")
}
