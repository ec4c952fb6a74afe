//! A table of things by address, several at one.
//!
//! - I1  an address is in the table as often as it was added and not taken.
//!
//! Threads: any; one lock.

use gapless::DeviceAddr;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Things by address. No list in it is empty.
#[derive(Debug)]
pub(crate) struct ByAddress<T>(Mutex<BTreeMap<DeviceAddr, Vec<T>>>);

impl<T> ByAddress<T> {
    pub fn new() -> Self {
        Self(Mutex::default())
    }

    pub fn add(&self, addr: DeviceAddr, thing: T) {
        self.0.lock().entry(addr).or_default().push(thing);
    }

    pub fn holds(&self, addr: DeviceAddr) -> bool {
        self.0.lock().contains_key(&addr)
    }

    /// Takes one of the things at an address out of the table.
    pub fn take(&self, addr: DeviceAddr) -> Option<T> {
        let mut things = self.0.lock();
        let here = things.get_mut(&addr)?;
        let taken = here.pop();
        if here.is_empty() {
            things.remove(&addr);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_there_as_often_as_it_was_added() {
        let (table, addr) = (ByAddress::new(), DeviceAddr(512));
        table.add(addr, 1);
        table.add(addr, 2);
        table.add(DeviceAddr(1024), 3);
        assert_eq!((table.take(addr), table.holds(addr)), (Some(2), true));
        assert_eq!((table.take(addr), table.holds(addr)), (Some(1), false));
        assert_eq!((table.take(addr), table.take(DeviceAddr(1024))), (None, Some(3)));
    }
}
