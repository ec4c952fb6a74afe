//! Functions that a program asks for and that the simulation does not have. Each is named once on stderr: one that is called,
//! always; one that is only looked up, where `GAPLESS_SIM_MISSING` asks for it, since the CUDA runtime looks up hundreds.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::settings::Settings;

static NAMED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A function was called that is there to be found only.
pub fn called(name: &str) {
    if NAMED.lock().insert(name.to_owned()) {
        eprintln!(
            "gapless-sim: {name} was called, which the simulation cannot do: it answers 801, CUDA_ERROR_NOT_SUPPORTED"
        );
    }
}

/// `cuGetProcAddress` was asked for a function that is not there.
pub fn looked_up(name: &str) {
    if Settings::read().names_missing && NAMED.lock().insert(name.to_owned()) {
        eprintln!("gapless-sim: {name} was looked up, which is not there: the answer is 500, CUDA_ERROR_NOT_FOUND");
    }
}
