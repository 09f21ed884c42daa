"""Turns a kernel's source text into its jitted function."""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from typing import Any

from ferrite_runtime.errors import compile_failure
from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.formats.kernel_spec import USER, KernelSpec
from ferrite_runtime.kernel_source.confined_values import CONFINING, confine

ORIGIN = "ORIGIN"
"""The constant that kernels with assertions have besides blocks: what these say first."""
ALLOWED_IMPORTS = {
    "triton": "import triton as {name}",
    "triton.language": "import triton.language as {name}",
    "triton.language.extra.libdevice": "from triton.language.extra import libdevice as {name}",
    "ferrite_runtime.fmath": "from ferrite_runtime import fmath as {name}",
}
"""Modules that a kernel's source text may import, and how."""


def _import_allowed(
    name: str, names: object = None, scope: object = None, wanted: Sequence[str] = (), level: int = 0
) -> Any:
    """Imports what kernels may import, and nothing else."""
    whole = [name] if not wanted else [f"{name}.{part}" for part in wanted]
    if level or not all(module in ALLOWED_IMPORTS for module in whole):
        raise ImportError(f"a kernel cannot import {', '.join(whole)}")
    return __import__(name, {}, {}, wanted, 0)


def _confined_builtins() -> dict[str, Any]:
    """Returns the builtins of a kernel whose writer nobody vouches for; its loops count their steps."""
    from ferrite_runtime.kernel_source.launch_limits import limited_range

    few = {"abs": abs, "float": float, "len": len, "max": max, "min": min, "range": limited_range}
    return {**few, **CONFINING, "__import__": _import_allowed}


def load_function(spec: KernelSpec, *, is_confined: bool = False) -> Any:
    """Returns the ``@triton.jit`` function of a kernel, by running its source text as a module.

    Args:
        spec: the kernel.
        is_confined: whether its text may use the few builtins that kernels need, and no others; its operators on
            values of Python's are watched then (``confined_values.py``), which the interpreter needs and a compiler
            does not.

    The text is registered under an invented file name, so that Triton can read it back and errors can quote it.
    Nothing depends on where the text is run: neither the name nor the module carries a path.

    Raises:
        KernelCompileError: if the text is not Python or defines no such function.
    """
    # The text as it is run, and the text as it came, may both be in use in one process.
    filename = f"<ferrite {spec.name} {spec.id[:12]}{' confined' if is_confined else ''}>"
    source = confine(spec.source) if is_confined else spec.source
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    namespace: dict[str, Any] = {"__name__": f"ferrite_kernel_{spec.id[:12]}"}
    if is_confined:
        namespace["__builtins__"] = _confined_builtins()
    try:
        exec(compile(source, filename, "exec"), namespace)
    except Exception as error:
        raise compile_failure(spec, f"the source text fails to load: {error!r}") from error
    function = namespace.get(spec.name)
    if not hasattr(function, "arg_names"):
        raise compile_failure(spec, f"the source text defines no @triton.jit function {spec.name}")
    return function


def constant_names(spec: KernelSpec, function: Any) -> tuple[str, ...]:
    """Returns the names of the function's parameters beside the spec's params: its block constants.

    They stand after the params; in a function that a person wrote also between them.

    Raises:
        KernelCompileError: if the function's parameters are not the spec's params, in their order, and constants.
    """
    declared = [param.name for param in spec.params]
    names = list(function.arg_names)
    begun = [name for name in names if name in declared] if spec.form == USER else names[: len(declared)]
    if begun != declared:
        raise compile_failure(
            spec,
            f"the function takes ({', '.join(names)}), its spec has params ({', '.join(declared)})",
        )
    return tuple(name for name in names if name not in declared)


def choose_constants(spec: KernelSpec, function: Any, blocks: dict[str, int]) -> dict[str, Any]:
    """Returns a value for each block constant of the function, from the spec's fixed blocks and then ``blocks``."""
    known = {ORIGIN: _origin_of(spec), **blocks, **spec.blocks}
    names = constant_names(spec, function)
    missing = [name for name in names if name not in known]
    if missing:
        raise compile_failure(spec, f"no axis and no fixed block gives {', '.join(missing)} a value")
    return {name: _constant(known[name]) for name in names}


def _origin_of(spec: KernelSpec) -> str:
    """Returns what the assertions of a kernel that is compiled with them say first: ops and lines that it is from."""
    if not spec.facts.checked:
        return ""
    where = ", ".join(spec.origin) or spec.name
    quoted = where.replace("\\", "/").replace('"', "'")  # it becomes a string of PTX
    return f"{quoted.encode('ascii', 'backslashreplace').decode()}: "


def _constant(value: Any) -> Any:
    """Returns a constant as kernels take it: a type by its name, everything else as it is."""
    if not isinstance(value, Mapping):
        return value
    import triton.language as tl

    found = str(DTYPES[value["dtype"]].triton)
    return next(
        kind for kind in vars(tl).values() if isinstance(kind, tl.dtype) and kind.name == _LONG.get(found, found)
    )


_LONG = {"i1": "int1", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64"} | {
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
}  # fmt: skip
"""Names of integer types where they are not those of signatures."""
