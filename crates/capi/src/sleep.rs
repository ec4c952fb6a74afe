//! Sleep and wake in C: all memory of a device, or the pools of tags.
//!
//! Threads: any; a pushed tag is the calling thread's.

use crate::abi::{address, optional_text, text};
use crate::last_error::guard;
use crate::out::{check_out, write_sized};
use crate::process::device_of;
use crate::status::{Answer, Failure, GAPLESS_ERROR_OUT_OF_MEMORY, gapless_status};
use gapless::allocator::{Backup, Slept, Wake};
use gapless::driver::cuda::CudaDriver;
use gapless_process::{Device, pop_tag, push_tag};
use std::ffi::{c_char, c_void};
use std::time::Duration;

/// What becomes of the bytes of what sleeps: one of the GAPLESS_BACKUP_... numbers.
pub type gapless_backup = i32;

/// They are lost: what wakes has undefined content, as newly allocated memory.
pub const GAPLESS_BACKUP_DISCARD: gapless_backup = 0;
/// They are copied to pinned memory of the host, and back when they wake.
pub const GAPLESS_BACKUP_PINNED: gapless_backup = 1;
/// They are copied to ordinary memory of the host, which is slower to copy to and quicker to get than pinned memory.
pub const GAPLESS_BACKUP_PAGEABLE: gapless_backup = 2;
/// They are written to a file without a name in the directory that GAPLESS_CONF=backups:DIRECTORY names: nothing is left of it when
/// the process ends. Such a backup is neither kept after a wake nor has an address.
pub const GAPLESS_BACKUP_FILE: gapless_backup = 3;

/// How to wake: the sum of GAPLESS_WAKE_... numbers.
pub type gapless_wake_flags = u32;

/// Keep backups: gapless_backup_of has the bytes as of the sleep until what they are of is freed or sleeps again. If that sleeps
/// with a backup of the same kind, its bytes are copied to the same memory of the host. Pools of captured graphs keep none, and
/// files are not kept.
pub const GAPLESS_WAKE_RETAIN_BACKUPS: gapless_wake_flags = 1;

/// What a sleep did. Set size before the call: a program that was compiled with an older header gets the fields that it knows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct gapless_slept {
    /// sizeof(gapless_slept).
    pub size: u64,
    /// Bytes of the pages that this call put to sleep: what a wake needs for them.
    pub asleep_bytes: u64,
    /// Bytes of the live allocations in them, rounding included.
    pub live_bytes: u64,
    /// Bytes copied to the host.
    pub copied_bytes: u64,
    /// Bytes released to the driver, free memory included.
    pub released_bytes: u64,
    /// Bytes that stayed awake since a block in them is pinned: another process has it open, for example.
    pub pinned_bytes: u64,
    /// Bytes that stayed awake since work that cannot be waited for may use them, a map listener refused to see them unmapped, or
    /// the driver did not take them back.
    pub refused_bytes: u64,
    /// Bytes that stayed awake in ranges.
    pub range_bytes: u64,
    /// Bytes that stayed awake in registered blocks.
    pub registered_bytes: u64,
}

/// A tag, and what becomes of its bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gapless_tag_backup {
    /// The tag. NULL: the device's own memory, and all pools whose tag is not named beside it.
    pub tag: *const c_char,
    /// What becomes of the bytes.
    pub backup: gapless_backup,
}

impl From<Slept> for gapless_slept {
    fn from(slept: Slept) -> Self {
        Self {
            size: 0,
            asleep_bytes: slept.asleep_bytes,
            live_bytes: slept.live_bytes,
            copied_bytes: slept.copied_bytes,
            released_bytes: slept.released_bytes,
            pinned_bytes: slept.left_awake.pinned_bytes,
            refused_bytes: slept.left_awake.refused_bytes,
            range_bytes: slept.left_awake.range_bytes,
            registered_bytes: slept.left_awake.registered_bytes,
        }
    }
}

/// Puts the pools of a tag on a device to sleep: their memory goes back to the device, and their allocations keep their addresses.
/// NULL: all pools, and the device's own memory. A tag that no pool has: nothing. Writes what was done to *slept, unless that is
/// NULL.
///
/// The host waits until what is queued has completed, and the bytes are copied. No work that uses the memory may be queued
/// until gapless_wake. What is allocated in the pools meanwhile has memory of its own; what is freed is not mapped again. All
/// of it falls asleep or none: GAPLESS_ERROR_STREAM, of kind GAPLESS_KIND_CANNOT_WAIT, while a graph is being captured;
/// GAPLESS_ERROR_IO where a file cannot have the backup.
///
/// # Safety
/// tag is NULL or a NUL-terminated string; slept is NULL or points to as many bytes as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_sleep(
    device: i32,
    tag: *const c_char,
    backup: gapless_backup,
    slept: *mut gapless_slept,
) -> gapless_status {
    let one = gapless_tag_backup { tag, backup };
    // SAFETY: one entry, whose tag is as the function's contract says.
    unsafe { gapless_sleep_tags(device, &raw const one, 1, slept) }
}

/// As gapless_sleep, for several tags, each with what becomes of its bytes: all of them fall asleep or none. If one cannot, also
/// what was to be discarded has its bytes.
///
/// # Safety
/// tags points to count entries, the tag of each is NULL or a NUL-terminated string; slept is NULL or points to as many bytes as
/// its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_sleep_tags(
    device: i32,
    tags: *const gapless_tag_backup,
    count: u64,
    slept: *mut gapless_slept,
) -> gapless_status {
    guard(|| {
        // SAFETY: the function's contract.
        let entries = unsafe { entries(tags, count) }?;
        let mut wanted = Vec::with_capacity(entries.len());
        for entry in entries {
            // SAFETY: the function's contract.
            wanted.push((unsafe { optional_text(entry.tag) }?, backup_of(entry.backup)?));
        }
        let wanted: Vec<(Option<&str>, Backup)> =
            wanted.iter().map(|(tag, backup)| (tag.as_deref(), *backup)).collect();
        let sleep = || Ok(device_of(device)?.sleep_tags(&wanted)?.into());
        if slept.is_null() {
            return sleep().map(|_: gapless_slept| ());
        }
        // SAFETY: not null, so as many bytes as its first field says (the function's contract).
        unsafe { write_sized(slept, "gapless_slept", sleep) }
    })
}

/// Wakes the pools of a tag on a device, at the addresses that they had, with their bytes unless those were discarded. NULL: all
/// pools, and the device's own memory. Nothing where nothing is asleep. Writes the bytes of the pages that have memory again to
/// *mapped_bytes, unless that is NULL.
///
/// flags is 0 or GAPLESS_WAKE_RETAIN_BACKUPS.
///
/// All of it wakes or none. Where there is too little memory, tries again for wait_ms milliseconds: another process may be about to
/// give some back. Then GAPLESS_ERROR_OUT_OF_MEMORY, and everything is asleep as before.
///
/// # Safety
/// tag is NULL or a NUL-terminated string; mapped_bytes is NULL or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_wake(
    device: i32,
    tag: *const c_char,
    wait_ms: u64,
    flags: gapless_wake_flags,
    mapped_bytes: *mut u64,
) -> gapless_status {
    // SAFETY: one entry, which is as the function's contract says.
    unsafe { gapless_wake_tags(device, &raw const tag, 1, wait_ms, flags, mapped_bytes) }
}

/// As gapless_wake, for several tags: all of them wake or none. With NULL among them, everything does.
///
/// # Safety
/// tags points to count entries, each NULL or a NUL-terminated string; mapped_bytes is NULL or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_wake_tags(
    device: i32,
    tags: *const *const c_char,
    count: u64,
    wait_ms: u64,
    flags: gapless_wake_flags,
    mapped_bytes: *mut u64,
) -> gapless_status {
    guard(|| {
        // SAFETY: the function's contract.
        let entries = unsafe { entries(tags, count) }?;
        // SAFETY: the function's contract.
        let tags = entries.iter().map(|tag| unsafe { optional_text(*tag) }).collect::<Result<Vec<_>, _>>()?;
        let tags: Vec<Option<&str>> = tags.iter().map(Option::as_deref).collect();
        if flags & !GAPLESS_WAKE_RETAIN_BACKUPS != 0 {
            return Err(Failure::argument(format!("{flags:#x} are no flags of a wake: see GAPLESS_WAKE_...")));
        }
        let how = Wake { wait: Duration::from_millis(wait_ms), retain: flags & GAPLESS_WAKE_RETAIN_BACKUPS != 0 };
        let device = device_of(device)?;
        let woken = device.wake_tags(&tags, how);
        let woken = woken.map_err(|error| with_asleep(device, error.into()))?;
        if !mapped_bytes.is_null() {
            // SAFETY: not null, so valid for a write (the function's contract).
            unsafe { mapped_bytes.write(woken.mapped_bytes) };
        }
        Ok(())
    })
}

/// Writes to *host where the host has bytes of a device: those of an allocation, or of a part of one, that is asleep with a backup,
/// or whose backup is kept since gapless_wake. NULL where no byte of them is in a backup, and for memory that is not gapless's.
///
/// They can be read until the allocation wakes, sleeps again or is freed; those of a kept backup until it sleeps again or is
/// freed. Then they change, or their memory is given back: another thread must not do that meanwhile. GAPLESS_ERROR_NOT_FOUND
/// where only some of the bytes are in a backup, or not one behind the other: a part of the allocation has stayed awake; and
/// where they are in a file.
///
/// # Safety
/// host points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_backup_of(
    device: i32,
    pointer: *mut c_void,
    bytes: u64,
    host: *mut *const c_void,
) -> gapless_status {
    guard(|| {
        check_out(host, "host")?;
        let found = device_of(device)?.backup_at(address(pointer), bytes, |shown| shown.as_ptr().cast())?;
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { host.write(found.unwrap_or(std::ptr::null())) };
        Ok(())
    })
}

/// Writes how much of a tag is asleep on a device: the bytes of its allocations to *live_bytes, and those of the pages that a wake
/// needs to *asleep_bytes. NULL: of all pools and the device's own memory.
///
/// # Safety
/// tag is NULL or a NUL-terminated string; live_bytes and asleep_bytes point to numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_asleep(
    device: i32,
    tag: *const c_char,
    live_bytes: *mut u64,
    asleep_bytes: *mut u64,
) -> gapless_status {
    guard(|| {
        check_out(live_bytes, "live_bytes")?;
        check_out(asleep_bytes, "asleep_bytes")?;
        // SAFETY: the function's contract.
        let tag = unsafe { optional_text(tag) }?;
        let asleep = device_of(device)?.asleep();
        let wanted = asleep.iter().filter(|its| tag.is_none() || its.tag == tag);
        let (live, pages) = wanted.fold((0, 0), |sum, its| (sum.0 + its.live_bytes, sum.1 + its.asleep_bytes));
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { live_bytes.write(live) };
        // SAFETY: as above.
        unsafe { asleep_bytes.write(pages) };
        Ok(())
    })
}

/// Gives a tag to the pools of captured graphs that the calling thread makes from now on, until gapless_tag_pop. Within several,
/// the last one counts.
///
/// # Safety
/// tag is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_tag_push(tag: *const c_char) -> gapless_status {
    guard(|| {
        // SAFETY: the function's contract.
        let tag = unsafe { text(tag, "tag") }?;
        Ok(push_tag(&tag)?)
    })
}

/// Ends the calling thread's last gapless_tag_push. GAPLESS_ERROR_NOT_FOUND where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_tag_pop() -> gapless_status {
    guard(|| Ok(pop_tag()?))
}

/// The entries of a caller's list.
///
/// # Safety
/// tags points to count entries that nobody changes during the call.
unsafe fn entries<'a, T>(tags: *const T, count: u64) -> Answer<&'a [T]> {
    match count {
        0 => Ok(&[]),
        _ if tags.is_null() => Err(Failure::argument(format!("the list of {count} tags is null"))),
        // SAFETY: not null, so so many entries (the function's contract).
        _ => Ok(unsafe { std::slice::from_raw_parts(tags, count as usize) }),
    }
}

fn backup_of(backup: gapless_backup) -> Answer<Backup> {
    match backup {
        GAPLESS_BACKUP_DISCARD => Ok(Backup::Discard),
        GAPLESS_BACKUP_PINNED => Ok(Backup::Pinned),
        GAPLESS_BACKUP_PAGEABLE => Ok(Backup::Pageable),
        GAPLESS_BACKUP_FILE => Ok(Backup::File),
        _ => Err(Failure::argument(format!("{backup} is no kind of backup: see GAPLESS_BACKUP_..."))),
    }
}

/// A failure for lack of memory, with what is asleep on the device.
pub(crate) fn with_asleep(device: &Device<CudaDriver>, mut failure: Failure) -> Failure {
    if failure.status == GAPLESS_ERROR_OUT_OF_MEMORY {
        let asleep = device.describe_asleep();
        if !asleep.is_empty() {
            failure.text = format!("{}\n{asleep}", failure.text);
        }
    }
    failure
}
