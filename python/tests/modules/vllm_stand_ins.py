"""The parts of the rest of vLLM that its cumem module imports: its logger, its platform, a search for loaded libraries.

The module itself, its C extension and vLLM's wrapper of the CUDA runtime are vLLM's own, from its wheel.
"""

import logging
import os
import sys
import types
from pathlib import Path


def find_loaded_library(name: str) -> str | None:
    """The path of a library that the process has loaded; what was preloaded comes first."""
    with open("/proc/self/maps") as maps:
        mapped = [line.split()[-1] for line in maps if "/" in line]
    paths = os.environ.get("LD_PRELOAD", "").split(":") + mapped
    return next((path for path in paths if name in Path(path).name), None)


class Platform:
    device_type = "cuda"

    def is_cuda_alike(self) -> bool:
        return True

    def is_rocm(self) -> bool:
        return False

    def is_xpu(self) -> bool:
        return False


STAND_INS = {
    "vllm.envs": {"VLLM_CUDART_SO_PATH": None},
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.platforms": {"current_platform": Platform()},
    "vllm.utils.system_utils": {"find_loaded_library": find_loaded_library},
    "vllm.utils.torch_utils": {"PIN_MEMORY": True},
}


def install() -> None:
    """Puts them in the place of vLLM's own, which need most of vLLM's dependencies."""
    for name, content in STAND_INS.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
    sys.modules["vllm.utils"] = types.ModuleType("vllm.utils")
