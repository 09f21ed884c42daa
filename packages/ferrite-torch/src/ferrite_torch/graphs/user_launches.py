"""Lowering of users' Triton kernels: a launch of the kernel, whose spec carries its text, among the launches of ours.

    scaled_sum[(cdiv(n, 128),)](x, y, out, n, 3.0, BLOCK=128)       what the user wrote
    extern kernel.scaled_sum.k3f…(n_programs, x, y, out, n, 3.0)    the call, whose target stands for the spec

What Triton's launcher decides anew in every call is decided here: types of arguments, which of them are constants, what
their addresses and values are multiples of, and the grid for each config. What depends on a symbolic size is computed
from it in each call, by the code that starts our own kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

from ferrite_ir.language.sizes import Size, Symbolic, hint, is_provably_at_most
from ferrite_runtime.errors import SpecError, UserKernelSpecError
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.divisors import divisor_of
from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.formats.kernel_spec import Grid, KernelSpec, Param
from ferrite_runtime.kernel_source.user_kernels import Launched, launched_kernel
from ferrite_runtime.kernel_source.user_text import DescribedTensor, location_of
from ferrite_torch.calls.higher_order import HigherOrderCall
from ferrite_torch.calls.user_constants import FixedLaunch, NotWritten, fixed_launch, written
from ferrite_torch.diagnostics.origins import origins_of
from ferrite_torch.errors import LaunchRefused, located
from ferrite_torch.graphs.user_descriptors import described_tensor, scratch_of
from ferrite_torch.lowering.tensors import Tensor

_LARGEST_I32 = 2**31 - 1
_ALIGN = 16
"""Bytes: what addresses, and elements, are promised to be multiples of, as Triton's own launcher does."""
WARPS, STAGES = (1, 2, 4, 8, 16), (1, 2, 3, 4)
"""What is tried of a kernel that is to be tuned beyond its own configs, up to a factor of two from what it states."""


@dataclass(frozen=True, slots=True)
class UserLaunch:
    """A kernel that a graph launches.

    Attributes:
        target: of the calls that launch it.
        spec: its spec.
        location: where it is written, as ``path:line``.
        function: the jitted function.
    """

    target: str
    spec: Mapping[str, Any]
    location: str
    function: Any = field(compare=False, repr=False)

    def locations(self) -> Iterator[tuple[str, str]]:
        """Yields what a spec says of where its kernel is written, and the same with the whole path."""
        yield _described(self.function), f"{self.function.__name__} ({self.location})"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch that is about to be written down: the kernel, and for each of its params what is passed."""

    launch: UserLaunch
    arguments: tuple[Any, ...]


def prepare_launch(
    node: torch.fx.Node,
    call: HigherOrderCall,
    values: Mapping[torch.fx.Node, Any],
    device: str,
    *,
    tunes: bool = False,
) -> Prepared:
    """Returns a node that launches a user's kernel as a launch of a spec.

    Args:
        node: the node.
        call: what it calls.
        values: the lowered operands, tensors as they are to lie.
        device: device type of the graph's kernels.
        tunes: whether more configs than the kernel's own are to be tried.

    Raises:
        NotWritten: a program has no form for it.
        LaunchRefused: the user's launch is wrong: an argument is missing, or nobody takes it, or a grid is negative or
            has no axis.
    """
    fixed = fixed_launch(call)
    function = fixed.kernel.function
    held = {name: values[each] if isinstance(each, torch.fx.Node) else each for name, each in _held(call).items()}
    builder = _Arguments(node, call, fixed, {**fixed.given, **held}, device)
    builder.take_all()
    configs = _configs(fixed, builder.constants)
    grids = [_grid(node, fixed, grid, values) for grid in call.kwargs["grid"]]
    if len({*grids}) == 1:
        grids = grids[:1]
    programs, written_grids, counts = _programs(grids, function.arg_names)
    if tunes:
        configs, written_grids = _widened(configs, written_grids)
    launched = Launched(
        tuple(builder.params),
        builder.constants,
        tuple(configs),
        tuple(written_grids),
        programs,
        (_described(function),),
        scratch_of(fixed, grids),
        builder.described,
    )
    try:
        spec = launched_kernel(function, launched)
    except UserKernelSpecError as error:
        raise NotWritten(str(error)) from error
    except SpecError as error:
        raise NotWritten(f"its spec is refused: {error}") from error
    return Prepared(_launch_of(spec, function), (*counts, *builder.arguments))


def _held(call: HigherOrderCall) -> Mapping[str, Any]:
    held: Mapping[str, Any] = call.kwargs["kwargs"]
    return held


def _launch_of(spec: KernelSpec, function: Any) -> UserLaunch:
    return UserLaunch(f"kernel.{spec.name}.k{spec.id[:16]}", spec.to_mapping(), location_of(function), function)


def _described(function: Any) -> str:
    """Returns a kernel and where it is written, its file without the folder."""
    path, _, line = location_of(function).rpartition(":")
    return f"{function.__name__} ({path.replace(chr(92), '/').rpartition('/')[2]}:{line})"


@dataclass(slots=True)
class _Arguments:
    """The parameters of a kernel, one after the other: constants, and what a launch passes."""

    node: torch.fx.Node
    call: HigherOrderCall
    fixed: FixedLaunch
    given: Mapping[str, Any]
    device: str
    described: dict[str, DescribedTensor] = field(default_factory=dict)
    params: list[Param] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)

    def take_all(self) -> None:
        """Takes every parameter of the kernel, in order.

        Raises:
            NotWritten: a program has no form for an argument.
            LaunchRefused: an argument is missing, or there is one that no parameter takes.
        """
        function = self.fixed.kernel.function
        chosen = {name for config in self.fixed.kernel.configs for name in config.kwargs}
        names = [param.name for param in function.params]
        for name in self.given:
            if name not in names:
                raise self._wrong(f"{name!r} is given, which is none of its parameters ({', '.join(names)})")
            if name in chosen:
                raise self._wrong(f"{name!r} is given, which its configs choose")
        for param in function.params:
            if param.name in chosen:
                continue
            if param.name not in self.given and not param.has_default:
                raise self._wrong(f"no value is given for {param.name!r}")
            self._take(param, self.given.get(param.name, param.default))

    def _wrong(self, reason: str) -> Exception:
        function = self.fixed.kernel.function
        return _refused(self.node, f"a launch of {function.__name__} ({location_of(function)}): {reason}")

    def _take(self, param: Any, value: Any) -> None:
        if param.is_constexpr or value is None:
            self.constants[param.name] = self._constant(param, value)
            return
        match value:
            case Tensor():
                if param.name in self.fixed.blocks:
                    self.described[param.name] = described_tensor(param.name, value, self.fixed.blocks[param.name])
                self._pass(self._tensor(param, value), value)
            case bool():
                self._pass(Param(param.name, "scalar", _annotated(param) or "bool"), value)
            case int() | Symbolic():
                self._integer(param, value)
            case float():
                self._pass(Param(param.name, "scalar", _annotated(param) or "f32"), value)
            case _:
                raise NotWritten(f"{param.name} is a {type(value).__name__}, which is no tensor and no number")

    def _constant(self, param: Any, value: Any) -> Any:
        if isinstance(value, (Tensor, Symbolic)):
            raise NotWritten(f"the constant {param.name} is known only to a run")
        return written(value)

    def _pass(self, param: Param, value: Any) -> None:
        self.params.append(param)
        self.arguments.append(value)

    def _tensor(self, param: Any, tensor: Tensor) -> Param:
        name = tensor.dtype.name
        if tensor.device and tensor.device != self.device:
            raise NotWritten(
                f"{param.name} is a tensor on {tensor.device}, which a kernel on {self.device} cannot read"
            )
        if name not in DTYPES or DTYPES[name].triton is None:
            raise NotWritten(f"{param.name} is a tensor of {name}")
        view = tensor.strided()
        offset = 1 if view is None else view.offset
        itemsize = DTYPES[name].itemsize
        is_aligned = isinstance(offset, int) and offset * itemsize % _ALIGN == 0
        promises = is_aligned and not param.do_not_specialize and not param.do_not_specialize_on_alignment
        promises = promises or param.name in self.described
        access = "readwrite" if param.name in _written(self.call) else "read"
        return Param(param.name, "tensor", name, access, _ALIGN if promises else itemsize)

    def _integer(self, param: Any, value: int | Symbolic) -> None:
        """Takes an integer: the constant one where Triton makes it that, a multiple of something where it is."""
        annotated = _annotated(param)
        if annotated is not None and annotated not in ("i32", "i64"):
            self._pass(Param(param.name, "scalar", annotated), value)
            return
        is_plain = param.do_not_specialize
        expected = hint(value)
        dtype = annotated or ("i32" if -_LARGEST_I32 - 1 <= expected <= _LARGEST_I32 else "i64")
        is_key = param.name in self.fixed.kernel.keys
        if isinstance(value, Symbolic):
            bucket = "value" if is_key else None if is_plain else "divisor"
            self._pass(Param(param.name, "size", dtype, hint=expected, bucket=bucket), value)
        elif value == 1 and not is_plain:
            self.constants[param.name] = 1
        else:
            promise = 1 if is_plain or param.do_not_specialize_on_alignment else divisor_of(value)
            align = promise if promise > 1 else None
            self._pass(Param(param.name, "size", dtype, align=align, hint=value if is_key else None), value)


def _refused(node: torch.fx.Node, reason: str) -> LaunchRefused:
    return located(LaunchRefused(reason), origins_of(node))


def _annotated(param: Any) -> str | None:
    """Returns the type that an annotation gives a number, None where it gives none."""
    wanted = param.annotation_type
    return next((name for name, row in DTYPES.items() if wanted and row.triton == wanted and row.pack), None)


def _written(call: HigherOrderCall) -> Sequence[str]:
    return tuple(call.kwargs.get("tensors_to_clone", ()))


def _configs(fixed: FixedLaunch, constants: dict[str, Any]) -> list[Config]:
    """Returns what is chosen from; what all configs give one value becomes a constant.

    Raises:
        NotWritten: a config asks for something that a program has no form for.
    """
    given = fixed.kernel.configs
    if not given:
        return [Config.of({}, 4, 3)]
    chosen = [{name: written(value) for name, value in config.kwargs.items()} for config in given]
    names = dict.fromkeys(name for each in chosen for name in each)
    for name in names:
        values = [each.get(name) for each in chosen]
        if all(type(value) is type(values[0]) and value == values[0] for value in values):
            constants[name] = values[0]
            for each in chosen:
                del each[name]
        elif not all(isinstance(value, int) for value in values):
            raise NotWritten(f"its configs choose {name}, which is no number and no flag")
    found = []
    for config, blocks in zip(given, chosen, strict=True):
        _refuse_limits(config)
        numbers = {name: int(value) for name, value in blocks.items()}
        found.append(Config.of(numbers, config.num_warps, config.num_stages))
    return found


def _refuse_limits(config: Any) -> None:
    """Checks that a config asks for nothing but warps and stages; raises `NotWritten`."""
    for name, usual in (("num_ctas", (1, None)), ("maxnreg", (None,)), ("ir_override", (None,)), ("pre_hook", (None,))):
        if getattr(config, name, None) not in usual:
            raise NotWritten(f"one of its configs gives {name}")


def _grid(
    node: torch.fx.Node, fixed: FixedLaunch, grid: Iterable[Any], values: Mapping[torch.fx.Node, Any]
) -> tuple[Size, ...]:
    """Returns a grid of three axes.

    Raises:
        NotWritten: how many programs there are is known only to a run.
        LaunchRefused: an axis is negative, or there is none.
    """
    found = [values[each] if isinstance(each, torch.fx.Node) else each for each in grid]
    function = fixed.kernel.function
    launch = f"a launch of {function.__name__} ({location_of(function)}) on a grid of {tuple(found)}"
    if not found:
        raise _refused(node, f"{launch}: a grid has one axis at least")
    for axis in found:
        if not isinstance(axis, (int, Symbolic)):
            raise NotWritten(f"its grid is {axis!r}, which is no number of programs")
        if isinstance(axis, int) and axis < 0:
            raise _refused(node, f"{launch}: no axis can be negative")
    return (*found, 1, 1)[:3]


def negative_axes(call: HigherOrderCall, values: Mapping[torch.fx.Node, Any]) -> list[Symbolic]:
    """Returns the symbolic numbers of programs of a launch that are not known to be 0 at least."""
    items = (item for grid in call.kwargs["grid"] for item in grid)
    found = (values[item] for item in items if isinstance(item, torch.fx.Node))
    return [size for size in dict.fromkeys(found) if isinstance(size, Symbolic) and not is_provably_at_most(0, size)]


def _programs(
    grids: Sequence[tuple[Size, ...]], taken: Iterable[str]
) -> tuple[tuple[Param, ...], list[Grid], tuple[Symbolic, ...]]:
    """Returns grids over parameters for the symbolic numbers in them, these parameters, and these numbers."""
    numbers = tuple(dict.fromkeys(size for grid in grids for size in grid if isinstance(size, Symbolic)))
    stem = "programs"
    while any(name.startswith(stem) for name in taken):
        stem += "_"
    names = {size: f"{stem}_{location}" for location, size in enumerate(numbers)}
    params = tuple(Param(name, "size", "i32", hint=hint(size)) for size, name in names.items())
    found: list[Grid] = []
    for grid in grids:
        x, y, z = (names[size] if isinstance(size, Symbolic) else size for size in grid)
        found.append((x, y, z))
    return params, found, numbers


def _widened(configs: Sequence[Config], grids: Sequence[Grid]) -> tuple[list[Config], list[Grid]]:
    """Returns configs with others beside them that differ in warps and stages alone, and the grids of all."""
    pairs = list(zip(configs, grids if len(grids) > 1 else [grids[0]] * len(configs), strict=True))
    found = dict(pairs)
    for config, grid in pairs:
        warps = [count for count in WARPS if config.num_warps <= 2 * count <= 4 * config.num_warps]
        for count, stages in product(warps, STAGES):
            found.setdefault(Config(config.blocks, count, stages), grid)
    return list(found), list(found.values()) if len(grids) > 1 else list(grids)
