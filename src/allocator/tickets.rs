//! Tickets: names of live blocks, for those who may ask for a block after it is gone.

use super::error::FreeError;
use super::pins::Pin;
use super::streams::directory::{Owner, Place};
use super::streams::state::StreamState;
use super::{Allocator, Inner};
use crate::driver::Driver;
use crate::sync::Arc;
use crate::units::DeviceAddr;
use std::fmt;
use std::sync::Weak;

/// The name of one live block: of that very block, never of a later one at the same address. It keeps neither the block nor its
/// allocator.
///
/// For memory that is offered to another process, which asks for it later or not at all.
#[must_use = "a ticket keeps nothing: it names a block"]
pub struct Ticket<D: Driver> {
    allocator: Weak<Inner<D>>,
    owner: Owner,
    offset: u64,
    number: u64,
    addr: DeviceAddr,
    bytes: u64,
}

impl<D: Driver> fmt::Debug for Ticket<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("addr", &self.addr).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<D: Driver> Clone for Ticket<D> {
    fn clone(&self) -> Self {
        Self { allocator: Weak::clone(&self.allocator), ..*self }
    }
}

impl<D: Driver> PartialEq for Ticket<D> {
    fn eq(&self, other: &Self) -> bool {
        let place = |ticket: &Self| (ticket.owner, ticket.offset, ticket.number);
        Weak::ptr_eq(&self.allocator, &other.allocator) && place(self) == place(other)
    }
}

impl<D: Driver> Eq for Ticket<D> {}

impl<D: Driver> Allocator<D> {
    /// The ticket of the live allocation at `addr`. One allocation has one, however often it is asked for.
    ///
    /// # Errors
    /// [`FreeError`] when no live allocation starts there, or one that is asleep.
    pub fn ticket(&self, addr: DeviceAddr) -> Result<Ticket<D>, FreeError> {
        let Place::Region(owner, offset) = self.inner.shared.directory.find(addr) else {
            return Err(self.inner.refuse(addr));
        };
        let mut state = self.inner.shared.streams.get(owner.stream).lock();
        if state.is_asleep((owner.region, offset)) {
            return Err(FreeError::Asleep { addr });
        }
        let next = state.next_ticket;
        let Some((bytes, extras)) = state.mark_shared(owner, offset) else {
            drop(state);
            return Err(self.inner.refuse(addr));
        };
        let number = *extras.ticket.get_or_insert(next);
        state.next_ticket += u64::from(number == next);
        Ok(Ticket { allocator: Arc::downgrade(&self.inner), owner, offset, number, addr, bytes })
    }
}

impl<D: Driver> Ticket<D> {
    /// The address of the block's first byte.
    #[must_use]
    pub fn addr(&self) -> DeviceAddr {
        self.addr
    }

    /// Bytes of the block, rounding included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the block is live.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.allocator.upgrade().is_some_and(|inner| {
            let state = inner.shared.streams.get(self.owner.stream).lock();
            self.is_of_block(&state)
        })
    }

    /// Whether the block of this ticket, and no later one, is there.
    fn is_of_block(&self, state: &StreamState) -> bool {
        let extras = state.extras.get(&(self.owner.region, self.offset));
        extras.is_some_and(|extras| extras.ticket == Some(self.number))
    }

    /// How often the block has been put to sleep. Whoever pins it and has looked at the chunks under it before, looks again where
    /// that has changed: it wakes in others.
    #[must_use]
    pub fn sleeps(&self) -> u64 {
        self.allocator.upgrade().map_or(0, |inner| {
            let state = inner.shared.streams.get(self.owner.stream).lock();
            state.extras.get(&(self.owner.region, self.offset)).map_or(0, |extras| extras.sleeps)
        })
    }

    /// Pins the block. `None` once it has been freed, or its allocator has ended, and while it is asleep.
    #[must_use]
    pub fn pin(&self) -> Option<Pin<D>> {
        let inner = self.allocator.upgrade()?;
        let mut state = inner.shared.streams.get(self.owner.stream).lock();
        let bytes = if self.is_of_block(&state) { state.pin(self.owner, self.offset) } else { None };
        drop(state);
        Some(Pin::new(Allocator { inner }, self.owner, self.offset, self.addr, bytes?))
    }
}
