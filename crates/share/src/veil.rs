//! Numbers that stand for a driver's own, which are addresses inside of it: another process is not to learn them.
//!
//! A permutation of all numbers, of one connection: Luby and Rackoff's, with four rounds whose function is the standard library's
//! keyed hash. So a number means the same chunk as long as the connection lasts, two chunks never have one number, and nothing has
//! to be kept.

use std::hash::{BuildHasher, RandomState};

/// A permutation that nobody outside of the process can guess.
#[derive(Debug, Default)]
pub struct Veil {
    rounds: [RandomState; 4],
}

impl Veil {
    /// The number that stands for `number`.
    pub fn of(&self, number: u64) -> u64 {
        let halves = ((number >> 32) as u32, number as u32);
        let (left, right) =
            self.rounds.iter().fold(halves, |(left, right), round| (right, left ^ round.hash_one(right) as u32));
        u64::from(left) << 32 | u64::from(right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_number_has_its_own() {
        let veil = Veil::default();
        let numbers = [0, 1, 2, u64::MAX, 1 << 32, (1 << 32) + 1];
        let veiled: HashSet<u64> =
            numbers.iter().chain(&(1000..5000).collect::<Vec<_>>()).map(|it| veil.of(*it)).collect();
        assert_eq!(veiled.len(), numbers.len() + 4000);
        assert!(numbers.iter().all(|number| veil.of(*number) == veil.of(*number)));
    }

    /// Neither half is that of the number, nor that of the number beside it, and another connection has others.
    #[test]
    fn nothing_of_a_number_is_seen() {
        let (veil, other) = (Veil::default(), Veil::default());
        let address = 0x7f12_3456_7890;
        let halves = |number: u64| [number >> 32, number & 0xffff_ffff];
        let seen = veil.of(address);
        for known in [address, veil.of(address + 16), other.of(address)] {
            assert!(halves(seen).iter().zip(halves(known)).all(|(seen, known)| *seen != known));
        }
    }
}
