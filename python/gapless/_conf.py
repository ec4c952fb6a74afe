"""Configurations as dictionaries: what ``GAPLESS_CONF``, PyTorch's own variable and a caller say, put together."""

from __future__ import annotations

import re
from typing import Any, Mapping, Optional

from . import _library

VARIABLE = "GAPLESS_CONF"
# PyTorch reads the first of these that is set.
_PYTORCH_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_FRACTION = "per_process_memory_fraction"
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
    return split(environment.get(VARIABLE, "") if configured is None else configured)


def of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The same. Raises ``GaplessError`` for a text that is no configuration."""
    if configured is None:
        _library.check(_library.load().gapless_check_conf(environment.get(VARIABLE, "").encode()))
    return given(environment)


def of_pytorch(environment: Mapping[str, str]) -> str:
    """The text of PyTorch's own variable, or an empty one."""
    return next((environment[name] for name in _PYTORCH_VARIABLES if name in environment), "")


def memory_fraction(text: str) -> float:
    """The limit that the text of PyTorch's own variable has, read as PyTorch reads it, which has found no mistake in the text."""
    tokens = re.findall(r"[][,:]|[^][,:]+", re.sub(r"\s+", "", text))
    values = [value for key, colon, value in zip(tokens, tokens[1:], tokens[2:]) if (key, colon) == (_FRACTION, ":")]
    # As far as it is a number.
    number = re.match(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", values[-1] if values else "1", re.IGNORECASE)
    return float(number.group()) if number else 1.0


def for_children(keys: Mapping[str, str]) -> str:
    """The configuration for processes that this one starts. They do not write into this one's recording."""
    return text({key: value for key, value in keys.items() if key != "record" or "%p" in value})


def split(text: str) -> dict[str, str]:
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
