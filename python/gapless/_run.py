"""Runs a script, a module or a piece of code as ``python`` itself does."""

from __future__ import annotations

import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
from types import ModuleType, TracebackType
from typing import Any, Callable, NoReturn, Optional


def run(arguments: list[str]) -> None:
    """Runs what the arguments name: ``script.py ...``, ``-m package.module ...`` or ``-c code ...``.

    An error that nobody handles is shown without the frames of this module, and ends the process.
    """
    _without_own_frames(start(arguments))


def start(arguments: list[str]) -> Callable[[], Any]:
    """Makes this process look as if ``python`` had started what the arguments name, and returns what runs it."""
    if arguments[0] in ("-m", "-c"):
        if len(arguments) == 1:
            _end(f"Argument expected for the {arguments[0]} option")
        option, what, rest = arguments[0], arguments[1], arguments[2:]
    else:
        option, what, rest = "", arguments[0], arguments[1:]
    main = ModuleType("__main__")
    # Both are what a fresh interpreter has.
    main.__dict__.update(__builtins__=__builtins__, __doc__=None)
    sys.modules["__main__"] = main
    sys.argv = [option or what, *rest]
    return {"-m": _module, "-c": _code, "": _script}[option](what, main)


def _module(name: str, _: ModuleType) -> Callable[[], Any]:
    _search_first(os.getcwd())
    return lambda: runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _code(text: str, main: ModuleType) -> Callable[[], Any]:
    _search_first("")
    return lambda: exec(compile(text, "<string>", "exec"), main.__dict__)


def _script(name: str, main: ModuleType) -> Callable[[], Any]:
    path = os.path.abspath(name)
    if pkgutil.get_importer(path) is not None:
        # A folder or an archive with a __main__.py.
        sys.path.insert(0, path)
        return lambda: runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        _end(f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}")
    _search_first(os.path.dirname(os.path.realpath(path)))
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __loader__=loader, __package__=None, __spec__=None, __cached__=None)
    return lambda: exec(compile(source, path, "exec"), main.__dict__)


def _search_first(folder: str) -> None:
    """Puts a folder where ``python -m`` had put its own."""
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path[0] = folder


def _without_own_frames(work: Callable[[], Any]) -> None:
    try:
        work()
    except SystemExit:
        raise
    except BaseException as error:
        kind, traceback = type(error), _beyond_this_file(error.__traceback__)
        sys.excepthook(kind, error.with_traceback(traceback), traceback)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


def _beyond_this_file(traceback: Optional[TracebackType]) -> Optional[TracebackType]:
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


def _end(text: str) -> NoReturn:
    print(f"{sys.executable}: {text}", file=sys.stderr)
    raise SystemExit(2)
