//! Pools of captured graphs, as PyTorch uses them: captures that fail, overlap or end while a replay is in flight.

mod random;
#[path = "../../../../tests/simulated/mod.rs"]
mod simulated;
mod world;

use gapless::driver::WorkDriver;
use gapless_capi::*;
use std::ptr::without_provenance_mut;
use std::time::Duration;
use world::*;

const MIB: u64 = 1 << 20;

/// `g.replay(); del y, g` in PyTorch: the pool is released first, and nobody waits.
#[test]
fn a_graph_may_end_behind_its_replay() {
    in_world("a_graph_may_end_behind_its_replay", "256MiB", |world| {
        let [captured, replaying] = world.streams();
        let (graph, kept) = world.graph(1, captured, 8 * MIB);
        let hold = world.hold(replaying);
        world.replay(graph, replaying);
        free(kept);
        release(1);
        assert!(report()["pools"].as_array().unwrap().is_empty());
        assert_eq!(report()["condemned_bytes"].as_u64(), Some(16 * MIB));
        // Memory of others comes and goes meanwhile.
        for _ in 0..100 {
            free(malloc(4 * MIB, captured));
        }
        hold.end();
        world.check();
        // What PyTorch calls for torch.cuda.empty_cache.
        world.driver.delay(replaying, Duration::from_millis(100)).unwrap();
        world.replay(graph, replaying);
        gapless_torch_reset();
        assert_eq!(report()["condemned_bytes"].as_u64(), Some(0));
        world.check();
        assert_eq!(world.chunks(), 0);
    });
}

/// The last allocation of a released pool is freed behind a replay.
#[test]
fn a_pool_may_end_with_its_last_allocation_behind_a_replay() {
    in_world("a_pool_may_end_with_its_last_allocation_behind_a_replay", "256MiB", |world| {
        let [captured, replaying] = world.streams();
        let (graph, kept) = world.graph(1, captured, 8 * MIB);
        release(1);
        world.driver.delay(replaying, Duration::from_millis(100)).unwrap();
        world.replay(graph, replaying);
        free(kept);
        gapless_torch_reset();
        world.check();
        assert_eq!(world.chunks(), 0);
    });
}

/// While a capture is under way nothing waits for the device, since that would end the capture without a graph.
#[test]
fn no_pool_is_closed_during_a_capture() {
    in_world("no_pool_is_closed_during_a_capture", "64MiB", |world| {
        let [first, second, replaying] = world.streams();
        let (graph, kept) = world.graph(1, first, 8 * MIB);
        world.begin(2, second);
        let output = malloc(4 * MIB, second);
        world.driver.delay(replaying, Duration::from_millis(100)).unwrap();
        world.replay(graph, replaying);
        free(kept);
        release(1);
        gapless_torch_reset();
        gapless_torch_memory_fraction(0.9, 0);
        assert_eq!(report()["condemned_bytes"].as_u64(), Some(16 * MIB));
        // More than is left, in the pool, beside it, and in another pool.
        assert_eq!(try_malloc(60 * MIB, second), None);
        assert_eq!(try_malloc(60 * MIB, first), None);
        open(3);
        close(3);
        release(3);
        world.end(2, second);
        world.check();
        gapless_torch_reset();
        assert_eq!(report()["condemned_bytes"].as_u64(), Some(0));
        free(output);
        release(2);
        gapless_torch_reset();
        assert_eq!(world.chunks(), 0);
    });
}

/// Nor does a request wait that is made on a captured stream while no pool is open, though a released pool has what it wants.
#[test]
fn a_request_on_a_captured_stream_closes_no_pool() {
    in_world("a_request_on_a_captured_stream_closes_no_pool", "64MiB", |world| {
        let [first, second] = world.streams();
        let (_, kept) = world.graph(1, first, 8 * MIB);
        world.begin(2, second);
        close(2);
        free(kept);
        release(1);
        assert_eq!(try_malloc(60 * MIB, second), None);
        assert_eq!(report()["condemned_bytes"].as_u64(), Some(16 * MIB));
        world.end_capture(second).expect("a graph");
        free(malloc(60 * MIB, second));
        release(2);
        gapless_torch_reset();
        assert_eq!(world.chunks(), 0);
    });
}

/// PyTorch takes a fraction of 0.
#[test]
fn with_a_fraction_of_0_nothing_is_allocated() {
    in_world("with_a_fraction_of_0_nothing_is_allocated", "64MiB", |world| {
        let [stream] = world.streams();
        free(malloc(8 * MIB, stream));
        assert_eq!(gapless_torch_set_fraction(0.0, 0), GAPLESS_OK);
        assert_eq!(world.chunks(), 0);
        assert_eq!(try_malloc(1, stream), None);
        assert_eq!(gapless_torch_set_fraction(-0.1, 0), GAPLESS_ERROR_INVALID_ARGUMENT);
        assert_eq!(gapless_torch_set_fraction(1.0, 0), GAPLESS_OK);
        free(malloc(8 * MIB, stream));
        gapless_torch_reset();
    });
}

/// Whoever finds no memory gets that of condemned pools, after a wait.
#[test]
fn condemned_memory_is_had_when_it_is_wanted() {
    in_world("condemned_memory_is_had_when_it_is_wanted", "64MiB", |world| {
        let [captured, replaying] = world.streams();
        for by_pool in [false, true] {
            let (graph, kept) = world.graph(1, captured, 20 * MIB);
            world.driver.delay(replaying, Duration::from_millis(50)).unwrap();
            world.replay(graph, replaying);
            free(kept);
            if by_pool {
                // The pool that begins later would close it.
                open(2);
                free(malloc(MIB, replaying));
            }
            release(1);
            let wanted = malloc(60 * MIB, replaying);
            if by_pool {
                assert_eq!(live(), [(2, 60 * MIB)].into());
                close(2);
                release(2);
            }
            free(wanted);
            gapless_torch_reset();
            world.check();
        }
        assert_eq!(world.chunks(), 0);
    });
}

/// Nobody who allocates or frees waits for somebody who waits for a replay.
#[test]
fn nobody_waits_for_a_close() {
    in_world("nobody_waits_for_a_close", "256MiB", |world| {
        let [captured, replaying, other] = world.streams();
        let (graph, kept) = world.graph(1, captured, 8 * MIB);
        let (_, of_second) = world.graph(2, captured, 8 * MIB);
        let cached = malloc(MIB, other);
        let hold = world.hold(replaying);
        world.replay(graph, replaying);
        free(kept);
        release(1);
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| gapless_torch_reset());
            // Time for it to begin.
            std::thread::sleep(Duration::from_millis(50));
            free(cached);
            free(malloc(MIB, other));
            free(malloc(16 * MIB, other));
            free(of_second);
            release(2);
            assert!(!closing.is_finished(), "the close waits for the replay");
            hold.end();
        });
        gapless_torch_reset();
        world.check();
        assert_eq!(world.chunks(), 0);
    });
}

/// PyTorch before 2.12 does not close the pool of a capture that has failed.
#[test]
fn a_failed_capture_leaves_nothing_behind() {
    in_world("a_failed_capture_leaves_nothing_behind", "256MiB", |world| {
        let [captured, eager] = world.streams();
        world.begin(1, captured);
        let inside = malloc(4 * MIB, captured);
        // SAFETY: a stream of the device.
        unsafe { world.required.cuStreamSynchronize(raw(captured)) };
        assert_eq!(world.end_capture(captured), Err(901));
        let after = [malloc(4 * MIB, eager), malloc(4 * MIB, captured)];
        assert_eq!(live(), [(0, 8 * MIB), (1, 4 * MIB)].into());
        // The next one works, and what the first one had can go.
        let (graph, kept) = world.graph(2, captured, 4 * MIB);
        world.replay(graph, eager);
        assert_eq!(live(), [(0, 8 * MIB), (1, 4 * MIB), (2, 4 * MIB)].into());
        free(inside);
        release(1);
        gapless_torch_reset();
        assert_eq!(report()["condemned_bytes"].as_u64(), Some(0));
        after.into_iter().for_each(free);
        free(kept);
        release(2);
        gapless_torch_reset();
        world.check();
        assert_eq!(world.chunks(), 0);
    });
}

/// Two threads capture at once, and backward threads allocate for both.
fn two_captures(world: &World) {
    let [first, second, eager] = world.streams();
    world.begin(1, first);
    let of_first = malloc(2 * MIB, first);
    std::thread::scope(|scope| {
        let on_another_thread = || {
            world.make_current();
            world.begin(2, second);
            let of_second = malloc(4 * MIB, second);
            // The other's capture, and none.
            let others = (malloc(8 * MIB, first), malloc(16 * MIB, eager));
            world.end(2, second);
            (of_second, others.0, others.1)
        };
        let (of_second, backward, outside) = scope.spawn(on_another_thread).join().unwrap();
        assert_eq!(live(), [(0, 16 * MIB), (1, 10 * MIB), (2, 4 * MIB)].into());
        // The thread's own, of no capture.
        let own = malloc(32 * MIB, eager);
        assert_eq!(live(), [(0, 48 * MIB), (1, 10 * MIB), (2, 4 * MIB)].into());
        world.end(1, first);
        [of_first, of_second, backward, outside, own].into_iter().for_each(free);
    });
    release(1);
    release(2);
    gapless_torch_reset();
    world.check();
    assert_eq!(world.chunks(), 0);
}

#[test]
fn captures_do_not_mix() {
    in_world("captures_do_not_mix", "256MiB", two_captures);
}

/// Drivers before CUDA 12.3 have the number of a capture from the first version of the function. Debian's libraries 470.256.02 and
/// 535.261.03 export that, and not the third.
#[test]
fn captures_do_not_mix_on_old_drivers() {
    let folder = tempfile::tempdir().unwrap();
    let library = simulated::library_without("cuStreamGetCaptureInfo_v3", folder.path());
    in_world_of("captures_do_not_mix_on_old_drivers", "256MiB", &library, two_captures);
}

#[test]
fn any_captures_at_once() {
    in_world("any_captures_at_once", "256MiB", random::captures_at_once);
}

#[test]
fn any_captures_at_once_on_old_drivers() {
    let folder = tempfile::tempdir().unwrap();
    let library = simulated::library_without("cuStreamGetCaptureInfo_v3", folder.path());
    in_world_of("any_captures_at_once_on_old_drivers", "256MiB", &library, random::captures_at_once);
}

/// A `MemPool` that is in use has what its thread allocates, on whatever stream, and nothing else.
#[test]
fn a_mem_pool_is_its_thread_s() {
    in_world("a_mem_pool_is_its_thread_s", "256MiB", |world| {
        let [one, two, captured] = world.streams();
        open(1);
        let mut all = vec![malloc(2 * MIB, one), malloc(4 * MIB, two)];
        all.push(std::thread::scope(|scope| scope.spawn(|| malloc(8 * MIB, one)).join().unwrap()));
        assert_eq!(live(), [(0, 8 * MIB), (1, 6 * MIB)].into());
        // A graph within has a pool of its own.
        let (_, kept) = world.graph(2, captured, 16 * MIB);
        all.extend([kept, malloc(2 * MIB, one)]);
        assert_eq!(live(), [(0, 8 * MIB), (1, 8 * MIB), (2, 16 * MIB)].into());
        close(1);
        all.push(malloc(2 * MIB, one));
        assert_eq!(live(), [(0, 10 * MIB), (1, 8 * MIB), (2, 16 * MIB)].into());
        all.into_iter().for_each(free);
        release(1);
        release(2);
        gapless_torch_reset();
        assert_eq!(world.chunks(), 0);
    });
}

/// A capture that no pool was opened for has the pool that its thread has open for itself, and not that of another capture.
#[test]
fn a_capture_without_a_pool_has_its_thread_s() {
    in_world("a_capture_without_a_pool_has_its_thread_s", "256MiB", |world| {
        let [eager, first, second] = world.streams();
        open(1);
        let mut all = vec![malloc(2 * MIB, eager)];
        world.begin(2, first);
        all.push(malloc(4 * MIB, first));
        world.begin_capture(second);
        all.push(malloc(8 * MIB, second));
        assert_eq!(live(), [(1, 10 * MIB), (2, 4 * MIB)].into());
        world.end_capture(second).expect("a graph");
        world.end(2, first);
        close(1);
        all.into_iter().for_each(free);
        release(1);
        release(2);
        gapless_torch_reset();
        world.check();
        assert_eq!(world.chunks(), 0);
    });
}

/// A block of a pool that another process has open, say, outlives the pool: what it holds is counted until it has gone.
#[test]
fn a_pinned_block_keeps_its_pool() {
    in_world("a_pinned_block_keeps_its_pool", "64MiB", |world| {
        let [stream] = world.streams();
        open(1);
        let block = malloc(24 * MIB, stream);
        let pointer = || without_provenance_mut(block.0 as usize);
        assert_eq!(gapless_device_pin(0, pointer()), GAPLESS_OK);
        free(block);
        close(1);
        release(1);
        gapless_torch_reset();
        assert_eq!(report()["condemned_bytes"].as_u64(), Some(24 * MIB));
        assert_eq!(try_malloc(42 * MIB, stream), None);
        free(malloc(40 * MIB, stream));
        assert_eq!(gapless_device_unpin(0, pointer()), GAPLESS_OK);
        free(malloc(64 * MIB, stream));
        gapless_torch_reset();
        assert_eq!(world.chunks(), 0);
    });
}

/// A library that registers memory by the chunk behind its first byte, as NCCL does in a capture, has all of a graph's block.
#[test]
fn blocks_of_a_graph_lie_in_one_chunk() {
    in_world("blocks_of_a_graph_lie_in_one_chunk", "8GiB", |world| {
        let [captured] = world.streams();
        world.begin(1, captured);
        let (mut live, mut all) = (Vec::new(), Vec::new());
        for round in 1..60 {
            let bytes = round * 7 % 23 * MIB + 2 * MIB + 4096;
            let block = malloc(bytes, captured);
            live.push(block);
            all.push((block, bytes));
            if round % 5 == 0 {
                // Neighbours: what is free beside each other is of several chunks.
                live.drain(..live.len() - 1).for_each(free);
            }
        }
        live.into_iter().for_each(free);
        world.end(1, captured);
        // What was freed stays as it was.
        for (block, bytes) in all {
            assert_eq!(world.chunk(block), world.chunk(block.offset(bytes - 1)), "{bytes} bytes");
        }
        release(1);
        gapless_torch_reset();
        assert_eq!(world.chunks(), 0);
    });
}

/// Pools and the main allocator have one budget, and each may have all that the others do not hold.
#[test]
fn one_budget_for_all() {
    in_world("one_budget_for_all", "64MiB", |world| {
        let [one, two] = world.streams();
        let mut held = vec![malloc(20 * MIB, one)];
        open(1);
        // The thread's pool gets more than the half that it is lent at first.
        held.push(malloc(10 * MIB, one));
        held.push(malloc(14 * MIB, one));
        // Another thread gets the rest, although the pool was lent it.
        held.push(std::thread::scope(|scope| scope.spawn(|| malloc(20 * MIB, two)).join().unwrap()));
        assert_eq!(live(), [(0, 40 * MIB), (1, 24 * MIB)].into());
        assert_eq!(try_malloc(2 * MIB, one), None);
        assert_eq!(std::thread::scope(|scope| scope.spawn(|| try_malloc(2 * MIB, two)).join().unwrap()), None);
        // What the main allocator has free is a pool's when that needs it.
        free(held.remove(0));
        held.push(malloc(20 * MIB, two));
        assert_eq!(live(), [(0, 20 * MIB), (1, 44 * MIB)].into());
        close(1);
        held.into_iter().for_each(free);
        gapless_torch_reset();
        assert_eq!(
            report()["pools"][0]["stats"]["reserved_bytes"].as_u64(),
            Some(44 * MIB),
            "a pool keeps what it has"
        );
        assert_eq!(try_malloc(24 * MIB, one), None);
        release(1);
        free(malloc(64 * MIB, one));
        gapless_torch_reset();
        assert_eq!(report()["main"]["budget_bytes"].as_u64(), Some(64 * MIB));
        assert_eq!(world.chunks(), 0);
    });
}

/// A pool for each of many graphs, on a large device: their addresses leave room for others in the process.
#[test]
fn many_pools_share_the_addresses() {
    in_world("many_pools_share_the_addresses", "141GiB", |world| {
        let [captured, eager] = world.streams();
        let mut kept = vec![malloc(4 * MIB, eager)];
        for pool in 1..=48 {
            world.begin(pool, captured);
            kept.push(malloc(2 * MIB, captured));
            kept.push(malloc(1024, captured));
            world.end(pool, captured);
        }
        assert_eq!(report()["pools"].as_array().unwrap().len(), 48);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmSize:")).expect("a line");
        let kib: u64 = line.split_whitespace().nth(1).expect("a number").parse().unwrap();
        assert!(kib < 24 << 30, "{} GiB of addresses", kib >> 20);
        // A large request still gets a region, after all of them.
        kept.push(malloc(20 << 30, eager));
        world.begin(1, captured);
        kept.push(malloc(30 << 30, captured));
        kept.push(malloc(40 << 30, captured));
        world.end(1, captured);
        kept.into_iter().for_each(free);
        // The first has been begun twice.
        [1].into_iter().chain(1..=48).for_each(release);
        gapless_torch_reset();
        assert_eq!(report()["condemned_bytes"].as_u64(), Some(0));
        assert_eq!(world.chunks(), 0);
    });
}

/// A graph's pool is used by further captures and eagerly until memory is short: the graph's addresses stay.
#[test]
fn a_graph_can_be_replayed_whatever_its_pool_is_used_for() {
    // Large enough for large chunks, which an allocator would release to create smaller ones.
    in_world("a_graph_can_be_replayed_whatever_its_pool_is_used_for", "48GiB", |world| {
        let [captured, second, eager, replaying] = world.streams();
        let (mut graphs, mut live) = (Vec::new(), Vec::new());
        let mut random = 1_u64;
        let mut below = |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        for round in 0..300 {
            let stream = [captured, second, eager][below(3) as usize];
            let bytes = (1 + below(100)) * 100 * MIB;
            if round % 7 == 0 {
                world.begin(1, stream);
                if let Some(addr) = try_malloc(bytes, stream) {
                    for part in (0..bytes).step_by(100 << 20) {
                        world.driver.fill(stream, addr.offset(part), 4096, round + part).unwrap();
                        world.driver.verify(stream, addr.offset(part), 4096, round + part).unwrap();
                    }
                    free(addr);
                }
                graphs.push(world.end(1, stream));
            } else {
                open(1);
                live.extend(try_malloc(bytes, stream));
                close(1);
            }
            if live.len() > 3 {
                free(live.swap_remove(below(live.len() as u64) as usize));
            }
            // They share memory, so they run one after another.
            for graph in graphs.iter().rev().take(3).chain(&graphs[..1]) {
                world.replay(*graph, replaying);
            }
            world.driver.synchronize(replaying).expect("its addresses are mapped");
        }
        world.check();
        live.into_iter().for_each(free);
        (0..300).for_each(|_| release(1));
        gapless_torch_reset();
        assert_eq!(world.chunks(), 0);
    });
}
