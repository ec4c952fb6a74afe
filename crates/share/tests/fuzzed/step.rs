//! The numbers of steps: each begins with one, and has those up to the next for itself. Shared with the seeds of the corpus
//! (`crates/testkit/examples/seeds`).

pub const ALLOC: u8 = 0;
pub const FREE: u8 = 2;
pub const OFFER: u8 = 3;
pub const OPEN: u8 = 4;
pub const CLOSE: u8 = 6;
pub const OPEN_FORGED: u8 = 7;
pub const MEET: u8 = 8;
pub const SAY: u8 = 9;
pub const LEAVE: u8 = 11;
pub const FLOOD: u8 = 12;
pub const BELIEVE: u8 = 13;
pub const STOP_BELIEVING: u8 = 15;
