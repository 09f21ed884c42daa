"""Functions that ops take, as branches and bodies of loops: what eager mode refuses of the ops in them.

AOTAutograd calls such an op as a whole when it first runs a graph, so `observing` does not see what its functions do.
Each is run here by itself, on the tensors without data that torch captured it with.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import traceback

from ferrite_torch.errors import Refused
from ferrite_torch.torch_private.fake_tensors import forgetting_symbols, is_fake
from ferrite_torch.torch_private.nodes import example_of
from ferrite_torch.torch_private.observation import observing
from ferrite_torch.torch_private.operators import HigherOrderOp
from ferrite_torch.torch_private.transforms import leaving_transforms
from ferrite_torch.validation.observing import check_call

_SEEN = frozenset(("tag_activation_checkpoint", "autograd_function_apply"))
"""Ops whose functions torch runs op by op where it runs the graph."""


def check_functions(module: torch.nn.Module) -> None:
    """Checks the ops in all functions that ops of a captured graph take.

    Raises:
        Refused: eager would refuse one, if it came to it.
    """
    for function in _functions_in(module):
        _check(function)


def _functions_in(module: torch.nn.Module) -> Iterator[torch.fx.GraphModule]:
    """Yields the functions that ops of a module's graphs take, each once, those in functions too."""
    for part in module.modules():
        if not isinstance(part, torch.fx.GraphModule):
            continue
        calls = (node for node in part.graph.nodes if isinstance(node.target, HigherOrderOp))
        taken = (each for node in calls if str(node.target) not in _SEEN for each in node.all_input_nodes)
        for name in dict.fromkeys(str(each.target) for each in taken if each.op == "get_attr"):
            function = getattr(part, name, None)
            if isinstance(function, torch.fx.GraphModule):
                yield function


def _check(function: torch.fx.GraphModule) -> None:
    """Runs a function without data; what keeps it from running is told where the graph that has it is traced."""
    examples = [example_of(node) for node in function.graph.find_nodes(op="placeholder")]
    mode = next((each.fake_mode for each in examples if is_fake(each)), None)
    if mode is None:
        return
    observed = observing(check_call)
    with mode, forgetting_symbols(), observed, leaving_transforms(), torch.no_grad(), traceback.preserve_node_meta():
        operands = [each.detach() if isinstance(each, torch.Tensor) else each for each in examples]
        try:
            torch.fx.Interpreter(function).run(*operands)
        except Refused:
            raise
        except Exception:  # noqa: BLE001, S110  # see above
            pass
