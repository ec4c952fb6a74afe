//! What keeps traits on allocators to this crate, so that they may get methods in any release.

use super::Allocator;
use super::plain::PlainAllocator;
use crate::driver::Driver;

pub trait Sealed {}

impl<D: Driver> Sealed for Allocator<D> {}

impl Sealed for PlainAllocator {}
