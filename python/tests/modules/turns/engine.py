"""An engine with vLLM's sleep mode: weights, a cache, and what else lives as long as the engine. It knows nothing of gapless."""

import types

import vllm_stand_ins
from commands import check, empty, filled, free_mib, serve, write

vllm_stand_ins.install()
vllm_stand_ins.load_plugins()

from vllm.device_allocator import get_mem_allocator_instance  # noqa: E402
from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory  # noqa: E402

WEIGHTS = range(1, 6)
backend = SleepModeBackendFactory.create_backend(types.SimpleNamespace(sleep_mode_backend="cumem"))
weights, runtime, cache = {}, [], []


def start():
    allocator = get_mem_allocator_instance()
    with allocator.use_memory_pool("weights"):
        for number in WEIGHTS:
            weights[number] = filled(4 * number, number)
            temporary = empty(6)
            del temporary
    with allocator.use_memory_pool("runtime"):
        runtime.append(filled(8, 7))
    with allocator.use_memory_pool("kv_cache"):
        cache.extend(empty(20) for _ in range(3))
    return type(allocator).__name__


def generate(turn):
    """Checks the weights of a turn, and uses the cache."""
    for number in WEIGHTS:
        check(weights[number], turn * 1000 + number)
    check(runtime[0], 7)
    for number, block in enumerate(cache):
        write(block, turn * 1000 + number)
    for number, block in enumerate(cache):
        check(block, turn * 1000 + number)


def suspend(level):
    before = free_mib()
    backend.suspend(level)
    return free_mib() - before


def resume_weights(level, turn):
    """As a trainer that sends weights has it: the cache comes last. What level 1 keeps is there before."""
    backend.resume(["weights"])
    for number in WEIGHTS:
        if level == 1:
            check(weights[number], (turn - 1) * 1000 + number)
        write(weights[number], turn * 1000 + number)


def resume_cache():
    backend.resume(["kv_cache"])


if __name__ == "__main__":
    serve(
        {
            "start": start,
            "generate": generate,
            "suspend": suspend,
            "resume_weights": resume_weights,
            "resume_cache": resume_cache,
        }
    )
