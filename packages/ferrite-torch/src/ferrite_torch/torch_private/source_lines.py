"""Which line of the model each op comes from, where dynamo does not read the model: while it is exported.

What ``torch.fx.traceback`` holds as the current stack trace goes into the nodes that are traced, and with autograd's
anomaly mode, which AOTAutograd switches on, into those of their derivatives. It is a private module.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.fx import traceback
from torch.overrides import TorchFunctionMode

_NOT_THE_MODEL = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),
    sysconfig.get_path("stdlib") + "/contextlib",
    "<frozen",
)


@contextmanager
def noting_lines() -> Iterator[None]:
    """Has ops that are traced in this context remember the innermost line of the model that they come from."""
    with traceback.preserve_node_meta(), _NotingLines():
        yield


class _NotingLines(TorchFunctionMode):
    """Notes the line of each call of torch's."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls the function."""
        frame = _frame_of_the_model(sys._getframe(1))
        if frame is not None:
            code = frame.f_code
            traceback.set_stack_trace([f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}\n'])
        return function(*args, **(kwargs or {}))


def _frame_of_the_model(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_MODEL):
        frame = frame.f_back
    return frame
