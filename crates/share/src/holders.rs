//! Who has what open. The thread that answers notes it; others ask, whatever that thread does.

use crate::handle::Token;
use gapless::allocator::{Holder, Ticket};
use gapless::driver::Driver;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;

/// What each connection has open.
#[derive(Debug)]
pub struct Holders<D: Driver>(Mutex<Connections<D>>);

#[derive(Debug)]
struct Connections<D: Driver> {
    next: u64,
    by_number: HashMap<u64, Held<D>>,
}

/// What one connection has open.
#[derive(Debug)]
struct Held<D: Driver> {
    process: Option<NonZeroU32>,
    blocks: HashMap<Token, Ticket<D>>,
}

impl<D: Driver> Holders<D> {
    /// Nothing is open.
    pub fn new() -> Self {
        Self(Mutex::new(Connections { next: 0, by_number: HashMap::new() }))
    }

    /// Notes a connection with a process.
    pub fn connect(self: &Arc<Self>, process: Option<NonZeroU32>) -> Noted<D> {
        let mut connections = self.0.lock();
        let number = connections.next;
        connections.next += 1;
        connections.by_number.insert(number, Held { process, blocks: HashMap::new() });
        Noted { holders: Arc::clone(self), number }
    }

    /// Those that have something open, by number. What several connections of one process have open counts once.
    pub fn list(&self) -> Vec<Holder> {
        let mut open = BTreeMap::<_, HashMap<Token, Ticket<D>>>::new();
        for held in self.0.lock().by_number.values().filter(|held| !held.blocks.is_empty()) {
            let blocks = held.blocks.iter().map(|(token, ticket)| (*token, ticket.clone()));
            open.entry(held.process.map(NonZeroU32::get)).or_default().extend(blocks);
        }
        // Whether a block is live is asked without the lock.
        let holders = open.into_iter().map(|(process, blocks)| {
            let mut holder = Holder::new(process);
            blocks.values().for_each(|ticket| holder.add(ticket.bytes(), !ticket.is_live()));
            holder
        });
        holders.collect()
    }
}

/// A connection that is noted, until this is dropped.
#[derive(Debug)]
pub struct Noted<D: Driver> {
    holders: Arc<Holders<D>>,
    number: u64,
}

impl<D: Driver> Noted<D> {
    /// Notes that a block is open.
    pub fn opened(&self, token: Token, ticket: Ticket<D>) {
        self.change(|blocks| blocks.insert(token, ticket));
    }

    /// Notes that a block is not open any more.
    pub fn closed(&self, token: &Token) {
        self.change(|blocks| blocks.remove(token));
    }

    fn change<R>(&self, change: impl FnOnce(&mut HashMap<Token, Ticket<D>>) -> R) {
        if let Some(held) = self.holders.0.lock().by_number.get_mut(&self.number) {
            change(&mut held.blocks);
        }
    }
}

impl<D: Driver> Drop for Noted<D> {
    fn drop(&mut self) {
        self.holders.0.lock().by_number.remove(&self.number);
    }
}
