//! Every function of the headers, with NULL in each of its pointers in turn: an answer, and no crash.
//!
//! The headers are read for the kinds of the parameters. All of them but a `double` are passed in registers of integers, so one
//! type of function serves for all.

mod declared;
mod gpu;
#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gpu::with_devices;
use std::path::Path;

/// A function with as many parameters as any has.
type Any = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> usize;
const MOST_PARAMETERS: usize = 8;

/// Functions that end what the others need, or for which NULL is no pointer that they follow.
const APART: [&str; 1] = [
    // Ends the process-wide devices.
    "gapless_torch_reset",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Parameter {
    Pointer,
    Callback,
    Number,
    /// A struct of two numbers by value takes two registers.
    Pool,
}

/// The functions of the headers and the kinds of their parameters.
fn functions() -> Vec<(String, Vec<Parameter>)> {
    let mut found = Vec::new();
    for name in ["gapless.h", "gapless_share.h", "gapless_torch.h"] {
        let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include").join(name);
        for function in declared::functions(&std::fs::read_to_string(header).unwrap()) {
            let kinds = function.parameters.iter().map(|one| match one {
                _ if one.contains("gapless_map_callback") || one.contains("gapless_failure_handler") => {
                    Parameter::Callback
                }
                _ if one.contains('*') => Parameter::Pointer,
                _ if one.contains("struct gapless_torch_pool") => Parameter::Pool,
                _ => Parameter::Number,
            });
            found.push((function.name, kinds.collect()));
        }
    }
    assert!(found.len() > 100, "{} functions", found.len());
    found
}

extern "C" fn called_back() -> i32 {
    0
}

#[test]
fn every_pointer_may_be_null() {
    with_devices("every_pointer_may_be_null", &[], || {
        // SAFETY: the library runs nothing when it is loaded; it is the one of this process.
        let library =
            unsafe { libloading::Library::new(simulated::library().with_file_name("libgapless_capi.so")) }.unwrap();
        for (name, kinds) in functions() {
            if APART.contains(&&*name) {
                continue;
            }
            // SAFETY: parameters are integers and pointers, which are passed alike; what is too many is not looked at.
            let function =
                *unsafe { library.get::<Any>(name.as_bytes()) }.unwrap_or_else(|_| panic!("{name} is not exported"));
            let is_pointer = |kind: &Parameter| matches!(kind, Parameter::Pointer | Parameter::Callback);
            let pointers = kinds.iter().filter(|kind| is_pointer(kind)).count();
            for null in 0..pointers {
                eprintln!("{name}: pointer {null} is NULL");
                // Zeroes: empty texts, structs that say that they have no size, numbers that are 0.
                let mut memory = vec![[0_u64; 8192]; kinds.len()];
                let mut arguments = Vec::new();
                let mut seen = 0;
                for (kind, memory) in kinds.iter().zip(&mut memory) {
                    match kind {
                        Parameter::Pointer | Parameter::Callback if seen == null => {
                            seen += 1;
                            arguments.push(0);
                        }
                        Parameter::Pointer => {
                            seen += 1;
                            arguments.push(memory.as_mut_ptr().expose_provenance());
                        }
                        Parameter::Callback => {
                            seen += 1;
                            arguments.push(called_back as *const () as usize);
                        }
                        // A number that is not 0, so that what a pointer points to is looked at.
                        Parameter::Number => arguments.push(1),
                        Parameter::Pool => arguments.extend([7, 8]),
                    }
                }
                assert!(arguments.len() <= MOST_PARAMETERS, "{name} has {} parameters", arguments.len());
                arguments.resize(MOST_PARAMETERS, 0);
                let [a, b, c, d, e, f, g, h] = arguments.try_into().unwrap();
                // SAFETY: what the functions say of their pointers holds, but for the one that is NULL.
                unsafe { function(a, b, c, d, e, f, g, h) };
            }
        }
    });
}
