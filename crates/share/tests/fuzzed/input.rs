//! What the bytes of an input are read as.

/// The rest of an input. Where it has ended, all is 0.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    pub fn bytes(&mut self, length: usize) -> &'a [u8] {
        self.0.split_off(..length.min(self.0.len())).unwrap_or_default()
    }

    pub fn index(&mut self, length: usize) -> Option<usize> {
        usize::from(self.byte()).checked_rem(length)
    }

    /// A number that is small, or as large as numbers of the protocol get.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..240 => u64::from(byte % 4),
            byte @ 240..248 => 1 << (8 * (byte % 8)),
            byte => u64::MAX >> (byte % 8),
        }
    }
}
