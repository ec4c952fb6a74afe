//! A hash of numbers, for tables that take some of its bits.

/// Returns the product of a number and 2^64 over the golden ratio. Its high bits are well mixed, whatever the stride of the
/// numbers: multiplicative hashing (Knuth, *The Art of Computer Programming*, volume 3, section 6.4).
#[inline]
pub fn fibonacci(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
