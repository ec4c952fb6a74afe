//! How much is tried.

/// Multiplies the number of cases: 1 unless set.
const SCALE: &str = "GAPLESS_PROOF_SCALE";

/// `cases`, scaled by the environment.
pub fn budget_of_cases(cases: u32) -> u32 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let scaled = (f64::from(cases) * scale()) as u32;
    scaled.max(1)
}

/// Whether there are too few cases for each to come to everything that it is meant to reach.
pub fn is_reduced() -> bool {
    scale() < 1.0
}

fn scale() -> f64 {
    std::env::var(SCALE).ok().and_then(|text| text.parse().ok()).unwrap_or(1.0)
}
