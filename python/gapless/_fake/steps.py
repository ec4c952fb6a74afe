"""The steps of a script: where they end, and where the run ends that was asked for some of them."""

from __future__ import annotations

import importlib
import traceback
from typing import Any, Optional

import torch

from .trace import Trace
from .values import script_frame

# torch.optim hides its module of this name.
optimizers = importlib.import_module("torch.optim.optimizer")


class Finished(BaseException):
    """The steps that were asked for are done."""


class Steps:
    """Marks the end of each step in a trace, and ends trace and run after ``limit`` of them.

    A step ends with the ``step()`` of an optimizer. As long as a script has none, it ends where the outermost call of a module
    returns without gradients.
    """

    def __init__(self, trace: Trace, limit: Optional[int]) -> None:
        self.taken = 0
        # After what, and at which line, the run was ended.
        self.ended: Optional[str] = None
        self._trace, self._limit = trace, limit
        self._depth = self._optimizers = 0
        self._returned = False

    def install(self) -> None:
        """Watches every module and every optimizer."""
        modules = torch.nn.modules.module
        modules.register_module_forward_pre_hook(self._enter)
        # This one is called only where the module has returned.
        modules.register_module_forward_hook(self._return)
        modules.register_module_forward_hook(self._leave, always_call=True)
        optimizers.register_optimizer_step_post_hook(lambda optimizer, *_: self._end(f"the step() of {type(optimizer).__name__}"))
        made = torch.optim.Optimizer.__init__

        def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self._optimizers += 1
            made(optimizer, *args, **kwargs)

        torch.optim.Optimizer.__init__ = make  # type: ignore[method-assign]

    def _enter(self, *_: Any) -> None:
        self._depth += 1

    def _return(self, *_: Any) -> None:
        self._returned = True

    def _leave(self, module: Any, *_: Any) -> None:
        self._depth -= 1
        returned, self._returned = self._returned, False
        if returned and not self._depth and not self._optimizers and not torch.is_grad_enabled():
            self._end(f"the forward pass of {type(module).__name__}")

    def _end(self, what: str) -> None:
        if self.ended is None:
            self.taken += 1
            self._trace.mark(f"step {self.taken}")
            if self.taken != self._limit:
                return
            self._trace.end()
            frame = script_frame(traceback.extract_stack())
            function = f" in {frame.name}" if frame and frame.name != "<module>" else ""
            self.ended = f"{what} at {frame.filename}:{frame.lineno}{function}" if frame else what
        # Once more where the script went on.
        raise Finished
