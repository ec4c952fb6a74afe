//! The values of numbers that came lately, so that equal numbers share one: sizes and addresses repeat from step to step.

use super::values::{NONE, Ref};

/// A table without collisions: each number has one place, which the last of those that share it keeps.
pub struct Numbers(Box<[(i64, Ref)]>);

impl Default for Numbers {
    fn default() -> Self {
        Self(vec![(0, NONE); PLACES].into_boxed_slice())
    }
}

impl Numbers {
    /// Returns the value of a number, if it is known.
    pub fn get(&self, number: i64) -> Option<Ref> {
        let (known, value) = self.0[place(number)];
        (known == number && value != NONE).then_some(value)
    }

    pub fn set(&mut self, number: i64, value: Ref) {
        self.0[place(number)] = (number, value);
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the highest bits of a product")]
const fn place(number: i64) -> usize {
    ((number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLACES.ilog2())) as usize
}

const PLACES: usize = 1 << 13;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_share_a_place_are_not_taken_for_each_other() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.get(0), None);
        let other = (1..).find(|number| place(*number) == place(7) && *number != 7).unwrap();
        numbers.set(7, 70);
        assert_eq!((numbers.get(7), numbers.get(other)), (Some(70), None));
        numbers.set(other, 80);
        assert_eq!((numbers.get(7), numbers.get(other)), (None, Some(80)));
        numbers.set(-1, 90);
        assert_eq!((numbers.get(-1), numbers.get(i64::MAX), numbers.get(i64::MIN)), (Some(90), None, None));
    }
}
