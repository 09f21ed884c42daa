"""Checks one graph against the rules in `problems`; gathers every problem that it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ferrite_ir.language import sizes
from ferrite_ir.language.bindings import bindings_of, definition_symbols
from ferrite_ir.language.combine_functions import AnyCombine, CombineFunction, combine_row
from ferrite_ir.language.combines import COMBINES
from ferrite_ir.language.contract import segment_problems
from ferrite_ir.language.dtypes import BOOL, F32, I64, DType
from ferrite_ir.language.graph import (
    UPDATE_MODES,
    Attend,
    Call,
    Contract,
    Definition,
    Extern,
    For,
    Graph,
    If,
    Loop,
    Reduction,
    Scan,
    Sort,
    TensorType,
    Update,
    Value,
    View,
    While,
    bodies_of,
    domain_of,
    names_read,
    overlaps,
    views_in,
)
from ferrite_ir.language.index import Dim, Index, Indirect
from ferrite_ir.language.scalar import Scalar, indirects_of, postorder, sizes_of
from ferrite_ir.language.sizes import Size
from ferrite_ir.text.printer import graph_symbols, scalar_text

from .attention import attend_problems
from .bounds import is_surely_outside, unguarded
from .problems import Problem


def check_graph(graph: Graph) -> list[Problem]:
    """Returns all problems of a graph, those that need its module excepted."""
    return _Checker(graph).problems_found()


class _Checker:
    """Walks one graph in order; knows what is defined, replaced and shared so far."""

    __slots__ = (
        "_bindings",
        "_defined",
        "_graph",
        "_position",
        "_problems",
        "_replaced",
        "_roots",
        "_symbols",
        "_unbound",
    )

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._problems: list[Problem] = []
        self._position: int | None = None
        self._defined: dict[str, Value] = {}
        self._replaced: dict[str, str] = {}
        self._roots: dict[str, str] = {}
        self._symbols = frozenset(symbol.name for symbol in graph_symbols(graph))
        self._bindings = bindings_of(graph)
        self._unbound = {binding.symbol for made in self._bindings.values() for binding in made}

    def problems_found(self) -> list[Problem]:
        """Returns the problems in order of the text."""
        for value in self._graph.inputs:
            self._define(value)
        for position, definition in enumerate(self._graph.definitions):
            self._position = position
            self._check_names(definition)
            self._check_symbols(position, definition)
            _CHECKS[type(definition)](self, definition)
            for result in definition.results:
                if result is not None:
                    self._define(result)
                    self._check_layout(result, is_computed=not isinstance(definition, Extern))
            self._replace(definition)
        self._position = None
        self._check_outputs()
        self._check_mutations()
        return self._problems

    def report(self, rule: str, message: str, spot: str = "") -> None:
        """Notes a problem of the current definition."""
        self._problems.append(Problem(rule, message, self._graph.name, self._position, spot))

    def _define(self, value: Value) -> None:
        if not value.name.isidentifier():
            self.report("V01", f"{value.name!r} is no identifier", value.name)
        if value.name in self._defined:
            self.report("V01", f"{value.name} is defined before already", f"{value.name}:")
        self._defined.setdefault(value.name, value)

    def _check_layout(self, value: Value, *, is_computed: bool) -> None:
        type_ = value.type
        steps = [(stride, size) for size, stride in zip(type_.shape, type_.strides, strict=False) if size != 1]
        if len(type_.strides) != len(type_.shape):
            self.report(
                "V22", f"{value.name} has {len(type_.shape)} extents and {len(type_.strides)} strides", f"{value.name}:"
            )
        elif is_computed and (
            any(type(stride) is int and stride <= 0 for stride, _ in steps) or overlaps(type_.shape, type_.strides)
        ):
            self.report(
                "V22",
                f"with strides {list(type_.strides)} two elements of {value.name} lie at one place",
                f"{value.name}:",
            )

    def _check_names(self, definition: Definition) -> None:
        for name in names_read(definition):
            self._check_name(name)

    def _check_symbols(self, position: int, definition: Definition) -> None:
        """Checks that a definition uses no symbol that is bound below; notes those that it binds."""
        if not self._unbound:
            return
        self._unbound -= {binding.symbol for binding in self._bindings.get(position, ())}
        for name in sorted(definition_symbols(definition) & self._unbound):
            self.report("V24", f"the size {name} is not known yet", name)

    def _check_name(self, name: str) -> None:
        if name in self._replaced:
            self.report("V11", f"{name} was replaced by {self._replaced[name]}; use that", name)
        elif name not in self._defined:
            self.report("V02", f"{name} is not defined here", name)

    def _replace(self, definition: Definition) -> None:
        match definition:
            case Update() if definition.result.name != definition.target:
                self._replaced[definition.target] = definition.result.name
                self._roots[definition.result.name] = self._roots.get(definition.target, definition.target)
            case Extern():
                for name, operand in definition.aliases:
                    self._roots[name] = self._roots.get(operand, operand)
                    if operand in definition.mutates:
                        self._replaced[operand] = name

    def _check_outputs(self) -> None:
        for output in self._graph.outputs:
            if isinstance(output, View):
                self._check_name(output.name)
                self._check_view(output)

    def _check_mutations(self) -> None:
        inputs = {value.name for value in self._graph.inputs}
        listed = dict(self._graph.mutations)
        for source, final in self._graph.mutations:
            if source not in inputs:
                self.report("V15", f"{source} is no input", f"{source}:")
            elif final not in self._defined or self._roots.get(final, final) != source:
                self.report("V15", f"{final} does not lie in the storage of {source}", f"{source}: {final}")
            elif final in self._replaced:
                self.report(
                    "V15",
                    f"{final} was replaced by {self._replaced[final]}, which is the final version",
                    f"{source}: {final}",
                )
        for old in self._replaced:
            root = self._roots.get(old, old)
            if root in inputs and root not in listed:
                self.report("V15", f"input {root} is changed; list its final version under mutates", "->")
                listed[root] = ""

    def _check_view(self, view: View) -> None:
        value = self._defined.get(view.name)
        if value is None:
            return
        if len(view.shape) != len(view.strides):
            self.report(
                "V14",
                f"the view of {view.name} has {len(view.shape)} extents and {len(view.strides)} strides",
                view.name,
            )
            return
        extent = TensorType(view.dtype, view.shape, view.strides).storage_size
        end = sizes.mul(sizes.add(view.offset, extent), view.dtype.bits)
        storage = sizes.mul(value.type.storage_size, value.type.dtype.bits)
        is_outside = (
            not sizes.is_provably_at_most(end, storage)
            if sizes.is_static(end) and sizes.is_static(storage)
            else (sizes.is_provably_at_most(sizes.add(storage, 1), end))
        )
        if extent != 0 and (is_outside or sizes.is_provably_at_most(view.offset, -1)):
            last, room = sizes.add(view.offset, extent), sizes.floordiv(storage, view.dtype.bits)
            message = (
                f"the view ends at {view.dtype} element {sizes.text(last)} of {view.name}, which has {sizes.text(room)}"
            )
            self.report("V14", message, view.name)

    def _check_domain(self, definition: Definition) -> None:
        dims, reduced = domain_of(definition)
        names = [dim.name for dim in (*dims, *reduced)]
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                self.report("V10", f"two dims are called {name}", name)
            if name in self._symbols:
                self.report("V10", f"the dim {name} is also a symbolic size; rename one", name)
        if isinstance(definition, (Reduction, Contract)) and not reduced:
            self.report("V10", "there is no dim behind '|' to reduce over; write a loop", "]")

    def _check_count(self, results: tuple[Any, ...], wanted: int) -> bool:
        if len(results) != wanted:
            self.report("V04", f"{len(results)} results are named, {wanted} are given")
        return len(results) == wanted

    def _check_shape(self, value: Value, shape: tuple[Size, ...]) -> None:
        if value.type.shape != shape:
            self.report(
                "V05",
                f"{value.name} has shape {_shape(value.type.shape)}, the domain {_shape(shape)}",
                f"{value.name}:",
            )

    def _check_type(self, value: Value, body: DType) -> None:
        if value.type.dtype is not body:
            self.report(
                "V03",
                f"{value.name} is {value.type.dtype}, its body {body}; insert cast.{value.type.dtype}",
                f"{value.name}:",
            )

    def _check_scalars(self, definition: Definition, indices: tuple[Index, ...] = ()) -> None:
        """Checks loads, indices and dims of the bodies (and indices) of a definition."""
        roots = (*bodies_of(definition), *indirects_of(indices))
        dims, reduced = domain_of(definition)
        known = {*dims, *reduced}
        used = frozenset().union(*(body.dims for body in roots), *(index.dims for index in indices))
        for dim in sorted(used - known, key=lambda dim: dim.order):
            self.report("V09", f"{dim.name} < {sizes.text(dim.size)} is no dim of the domain", dim.name)
        open_nodes = set(unguarded(roots))
        for node in postorder(roots):
            if node.op == "load":
                self._check_load(node, is_guarded=node not in open_nodes)
            self._check_indirects(node.indices if node.op in ("load", "index") else ())
        self._check_indirects(indices)

    def _check_indirects(self, indices: Iterable[Index]) -> None:
        for index in indices:
            for atom, _ in index.terms:
                if isinstance(atom, Indirect) and not atom.value.dtype.is_integer:
                    self.report(
                        "V23", f"an index is computed by {atom.value.dtype} {scalar_text(atom.value)}; cast it", "at("
                    )

    def _check_load(self, node: Scalar, *, is_guarded: bool) -> None:
        value = self._defined.get(node.source)
        if value is None:
            return
        spot = f"{node.source}["
        if node.dtype is not value.type.dtype:
            self.report("V07", f"{node.source} is {value.type.dtype}, loaded as {node.dtype}", spot)
        if len(node.indices) != len(value.type.shape):
            self.report(
                "V07", f"{node.source} has {len(value.type.shape)} dims, the load {len(node.indices)} indices", spot
            )
        elif not is_guarded:
            self._check_bounds(node.indices, value.type.shape, spot, f"the load of {node.source}")

    def _check_bounds(self, indices: tuple[Index, ...], shape: tuple[Size, ...], spot: str, what: str) -> None:
        for axis, (index, size) in enumerate(zip(indices, shape, strict=True)):
            if is_surely_outside(index, size):
                bounds = f"{sizes.text(index.lo)}…{sizes.text(index.hi)}"
                self.report(
                    "V08", f"{what} has index {index} in {bounds} on dim {axis} of extent {sizes.text(size)}", spot
                )

    def check_loop(self, loop: Loop) -> None:
        """Checks a loop."""
        self._check_domain(loop)
        self._check_scalars(loop)
        if self._check_count(loop.results, len(loop.bodies)):
            for value, body in zip(loop.results, loop.bodies, strict=True):
                self._check_type(value, body.dtype)
                self._check_shape(value, sizes_of(loop.dims))

    def check_reduction(self, reduction: Reduction) -> None:
        """Checks a reduction."""
        self._check_domain(reduction)
        self._check_scalars(reduction)
        self._check_states(reduction, reduction.combine, reduction.dims)

    def check_scan(self, scan: Scan) -> None:
        """Checks a scan."""
        self._check_domain(scan)
        self._check_scalars(scan)
        self._check_along(scan.along, scan.dims)
        row = combine_row(scan.combine)
        if row is not None and not row.scans:
            self.report("V06", f"{row.name} is no combine of scans", row.name)
        self._check_states(scan, scan.combine, scan.dims)

    def _check_states(self, definition: Reduction | Scan, combine: AnyCombine, dims: tuple[Dim, ...]) -> None:
        row = combine_row(combine)
        if row is None:
            self.report("V06", f"unknown combine {combine!r}; known: {', '.join(COMBINES)}", str(combine))
            return
        operands = tuple(body.dtype for body in definition.bodies)
        spot = "by" if isinstance(combine, CombineFunction) else combine
        problem = row.operand_problem(operands)
        if problem is None and isinstance(combine, CombineFunction):
            problem = _function_problem(combine, operands)
        if problem is not None:
            self.report("V06", problem, spot)
        elif self._check_count(definition.results, len(row.state)):
            for value, dtype in zip(definition.results, row.result_types(operands), strict=True):
                self._check_type(value, dtype)
                self._check_shape(value, sizes_of(dims))

    def _check_along(self, along: Dim, dims: tuple[Dim, ...]) -> None:
        if along not in dims:
            self.report("V17", f"{along.name} is no dim of the domain", "along")

    def check_sort(self, sort: Sort) -> None:
        """Checks a sort."""
        self._check_domain(sort)
        self._check_scalars(sort)
        self._check_along(sort.along, sort.dims)
        if len(sort.results) != 2:
            self.report("V17", f"a sort gives values and positions, not {len(sort.results)} results")
            return
        if sort.top is not None and sizes.is_provably_at_most(sizes.add(sort.along.size, 1), sort.top):
            self.report("V17", f"top {sizes.text(sort.top)} of {sizes.text(sort.along.size)} values", "top")
        shape = tuple(sort.top if dim is sort.along and sort.top is not None else dim.size for dim in sort.dims)
        for value, dtype in zip(sort.results, (sort.body.dtype, I64), strict=True):
            self._check_type(value, dtype)
            self._check_shape(value, shape)

    def check_update(self, update: Update) -> None:
        """Checks an update."""
        self._check_domain(update)
        self._check_scalars(update, update.indices)
        if update.mode not in UPDATE_MODES:
            self.report("V12", f"unknown mode {update.mode!r}; known: {', '.join(UPDATE_MODES)}", update.mode)
        if update.condition is not None and update.condition.dtype is not BOOL:
            self.report("V19", f"the condition is {update.condition.dtype}; compare it with zero", " if ")
        self._check_own_reads(update)
        target = self._defined.get(update.target)
        if target is None:
            return
        wanted = target.type.dtype
        if update.body.dtype is not wanted:
            self.report(
                "V12",
                f"{update.target} is {wanted}, the body {update.body.dtype}; insert cast.{wanted}",
            )
        if update.result.type != target.type:
            self.report("V12", f"{update.result.name} must have the type of {update.target}", f"{update.result.name}:")
        if len(update.indices) != len(target.type.shape):
            self.report(
                "V12",
                f"{update.target} has {len(target.type.shape)} dims, the update {len(update.indices)} indices",
                "at [",
            )
        elif update.condition is None:
            self._check_bounds(update.indices, target.type.shape, "at [", f"the store to {update.target}")

    def _check_own_reads(self, update: Update) -> None:
        for body in bodies_of(update):
            for load in body.loads:
                if load.source == update.target and load.indices != update.indices:
                    self.report(
                        "V13",
                        f"{load} is read while another point stores to it; copy {update.target} first",
                        f"{load.source}[",
                    )

    def check_contract(self, contract: Contract) -> None:
        """Checks a contraction."""
        self._check_domain(contract)
        self._check_scalars(contract)
        self._check_shape(contract.result, sizes_of(contract.dims))
        for message, spot in segment_problems(contract):
            self.report("V26", message, spot)
        left, right = contract.left.dtype, contract.right.dtype
        if left is not right or left is BOOL:
            self.report("V18", f"the operands are {left} and {right}; cast one", " * ")
        elif contract.result.type.dtype is not left.compute:
            self.report(
                "V18",
                f"{contract.result.name} must be {left.compute}, the type in which {left} is carried",
                f"{contract.result.name}:",
            )
        stored = contract.stored
        if stored is not None and not (stored.is_half and stored.compute is contract.result.type.dtype):
            self.report("V18", f"sums in {contract.result.type.dtype} are not stored as {stored}", f"stored {stored}")

    def check_attend(self, attend: Attend) -> None:
        """Checks an attention."""
        self._check_domain(attend)
        self._check_scalars(attend)
        for rule, message, spot in attend_problems(attend, self._defined):
            self.report(rule, message, spot)
        shapes = [sizes_of(attend.dims)] * len(attend.weights)
        if attend.is_softmax:
            shapes = [sizes_of(attend.dims), *[sizes_of(attend.dims[:-1])] * 2][: max(1, len(attend.results))]
        if self._check_count(attend.results, len(shapes)):
            for value, shape in zip(attend.results, shapes, strict=True):
                self._check_type(value, F32)
                self._check_shape(value, shape)

    def check_extern(self, extern: Extern) -> None:
        """Checks an extern call."""
        views = list(views_in((extern.args, tuple(value for _, value in extern.kwargs))))
        for view in views:
            self._check_view(view)
        operands = {view.name for view in views}
        results = {value.name for value in extern.results if value is not None}
        for name in extern.mutates:
            if name not in operands:
                self.report("V16", f"{name} is mutated but is no operand", "mutates")
        for result, operand in extern.aliases:
            if result not in results or operand not in operands:
                self.report("V16", f"{result}: {operand} is no pair of a result and an operand", "aliases")

    def check_call(self, call: Call | While | For) -> None:
        """Checks a call as far as its own graph tells; see `check_module`."""

    def check_if(self, branch: If) -> None:
        """Checks the condition of a choice."""
        condition = self._defined.get(branch.condition)
        if condition is not None and (condition.type.dtype is not BOOL or condition.type.numel != 1):
            self.report(
                "V19",
                f"{branch.condition} is {condition.type.dtype}{_shape(condition.type.shape)}, not one bool",
                branch.condition,
            )


def _function_problem(function: CombineFunction, operands: tuple[DType, ...]) -> str | None:
    """Returns what is wrong with a user's combine of operands of these types, or None."""
    pairs = [(a, b) for a, b in zip(function.types, operands, strict=False) if a is not b]
    if pairs:
        return f"the combine gives {pairs[0][0]} for {pairs[0][1]}; a scan changes no type, so cast in the combine"
    return function.problem()


def _shape(shape: Iterable[Size]) -> str:
    return f"[{', '.join(map(sizes.text, shape))}]"


_CHECKS: dict[type, Callable[[_Checker, Any], None]] = {
    Loop: _Checker.check_loop,
    Reduction: _Checker.check_reduction,
    Scan: _Checker.check_scan,
    Sort: _Checker.check_sort,
    Update: _Checker.check_update,
    Contract: _Checker.check_contract,
    Attend: _Checker.check_attend,
    Extern: _Checker.check_extern,
    Call: _Checker.check_call,
    If: _Checker.check_if,
    While: _Checker.check_call,
    For: _Checker.check_call,
}
