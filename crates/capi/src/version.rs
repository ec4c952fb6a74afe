//! The version of the library, for a program that compares it with that of its header.

use std::ffi::{CStr, c_char};

/// Returns the version of this library, which GAPLESS_VERSION_STRING has of the header.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Returns the version of this library as one number, which GAPLESS_VERSION has of the header.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_version_number() -> i32 {
    NUMBER
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version without zeroes"),
};
const NUMBER: i32 = 10_000 * number(env!("CARGO_PKG_VERSION_MAJOR"))
    + 100 * number(env!("CARGO_PKG_VERSION_MINOR"))
    + number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(digits: &str) -> i32 {
    match i32::from_str_radix(digits, 10) {
        Ok(number) if number < 100 => number,
        _ => panic!("two digits for each number"),
    }
}
