//! The number of cases in property tests.

/// Variable for the factor by which the number of cases is multiplied. The default is 1.
const SCALE: &str = "GAPLESS_PROOF_SCALE";

/// Returns `cases` multiplied by the factor in the environment.
pub fn budget_of_cases(cases: u32) -> u32 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let scaled = (f64::from(cases) * scale()) as u32;
    scaled.max(1)
}

/// Returns `true` if there are too few cases for a test to reach everything that it is meant to.
pub fn is_reduced() -> bool {
    scale() < 1.0
}

fn scale() -> f64 {
    std::env::var(SCALE).ok().and_then(|text| text.parse().ok()).unwrap_or(1.0)
}
