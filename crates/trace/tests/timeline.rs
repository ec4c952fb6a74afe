//! Tests of the timeline: the memory that a replay holds over time, and where it lies.

use gapless_trace::advice::Setting;
use gapless_trace::timeline::{EVEN_MOMENTS, MOST_CHOSEN, MOST_POLICIES, MOST_STREAMS, Subject, Timeline, timeline};
use gapless_trace::{Device, Trace};
use std::fmt::Write;

const MIB: u64 = 1 << 20;

fn subjects(settings: &[&str]) -> Vec<Subject> {
    settings.iter().map(|setting| Subject::from(setting.parse::<Setting>().unwrap())).collect()
}

fn follow(text: &str, capacity_bytes: u64, settings: &[&str], moments: &[u64]) -> Timeline {
    let trace = Trace::read("t", text.as_bytes()).unwrap();
    timeline(&trace, &Device::of(capacity_bytes), &subjects(settings), moments).unwrap()
}

#[test]
fn series_follow_what_is_live_and_what_is_held() {
    let text = "a 1 4194304 0\na 2 2097152 7\nf 1\nm end\n";
    let found = follow(text, 64 * MIB, &["native", "gapless"], &[]);
    assert_eq!((found.ops, found.ops_per_bucket), (4, 1));
    assert_eq!(found.live.high_kib, [4096, 6144, 2048, 2048]);
    assert_eq!(found.live.low_kib, found.live.high_kib, "each op has a bucket of its own");
    let streams: Vec<_> = found.streams.iter().map(|stream| (stream.stream, stream.live.high_kib.clone())).collect();
    assert_eq!(streams, [(0, vec![4096, 4096, 0, 0]), (7, vec![0, 2048, 2048, 2048])]);
    // PyTorch's allocator takes 20 MiB for each stream, and keeps them.
    assert_eq!(found.policies[0].reserved.high_kib, [20 * 1024, 40 * 1024, 40 * 1024, 40 * 1024]);
    for (held, live) in found.policies[1].reserved.high_kib.iter().zip(&found.live.high_kib) {
        assert!(held >= live);
    }
}

#[test]
fn a_request_that_was_refused_is_not_live() {
    let log = "Thread,Time,Action,Pointer,Size,Stream\n1,1,allocate,0x100,1048576,0x0\n\
               1,3,allocate failure,(nil),1099511627776,0x0\n";
    let found = follow(log, 64 * MIB, &["native"], &[]);
    assert_eq!(found.live.high_kib, [1024; 2]);
    assert_eq!(found.policies[0].oom_op, Some(1));
}

#[test]
fn maps_say_what_lies_where_before_the_op() {
    let text = "a 1 20971520 0\na 2 20971520 0\nf 1\na 3 4194304 0\n";
    let found = follow(text, 64 * MIB, &["native", "gapless"], &[3]);
    assert_eq!(found.moments, [0, 1, 2, 3, 4]);
    for policy in &found.policies {
        assert_eq!(policy.maps.iter().map(|map| map.op).collect::<Vec<_>>(), found.moments);
        assert_eq!(policy.maps[0].cells, "");
        let live: Vec<_> = policy.maps.iter().map(|map| map.live_bytes / MIB).collect();
        assert_eq!(live, [0, 20, 40, 20, 24], "{}", policy.name);
    }
    let third = &found.policies[0].maps[3];
    assert_eq!((third.free_bytes, third.largest_free_bytes, third.free_runs), (20 * MIB, 20 * MIB, 1));
    let cells = third.cells.replace('|', "");
    let half = cells.len() / 2;
    assert!(
        cells[..half].bytes().all(|cell| cell == b'0') && cells[half..].bytes().all(|cell| cell == b'9'),
        "{cells}"
    );
}

/// The cells of a map add up to what the device lacks; idle chunks aside, which a young gapless has none of.
#[test]
fn maps_add_up_to_what_is_held() {
    let text = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/oom/oom_10.trace.gz")).unwrap();
    let trace = Trace::read("oom_10", &*text).unwrap();
    let device = Device::for_trace(&trace).unwrap();
    let found = timeline(&trace, &device, &subjects(&["native", "expandable_segments:True"]), &[1347]).unwrap();
    assert_eq!(found.ops_per_bucket, 1);
    for policy in &found.policies {
        assert!(policy.maps.len() > 10);
        for map in policy.maps.iter().filter(|map| map.op > 0) {
            let held = policy.reserved.high_kib[map.op as usize - 1] * 1024;
            assert_eq!(map.live_bytes + map.free_bytes, held, "{} before op {}", policy.name, map.op);
        }
    }
    let native = &found.policies[0];
    assert_eq!((native.oom_op, native.reserved.high_kib.len()), (Some(1347), 1347));
    let failure = native.maps.last().unwrap();
    assert_eq!((failure.op, failure.free_runs), (1347, 161), "as the advice counts them");
}

#[test]
fn everything_is_bounded() {
    let mut text = String::from("# capacity_bytes 1099511627776\n");
    for id in 0..30_000 {
        writeln!(text, "a {id} {} {}", 1000 + id, id % 20).unwrap();
    }
    let trace = Trace::read("t", text.as_bytes()).unwrap();
    let device = Device::for_trace(&trace).unwrap();
    let moments: Vec<u64> = (0..1000).map(|moment| moment * 17).collect();
    let found = timeline(&trace, &device, &subjects(&["native"; 15]), &moments).unwrap();
    assert_eq!((found.policies.len(), found.streams.len(), found.streams_left_out), (MOST_POLICIES, MOST_STREAMS, 12));
    assert!(found.moments.len() <= EVEN_MOMENTS as usize + MOST_CHOSEN);
    assert!(found.moments.is_sorted() && found.moments.last() == Some(&30_000));
    assert!(found.live.high_kib.len() <= 4096 && found.policies[0].reserved.low_kib.len() <= 4096);
    // Buckets keep the extremes.
    assert_eq!(*found.live.high_kib.last().unwrap(), trace.peak_live_bytes().div_ceil(1024));
}

/// A failure at the beginning of a long run is seen op by op, and the blocks that were live then one by one.
#[test]
fn the_first_moments_are_looked_at_closely() {
    let mut text = String::from("a 1 20971520 0\na 2 20971520 3\n");
    for id in 3..30_000 {
        write!(text, "a {id} 1048576 0\nf {id}\n").unwrap();
    }
    let found = follow(&text, 64 * MIB, &["native", "gapless"], &[100, 50_000, 7]);
    assert_eq!(found.windows, [[0, 356], [49_232, 50_256]]);
    assert_eq!(found.live.close_kib.len(), 356 + 1024);
    assert_eq!(found.live.close_kib[..4], [20 * 1024, 40 * 1024, 41 * 1024, 40 * 1024]);
    assert_eq!(found.policies[0].reserved.close_kib.len(), 356 + 1024);
    let blocks: Vec<_> = found.blocks.iter().map(|blocks| (blocks.op, blocks.allocated_at.clone())).collect();
    assert_eq!(blocks, [(100, vec![0, 1]), (50_000, vec![0, 1])]);
    assert_eq!((&found.blocks[0].bytes, &found.blocks[0].streams), (&vec![20 * MIB; 2], &vec![0, 3]));
    for policy in &found.policies {
        let map = policy.maps.iter().find(|map| map.op == 100).unwrap();
        let cells = map.cells.as_bytes();
        for block in &map.blocks {
            let [first, last] = block.unwrap();
            assert!(cells[first as usize..=last as usize].iter().all(|cell| *cell == b'9'), "{}", policy.name);
            assert_eq!(u64::from(last - first + 1) * map.cell_bytes, 20 * MIB, "{}", policy.name);
        }
        assert!(policy.maps.iter().all(|map| map.blocks.is_empty() != [100, 50_000].contains(&map.op)));
    }
}

/// Where there is room, blocks are listed at every moment.
#[test]
fn few_blocks_are_listed_at_all_moments() {
    let text: String = (0..100).map(|id| format!("a {id} 1048576 0\n")).collect();
    let found = follow(&text, 256 * MIB, &["native"], &[100]);
    assert_eq!(found.blocks.iter().map(|blocks| blocks.op).collect::<Vec<_>>(), found.moments);
    for (map, blocks) in found.policies[0].maps.iter().zip(&found.blocks) {
        assert_eq!((map.blocks.len(), blocks.allocated_at.len()), (map.op as usize, map.op as usize));
        assert!(map.blocks.iter().all(Option::is_some));
    }
}

/// Eight streams are drawn one by one, those with the highest peaks, and the others together.
#[test]
fn streams_beyond_the_eighth_are_put_together() {
    let text: String = (0..10).map(|stream| format!("a {stream} {} {stream}\n", (stream + 1) * 1024)).collect();
    let found = follow(&text, 64 * MIB, &[], &[]);
    let streams: Vec<u64> = found.streams.iter().map(|stream| stream.stream).collect();
    assert_eq!(streams, (2..10).collect::<Vec<_>>());
    assert_eq!(found.other_streams.unwrap().high_kib, [1, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
    assert_eq!(follow("a 1 1024 0\n", 64 * MIB, &[], &[]).other_streams, None);
}

#[test]
fn settings_that_no_allocator_takes_are_an_error() {
    let trace = Trace::read("t", &b"a 1 100 0\n"[..]).unwrap();
    assert!(timeline(&trace, &Device::of(1), &subjects(&["gapless"]), &[]).is_err());
}

#[test]
fn steps_empty_the_cache_where_that_is_the_setting() {
    let text = "a 1 4194304 0\nf 1\nm step\n";
    let found = follow(text, 64 * MIB, &["torch.cuda.empty_cache()"], &[]);
    assert_eq!(found.policies[0].reserved.high_kib, [20 * 1024, 20 * 1024, 0]);
}
