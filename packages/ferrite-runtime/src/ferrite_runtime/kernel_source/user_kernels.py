"""Kernels that people wrote, as specs: tuned, bundled and run like the compiler's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ferrite_runtime.errors import SpecError, UserKernelSpecError
from ferrite_runtime.formats.canonical_json import kernel_id
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.formats.expressions import write_expr
from ferrite_runtime.formats.kernel_spec import ACCESSES, FORMAT, USER, Grid, KernelSpec, Param
from ferrite_runtime.kernel_source.user_names import jitted_function
from ferrite_runtime.kernel_source.user_text import DescribedTensor, describing_module_text, named_module_text
from ferrite_runtime.process.option_ranges import MAPPING, Range
from ferrite_runtime.process.options import check_arguments

_OWN = ("num_warps", "num_stages")
_DEFAULTS = {"num_warps": 4, "num_stages": 3}
_LEFT_OUT = {"num_ctas": 1, "maxnreg": None, "pre_hook": None, "ir_override": None}
"""Fields of Triton's ``Config`` that ours does not have, and what they are where they say nothing."""

_NO_FUNCTION = "a function cannot be written down; ('ceildiv', 'n', 'BLOCK') is an expression"
_GIVEN = {"params": MAPPING, "configs": Range((Iterable,))}


def user_kernel(
    function: Any,
    params: Mapping[str, str],
    grid: Any,
    configs: Iterable[Any] = ({},),
    **constants: Any,
) -> KernelSpec:
    """Returns the spec of a kernel that a person wrote; `Kernel` runs it, `bundle_kernels` packs it.

    Args:
        function: the ``@triton.jit`` function, also where ``TRITON_INTERPRET=1`` made it one that is interpreted. Other
            jitted functions and constants that it names come along.
        params: what each parameter is, in the function's order: ``"f32 read"``, ``"bf16 write"``, ``"f32 readwrite"``,
            ``"i32 atomic"`` for a tensor, ``"i32"`` or ``"i64"`` for a size, which the grid may use, any other dtype
            alone for a number. A tensor may state an alignment in bytes, as in ``"f32 read 16"``: it is promised to the
            compiler, and a tensor that breaks it runs a build without the promise. 16 unless stated.
        grid: the number of programs: an expression of sizes and constants as in docs/kernel-spec.md, such as
            ``("ceildiv", "n", "BLOCK")``, or a list of up to three.
        configs: values of the constants to try, with ``num_warps`` and ``num_stages``: mappings, or Triton's own
            ``triton.Config``. The first is the default.
        constants: values of the constants that are the same in every config.

    Raises:
        UserKernelSpecError: if a parameter is described wrongly or not at all, or the function uses something that
            cannot be written down: only ``triton``, ``triton.language``, ``ferrite_runtime.fmath``, jitted functions
            and plain constants can.
        OptionError: ``params`` is no mapping, or ``configs`` no list.
    """
    check_arguments("user_kernel", _GIVEN, params=params, configs=configs)
    if jitted_function(function) is None:
        raise UserKernelSpecError("function", _not_jitted(function))
    read = {name: _param(name, text) for name, text in params.items()}
    axes = list(grid) if isinstance(grid, list) else [grid]
    if not 1 <= len(axes) <= 3:
        raise UserKernelSpecError("grid", f"a grid has one to three axes, not {len(axes)}")
    if any(map(callable, axes)):
        raise UserKernelSpecError("grid", _NO_FUNCTION)
    chosen = [_values(each, f"configs[{number}]") for number, each in enumerate(configs)]
    _check_params(function, read, chosen, constants)
    name, text = named_module_text(function)
    mapping: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "source": text,
        "form": "user",
        "params": list(read.values()),
        "axes": [],
        "blocks": dict(constants),
        "grid": _plain(axes[0]),
        "mutated": [name for name, param in read.items() if param.get("access") in ("readwrite", "atomic")],
        "index_width": 32,
        "facts": {},
        "origin": [function.__name__],
        "configs": [_config(each).to_mapping() for each in chosen],
    }
    mapping |= {key: _plain(axis) for key, axis in zip(("grid_y", "grid_z"), axes[1:], strict=False) if axis != 1}
    try:
        return KernelSpec.from_mapping({**mapping, "id": kernel_id(mapping)})
    except SpecError as error:  # of what was said of the kernel here: there is no file that could be damaged
        raise UserKernelSpecError(error.path, error.reason) from None


@dataclass(frozen=True, slots=True)
class Launched:
    """What a program launches of a kernel that a person wrote.

    Attributes:
        params: the parameters that get values when it is launched, in the function's order.
        constants: the values of the others, but those that a config gives.
        configs: what may be chosen; one at least.
        grids: the number of programs along three axes for each config, over size params, or one grid for all. Where a
            config chooses constants they are right for these configs alone, which become part of the kernel's identity.
        programs: parameters in front of the function's own that only say how many programs there are.
        origin: where the kernel and its launches come from, for people.
        scratch: the memory that its programs have their tensor descriptors in; None of a kernel that makes none.
        described: the tensors that it is to take descriptors of, by parameter.
    """

    params: tuple[Param, ...]
    constants: Mapping[str, Any]
    configs: tuple[Config, ...]
    grids: tuple[Grid, ...]
    programs: tuple[Param, ...] = ()
    origin: tuple[str, ...] = ()
    scratch: Param | None = None
    described: Mapping[str, DescribedTensor] = field(default_factory=dict)


def launched_kernel(function: Any, launched: Launched) -> KernelSpec:
    """Returns the spec of a person's kernel as a program launches it, with the text of all that it calls.

    Args:
        function: the ``@triton.jit`` function.
        launched: what is known of its launches.

    Raises:
        UserKernelSpecError: the function, or something that it uses, cannot be written down; or a grid is not one of
            size params.
    """
    scratch = () if launched.scratch is None else (launched.scratch,)
    leading, mutated = (*launched.programs, *scratch), ("write", "readwrite", "atomic")
    params, front = (*leading, *launched.params), [param.name for param in leading]
    if scratch:
        given = {param.name for param in launched.params}
        name, text = describing_module_text(function, front, given, launched.described)
    else:
        name, text = named_module_text(function, front)
    grid, grid_y, grid_z = launched.grids[0]
    choose = any(config.blocks for config in launched.configs)
    grids = launched.grids * len(launched.configs) if len(launched.grids) == 1 else launched.grids
    mapping: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "source": text,
        "form": USER,
        "params": [param.to_mapping() for param in params],
        "axes": [],
        "blocks": dict(launched.constants),
        "grid": write_expr(grid),
        "mutated": [param.name for param in params if param.access in mutated],
        "index_width": 32,
        "facts": {},
        "origin": list(launched.origin),
        "configs": [config.to_mapping() for config in launched.configs],
    }
    mapping |= {name: write_expr(axis) for name, axis in (("grid_y", grid_y), ("grid_z", grid_z)) if axis != 1}
    if choose:
        mapping["grids"] = [list(map(write_expr, each)) for each in grids]
    return KernelSpec.from_mapping({**mapping, "id": kernel_id(mapping)})


def _not_jitted(function: Any) -> str:
    """Returns what to say of something that is no jitted function: one may be inside of it."""
    inner = getattr(function, "fn", None)
    while inner is not None and jitted_function(inner) is None:
        inner = getattr(inner, "fn", None)
    kind = type(function).__name__
    if inner is None:
        return f"{getattr(function, '__name__', function)!s} is a {kind}; give a function with @triton.jit before it"
    return (
        f"{inner.__name__} comes with configs of its own ({kind}); leave @triton.autotune and @triton.heuristics out, "
        "and give the values of its constants as configs"
    )


def _plain(expr: Any) -> Any:
    return [_plain(part) for part in expr] if isinstance(expr, (tuple, list)) else expr


def _values(config: Any, path: str) -> Mapping[str, int]:
    """Returns the constants, warps and stages of a mapping, or of Triton's ``Config``."""
    if isinstance(config, Mapping):
        return config
    own = [getattr(config, name, None) for name in ("kwargs", *_OWN)]
    if not isinstance(own[0], Mapping) or None in own:
        raise UserKernelSpecError(path, f"a {type(config).__name__} is neither a mapping nor a triton.Config")
    others = [name for name, plain in _LEFT_OUT.items() if getattr(config, name, plain) not in (plain, None)]
    if others:
        raise UserKernelSpecError(path, f"{', '.join(others)} of a triton.Config cannot be written down: leave it out")
    return {**own[0], **dict(zip(_OWN, own[1:], strict=True))}


def _config(values: Mapping[str, int]) -> Config:
    given = {**_DEFAULTS, **values}
    blocks = {name: value for name, value in given.items() if name not in _OWN}
    return Config.of(blocks, given["num_warps"], given["num_stages"])


def _param(name: str, text: object) -> dict[str, Any]:
    """Returns the param that a text such as ``"f32 read 16"`` describes."""
    words = text.split() if isinstance(text, str) else []
    if not words or words[0] not in DTYPES:
        raise UserKernelSpecError(f"params.{name}", f"{text!r} does not begin with a dtype; known: {', '.join(DTYPES)}")
    if len(words) == 1:
        return {"name": name, "role": "size" if words[0] in ("i32", "i64") else "scalar", "dtype": words[0]}
    if words[1] not in ACCESSES or len(words) > 3 or (len(words) == 3 and not words[2].isdigit()):
        raise UserKernelSpecError(
            f"params.{name}", f"{text!r} is not 'dtype access [align]', access being {', '.join(ACCESSES)}"
        )
    align = int(words[2]) if len(words) == 3 else 16
    return {"name": name, "role": "tensor", "dtype": words[0], "access": words[1], "align": align}


def _check_params(
    function: Any, params: Mapping[str, Any], configs: Sequence[Mapping[str, int]], constants: Mapping[str, Any]
) -> None:
    names = list(function.arg_names)
    if names[: len(params)] != list(params):
        raise UserKernelSpecError(
            "params", f"{function.__name__} takes ({', '.join(names)}), described are ({', '.join(params)})"
        )
    wanted = names[len(params) :]
    for position, config in enumerate(configs or [{}]):
        given = {**constants, **{name: 0 for name in config if name not in _OWN}}
        missing = [name for name in wanted if name not in given]
        unknown = [name for name in given if name not in wanted]
        if missing or unknown:
            reason = f"names {', '.join(unknown)}, no constant"
            if missing:
                reason = f"gives no value for {', '.join(missing)}, and params does not describe it: an argument"
            raise UserKernelSpecError(f"configs[{position}]", f"{reason} of {function.__name__}")
