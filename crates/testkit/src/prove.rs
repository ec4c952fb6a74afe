//! Property tests with a fixed and a random seed, whose shrunk failures print as Rust tests.

use crate::scale::budget_of_cases;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of the second run of each property: of the clock unless set.
const SEED: &str = "GAPLESS_PROOF_SEED";
/// Most steps taken to make a failing input smaller: 3000 unless set.
const SHRINK: &str = "GAPLESS_PROOF_SHRINK";

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs `test` on `cases` inputs from a fixed seed and as many from a random one, which is printed.
///
/// # Panics
/// When an input fails: the shrunk one is printed by `show`.
pub fn prove<S: Strategy>(cases: u32, strategy: &S, show: impl Fn(&S::Value) -> String, test: impl Fn(&S::Value)) {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    let random = setting(SEED).unwrap_or(clock & u128::from(u64::MAX));
    for seed in [1, random] {
        eprintln!("seed {seed} ({SEED}={seed} repeats it)");
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let config = Config {
            cases: budget_of_cases(cases),
            failure_persistence: None,
            max_shrink_iters: setting(SHRINK).unwrap_or(3000),
            ..Config::default()
        };
        let outcome = TestRunner::new_with_rng(config, rng).run(strategy, |input| {
            test(&input);
            Ok::<(), TestCaseError>(())
        });
        match outcome {
            Ok(()) => {}
            Err(TestError::Fail(reason, input)) => panic!("seed {seed}: {reason}\n\n{}", show(&input)),
            Err(TestError::Abort(reason)) => panic!("seed {seed}: {reason}"),
        }
    }
}
