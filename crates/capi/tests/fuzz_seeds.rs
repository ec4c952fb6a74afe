//! The seeds of the fuzz targets `conf` and `capi`, as tests: what they look at is in `fuzzed`.

#[path = "fuzzed/calls/mod.rs"]
mod calls;
#[path = "fuzzed/conf.rs"]
mod conf;
mod gpu;
#[path = "../../../tests/seeds/mod.rs"]
mod seeds;
#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use seeds::each_seed;

#[test]
fn configurations() {
    each_seed("conf", |bytes| conf::check_conf(&String::from_utf8_lossy(bytes)));
}

#[test]
fn calls() {
    calls_by_seeds_and_by_chance();
}

/// As on a GPU: nothing fails on demand, and the target does not know what the driver has given out. Three devices, since it does
/// not know how many there are, either.
#[test]
fn calls_on_an_installed_driver() {
    let settings = [("GAPLESS_FUZZ_DRIVER", "cuda"), ("GAPLESS_SIM_DEVICES", "3")];
    gpu::with_devices("calls_on_an_installed_driver", &settings, calls_by_seeds_and_by_chance);
}

/// Seeds, and bytes by chance from a fixed start.
fn calls_by_seeds_and_by_chance() {
    each_seed("capi", calls::run_calls);
    let mut state = 7_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    for _ in 0..200 {
        let bytes: Vec<u8> = (0..64 * 8).map(|_| random()).collect();
        calls::run_calls(&bytes);
    }
    // Mostly what PyTorch's allocator object calls, on one device and three pools.
    for _ in 0..200 {
        let mut bytes: Vec<u8> = (0..64 * 8).map(|_| random()).collect();
        for record in bytes.chunks_exact_mut(8) {
            if record[0] % 8 > 0 {
                record[0] = 37 + 20 * (record[0] % 11);
                record[1] %= 8;
            }
        }
        calls::run_calls(&bytes);
    } // Mostly growable ranges, among allocations of all kinds and calls that fail.
    for _ in 0..100 {
        let mut bytes: Vec<u8> = (0..64 * 8).map(|_| random()).collect();
        for record in bytes.chunks_exact_mut(8).filter(|record| record[0] % 4 > 0) {
            (record[0], record[1]) = (calls::RANGE, 0);
            // Sizes that a device of 64 MiB has.
            record[2] = record[2] & 0xf8 | [2, 4, 4, 4][usize::from(record[2] % 4)];
        }
        calls::run_calls(&bytes);
    }
}
