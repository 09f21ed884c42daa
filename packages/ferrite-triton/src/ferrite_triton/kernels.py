"""One scheduled kernel as Triton text with its spec."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from ferrite_ir.graph import Computed, Contract, Fold, Loop, Scan, Sort, Update, bodies_of
from ferrite_ir.ops import OPS
from ferrite_ir.scalar import postorder
from ferrite_scheduler.schedule import Kernel

from .errors import UnsupportedDefinition
from .evaluate import Evaluator
from .facts import collect_facts
from .flat import FlatKernel, flatten, memory_loads
from .folds import FoldText
from .memory import StoreText, choose_index_width, contiguous_axis, find_accesses, value_of
from .passes import plan_passes, rereads, roots_of
from .scans import ScanText
from .space import AxisText, Space, build_space
from .spec import Expr, KernelSpec
from .updates import UpdateText, needs_atomics
from .writer import Writer

ALIGNMENT = 16
_PLACEHOLDER = "kernel"


def emit_kernel(kernel: Kernel) -> KernelSpec:
    """Returns the text of a kernel and its spec. Equal kernels give equal specs, but for their origins.

    Raises:
        UnsupportedDefinition: something in the body has no kernel text.
        UnsupportedUpdate: an update needs an atomic instruction that does not exist.
        UnsupportedSize: a size is symbolic.
        ScheduleMismatch: the kernel breaks the iteration model of the schedule.
    """
    space = build_space(kernel)
    flat = flatten(kernel, space)
    accesses = find_accesses(flat)
    if space.folds_tile and contiguous_axis(flat, accesses) == "x":
        # Neighbouring threads take neighbouring x: the fold axis becomes the slow one of the tile.
        space = build_space(kernel, ("r", "x"))
        flat = replace(flat, space=space)
    width = choose_index_width(flat, accesses)
    body = KernelBody(flat, width).write()
    source, name = assemble(flat, width, body)
    return KernelSpec(
        name=name,
        source=source,
        family=kernel.strategy,
        params=tuple(describe_params(flat)),
        axes=tuple(describe_axis(axis) for axis in space.axes),
        blocks={axis.constant: axis.block for axis in space.axes if axis.block is not None},
        grid=grid_expression(space),
        mutated=mutated_params(flat),
        index_width=width,
        facts=collect_facts(flat, accesses, body),
        origin=tuple(dict.fromkeys(str(origin) for origin in kernel.origins if str(origin))),
    )


class KernelBody:
    """Writes the lines of a kernel after its header."""

    def __init__(self, flat: FlatKernel, width: int) -> None:
        self._flat = flat
        self._writer = Writer()
        self._evaluator = Evaluator(flat, self._writer, width)
        self._stores = StoreText(flat, self._writer, self._evaluator)
        self._folds = FoldText(flat.space, self._writer, self._evaluator)
        self._scans = ScanText(flat.space, self._writer, self._evaluator, self._folds)
        self._updates = UpdateText(flat, self._writer, self._evaluator, self._stores)

    def write(self) -> list[str]:
        """Returns the lines."""
        for definition in self._flat.definitions:
            if isinstance(definition, (Sort, Contract)):
                kind = type(definition).__name__.lower()
                name = definition.results[0].name
                raise UnsupportedDefinition(f"{name}: a {kind} has no kernel text; lower it to a library call")
        if self._flat.space.loops and self._flat.space.folds_tile:
            self._write_loops()
        else:
            self._hint_shared_loads()
            self._write_in_order()
        return self._writer.function.lines

    def _write_in_order(self) -> None:
        stored = set(self._flat.kernel.stored)
        late: list[str] = []
        # Stores into memory that is also read wait for the end, when every load has been written.
        shared = any(param.param.access == "readwrite" for param in self._flat.params.values())
        for definition in self._flat.definitions:
            self._write_definition(definition)
            names = [result.name for result in definition.results if result.name in stored]
            if isinstance(definition, Update):
                continue
            for name in names:
                if shared:
                    value_of(self._evaluator, self._flat, name)
                    late.append(name)
                else:
                    self._stores.store(name, value_of(self._evaluator, self._flat, name))
        for name in late:
            self._stores.store(name, value_of(self._evaluator, self._flat, name))

    def _write_definition(self, definition: Computed) -> None:
        """Writes a definition that is not just evaluated where it is used."""
        match definition:
            case Fold():
                self._publish(definition, self._folds.write(definition))
            case Scan():
                self._publish(definition, self._scans.write(definition))
            case Update():
                new = self._updates.write(definition)
                if new is not None:
                    self._evaluator.results[definition.result.name] = new

    def _publish(self, definition: Computed, tiles: tuple[Any, ...]) -> None:
        for result, tile in zip(definition.results, tiles, strict=True):
            self._evaluator.results[result.name] = tile

    def _hint_shared_loads(self) -> None:
        """Asks to keep what every program of a fold reads again, such as a weight along the fold axis."""
        if not self._flat.space.folds_tile or self._flat.space.axis("x") is None:
            return
        roots = tuple(body for definition in self._flat.definitions for body in bodies_of(definition))
        for load in memory_loads(self._flat, roots):
            axes = {dim.name for index in load.indices for dim in index.dims}
            if axes == {"r"}:
                self._evaluator.hints[load] = "evict_last"

    # --- loops over the fold axis -----------------------------------------------------------------------------------

    def _write_loops(self) -> None:
        plan = plan_passes(self._flat)
        policies = rereads(self._flat, plan)
        for definition in plan.before:
            self._write_grid_level(definition)
        for loop, policy in zip(plan.loops, policies, strict=True):
            self._evaluator.hints = policy
            self._write_loop(loop.inside)
            for definition in loop.after:
                self._write_grid_level(definition)

    def _write_loop(self, definitions: tuple[Computed, ...]) -> None:
        if not definitions:
            return
        fold = self._flat.space.fold
        if fold is None:
            raise AssertionError("a loop without a fold axis")
        self._writer.open_loop()
        for line in fold_position_lines(self._flat.space, fold, "rstart + tl.arange(0, RBLOCK)"):
            self._writer.line(line, frozenset("r"))
        finishers = []
        for definition in self._scans_before(definitions):
            if isinstance(definition, Fold):
                finishers.append((definition, self._folds.open(definition)))
                continue
            self._write_definition(definition)
            if any(definition is wanted for wanted in definitions):
                self._store_results(definition)
        self._writer.close_loop(f"for rstart in tl.range(0, {fold.size}, RBLOCK):")
        for definition, finish in finishers:
            self._publish(definition, finish())
        for definition, _ in finishers:
            self._store_results(definition)

    def _scans_before(self, definitions: tuple[Computed, ...]) -> list[Computed]:
        """Returns the definitions of a loop with the scans of earlier loops that they read, which are done again."""
        wanted = {
            load.source
            for definition in definitions
            for root in roots_of(self._flat, definition)
            for load in root.loads
        }
        pending = list(wanted)
        while pending:
            produced = self._flat.producers.get(pending.pop())
            if produced is None or isinstance(produced[0], Fold):
                continue
            names = {load.source for root in roots_of(self._flat, produced[0]) for load in root.loads} - wanted
            wanted |= names
            pending.extend(names)
        chosen = {id(definition) for definition in definitions}
        for definition in self._flat.definitions:
            if isinstance(definition, Scan) and any(result.name in wanted for result in definition.results):
                chosen.add(id(definition))
        return [definition for definition in self._flat.definitions if id(definition) in chosen]

    def _write_grid_level(self, definition: Computed) -> None:
        self._write_definition(definition)
        self._store_results(definition)

    def _store_results(self, definition: Computed) -> None:
        if isinstance(definition, Update):
            return
        for result in definition.results:
            if result.name in self._flat.kernel.stored:
                self._stores.store(result.name, value_of(self._evaluator, self._flat, result.name))


# --- the text around the body ---------------------------------------------------------------------------------------


def fold_position_lines(space: Space, axis: AxisText, position: str) -> list[str]:
    """Returns the lines that define positions and mask of an axis; ``position`` is a vector."""
    suffix = space.expand(axis.name)
    lines = [f"{axis.name} = ({position}){suffix}" if suffix else f"{axis.name} = {position}"]
    if axis.masked:
        lines.append(f"{axis.name}mask = {axis.name} < {axis.size}")
    return lines


def header_lines(space: Space, width: int) -> list[str]:
    """Returns the lines that place a program in the grid: the x blocks run fastest."""
    wide = ".to(tl.int64)" if width == 64 else ""
    lines: list[str] = []
    grid = [axis for axis in reversed(space.grid) if axis.size != 1]
    rest = f"tl.program_id(0){wide}"
    if len(grid) > 1:
        lines.append(f"program = {rest}")
        rest = "program"
    for number, axis in enumerate(grid):
        blocks = f"{axis.size}" if not axis.tiled else f"(({axis.size} + {axis.constant} - 1) // {axis.constant})"
        mine = rest if number == len(grid) - 1 else f"{rest} % {blocks}"
        rest = f"{rest} // {blocks}"
        if axis.tiled:
            lines += fold_position_lines(space, axis, f"{mine} * {axis.constant} + tl.arange(0, {axis.constant})")
        else:
            lines.append(f"{axis.name} = {mine}")
    fold = space.fold
    if fold is not None and fold.tiled and not space.loops:
        lines += fold_position_lines(space, fold, f"tl.arange(0, RBLOCK){wide}")
    return lines


def describe_space(space: Space) -> str:
    """Returns a comment that says what the axes are."""
    return "# " + ", ".join(f"{axis.name}: {axis.size}" for axis in space.axes)


def assemble(flat: FlatKernel, width: int, body: list[str]) -> tuple[str, str]:
    """Returns the module text and the name of the kernel function, which holds a digest of the text."""
    tensors = {param.text: param for param in flat.params.values()}
    kinds = ", ".join(f"{name}: {param.dtype}" for name, param in tensors.items())
    constants = [f"{axis.constant}: tl.constexpr" for axis in flat.space.axes]
    lines = [f"    {line}" for line in (describe_space(flat.space), f"# {kinds}", *header_lines(flat.space, width))]
    text = "\n".join([*lines, *body])
    imports = ["import triton", "import triton.language as tl"]
    if "fmath." in text:
        imports.append("from ferrite_runtime import fmath")
    signature = ", ".join([*tensors, *constants])
    template = "\n".join([*imports, "", "", "@triton.jit", f"def {_PLACEHOLDER}({signature}):", text, ""])
    digest = hashlib.sha256(f"{flat.kernel.strategy}\n{template}".encode()).hexdigest()[:8]
    name = "_".join([flat.kernel.strategy, *main_operations(flat), digest])
    return template.replace(f"def {_PLACEHOLDER}(", f"def {name}(", 1), name


def main_operations(flat: FlatKernel, most: int = 3) -> list[str]:
    """Returns up to ``most`` names that say what a kernel computes: folds and scans first, then the dearest operations."""
    combines = [definition.combine for definition in flat.definitions if isinstance(definition, (Fold, Scan))]
    updates = [definition.mode for definition in flat.definitions if isinstance(definition, Update)]
    nodes = postorder(body for definition in flat.definitions for body in bodies_of(definition))
    dear = sorted((node.op for node in nodes if node.op in OPS), key=lambda op: -OPS[op].cost)
    names = list(dict.fromkeys([*combines, *updates, *dear]))[:most]
    if names:
        return names
    return ["copy"] if any(isinstance(definition, Loop) for definition in flat.definitions) else []


def describe_params(flat: FlatKernel) -> list[dict[str, Any]]:
    """Returns the params of the spec, in call order."""
    written = access_overrides(flat)
    described: list[dict[str, Any]] = []
    for name, access in ((param.name, param.access) for param in flat.kernel.params):
        param = flat.params[name]
        if param.param.host_scalar:
            described.append({"name": param.text, "role": "scalar", "dtype": param.dtype.name})
            continue
        tensor = {"name": param.text, "role": "tensor", "dtype": param.dtype.name}
        described.append({**tensor, "access": written.get(param.text, access), "align": ALIGNMENT})
    return described


def access_overrides(flat: FlatKernel) -> dict[str, str]:
    """Returns the access of updated params as the text has it: ``atomic`` or, where points cannot meet, ``readwrite``."""
    overrides: dict[str, str] = {}
    for definition in flat.definitions:
        if isinstance(definition, Update):
            text = flat.param_of(definition.result.name).text
            access = "atomic" if needs_atomics(flat, definition) else "readwrite"
            overrides[text] = "atomic" if "atomic" in (overrides.get(text), access) else access
    return overrides


def mutated_params(flat: FlatKernel) -> tuple[str, ...]:
    """Returns the names of params whose old contents matter and are overwritten."""
    return tuple(param["name"] for param in describe_params(flat) if param.get("access") in ("readwrite", "atomic"))


def describe_axis(axis: AxisText) -> dict[str, Any]:
    """Returns an axis of the spec."""
    described: dict[str, Any] = {
        "name": axis.name,
        "kind": "fold" if axis.is_fold else "grid",
        "size": axis.size,
        "hint": axis.size,
        "block": axis.constant,
    }
    if axis.max_block is not None:
        described["max_block"] = axis.max_block
    return described


def grid_expression(space: Space) -> Expr:
    """Returns the number of programs in the integer mini-language."""
    factors: list[Expr] = [["ceildiv", axis.name, axis.constant] for axis in space.grid]
    return factors[0] if len(factors) == 1 else ["mul", *factors]
