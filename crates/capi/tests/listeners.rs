//! Map listeners through the C interface.

mod gpu;
#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless_capi::*;
use gpu::with_devices;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

const MIB: u64 = 1 << 20;
const MAIN: *mut CUstream_st = null_mut();

/// The mappings that a listener knows, and its answers.
#[derive(Default)]
struct Ears {
    /// Pointer and device to bytes.
    mapped: Mutex<BTreeMap<(usize, i32), u64>>,
    to_map: AtomicI32,
    to_unmap: AtomicI32,
    allocates: AtomicBool,
}

impl Ears {
    fn context(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    fn bytes(&self) -> u64 {
        self.mapped.lock().unwrap().values().sum()
    }
}

unsafe extern "C" fn on_map(context: *mut c_void, device: i32, pointer: *mut c_void, bytes: u64) -> i32 {
    // SAFETY: the context is an `Ears` that outlives the listener.
    let ears = unsafe { &*context.cast::<Ears>() };
    if ears.allocates.load(Ordering::Relaxed) {
        let mut pointer = null_mut();
        // SAFETY: the out-parameter is valid.
        let status = unsafe { gapless_device_alloc(device, 64 * MIB, MAIN, &raw mut pointer) };
        assert_eq!((status, gapless_last_error_kind()), (GAPLESS_ERROR_IN_USE, GAPLESS_KIND_IN_CALLBACK));
        assert_eq!(gapless_device_remove_map_listener(device, 1), GAPLESS_ERROR_IN_USE);
        // SAFETY: nothing is asked for.
        let status = unsafe { gapless_device_trim(device, 0, null_mut()) };
        assert_ne!(status, GAPLESS_OK);
    }
    let answer = ears.to_map.load(Ordering::Relaxed);
    if answer == 0 {
        let before = ears.mapped.lock().unwrap().insert((pointer.addr(), device), bytes);
        assert!(before.is_none());
    }
    answer
}

unsafe extern "C" fn before_unmap(context: *mut c_void, device: i32, pointer: *mut c_void, bytes: u64) -> i32 {
    // SAFETY: the context is an `Ears` that outlives the listener.
    let ears = unsafe { &*context.cast::<Ears>() };
    let answer = ears.to_unmap.load(Ordering::Relaxed);
    if answer == 0 {
        assert_eq!(ears.mapped.lock().unwrap().remove(&(pointer.addr(), device)), Some(bytes));
    }
    answer
}

fn listen(device: i32, ears: &Ears) -> u64 {
    let mut listener = 0;
    let (map, unmap): (gapless_map_callback, gapless_map_callback) = (Some(on_map), Some(before_unmap));
    // SAFETY: the callbacks take an `Ears`, which lives as long as the process that is made for a test.
    let status = unsafe { gapless_device_add_map_listener(device, map, unmap, ears.context(), &raw mut listener) };
    assert_eq!(status, GAPLESS_OK, "{}", error_text());
    assert_ne!(listener, 0);
    listener
}

fn alloc(device: i32, bytes: u64) -> Result<*mut c_void, gapless_status> {
    let mut pointer = null_mut();
    // SAFETY: the out-parameter is valid.
    match unsafe { gapless_device_alloc(device, bytes, MAIN, &raw mut pointer) } {
        GAPLESS_OK => Ok(pointer),
        status => Err(status),
    }
}

fn trim(device: i32) -> gapless_status {
    // SAFETY: nothing is asked for.
    unsafe { gapless_device_trim(device, 0, null_mut()) }
}

fn error_text() -> String {
    // SAFETY: a NUL-terminated text until the next failure on this thread.
    unsafe { CStr::from_ptr(gapless_last_error()) }.to_string_lossy().into_owned()
}

#[test]
fn listeners_hear_of_their_device_until_they_are_removed() {
    with_devices("listeners_hear_of_their_device_until_they_are_removed", &[], || {
        let (first, second) = (Ears::default(), Ears::default());
        let early = alloc(0, 2 * MIB).unwrap();
        let (one, two) = (listen(0, &first), listen(0, &second));
        assert_ne!(one, two);
        let block = alloc(0, 32 * MIB).unwrap();
        alloc(1, 32 * MIB).unwrap();
        assert!(first.bytes() >= 32 * MIB && first.bytes() == second.bytes());
        assert!(first.mapped.lock().unwrap().keys().all(|(_, device)| *device == 0));
        assert!(first.mapped.lock().unwrap().keys().any(|(pointer, _)| *pointer == block.addr()));
        assert_eq!(gapless_device_free(0, block, 0), GAPLESS_OK);
        assert_eq!(trim(0), GAPLESS_OK, "{}", error_text());
        assert_eq!((first.bytes(), second.bytes()), (0, 0));
        assert_eq!(gapless_device_remove_map_listener(0, two), GAPLESS_OK);
        assert_eq!(gapless_device_remove_map_listener(0, two), GAPLESS_ERROR_NOT_FOUND);
        let block = alloc(0, 32 * MIB).unwrap();
        assert!(first.bytes() > 0 && second.bytes() == 0);
        assert_eq!(gapless_device_free(0, block, 0), GAPLESS_OK);
        assert_eq!(gapless_device_remove_map_listener(0, one), GAPLESS_OK);
        assert_eq!(gapless_device_free(0, early, 0), GAPLESS_OK);
    });
}

#[test]
fn a_listener_hears_of_pools_made_later() {
    with_devices("a_listener_hears_of_pools_made_later", &[], || {
        let ears = Ears::default();
        listen(0, &ears);
        let block = alloc(0, 2 * MIB).unwrap();
        let before = ears.bytes();
        gapless_torch_begin_allocate_to_pool(0, gapless_torch_pool { first: 7, second: 7 }, null_mut());
        let in_pool = alloc(0, 32 * MIB).unwrap();
        assert!(ears.bytes() >= before + 32 * MIB);
        assert!(ears.mapped.lock().unwrap().contains_key(&(in_pool.addr(), 0)));
        assert_eq!(gapless_device_free(0, block, 0), GAPLESS_OK);
    });
}

#[test]
fn a_callback_that_does_not_return_0_refuses() {
    with_devices("a_callback_that_does_not_return_0_refuses", &[], || {
        let ears = Ears::default();
        listen(0, &ears);
        ears.to_map.store(5, Ordering::Relaxed);
        assert_eq!(alloc(0, 32 * MIB), Err(GAPLESS_ERROR_DRIVER));
        assert_eq!((gapless_last_error_kind(), gapless_last_error_code()), (GAPLESS_KIND_REFUSED, 0));
        assert!(error_text().contains("its callback returned 5"), "{}", error_text());
        ears.to_map.store(0, Ordering::Relaxed);
        let block = alloc(0, 32 * MIB).unwrap();
        let mapped = ears.bytes();
        assert_eq!(gapless_device_free(0, block, 0), GAPLESS_OK);
        ears.to_unmap.store(-1, Ordering::Relaxed);
        assert_eq!(trim(0), GAPLESS_OK, "{}", error_text());
        assert_eq!(ears.bytes(), mapped, "nothing was unmapped");
        ears.to_unmap.store(0, Ordering::Relaxed);
        assert_eq!(trim(0), GAPLESS_OK);
        assert_eq!(ears.bytes(), 0);
    });
}

#[test]
fn an_allocation_in_a_callback_has_a_status_of_its_own() {
    with_devices("an_allocation_in_a_callback_has_a_status_of_its_own", &[], || {
        let ears = Ears::default();
        ears.allocates.store(true, Ordering::Relaxed);
        listen(0, &ears);
        alloc(0, 32 * MIB).unwrap();
        assert!(ears.bytes() >= 32 * MIB);
    });
}

#[test]
fn an_allocator_of_its_own_has_listeners_of_its_own() {
    with_devices("an_allocator_of_its_own_has_listeners_of_its_own", &[], || {
        let ears = Ears::default();
        let (mut allocator, mut listener, mut pointer) = (null_mut(), 0, null_mut());
        // SAFETY: zeroes are valid in every field.
        let mut config: gapless_config = unsafe { std::mem::zeroed() };
        config.size = size_of::<gapless_config>() as u64;
        // SAFETY: the default settings, and a valid out-parameter.
        assert_eq!(unsafe { gapless_create(&raw const config, &raw mut allocator) }, GAPLESS_OK, "{}", error_text());
        let none: *mut u64 = null_mut();
        // SAFETY: null is refused.
        let status = unsafe { gapless_add_map_listener(allocator, None, None, null_mut(), none) };
        assert_eq!(status, GAPLESS_ERROR_INVALID_ARGUMENT);
        // SAFETY: as above.
        let status = unsafe { gapless_device_add_map_listener(0, None, None, null_mut(), none) };
        assert_eq!(status, GAPLESS_ERROR_INVALID_ARGUMENT);
        // SAFETY: no callbacks, no calls.
        let status = unsafe { gapless_add_map_listener(allocator, None, None, null_mut(), &raw mut listener) };
        assert_eq!(status, GAPLESS_OK);
        let (map, unmap): (gapless_map_callback, gapless_map_callback) = (Some(on_map), Some(before_unmap));
        // SAFETY: as in `listen`.
        let status = unsafe { gapless_add_map_listener(allocator, map, unmap, ears.context(), &raw mut listener) };
        assert_eq!(status, GAPLESS_OK);
        // SAFETY: the out-parameter is valid.
        assert_eq!(unsafe { gapless_alloc(allocator, 4 * MIB, MAIN, &raw mut pointer) }, GAPLESS_OK);
        alloc(0, 4 * MIB).unwrap();
        assert!(ears.mapped.lock().unwrap().contains_key(&(pointer.addr(), 0)));
        assert!(ears.bytes() < 8 * MIB);
        assert_eq!(gapless_free(allocator, pointer), GAPLESS_OK);
        assert_eq!(gapless_remove_map_listener(allocator, listener + 1), GAPLESS_ERROR_NOT_FOUND);
        assert_eq!(gapless_remove_map_listener(without_provenance_mut(3), listener), GAPLESS_ERROR_INVALID_HANDLE);
        assert_eq!(gapless_destroy(allocator), GAPLESS_OK, "{}", error_text());
        assert_eq!(ears.bytes(), 0, "notified of the end");
    });
}
