"""What a launch of a user's Triton kernel fixes: its function, its configs and the values that are part of no graph.

All of it becomes part of the program, so it is part of a graph's key; the numbers by which torch's graphs refer to it
are good for one process only.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ferrite_runtime.errors import UserKernelSpecError
from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.kernel_source.user_names import jitted_function
from ferrite_runtime.kernel_source.user_text import module_text
from ferrite_torch.calls.higher_order import HigherOrderCall
from ferrite_torch.torch_private import user_kernels
from ferrite_torch.torch_private.user_kernels import UserKernel


class NotWritten(Exception):
    """A launch holds something that a program has no form for; the message says what."""


@dataclass(frozen=True, slots=True)
class FixedLaunch:
    """The part of a launch that is the same in every call.

    Attributes:
        kernel: the kernel.
        given: arguments that are part of no graph, by name, as the user gave them.
        blocks: of tensors that the host has made descriptors of, the blocks that are copied, by parameter.
        makes: how many descriptors the kernel makes itself.
    """

    kernel: UserKernel
    given: Mapping[str, Any]
    blocks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    makes: int = 0

    def described(self) -> tuple[object, ...]:
        """Returns what prints the same for launches that are the same.

        Raises:
            NotWritten: something of it cannot be written down.
        """
        configs = [
            (sorted((name, written(value)) for name, value in config.kwargs.items()), _limits(config))
            for config in self.kernel.configs
        ]
        given = sorted((name, repr(written(value))) for name, value in self.given.items())
        params = [
            (p.name, p.is_constexpr, p.do_not_specialize, p.do_not_specialize_on_alignment, _default(p))
            for p in self.kernel.function.params
        ]
        text, keys, blocks = text_of(self.kernel.function), list(self.kernel.keys), sorted(self.blocks.items())
        return text, configs, keys, given, params, blocks


def fixed_launch(call: HigherOrderCall) -> FixedLaunch:
    """Returns what a node that launches a user's kernel fixes, the values that heuristics compute among it.

    Raises:
        NotWritten: its decorators, or what its heuristics look at, are known only to a run.
    """
    try:
        kernel = user_kernels.unwrap_kernel(user_kernels.find_kernel(call.kwargs["kernel_idx"]))
    except TypeError as error:
        raise NotWritten(str(error)) from error
    given = user_kernels.find_constants(call.kwargs["constant_args_idx"])
    described = call.kwargs["tma_descriptor_metadata"]
    blocks = {name: user_kernels.described_block(value) for name, value in described.items()}
    makes = made_descriptors(text_of(kernel.function))
    for name, compute in kernel.heuristics:
        try:
            given[name] = compute(dict(given))
        except KeyError as error:
            raise NotWritten(f"its heuristics for {name} look at {error}, known only when it is launched") from error
    return FixedLaunch(kernel, given, blocks, makes)


@functools.lru_cache(maxsize=256)
def made_descriptors(text: str) -> int:
    """Returns how many tensor descriptors (TMA) a kernel makes, whose function is the last one of a module's text.

    Raises:
        NotWritten: their number, and with it the memory that they take, is not to be seen.
    """
    module = ast.parse(text)
    repeated = [node for node in ast.walk(module) if isinstance(node, (ast.For, ast.While))]
    elsewhere = [node for node in module.body[:-1] if isinstance(node, ast.FunctionDef)]
    if any(_descriptors_in(node) for node in (*repeated, *elsewhere)):
        raise NotWritten("it makes tensor descriptors (TMA) in a loop, or in a function that it calls")
    return _descriptors_in(module)


def _descriptors_in(tree: ast.AST) -> int:
    names = (node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return sum(name.endswith("make_tensor_descriptor") for name in names)


def text_of(function: Any) -> str:
    """Returns the text of a kernel and of all that it calls, with the values that constants have at present.

    Raises:
        NotWritten: something of it cannot be written down.
    """
    try:
        return module_text(function)
    except UserKernelSpecError as error:
        raise NotWritten(str(error)) from error


def written(value: Any) -> Any:
    """Returns a constant as a spec has it: a number, a flag, a name, None, or a type as ``{"dtype": "bf16"}``.

    Raises:
        NotWritten: it is something else: a function, say.
    """
    if type(value).__name__ == "constexpr":
        return written(value.value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    found = _type_name(value)
    if found is None or DTYPES[found].triton is None:
        shown = jitted_function(value)
        what = f"the function {shown.__name__}" if shown is not None else f"a {type(value).__name__} ({value!r})"
        raise NotWritten(f"a constant is {what}, which is no number, flag, name or type")
    return {"dtype": found}


def _type_name(value: Any) -> str | None:
    """Returns our name of a type of ``triton.language``; None for anything else."""
    if type(value).__name__ != "dtype":
        return None
    return next((name for name, row in DTYPES.items() if row.triton == str(value)), None) or _INTEGERS.get(str(value))


_INTEGERS = {f"{long}{bits}": f"{long[0]}{bits}" for long in ("int", "uint") for bits in (8, 16, 32, 64)} | {
    "int1": "bool"
}


def _limits(config: Any) -> tuple[object, ...]:
    names = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")
    return tuple(getattr(config, name, None) for name in names)


def _default(param: Any) -> str:
    return repr(param.default) if param.has_default else ""
