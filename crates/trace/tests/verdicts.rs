//! Compares the baseline under five settings with the real allocator: on which devices each trace survives.
//!
//! `verdicts.tsv` holds what PyTorch 2.13's own allocator did with a trace under a setting on devices of several times
//! the peak of live bytes: `ok`, or the index of the request that failed. This repository has three of the traces.
//! `GAPLESS_TRACES` is a folder with the others and with a `verdicts.tsv` for all of them.

use gapless_trace::caching::CachingSettings;
use gapless_trace::{Device, GaplessSettings, PolicyKind, ReplayOptions, Touch, Trace, replay};
use std::path::Path;
use std::sync::Arc;

/// The traces of this repository.
const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces");

/// The settings by their names in the table.
const SETTINGS: [(&str, &str); 5] = [
    ("native", "native"),
    ("expandable", "expandable_segments:True"),
    ("split128", "max_split_size_mb:128"),
    ("split512", "max_split_size_mb:512"),
    ("roundup8", "roundup_power2_divisions:8"),
];

#[test]
fn traces_of_this_repository_survive_where_they_do_with_the_real_allocator() {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verdicts.tsv");
    compare(&table, Path::new(HERE), |_| true).check(120);
}

#[test]
fn other_traces_survive_where_they_do_with_the_real_allocator() {
    let Some(folder) = std::env::var_os("GAPLESS_TRACES").filter(|folder| !folder.is_empty()) else {
        eprintln!("skipped: GAPLESS_TRACES is not set");
        return;
    };
    let folder = Path::new(&folder);
    let is_other = |name: &str| !Path::new(HERE).join(format!("{name}.trace.gz")).exists();
    compare(&folder.join("verdicts.tsv"), folder, is_other).check(360);
}

/// How many verdicts agree.
#[derive(Default)]
struct Agreement {
    verdicts: usize,
    /// Verdicts that agree in whether the trace survives.
    survivals: usize,
    /// Verdicts that agree in the request that failed too.
    requests: usize,
}

impl Agreement {
    fn check(&self, verdicts: usize) {
        let Self { survivals, requests, .. } = *self;
        eprintln!("{survivals} of {} agree, {requests} to the request that failed", self.verdicts);
        assert_eq!(self.verdicts, verdicts);
        assert!(survivals * 100 >= verdicts * 98, "{survivals} of {verdicts} agree");
        assert!(requests * 100 >= verdicts * 98, "{requests} of {verdicts} agree to the request that failed");
    }
}

/// Compares the verdicts on those of the traces in a folder that are `wanted`.
fn compare(table: &Path, traces: &Path, wanted: impl Fn(&str) -> bool) -> Agreement {
    let table = std::fs::read_to_string(table).unwrap();
    let mut lines = table.lines();
    let factors: Vec<f64> =
        lines.next().unwrap().split('\t').skip(2).map(|factor| factor[1..].parse().unwrap()).collect();
    let mut agreement = Agreement::default();
    let mut last: Option<Trace> = None;
    for line in lines {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, setting, ref verdicts @ ..] = fields[..] else { panic!("{line}") };
        if !wanted(name) {
            continue;
        }
        let trace = match last.take().filter(|trace| trace.name() == name) {
            Some(trace) => trace,
            None => Trace::open(&traces.join(format!("{name}.trace.gz"))).unwrap(),
        };
        let settings = SETTINGS.iter().find(|(short, _)| *short == setting).unwrap().1.parse().unwrap();
        for (factor, &real) in factors.iter().zip(verdicts) {
            let found = verdict(&trace, settings, *factor);
            agreement.verdicts += 1;
            agreement.survivals += usize::from((found == "ok") == (real == "ok"));
            agreement.requests += usize::from(found == real);
            if found != real {
                eprintln!("{name} {settings} x{factor}: {found}, expected {real}");
            }
        }
        last = Some(trace);
    }
    agreement
}

fn verdict(trace: &Trace, caching: CachingSettings, factor: f64) -> String {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "far below 2^52 bytes"
    )]
    let device = Device::of((trace.peak_live_bytes() as f64 * factor) as u64);
    let options = ReplayOptions {
        policy: PolicyKind::Caching,
        gapless: GaplessSettings::default(),
        caching,
        capacity_bytes: device.capacity_bytes,
        touch: Touch::Nothing,
        progress: None,
    };
    let result = replay(trace, Arc::new(device.model()), &options).unwrap();
    result.oom.map_or_else(|| "ok".to_owned(), |oom| oom.op_index.to_string())
}
