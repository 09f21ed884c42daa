"""Functions that ops take, as branches and bodies of loops: what eager mode refuses of the ops in them.

AOTAutograd calls such an op as a whole when it first runs a graph, so `observing` does not see what its functions do.
Each is run here by itself, on the tensors without data that torch captured it with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import torch
from torch.fx import traceback

from ferrite_torch.errors import Refused
from ferrite_torch.torch_private.fake_tensors import forgetting_symbols, is_fake
from ferrite_torch.torch_private.nodes import example_of
from ferrite_torch.torch_private.observation import observing
from ferrite_torch.torch_private.operators import HigherOrderOp
from ferrite_torch.torch_private.transforms import enter_autocast, exit_autocast, leaving_transforms
from ferrite_torch.torch_private.whole_ops import LINEAR_LOSS
from ferrite_torch.validation.observing import check_call

_SEEN = frozenset(("tag_activation_checkpoint", "autograd_function_apply", LINEAR_LOSS))
"""Ops whose functions torch runs op by op where it runs the graph."""


Casts = tuple[tuple[object, ...], ...]
"""Regions of ``autocast`` around a call, by what each was entered with, outermost first."""


def check_functions(module: torch.nn.Module) -> None:
    """Checks the ops in all functions that ops of a captured graph take.

    Raises:
        Refused: eager would refuse one, if it came to it.
    """
    for function, casts in _functions_in(module):
        try:
            with leaving_transforms():
                _check(function, casts)
        except Refused:
            raise
        except Exception:  # noqa: BLE001, S110  # what keeps it from running is told where its graph is traced
            pass


def _functions_in(module: torch.nn.Module) -> Iterator[tuple[torch.fx.GraphModule, Casts]]:
    """Yields the functions that ops of a module's graphs take, those in functions too, once for all equal casts."""
    around: dict[torch.nn.Module, dict[Casts, None]] = {}
    for part in module.modules():  # functions come after what takes them
        if not isinstance(part, torch.fx.GraphModule):
            continue
        for call, inside in _calls_in(part):
            for name in dict.fromkeys(str(each.target) for each in call.all_input_nodes if each.op == "get_attr"):
                function = getattr(part, name, None)
                if not isinstance(function, torch.fx.GraphModule):
                    continue
                known = around.setdefault(function, {})
                new = {outside + inside: None for outside in around.get(part, {(): None})}.keys() - known.keys()
                known.update(dict.fromkeys(new))
                if str(call.target) not in _SEEN:
                    yield from ((function, casts) for casts in new)


def _calls_in(part: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, Casts]]:
    """Yields the calls of ops that may take functions, and the casts that the graph has entered there."""
    entered: dict[torch.fx.Node, tuple[object, ...]] = {}
    for node in part.graph.nodes:
        if node.target is enter_autocast:
            entered[node] = node.args
        elif node.target is exit_autocast:
            entered.pop(node.args[0], None)
        elif isinstance(node.target, HigherOrderOp):
            yield node, tuple(entered.values())


def _check(function: torch.fx.GraphModule, casts: Casts) -> None:
    """Runs a function without data, as deep in ``autocast`` as it is called."""
    examples = [example_of(node) for node in function.graph.find_nodes(op="placeholder")]
    mode = next((each.fake_mode for each in examples if is_fake(each)), None)
    if mode is None:
        return
    with ExitStack() as around:
        for given in casts:
            around.callback(exit_autocast, enter_autocast(*given))
        # Whose symbols are forgotten is the mode that is entered by then.
        with mode, forgetting_symbols(), observing(check_call), torch.no_grad(), traceback.preserve_node_meta():
            operands = [each.detach() if isinstance(each, torch.Tensor) else each for each in examples]
            torch.fx.Interpreter(function).run(*operands)
