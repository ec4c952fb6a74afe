//! Property tests with a fixed and a random seed. Failing inputs are shrunk and printed.

use crate::scale::budget_of_cases;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

/// Variable for the seed of the second run of each property. The default is taken from the clock.
const SEED: &str = "GAPLESS_PROOF_SEED";
/// Variable for the maximum number of steps to shrink a failing input. The default is 3000.
const SHRINK: &str = "GAPLESS_PROOF_SHRINK";

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs `test` on `cases` inputs from a fixed seed, and on as many from a random seed, which is printed.
///
/// # Panics
/// Panics if an input fails. The message has the shrunk input as formatted by `show`, and says how many passed before.
pub fn prove<S: Strategy>(cases: u32, strategy: &S, show: impl Fn(&S::Value) -> String, test: impl Fn(&S::Value)) {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    let random = setting(SEED).unwrap_or(clock & u128::from(u64::MAX));
    for seed in [1, random] {
        eprintln!("seed {seed} (repeat with {SEED}={seed})");
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let config = Config {
            cases: budget_of_cases(cases),
            failure_persistence: None,
            max_shrink_iters: setting(SHRINK).unwrap_or(3000),
            ..Config::default()
        };
        // Of the inputs before the first that failed; the others come from shrinking it.
        let (passed, failed) = (Cell::new(0), Cell::new(false));
        let outcome = TestRunner::new_with_rng(config, rng).run(strategy, |input| {
            let failed_before = failed.replace(true);
            test(&input);
            failed.set(failed_before);
            passed.set(passed.get() + u32::from(!failed_before));
            Ok::<(), TestCaseError>(())
        });
        match outcome {
            Ok(()) => {}
            Err(TestError::Fail(reason, input)) => {
                panic!("seed {seed}, after {} inputs that passed: {reason}\n\n{}", passed.get(), show(&input))
            }
            Err(TestError::Abort(reason)) => panic!("seed {seed}: {reason}"),
        }
    }
}
