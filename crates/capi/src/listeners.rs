//! Callbacks of C for what is mapped and unmapped: the map listeners of an allocator, with a context pointer.
//!
//! - I1  once a listener has been removed, its callbacks are not running and not called again.
//!
//! Threads: any. A device's listeners hear of its pools, too: one list for all allocators of the device.

use crate::abi::device_pointer;
use crate::last_error::guard;
use crate::out::check_out;
use crate::process::device_of;
use crate::registry::{find, gapless_allocator};
use crate::status::{Answer, Failure, GAPLESS_ERROR_NOT_FOUND, gapless_status};
use gapless::allocator::{ListenerId, MapListener, MapListeners, MappedRange, Refusal};
use std::ffi::c_void;
use std::sync::Arc;

/// Called with the device, the address and the size in bytes of one mapping, and with the context that the listener was added
/// with. Returns 0 to agree; any other value refuses.
pub type gapless_map_callback =
    Option<unsafe extern "C" fn(context: *mut c_void, device: i32, pointer: *mut c_void, bytes: u64) -> i32>;

#[derive(Debug)]
struct Callbacks {
    on_map: gapless_map_callback,
    before_unmap: gapless_map_callback,
    context: *mut c_void,
}

// SAFETY: the context is only handed back, to callbacks that may be called from any thread (`gapless_add_map_listener`).
unsafe impl Send for Callbacks {}
// SAFETY: as above.
unsafe impl Sync for Callbacks {}

impl Callbacks {
    fn call(&self, callback: gapless_map_callback, range: MappedRange) -> Result<(), Refusal> {
        let Some(callback) = callback else { return Ok(()) };
        let (device, pointer) = (range.device.cast_signed(), device_pointer(range.addr));
        // SAFETY: callbacks may be called until the listener is removed (`gapless_add_map_listener`).
        match unsafe { callback(self.context, device, pointer, range.bytes) } {
            0 => Ok(()),
            code => Err(Refusal::new(format!("its callback returned {code}"))),
        }
    }
}

impl MapListener for Callbacks {
    fn on_map(&self, range: MappedRange) -> Result<(), Refusal> {
        self.call(self.on_map, range)
    }

    fn before_unmap(&self, range: MappedRange) -> Result<(), Refusal> {
        self.call(self.before_unmap, range)
    }
}

/// Adds callbacks that are notified of what an allocator maps and unmaps, and writes a number that names them to *listener, never
/// 0. For libraries that register memory, and for tools. An allocator may have any number of listeners, which are notified in the
/// order in which they were added. Either callback may be NULL.
///
/// on_map is called after a range was mapped, with access, and before any of it is handed out. before_unmap is called before
/// a range is unmapped, once all work in it has completed. Its pointer and bytes are those of an earlier on_map, unless the range
/// was mapped before the listener was added, or its mapping failed and could not be undone at once. Between the two calls the
/// range is mapped to the same memory. That memory may be free, or in use at another address: free memory is mapped a second time
/// where it is needed, and its first mapping is removed later.
///
/// Callbacks run on the thread that maps or unmaps, on several threads at a time for several allocators. They may take their
/// time; other threads get cached memory meanwhile and wait for anything else. They must not call functions of this library,
/// except gapless_last_error and its relatives, nor wait for a thread that does. An allocation that needs the driver fails with
/// GAPLESS_ERROR_IN_USE and GAPLESS_KIND_IN_CALLBACK there. They must not throw.
///
/// A callback that does not return 0 counts as a driver call that failed. on_map: the range is unmapped again, and the request
/// fails. before_unmap: the range is not unmapped; the call that needed that takes other memory, or fails with
/// GAPLESS_ERROR_DRIVER and GAPLESS_KIND_REFUSED. Listeners that had agreed before are notified of the opposite: on_map for a range
/// that stays mapped, whose result is then ignored. A range that is refused at the end of an allocator stays mapped for good.
///
/// # Safety
/// listener points to a number. Until the listener is removed, the callbacks may be called from any thread with context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_add_map_listener(
    allocator: *mut gapless_allocator,
    on_map: gapless_map_callback,
    before_unmap: gapless_map_callback,
    context: *mut c_void,
    listener: *mut u64,
) -> gapless_status {
    guard(|| {
        let callbacks = Callbacks { on_map, before_unmap, context };
        // SAFETY: the function's contract.
        unsafe { add(find(allocator)?.allocator().listeners(), callbacks, listener) }
    })
}

/// Removes a listener. Once this returns, its callbacks are not running and are not called again.
/// GAPLESS_ERROR_NOT_FOUND when there is none of that number; GAPLESS_ERROR_IN_USE in a callback.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_remove_map_listener(allocator: *mut gapless_allocator, listener: u64) -> gapless_status {
    guard(|| remove(find(allocator)?.allocator().listeners(), listener))
}

/// As gapless_add_map_listener, for the process-wide allocator of a device, which is made on first use, and for the device's
/// pools of captured graphs, present and future.
///
/// # Safety
/// As gapless_add_map_listener.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_device_add_map_listener(
    device: i32,
    on_map: gapless_map_callback,
    before_unmap: gapless_map_callback,
    context: *mut c_void,
    listener: *mut u64,
) -> gapless_status {
    guard(|| {
        let callbacks = Callbacks { on_map, before_unmap, context };
        // SAFETY: the function's contract.
        unsafe { add(device_of(device)?.allocator().listeners(), callbacks, listener) }
    })
}

/// As gapless_remove_map_listener, for a listener of a device.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_remove_map_listener(device: i32, listener: u64) -> gapless_status {
    guard(|| remove(device_of(device)?.allocator().listeners(), listener))
}

/// # Safety
/// `listener` points to a number, or is null.
unsafe fn add(listeners: &MapListeners, callbacks: Callbacks, listener: *mut u64) -> Answer<()> {
    check_out(listener, "listener")?;
    let id = listeners.add(Arc::new(callbacks))?;
    // SAFETY: not null, so valid for a write (the function's contract).
    unsafe { listener.write(id.0) };
    Ok(())
}

fn remove(listeners: &MapListeners, listener: u64) -> Answer<()> {
    if listeners.remove(ListenerId(listener))? {
        return Ok(());
    }
    Err(Failure::new(GAPLESS_ERROR_NOT_FOUND, format!("there is no map listener {listener}")))
}
