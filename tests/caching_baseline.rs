//! The baseline against the real allocator: the smallest device on which each trace survives.

use gapless::trace::{GaplessSettings, PolicyKind, Search, Trace};
use std::num::NonZero;
use std::path::{Path, PathBuf};

/// Smallest device over peak live bytes: PyTorch 2.13's native allocator, replaying the same traces.
const REAL: [(&str, f64); 12] = [
    ("colocated_serving_vit", 1.1087),
    ("dlrm_small_tensors", 1.0412),
    ("efficientnet_b5", 1.0542),
    ("gpt2xl_varlen", 1.0677),
    ("llama7b_lora_ckpt", 1.1011),
    ("llama7b_zero3", 1.0959),
    ("moe_train", 1.0461),
    ("offload_two_streams", 1.0618),
    ("rlhf_alternate", 1.0759),
    ("serving_llama7b", 1.2828),
    ("unet_multires", 1.0278),
    ("vit_l_multiscale", 1.0548),
];

/// How far the baseline may be from it, either way.
const TOLERANCE: f64 = 0.01;

#[test]
fn traces_of_this_repository_need_what_the_real_allocator_needs() {
    let found = compare(&Path::new(env!("CARGO_MANIFEST_DIR")).join("traces"));
    assert_eq!(found, 3, "traces/ holds three of these");
}

#[test]
fn the_other_traces_too_where_they_are() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces");
    if compare(&folder) == 0 {
        eprintln!("skipped: no traces in {}", folder.display());
    }
}

fn compare(folder: &Path) -> usize {
    let present: Vec<(PathBuf, f64)> = REAL
        .iter()
        .map(|&(name, real)| (folder.join(format!("{name}.trace.gz")), real))
        .filter(|(path, _)| path.exists())
        .collect();
    for (path, real) in &present {
        let trace = Trace::open(path).unwrap();
        let search = Search {
            trace: &trace,
            policy: PolicyKind::Caching,
            gapless: GaplessSettings::default(),
            lag_ops: 0,
            threads: NonZero::new(2).unwrap(),
            progress: None,
        };
        let smallest = search.min_capacity_bytes().unwrap().expect("some device is large enough");
        #[allow(clippy::cast_precision_loss, reason = "a ratio")]
        let ratio = smallest as f64 / trace.peak_live_bytes() as f64;
        eprintln!("{:24} baseline {ratio:.4} real {real:.4} {:+.2}%", trace.name(), (ratio / real - 1.0) * 100.0);
        assert!((ratio / real - 1.0).abs() <= TOLERANCE, "{}: {ratio:.4}, the real one {real:.4}", trace.name());
    }
    present.len()
}
