//! Listeners: notified of every mapping once it can be used, and again before it is removed.
//!
//! - I1  between `on_map` and `before_unmap` an address is mapped to the same memory.
//! - I2  a mapping whose removal a listener refuses is not removed: the caller gets an error, as if the driver had refused.
//!
//! Threads: listeners may be added and removed while others are being notified. Cost without listeners: a load of an atomic
//! for each driver sequence.

use crate::driver::{DriverCall, DriverError, DriverErrorKind, MemoryDriver};
use crate::segment::Mapping;
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering, RwLock, RwLockReadGuard};
use crate::units::DeviceAddr;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Memory that has been mapped, or is about to be unmapped: one mapping of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MappedRange {
    /// The number of the device in this process.
    pub device: u32,
    /// Address of the first byte.
    pub addr: DeviceAddr,
    /// Size in bytes.
    pub bytes: u64,
}

/// Why a listener refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(String);

impl Refusal {
    /// A refusal with its reason, in words for whoever reads the error of the call that fails.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// A callback asked for something that may wait for the call which the callback is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a map listener cannot use an allocator, or change a list of listeners, while it is being notified")]
#[non_exhaustive]
pub struct InListener;

/// Is notified of what an allocator maps and unmaps: for a library that registers memory, for example.
///
/// Both methods run on the thread that maps or unmaps, in the middle of that. They may take their time; other threads get
/// cached memory meanwhile, and wait for anything else. They must not allocate, nor wait for a thread that does:
/// what needs the driver is refused with [`AllocError::InListener`](crate::allocator::AllocError::InListener), and a snapshot
/// panics.
///
/// Between the two calls for a range it is mapped to the same memory. That memory may be free, or used through another
/// address: an allocator maps free memory a second time where it is needed, and removes the first mapping later. What
/// has to stay in use at its address is live.
///
/// A method that refuses, or panics, counts as a driver call that failed: whatever made it is undone, or goes another way,
/// or fails with an error of the kind [`DriverErrorKind::Refused`]. Listeners that had agreed before are then notified
/// of the opposite. What was refused at the end of an allocator stays mapped for good.
pub trait MapListener: Send + Sync + 'static {
    /// Called after `range` was mapped, with access, before any of it is handed out.
    ///
    /// # Errors
    /// [`Refusal`]: the mapping is removed again, and the request for it fails. Ignored when the mapping was there before and
    /// stays.
    fn on_map(&self, range: MappedRange) -> Result<(), Refusal>;

    /// Called before `range`, which was mapped in this size, is unmapped. All work in it has completed. It may be a range that was
    /// mapped before the listener was added, or one whose mapping failed and could not be undone at once.
    ///
    /// # Errors
    /// [`Refusal`]: it is not unmapped.
    fn before_unmap(&self, range: MappedRange) -> Result<(), Refusal>;
}

/// Names a listener in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u64);

/// Listeners, in the order in which they are notified.
type List = Vec<(ListenerId, Arc<dyn MapListener>)>;

/// A list of listeners, which several allocators may share.
#[derive(Default)]
pub struct MapListeners {
    /// Whether there are any: all that is read where there is none.
    any: AtomicBool,
    last_id: AtomicU64,
    list: RwLock<List>,
}

impl fmt::Debug for MapListeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapListeners").field("any", &self.any).finish_non_exhaustive()
    }
}

impl MapListeners {
    /// Adds a listener, behind those that are there. It is notified of what is mapped from now on, and before what is
    /// mapped already is unmapped; a [snapshot](crate::Allocator::snapshot) lists that.
    ///
    /// # Errors
    /// [`InListener`].
    pub fn add(&self, listener: Arc<dyn MapListener>) -> Result<ListenerId, InListener> {
        Self::expect_outside()?;
        let mut list = self.list.write();
        let id = ListenerId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1);
        list.push((id, listener));
        self.any.store(true, Ordering::Release);
        Ok(id)
    }

    /// Removes a listener. Returns once no call of it is in progress any more, and false where there is none of that name.
    ///
    /// # Errors
    /// [`InListener`].
    pub fn remove(&self, id: ListenerId) -> Result<bool, InListener> {
        Self::expect_outside()?;
        let mut list = self.list.write();
        let before = list.len();
        let removed: Vec<_> = list.extract_if(.., |(other, _)| *other == id).collect();
        self.any.store(!list.is_empty(), Ordering::Release);
        let found = list.len() < before;
        drop(list);
        // Its own end may take a while, too.
        drop(removed);
        Ok(found)
    }

    /// Refuses what may wait for an allocator, on a thread that one is in the middle of, in a callback.
    ///
    /// # Errors
    /// [`InListener`].
    pub fn expect_outside() -> Result<(), InListener> {
        if INSIDE.get() { Err(InListener) } else { Ok(()) }
    }

    /// The listeners for one driver sequence, which sees the same ones from its beginning to its end.
    pub(crate) fn audience(&self, driver: &impl MemoryDriver) -> Audience<'_> {
        // Pairs with `add`: a listener that was added before a sequence began is notified by it.
        let list = self.any.load(Ordering::Acquire).then(|| self.list.read());
        Audience { list, device: driver.ordinal() }
    }
}

/// The listeners for one driver sequence.
pub(crate) struct Audience<'a> {
    list: Option<RwLockReadGuard<'a, List>>,
    device: u32,
}

/// A listener has refused.
#[derive(Debug)]
pub(crate) struct Refused {
    pub error: DriverError,
    /// The number of listeners that had agreed before.
    pub agreed: usize,
}

impl Audience<'_> {
    /// Notifies that something is mapped.
    pub fn on_map(&self, mapping: &Mapping) -> Result<(), Refused> {
        self.notify(DriverCall::Map, usize::MAX, mapping, |listener, range| listener.on_map(range))
    }

    /// Notifies that something is about to be unmapped. Where one refuses, those before it are notified that it stays.
    pub fn before_unmap(&self, mapping: &Mapping) -> Result<(), DriverError> {
        self.withdraw(mapping, usize::MAX)
    }

    /// As [`before_unmap`](Self::before_unmap), for the first `agreed` listeners.
    pub fn withdraw(&self, mapping: &Mapping, agreed: usize) -> Result<(), DriverError> {
        self.notify(DriverCall::Unmap, agreed, mapping, |listener, range| listener.before_unmap(range)).map_err(
            |refused| {
                self.stays(mapping, refused.agreed);
                refused.error
            },
        )
    }

    /// Notifies the first `first` listeners that something stays mapped which was about to be unmapped.
    pub fn stays(&self, mapping: &Mapping, first: usize) {
        // A refusal changes nothing: the mapping is there.
        let _ = self.notify(DriverCall::Map, first, mapping, |listener, range| {
            let _ = listener.on_map(range);
            Ok(())
        });
    }

    fn notify(
        &self,
        call: DriverCall,
        first: usize,
        mapping: &Mapping,
        callback: impl Fn(&dyn MapListener, MappedRange) -> Result<(), Refusal>,
    ) -> Result<(), Refused> {
        let Some(list) = &self.list else { return Ok(()) };
        let range = MappedRange { device: self.device, addr: mapping.addr, bytes: mapping.bytes };
        for (agreed, (_, listener)) in list.iter().take(first).enumerate() {
            let _inside = Inside::enter();
            // What a listener leaves broken is its own.
            let answer = catch_unwind(AssertUnwindSafe(|| callback(&**listener, range)));
            let refusal = match answer {
                Ok(Ok(())) => continue,
                Ok(Err(refusal)) => refusal.0,
                Err(panic) => format!("it panicked: {}", message_of(panic)),
            };
            let text = format!("a map listener refused {} bytes at {}: {refusal}", range.bytes, range.addr);
            return Err(Refused { error: DriverError::new(call, DriverErrorKind::Refused, text), agreed });
        }
        Ok(())
    }
}

fn message_of(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    // Dropping a panic's payload may panic in turn.
    std::mem::forget(panic);
    text.unwrap_or_else(|| "no message".to_owned())
}

thread_local! {
    /// Whether this thread is in a callback of a listener.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// This thread is in a callback of a listener until this is dropped.
struct Inside;

impl Inside {
    fn enter() -> Self {
        INSIDE.set(true);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}
