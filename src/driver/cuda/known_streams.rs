//! The answers of the driver about streams. For one that is being captured it reports neither the id nor the context, and the
//! question alone may end the capture; so its last answer counts there.
//!
//! Memory: an entry for each handle that was ever checked; the driver gives the same values out again.
//!
//! Threads: any. Cost: a lock and a lookup, when a stream is first seen and for requests on a captured stream that is not kept.

use crate::sync::unseen::Mutex;
use crate::units::StreamId;
use std::collections::HashMap;

/// The streams of all devices by handle.
#[derive(Debug, Default)]
pub(super) struct KnownStreams(Mutex<HashMap<u64, KnownStream>>);

/// The last answer of the driver about a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownStream {
    /// The device whose primary context it belongs to.
    pub ordinal: u32,
    /// The number that `cuStreamGetId` gave.
    pub number: u64,
}

impl KnownStreams {
    pub(super) fn note(&self, handle: StreamId, stream: KnownStream) {
        self.0.lock().insert(handle.0, stream);
    }

    /// The stream that the handle stood for when the driver told last.
    pub(super) fn find(&self, handle: StreamId) -> Option<KnownStream> {
        self.0.lock().get(&handle.0).copied()
    }
}
