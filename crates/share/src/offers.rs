//! The offers to other processes: blocks by token.

use crate::error::ShareError;
use crate::handle::{Token, random};
use gapless::DeviceAddr;
use gapless::allocator::{AllocError, Pin, PinnedChunk, Ticket};
use gapless::driver::Driver;
use std::collections::HashMap;
use std::sync::Arc;

/// The blocks that are offered.
#[derive(Debug)]
pub struct Offers<D: Driver> {
    offers: HashMap<Token, Offer<D>>,
    /// The latest offer at each address.
    tokens: HashMap<DeviceAddr, Token>,
    /// The number of offers at which gone ones are looked for.
    sweep_at: usize,
}

/// A block that was live when it was offered.
#[derive(Debug)]
pub struct Offer<D: Driver> {
    ticket: Ticket<D>,
    /// Those under it, as long as it lives or is pinned and has not slept; `None` where they could not be looked up.
    chunks: Option<Chunks>,
}

/// The chunks under a block that is offered.
#[derive(Clone, Debug)]
pub struct Chunks {
    /// How often it had been put to sleep when they were looked up.
    pub sleeps: u64,
    /// The chunks.
    pub list: Arc<[PinnedChunk]>,
}

impl<D: Driver> Clone for Offer<D> {
    fn clone(&self) -> Self {
        Self { ticket: self.ticket.clone(), chunks: self.chunks.clone() }
    }
}

impl<D: Driver> Offer<D> {
    /// The name of the block.
    pub fn ticket(&self) -> &Ticket<D> {
        &self.ticket
    }

    /// Pins the block. `None` once it has been freed, and while it is asleep.
    pub fn pin(&self) -> Option<Pin<D>> {
        self.ticket.pin()
    }

    /// The chunks under the block, which one of its pins holds.
    pub fn chunks(&self, pin: &Pin<D>) -> Result<Arc<[PinnedChunk]>, AllocError> {
        match &self.chunks {
            Some(chunks) if chunks.sleeps == self.ticket.sleeps() => Ok(Arc::clone(&chunks.list)),
            _ => pin.chunks().map(Arc::from),
        }
    }
}

impl<D: Driver> Offers<D> {
    /// Nothing is offered yet.
    pub fn new() -> Self {
        Self { offers: HashMap::new(), tokens: HashMap::new(), sweep_at: FEW }
    }

    /// Their number, with gone ones that were not looked for yet.
    pub fn len(&self) -> usize {
        self.offers.len()
    }

    /// The offer of a token, whose block may be gone.
    pub fn of(&self, token: &Token) -> Option<Offer<D>> {
        self.offers.get(token).cloned()
    }

    /// The token of a block that is offered already.
    pub fn token(&self, ticket: &Ticket<D>) -> Option<Token> {
        let token = self.tokens.get(&ticket.addr())?;
        self.offers.get(token).is_some_and(|offer| offer.ticket == *ticket).then_some(*token)
    }

    /// Offers a block, unless it is offered already.
    pub fn add(&mut self, ticket: Ticket<D>, chunks: Option<Chunks>) -> Result<Token, ShareError> {
        if let Some(token) = self.token(&ticket) {
            return Ok(token);
        }
        let token = random()?;
        self.tokens.insert(ticket.addr(), token);
        self.offers.insert(token, Offer { ticket, chunks });
        if self.offers.len() > self.sweep_at {
            self.offers.retain(|_, offer| offer.ticket.is_live());
            self.tokens.retain(|_, token| self.offers.contains_key(token));
            self.sweep_at = (2 * self.offers.len()).max(FEW);
        }
        Ok(token)
    }
}

/// Offers below which gone ones are not looked for.
const FEW: usize = 1024;
