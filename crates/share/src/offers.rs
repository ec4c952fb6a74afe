//! What is offered to other processes: blocks by token.

use crate::error::ShareError;
use crate::handle::{Token, random};
use gapless::DeviceAddr;
use gapless::allocator::Ticket;
use gapless::driver::Driver;
use std::collections::HashMap;

/// What is offered.
#[derive(Debug)]
pub struct Offers<D: Driver> {
    tickets: HashMap<Token, Ticket<D>>,
    /// The latest offer at each address.
    tokens: HashMap<DeviceAddr, Token>,
    /// The number of offers at which gone ones are looked for.
    sweep_at: usize,
}

impl<D: Driver> Offers<D> {
    /// Nothing is offered yet.
    pub fn new() -> Self {
        Self { tickets: HashMap::new(), tokens: HashMap::new(), sweep_at: FEW }
    }

    /// The block of a token, which may be gone.
    pub fn ticket(&self, token: &Token) -> Option<Ticket<D>> {
        self.tickets.get(token).cloned()
    }

    /// The token of a block: the one that it has, or a new one.
    pub fn token(&mut self, ticket: Ticket<D>) -> Result<Token, ShareError> {
        if let Some(token) = self.tokens.get(&ticket.addr())
            && self.tickets.get(token) == Some(&ticket)
        {
            return Ok(*token);
        }
        let token = random()?;
        self.tokens.insert(ticket.addr(), token);
        self.tickets.insert(token, ticket);
        if self.tickets.len() > self.sweep_at {
            self.tickets.retain(|_, ticket| ticket.is_live());
            self.tokens.retain(|_, token| self.tickets.contains_key(token));
            self.sweep_at = (2 * self.tickets.len()).max(FEW);
        }
        Ok(token)
    }
}

/// Offers below which gone ones are not looked for.
const FEW: usize = 1024;
