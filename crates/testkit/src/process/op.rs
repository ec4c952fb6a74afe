//! The operations of a process with two devices.

use crate::op::Failure;

/// One operation. Devices, pools, blocks and streams are numbers, taken modulo how many there are: every operation can run in every
/// state. A block is a live one of either device, in the order of their allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what their names say: see the type")]
pub enum ProcessOp {
    /// Allocates in the open pool that was opened last, else in the device's own memory, and writes.
    Alloc { device: u8, bytes: u64, stream: u8 },
    /// Allocates in a pool, whether it is open or not, and writes.
    AllocInPool { device: u8, pool: u8, bytes: u64, stream: u8 },
    /// Allocates in the device's own memory, whatever pools are open, and writes.
    AllocInMain { device: u8, bytes: u64, stream: u8 },
    /// Checks a block and frees it.
    Free { block: u16 },
    /// Uses a block on a stream that it was not recorded for, of either device, and frees it with that stream.
    FreeOn { block: u16, stream: u8 },
    /// Records a stream of either device for a block, and uses the block there.
    Use { block: u16, stream: u8 },
    /// Holds the work of a stream back until it is resumed, or waited for.
    Hold { stream: u8 },
    /// Ends that.
    Resume { stream: u8 },
    /// Opens a pool, and makes it if there is none of that name.
    Begin { device: u8, pool: u8 },
    /// Closes the pool to new requests.
    End { device: u8, pool: u8 },
    /// Adds a user to a pool without opening it.
    AddUser { device: u8, pool: u8 },
    /// Removes a user of a pool.
    Release { device: u8, pool: u8 },
    /// Says whether a pool serves other requests when nothing else is left.
    Lend { device: u8, pool: u8, lends: bool },
    /// Sets the budget of a device and its pools, in pages.
    Budget { device: u8, pages: u8 },
    /// Returns free memory to the driver but for some pages.
    Trim { device: u8, keep: u8 },
    /// Returns the memory of released pools to the driver.
    CloseReleased { device: u8 },
    /// Says whether a pool is an ordinary one, and gives it the tag of its name.
    Declare { device: u8, pool: u8, ordinary: bool },
    /// Puts the pools of a tag to sleep, or everything, and wakes them. Nothing fails meanwhile.
    Nap { device: u8, tag: Option<u8> },
    /// Lets the n-th driver call of a device fail from now on, once.
    Fail { device: u8, nth: u8, kind: Failure },
}
