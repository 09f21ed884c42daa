"""Kernels that people wrote, as specs: tuned, bundled and run like the compiler's own."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ferrite_runtime.canonical import kernel_id
from ferrite_runtime.config import Config
from ferrite_runtime.dtypes import DTYPES
from ferrite_runtime.errors import SpecError
from ferrite_runtime.source import ALLOWED_IMPORTS
from ferrite_runtime.spec import ACCESSES, FORMAT, KernelSpec

_OWN = ("num_warps", "num_stages")
_DEFAULTS = {"num_warps": 4, "num_stages": 3}


def user_kernel(
    function: Any,
    params: Mapping[str, str],
    grid: Any,
    configs: Iterable[Mapping[str, int]] = ({},),
    **constants: Any,
) -> KernelSpec:
    """Returns the spec of a kernel that a person wrote; `Kernel` runs it, `bundle_kernels` packs it.

    Args:
        function: the ``@triton.jit`` function. Other jitted functions and constants that it names come along.
        params: what each parameter is, in the function's order: ``"f32 read"``, ``"bf16 write"``, ``"f32 readwrite"``,
            ``"i32 atomic"`` for a tensor, ``"i32"`` or ``"i64"`` for a size, which the grid may use, any other dtype
            alone for a number. A tensor may state an alignment in bytes, as in ``"f32 read 16"``: it is promised to the
            compiler, and a tensor that breaks it runs a build without the promise. 16 unless stated.
        grid: the number of programs: an expression of sizes and constants as in docs/kernel-spec.md, such as
            ``("ceildiv", "n", "BLOCK")``, or a list of up to three.
        configs: values of the constants to try, with ``num_warps`` and ``num_stages``; the first is the default.
        constants: values of the constants that are the same in every config.

    Raises:
        SpecError: if a parameter is described wrongly or not at all, or the function uses something that cannot be
            written down: only ``triton``, ``triton.language``, ``ferrite_runtime.fmath``, jitted functions and plain
            constants can.
    """
    read = {name: _param(name, text) for name, text in params.items()}
    axes = list(grid) if isinstance(grid, list) else [grid]
    if not 1 <= len(axes) <= 3:
        raise SpecError("grid", f"a grid has one to three axes, not {len(axes)}")
    name = function.__name__
    _check_params(function, read, configs := list(configs), constants)
    mapping: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "source": module_text(function),
        "family": "user",
        "params": list(read.values()),
        "axes": [],
        "blocks": dict(constants),
        "grid": _plain(axes[0]),
        "mutated": [name for name, param in read.items() if param.get("access") in ("readwrite", "atomic")],
        "index_width": 32,
        "facts": {},
        "origin": [name],
        "configs": [_config(each).to_mapping() for each in configs],
    }
    mapping |= {key: _plain(axis) for key, axis in zip(("grid_y", "grid_z"), axes[1:], strict=False)}
    return KernelSpec.from_mapping({**mapping, "id": kernel_id(mapping)})


def _plain(expr: Any) -> Any:
    return [_plain(part) for part in expr] if isinstance(expr, (tuple, list)) else expr


def _config(values: Mapping[str, int]) -> Config:
    given = {**_DEFAULTS, **values}
    blocks = {name: value for name, value in given.items() if name not in _OWN}
    return Config.of(blocks, given["num_warps"], given["num_stages"])


def _param(name: str, text: str) -> dict[str, Any]:
    """Returns the param that a text such as ``"f32 read 16"`` describes."""
    words = text.split()
    if not words or words[0] not in DTYPES:
        raise SpecError(f"params.{name}", f"{text!r} does not begin with a dtype; known: {', '.join(DTYPES)}")
    if len(words) == 1:
        return {"name": name, "role": "size" if words[0] in ("i32", "i64") else "scalar", "dtype": words[0]}
    if words[1] not in ACCESSES or len(words) > 3 or (len(words) == 3 and not words[2].isdigit()):
        raise SpecError(f"params.{name}", f"{text!r} is not 'dtype access [align]', access being {', '.join(ACCESSES)}")
    align = int(words[2]) if len(words) == 3 else 16
    return {"name": name, "role": "tensor", "dtype": words[0], "access": words[1], "align": align}


def _check_params(
    function: Any, params: Mapping[str, Any], configs: Sequence[Mapping[str, int]], constants: Mapping[str, Any]
) -> None:
    names = list(function.arg_names)
    if names[: len(params)] != list(params):
        raise SpecError(
            "params", f"{function.__name__} takes ({', '.join(names)}), described are ({', '.join(params)})"
        )
    wanted = names[len(params) :]
    for position, config in enumerate(configs or [{}]):
        given = {**constants, **{name: 0 for name in config if name not in _OWN}}
        missing = [name for name in wanted if name not in given]
        unknown = [name for name in given if name not in wanted]
        if missing or unknown:
            reason = (
                f"gives no value for {', '.join(missing)}" if missing else f"names {', '.join(unknown)}, no constant"
            )
            raise SpecError(f"configs[{position}]", f"{reason} of {function.__name__}")


# --- the source text ------------------------------------------------------------------------------------------------


def module_text(function: Any) -> str:
    """Returns a module's text that defines a jitted function and all that it names.

    Raises:
        SpecError: if it names something that cannot be written down.
    """
    imports: dict[str, None] = {"import triton": None}
    constants: dict[str, str] = {}
    functions: dict[str, str] = {}
    pending, seen = [function], set()
    while pending:
        current = pending.pop()
        if current.__name__ in seen:
            continue
        seen.add(current.__name__)
        functions[current.__name__] = f"@triton.jit\n{current.src.rstrip()}\n"
        for name in _global_names(current):
            value = current.fn.__globals__.get(name, None)
            if hasattr(value, "arg_names") and hasattr(value, "src"):
                _check_name(name, value.__name__, current)
                pending.append(value)
            else:
                _write_global(name, value, current, imports, constants)
    parts = [*imports, "", *(f"{name} = {text}" for name, text in sorted(constants.items()))]
    # Functions that others call stand first; the kernel itself is the last.
    return "\n".join([*parts, "", *("\n" + text for text in reversed(functions.values()))]).lstrip("\n")


def _check_name(name: str, real: str, function: Any) -> None:
    if name != real:
        raise SpecError("source", f"{function.__name__} calls {real} by the name {name}; use its own name")


def _global_names(function: Any) -> list[str]:
    """Returns the global names that a function reads, sorted; builtins and its own parameters are none."""
    code = function.fn.__code__
    names, pending = set(), [code]
    while pending:
        current = pending.pop()
        names |= set(current.co_names)
        pending += [constant for constant in current.co_consts if hasattr(constant, "co_names")]
    # Annotations such as tl.constexpr are no part of the code, but of the text.
    head = function.src.partition(":\n")[0]
    names |= set(re.findall(r"[A-Za-z_]\w*", head))
    known = function.fn.__globals__
    return sorted(name for name in names if name in known and not hasattr(builtins, name))


def _write_global(name: str, value: Any, function: Any, imports: dict[str, None], constants: dict[str, str]) -> None:
    module = getattr(value, "__name__", None) if type(value).__name__ == "module" else None
    if module in ALLOWED_IMPORTS:
        imports[ALLOWED_IMPORTS[module].format(name=name).removesuffix(" as triton")] = None
        return
    plain = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    if isinstance(plain, (bool, int, float, str)):
        # Triton reads a global only if it is one of these; a module may also have said so with an annotation.
        imports["import triton.language"] = None
        constants[name] = f"triton.language.constexpr({plain!r})"
        return
    if name == function.__name__:
        return
    raise SpecError(
        "source",
        f"{function.__name__} uses {name}, a {type(value).__name__}; jitted functions, plain constants and the modules "
        f"{', '.join(ALLOWED_IMPORTS)} can be written down",
    )
