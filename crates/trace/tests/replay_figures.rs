//! The exact costs of replays. This test detects changes in where blocks are placed, which chunks are used and how
//! large new ones are, even if nothing else fails.
//!
//! After an intended change, run `UPDATE_EXPECT=1 cargo test -p gapless-trace --test replay_figures` and check the
//! difference.

use expect_test::expect_file;
use gapless::driver::DriverCall;
use gapless::{ChunkPolicy, units::round_up};
use gapless_trace::caching::CachingSettings;
use gapless_trace::{Device, GaplessSettings, PolicyKind, ReplayOptions, Touch, Trace, replay};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// An artificial workload, in which the number of live bytes varies around `live_bytes`.
struct Workload {
    name: &'static str,
    sizes: &'static [u64],
    streams: u64,
    live_bytes: u64,
    ops: usize,
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "small",
        sizes: &[512, 3 * KIB, 40 * KIB, 700 * KIB],
        streams: 2,
        live_bytes: 60 * MIB,
        ops: 2000,
    },
    Workload { name: "large", sizes: &[9 * MIB, 150 * MIB, 900 * MIB], streams: 1, live_bytes: 9000 * MIB, ops: 500 },
    Workload {
        name: "mixed",
        sizes: &[20 * KIB, 900 * KIB, 3 * MIB, 30 * MIB, 260 * MIB],
        streams: 3,
        live_bytes: 1500 * MIB,
        ops: 1000,
    },
    Workload { name: "streams", sizes: &[KIB, MIB, 5 * MIB, 33 * MIB], streams: 6, live_bytes: 400 * MIB, ops: 1000 },
];

impl Workload {
    /// Generates the trace. Sizes vary from half to twice those in `sizes`, and mostly young blocks are freed.
    fn trace(&self) -> Trace {
        let mut state = 0x9e37_79b9_u64;
        let mut random = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let (mut text, mut live, mut live_bytes) = (String::new(), Vec::new(), 0);
        for id in 0..self.ops {
            while live_bytes > self.live_bytes || (!live.is_empty() && random(3) == 0) {
                let age = if random(4) == 0 { live.len() as u64 } else { 8.min(live.len() as u64) };
                let (gone, bytes) = live.swap_remove(live.len() - 1 - random(age) as usize);
                live_bytes -= bytes;
                writeln!(text, "f {gone}").unwrap();
            }
            let kind = self.sizes[random(self.sizes.len() as u64) as usize];
            let bytes = kind / 2 + random(kind * 3 / 2);
            live.push((id, bytes));
            live_bytes += bytes;
            writeln!(text, "a {id} {bytes} {}", random(self.streams)).unwrap();
        }
        Trace::read(self.name, text.as_bytes()).unwrap()
    }
}

fn recorded(name: &str) -> Trace {
    Trace::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces").join(name)).unwrap()
}

const HEADER: &str =
    "trace                 device  chunks  lag | reserve create    map access  unmap release waits | reserved, ends\n";

/// Returns a line with the figures of one replay. The size of the device is in thousandths of the peak of live bytes.
fn line(trace: &Trace, thousandths: u64, chunk: Option<ChunkPolicy>, lag_ops: u64) -> String {
    let capacity_bytes = round_up(trace.peak_live_bytes() / 1000 * thousandths, 2 * MIB).unwrap();
    let device = Device { lag_ops, ..Device::of(capacity_bytes) };
    let options = ReplayOptions {
        policy: PolicyKind::Gapless,
        gapless: GaplessSettings { chunk, ..GaplessSettings::default() },
        caching: CachingSettings::default(),
        capacity_bytes,
        touch: Touch::for_model(lag_ops),
        progress: None,
    };
    let result = replay(trace, Arc::new(device.model()), &options).unwrap();
    let calls = result.driver_calls;
    let chunks = match chunk {
        Some(ChunkPolicy::Fixed(bytes)) => (bytes / MIB).to_string(),
        _ => "auto".to_owned(),
    };
    let end = result.oom.map_or_else(String::new, |oom| format!(", out of memory at {}", oom.op_index));
    format!(
        "{:21} {thousandths:>6} {chunks:>7} {lag_ops:>4} | {:7} {:6} {:6} {:6} {:6} {:7} {:5} | {}{end}\n",
        trace.name(),
        calls[DriverCall::Reserve],
        calls[DriverCall::Create],
        calls[DriverCall::Map],
        calls[DriverCall::SetAccess],
        calls[DriverCall::Unmap],
        calls[DriverCall::Release],
        result.host_waits,
        result.peak_reserved_bytes / MIB,
    )
}

#[test]
fn replay_costs_have_not_changed() {
    let mut table = HEADER.to_owned();
    for trace in WORKLOADS.iter().map(Workload::trace) {
        for thousandths in [1008, 1030, 1100, 2000] {
            for lag_ops in [0, 40] {
                table += &line(&trace, thousandths, None, lag_ops);
            }
            table += &line(&trace, thousandths, Some(ChunkPolicy::Fixed(20 * MIB)), 40);
        }
    }
    // The second one releases chunks and creates smaller ones instead.
    let traces = [("vit_l_multiscale", 1030), ("llama7b_zero3", 1030), ("vit_l_multiscale", 2000)];
    for (name, thousandths) in traces {
        table += &line(&recorded(&format!("{name}.trace.gz")), thousandths, None, 0);
    }
    expect_file!["replay_figures.txt"].assert_eq(&table);
}
