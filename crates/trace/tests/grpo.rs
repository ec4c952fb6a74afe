//! The recordings of programs in which a trainer and an engine take turns: this test makes them, without a GPU, and compares them
//! with those in `traces/turns`. `UPDATE_EXPECT=1 cargo test -p gapless-trace --test grpo` writes them.
//!
//! The trainer is a recorded one, step by step. The engine has the tensors of a Llama-like model of 7 B parameters: weights, a
//! cache of keys and values, and what prompts and samples of drawn lengths take while it runs. Who sleeps when is what verl, TRL
//! and slime do: the engine while the trainer works, and the trainer while the engine does.

use flate2::read::GzDecoder;
use gapless::driver::ModelDriver;
use gapless_trace::caching::CachingSettings;
use gapless_trace::{
    Compression, Content, Device, GaplessSettings, Op, PhaseKind, PolicyKind, ReplayOptions, ReplayResult, TextWriter,
    Touch, Trace, TraceOp, replay,
};
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const LAYERS: u64 = 32;
const WIDTH: u64 = 4096;
const INNER: u64 = 11_008;
const VOCABULARY: u64 = 32_000;
/// Bytes of a number in bf16, in which the engine computes.
const HALF: u64 = 2;
/// Tokens of a block of the cache, and bytes of its keys and values in a layer.
const BLOCK_TOKENS: u64 = 16;
const BLOCK_BYTES: u64 = BLOCK_TOKENS * 2 * WIDTH * HALF;
/// The first of the engine's streams: others are the trainer's.
const ENGINE: u64 = 100;

/// A program to record.
struct Program {
    name: &'static str,
    model: &'static str,
    config: &'static str,
    /// The recording whose steps the trainer makes, and how many of them.
    trainer: &'static str,
    steps: usize,
    /// Blocks of the cache of keys and values, in each layer.
    blocks: u64,
    /// What becomes of the engine's weights while it sleeps: they are lost where new ones come before the next samples.
    weights: Content,
    /// Whether the trainer hands new weights over from its backup while it is asleep, so that nothing which it has cached stands in
    /// the way of the engine.
    from_backup: bool,
    tags: Tags,
    seed: u64,
}

/// The tags of a program's memory.
struct Tags {
    train: &'static str,
    weights: &'static str,
    cache: &'static str,
    runtime: &'static str,
}

const PROGRAMS: [Program; 2] = [
    Program {
        name: "grpo_one_process",
        model: "GRPO in one process: llama7b_lora_ckpt as the trainer, and an engine of 7 B parameters",
        config: "3 steps; the engine keeps its weights; cache of 1,600 blocks of 16 tokens",
        trainer: "llama7b_lora_ckpt.trace.gz",
        steps: 3,
        blocks: 1600,
        weights: Content::Keep,
        from_backup: false,
        tags: Tags { train: "train", weights: "weights", cache: "kv_cache", runtime: "runtime" },
        seed: 1,
    },
    Program {
        name: "grpo_two_processes",
        model: "GRPO in two processes: llama7b_zero3 as the trainer, and an engine of 7 B parameters in another one",
        config: "6 steps; the engine gets new weights each time; cache of 5,952 blocks of 16 tokens",
        trainer: "llama7b_zero3.trace.gz",
        steps: 6,
        blocks: 5952,
        weights: Content::Discard,
        from_backup: true,
        tags: Tags { train: "train", weights: "engine/weights", cache: "engine/kv_cache", runtime: "engine/runtime" },
        seed: 2,
    },
];

/// What is written.
struct Recording<'a> {
    program: &'a Program,
    ops: Vec<TraceOp>,
    next_id: u64,
    random: u64,
    live: HashMap<u64, u64>,
    live_bytes: u64,
    peak_live_bytes: u64,
}

impl Recording<'_> {
    fn alloc(&mut self, bytes: u64, stream: u64, tag: &str) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.ops.push(TraceOp::Alloc { id, bytes, stream, tag: Some(tag.into()) });
        self.live.insert(id, bytes);
        self.live_bytes += bytes;
        self.peak_live_bytes = self.peak_live_bytes.max(self.live_bytes);
        id
    }

    fn free(&mut self, id: u64) {
        self.live_bytes -= self.live.remove(&id).expect("a live block");
        self.ops.push(TraceOp::Free { id });
    }

    fn sleep(&mut self, tag: &str, content: Content) {
        self.ops.push(TraceOp::Sleep { tag: Some(tag.into()), content });
    }

    fn wake(&mut self, tag: &str) {
        self.ops.push(TraceOp::Wake { tag: Some(tag.into()) });
    }

    fn mark(&mut self, label: String) {
        self.ops.push(TraceOp::Mark(label));
    }

    /// A number from `least` on and below `limit`.
    fn draw(&mut self, least: u64, limit: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        least + (self.random >> 33) % (limit - least)
    }

    /// The engine's weights, its cache, and what it keeps beside them.
    fn load_engine(&mut self) {
        let Tags { weights, cache, runtime, .. } = &self.program.tags;
        let _embedding = self.alloc(VOCABULARY * WIDTH * HALF, ENGINE, weights);
        for _ in 0..LAYERS {
            for numbers in [3 * WIDTH * WIDTH, WIDTH * WIDTH, 2 * INNER * WIDTH, INNER * WIDTH, WIDTH, WIDTH] {
                self.alloc(numbers * HALF, ENGINE, weights);
            }
        }
        for numbers in [WIDTH, VOCABULARY * WIDTH] {
            self.alloc(numbers * HALF, ENGINE, weights);
        }
        for _ in 0..LAYERS {
            self.alloc(self.program.blocks * BLOCK_BYTES, ENGINE, cache);
        }
        // Workspaces of cuBLAS and of attention, the table of angles, the inputs and outputs of captured graphs.
        for bytes in [32 * MIB, 32 * MIB, 128 * MIB, 4096 * 128 * HALF] {
            self.alloc(bytes, ENGINE, runtime);
        }
        for batch in (1..=32).map(|eighth| 8 * eighth) {
            self.alloc(batch * WIDTH * HALF, ENGINE, runtime);
            self.alloc(batch * VOCABULARY * 4, ENGINE, runtime);
        }
    }

    fn engine_sleeps(&mut self) {
        let Program { tags, weights, .. } = self.program;
        self.sleep(tags.runtime, Content::Keep);
        self.sleep(tags.cache, Content::Discard);
        self.sleep(tags.weights, *weights);
    }

    /// Samples for drawn prompts: a few passes over whole prompts, and many over one token of each.
    fn roll_out(&mut self) {
        let runtime = self.program.tags.runtime;
        let sequences = self.draw(32, 129);
        for _ in 0..6 {
            let tokens = self.draw(1024, 8193);
            let mut hidden = self.alloc(tokens * WIDTH * HALF, ENGINE, runtime);
            for _ in 0..LAYERS {
                let projected = self.alloc(tokens * 3 * WIDTH * HALF, ENGINE, runtime);
                let attended = self.alloc(tokens * WIDTH * HALF, ENGINE, runtime);
                self.free(projected);
                let both = self.alloc(tokens * 2 * INNER * HALF, ENGINE, runtime);
                self.free(attended);
                let gated = self.alloc(tokens * INNER * HALF, ENGINE, runtime);
                self.free(both);
                let next = self.alloc(tokens * WIDTH * HALF, ENGINE, runtime);
                self.free(gated);
                self.free(std::mem::replace(&mut hidden, next));
            }
            self.free(hidden);
        }
        for _ in 0..self.draw(40, 120) {
            let logits = self.alloc(sequences * VOCABULARY * 4, ENGINE, runtime);
            let sorted = self.alloc(sequences * VOCABULARY * 4, ENGINE, runtime);
            let tokens = self.alloc(sequences * 8, ENGINE + 1, runtime);
            self.free(logits);
            self.free(sorted);
            self.free(tokens);
        }
    }

    /// The trainer hands weights over in buckets to the engine, which has no cache yet, and sleeps.
    fn update_weights(&mut self) {
        let (train, weights) = (self.program.tags.train, self.program.tags.weights);
        if self.program.from_backup {
            self.sleep(train, Content::Keep);
        }
        self.wake(weights);
        for _ in 0..26 {
            let bucket = self.alloc(512 * MIB, 0, train);
            self.free(bucket);
        }
        self.sleep(train, Content::Keep);
    }
}

impl Program {
    /// Makes the recording.
    fn record(&self) -> Vec<u8> {
        let trainer = Trace::open(&file(self.trainer)).unwrap();
        let mut made = Recording {
            program: self,
            ops: Vec::new(),
            next_id: 0,
            random: self.seed,
            live: HashMap::new(),
            live_bytes: 0,
            peak_live_bytes: 0,
        };
        made.load_engine();
        made.engine_sleeps();
        let mut ids = vec![0; trainer.slots() as usize];
        let mut done = 0;
        for op in trainer.ops() {
            match *op {
                Op::Alloc { slot, stream, bytes, .. } => {
                    let stream = trainer.streams()[usize::from(stream)];
                    ids[slot as usize] = made.alloc(bytes, stream, self.tags.train);
                }
                Op::Free { slot } => made.free(ids[slot as usize]),
                _ => {
                    done += 1;
                    made.mark(format!("train {done}"));
                    made.update_weights();
                    made.wake(self.tags.cache);
                    made.wake(self.tags.runtime);
                    made.roll_out();
                    made.engine_sleeps();
                    made.wake(self.tags.train);
                    made.mark(format!("samples {done}"));
                }
            }
            if done == self.steps {
                break;
            }
        }
        made.written()
    }
}

impl Recording<'_> {
    fn written(&self) -> Vec<u8> {
        let mut writer = TextWriter::new(Vec::new(), Compression::Plain);
        let events = self.ops.len().to_string();
        let peak = self.peak_live_bytes.to_string();
        let header = [
            ("model", self.program.model),
            ("config", self.program.config),
            (
                "made",
                "by crates/trace/tests/grpo.rs: the trainer is recorded, the engine's sizes follow from its model",
            ),
            ("seed", &self.program.seed.to_string()),
            ("events", &events),
            ("peak_live_bytes", &peak),
        ];
        header.iter().for_each(|(key, value)| writer.header(key, value).unwrap());
        self.ops.iter().for_each(|op| writer.op(op).unwrap());
        writer.finish().unwrap()
    }
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces").join(name)
}

fn recorded(program: &Program) -> PathBuf {
    file(&format!("turns/{}.trace.gz", program.name))
}

/// The same file is made in each run.
#[test]
fn recordings_are_those_that_are_made() {
    for program in &PROGRAMS {
        let (made, path) = (program.record(), recorded(program));
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            let mut file = flate2::GzBuilder::new().write(Vec::new(), flate2::Compression::best());
            std::io::Write::write_all(&mut file, &made).unwrap();
            std::fs::write(&path, file.finish().unwrap()).unwrap();
        }
        let mut known = Vec::new();
        GzDecoder::new(std::fs::File::open(&path).unwrap()).read_to_end(&mut known).unwrap();
        assert!(known == made, "{} is another one: see the top of this test", path.display());
    }
}

fn on(trace: &Trace, policy: PolicyKind, capacity_bytes: u64, lag_ops: u64) -> ReplayResult {
    let options = ReplayOptions {
        policy,
        gapless: GaplessSettings::default(),
        caching: CachingSettings::default(),
        capacity_bytes,
        touch: Touch::for_model(lag_ops),
        progress: None,
    };
    let driver: Arc<ModelDriver> = Arc::new(Device { lag_ops, ..Device::of(capacity_bytes) }.model());
    replay(trace, driver, &options).unwrap()
}

/// A device that is little larger than the larger one of the two by turns suffices, with work in flight too.
#[test]
fn both_take_turns_on_little_more_than_one_needs() {
    for program in &PROGRAMS {
        let trace = Trace::open(&recorded(program)).unwrap();
        assert_eq!(trace.warning(), None);
        assert!(trace.peak_awake_bytes() < trace.peak_live_bytes() / 10 * 7, "{}", program.name);
        for (thousandths, lag_ops) in BOUNDS {
            let result = on(&trace, PolicyKind::Gapless, trace.peak_awake_bytes() / 1000 * thousandths, lag_ops);
            assert_eq!(result.oom, None, "{} at {thousandths} with lag {lag_ops}", program.name);
            for phase in result.phases_of(PhaseKind::Sleep) {
                let copied = phase.copied_bytes;
                assert!(copied == 0 || copied <= phase.live_bytes / 100 * 101, "{phase:?}");
            }
        }
    }
}

/// Devices in thousandths of the peak of what is awake, and ops after which work completes.
const BOUNDS: [(u64, u64); 2] = [(1008, 0), (1030, 200)];
