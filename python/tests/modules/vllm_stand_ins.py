"""The parts of the rest of vLLM that its sleep mode imports: its logger, its platform, a search for loaded libraries.

``vllm.device_allocator``, its C extension, vLLM's wrapper of the CUDA runtime, the choice of a pool for captures and the loader of
plug-ins are vLLM's own, from its wheel.
"""

import logging
import os
import sys
import tempfile
import tomllib
import types
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


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

    def graph_pool_handle(self) -> tuple[int, int]:
        import torch

        return torch.cuda.graph_pool_handle()


STAND_INS = {
    "vllm.config": {"VllmConfig": types.SimpleNamespace},
    "vllm.distributed.device_communicators.pynccl_allocator": {"set_graph_pool_id": lambda pool: None},
    "vllm.envs": {"VLLM_CUDART_SO_PATH": None, "VLLM_PLUGINS": None},
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


def load_plugins() -> None:
    """Has vLLM load its plug-ins, as its workers do first of all: those that are installed, and that of this repository."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    with tempfile.TemporaryDirectory() as folder:
        installed = Path(folder, f"{project['name']}-0.dist-info")
        installed.mkdir()
        installed.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
        lines = [f"{name} = {value}" for name, value in project["entry-points"]["vllm.general_plugins"].items()]
        installed.joinpath("entry_points.txt").write_text("\n".join(["[vllm.general_plugins]", *lines]))
        sys.path.insert(0, folder)
        try:
            from vllm.plugins import load_general_plugins

            load_general_plugins()
        finally:
            sys.path.remove(folder)
