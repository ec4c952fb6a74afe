"""Configurations as dictionaries: what ``GAPLESS_CONF``, PyTorch's own variable and a caller say, put together."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from . import _library

VARIABLE = "GAPLESS_CONF"
# PyTorch reads the first of these that is set.
_PYTORCH_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# The settings of ``gapless.configure``, in place of the environment.
configured: Optional[str] = None


def configure(conf: str) -> None:
    """Uses a configuration in place of that of the environment."""
    global configured
    _library.check(_library.load().gapless_configure(conf.encode()))
    configured = conf


def text(keys: Mapping[str, str]) -> str:
    """The configuration in the syntax of ``GAPLESS_CONF``."""
    return ",".join(f"{key}:{value}" for key, value in keys.items())


def of_arguments(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The keys and values that a caller gave as arguments."""

    def value(key: str, given: Any) -> str:
        if isinstance(given, bool):
            return "on" if given else "off"
        if key == "budget" and isinstance(given, float):
            return f"{given:f}"
        return str(given)

    return {key: value(key, given) for key, given in arguments.items()}


def given(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of ``gapless.configure``, or else those of ``GAPLESS_CONF``."""
    return _split(environment.get(VARIABLE, "") if configured is None else configured)


def of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The same, and the memory fraction that PyTorch's own variable asks for.

    Raises ``GaplessError`` for a text that is no configuration, and ``RuntimeError`` where PyTorch's own variable asks for another
    allocator.
    """
    if configured is None:
        _library.check(_library.load().gapless_check_conf(environment.get(VARIABLE, "").encode()))
    return {**_of_pytorch(environment), **given(environment)}


def for_children(keys: Mapping[str, str]) -> str:
    """The configuration for processes that this one starts. They do not write into this one's recording."""
    return text({key: value for key, value in keys.items() if key != "record" or "%p" in value})


def _of_pytorch(environment: Mapping[str, str]) -> dict[str, str]:
    name = next((name for name in _PYTORCH_VARIABLES if name in environment), None)
    keys = {} if name is None else _split(environment[name])
    backend = keys.get("backend", "native")
    if backend != "native":
        raise RuntimeError(
            f"{name} asks for backend:{backend}, and gapless takes the place of PyTorch's backends: leave one of them out"
        )
    fraction = keys.get("per_process_memory_fraction")
    if fraction is None:
        return {}
    try:
        part = float(fraction)
    except ValueError:
        part = 0.0
    if not 0 < part <= 1:
        raise RuntimeError(f"{name}: per_process_memory_fraction:{fraction} cannot be used: give a number above 0 and at most 1")
    return {"budget": f"{part:f}"}


def _split(text: str) -> dict[str, str]:
    """Splits at commas outside of brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    pairs = (part.partition(":") for part in parts if part.strip())
    return {key.strip(): value.strip() for key, _, value in pairs}
