"""``torch.cuda`` as a script finds it that runs without a GPU: one device, whose work is over at once."""

from __future__ import annotations

from typing import Any, Callable

from .trace import Trace

# Of the GPU that is assumed: what scripts ask for when they choose number formats and kernels.
AMPERE, HOPPER, BLACKWELL = (8, 0), (9, 0), (10, 0)


def capability_of(name: str) -> tuple[int, int]:
    """The compute capability of the GPU of this name, as far as it matters for the size of cuBLAS's workspaces."""
    words = name.upper()
    for capability, names in ((HOPPER, ("H100", "H200", "H800", "H20")), (BLACKWELL, ("B100", "B200", "B300"))):
        if any(one in words for one in names):
            return capability
    return AMPERE


def install(torch: Any, trace: Trace, device_bytes: int, capability: tuple[int, int], name: str) -> None:
    """Replaces what of ``torch.cuda`` needs a driver."""
    cuda = torch.cuda

    class Properties:
        major, minor = capability
        total_memory = device_bytes
        multi_processor_count = 108
        warp_size = 32
        is_integrated = is_multi_gpu_board = 0
        max_threads_per_multi_processor = 2048
        regs_per_multiprocessor = 65536
        shared_memory_per_block = 48 << 10
        shared_memory_per_block_optin = 163 << 10
        gcnArchName = ""

    Properties.name = name  # type: ignore[attr-defined]
    properties = Properties()

    class Stream:
        """A stream: everything runs on the default one."""

        def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
            self.device, self.priority, self.cuda_stream, self.stream_id = torch.device("cuda", 0), priority, 0, 0

        def __enter__(self) -> Stream:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def query(self) -> bool:
            return True

        def is_capturing(self) -> bool:
            return False

        def record_event(self, event: Any = None) -> Any:
            return event or Event()

        def _done(self, *_: Any) -> None:
            return None

        synchronize = wait_event = wait_stream = _done

    class Event:
        """An event: it has happened."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def query(self) -> bool:
            return True

        def elapsed_time(self, _: Any) -> float:
            return 1.0

        def _done(self, *_: Any) -> None:
            return None

        record = wait = synchronize = _done

    stream = Stream()

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def always(value: Any) -> Callable[..., Any]:
        return lambda *_, **__: value

    def stats(*_: Any, **__: Any) -> dict[str, int]:
        return _Figures(
            {
                "allocated_bytes.all.current": trace.live_bytes,
                "allocated_bytes.all.peak": trace.peak_live_bytes,
                "reserved_bytes.all.current": trace.live_bytes,
                "reserved_bytes.all.peak": trace.peak_live_bytes,
            }
        )

    replacements: dict[str, Any] = {
        **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), always(True)),
        **dict.fromkeys(("device_count",), always(1)),
        **dict.fromkeys(("current_device", "get_rng_state_offset", "_exchange_device", "_maybe_exchange_device"), always(0)),
        **dict.fromkeys(
            "_lazy_init init synchronize set_device empty_cache ipc_collect reset_peak_memory_stats "
            "reset_accumulated_memory_stats reset_max_memory_allocated reset_max_memory_cached manual_seed "
            "manual_seed_all seed seed_all set_per_process_memory_fraction set_stream set_rng_state set_rng_state_all "
            "_check_capability".split(),
            nothing,
        ),
        "is_current_stream_capturing": always(False),
        "get_device_name": always(name),
        "get_device_capability": always(capability),
        "get_device_properties": always(properties),
        "get_arch_list": always([f"sm_{capability[0]}{capability[1]}"]),
        "memory_stats": stats,
        "memory_summary": always("no GPU: see gapless advise"),
        "mem_get_info": lambda *_: (max(device_bytes - trace.live_bytes, 0), device_bytes),
        **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_cached"), lambda *_: trace.live_bytes),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "max_memory_cached"), lambda *_: trace.peak_live_bytes),
        "Stream": Stream,
        "Event": Event,
        **dict.fromkeys(("current_stream", "default_stream"), always(stream)),
        "stream": lambda given=None: given or stream,
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda *_: [torch.zeros(16, dtype=torch.uint8)],
    }
    for key, value in replacements.items():
        setattr(cuda, key, value)
        if hasattr(cuda.memory, key):
            setattr(cuda.memory, key, value)
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        accelerator.is_available = always(True)
        accelerator.current_accelerator = always(torch.device("cuda"))
        accelerator.device_count = always(1)
        accelerator.current_device_index = accelerator.current_device_idx = always(0)
        accelerator.current_stream = always(stream)
        accelerator.synchronize = accelerator.set_device_index = accelerator.set_device_idx = nothing
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor
    torch.Tensor.record_stream = nothing
    torch.Tensor.is_pinned = always(False)


class _Figures(dict):  # type: ignore[type-arg]
    """Statistics of which those that are not counted are 0."""

    def __missing__(self, _: str) -> int:
        return 0
