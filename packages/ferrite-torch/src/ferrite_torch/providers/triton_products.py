"""A provider whose candidates are launches of a Triton kernel that a person wrote, with an epilogue in its slot.

    @triton.jit
    def epilogue(acc, rows, columns, row_mask, column_mask):        the slot: what reads the product takes its place
        return acc

    @triton.jit
    def product(left, right, result, m, n, k, left_row, left_point, right_point, right_column, result_row,
                ROWS: tl.constexpr, COLUMNS: tl.constexpr, POINTS: tl.constexpr):
        …
        value = epilogue(acc, rows, columns, row_mask, column_mask)
        tl.store(result + rows * result_row + columns, value, row_mask & column_mask)

The function in the slot is replaced in a copy of the kernel's text, and gets what else the epilogue reads by further
parameters of the kernel. Where nothing that reads a product fits the slot, the kernel stores the product.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.graph import (
    Contract,
    Definition,
    Extern,
    Graph,
    Loop,
    TensorType,
    Update,
    Value,
    View,
    loads_of,
    names_read,
    row_major,
    whole,
)
from ferrite_ir.language.scalar import cast, load
from ferrite_runtime.formats.canonical_json import kernel_id
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.divisors import divisor_of
from ferrite_runtime.formats.kernel_spec import KernelSpec, Param
from ferrite_runtime.kernel_source.user_kernels import Launched, launched_kernel
from ferrite_runtime.kernel_source.user_text import named_module_text
from ferrite_scheduler.choices.calls import operand_view, product_name
from ferrite_scheduler.choices.providers import Emitted, Part
from ferrite_scheduler.model.intermediates import empty_for
from ferrite_triton.epilogues import PARAMETERS, EpilogueFunction, epilogue_function

NUMBERS = ("m", "n", "k", "left_row", "left_point", "right_point", "right_column", "result_row")
"""What a kernel takes behind its three tensors: extents, and elements between neighbours."""
ALIGNMENT = 16
"""Bytes that addresses are promised to be multiples of; where one is not, a build without the promise runs."""
USUAL = {"num_warps": 4, "num_stages": 3}


@dataclass(frozen=True, slots=True)
class _Fused:
    """What reads a product in the kernel's slot, and where it stands in the graph."""

    position: int
    loop: Loop
    function: EpilogueFunction


class TritonProducts:
    """Products of two matrices by a person's Triton kernel.

    Args:
        name: of the provider, and of its candidate.
        kernel: the ``@triton.jit`` function. Its parameters are, in this order, the left factor, the right one and the
            result (pointers), `NUMBERS`, and constants (``tl.constexpr``). Columns of the result are neighbours.
        slot: the ``@triton.jit`` function that it calls, once or more, on tiles of the product in f32, with where they
            lie: see `ferrite_triton.epilogues`. By itself it returns the tile.
        grid: the number of programs: an expression of `NUMBERS` and constants as in docs/kernel-spec.md.
        configs: values of constants to choose from, with ``num_warps`` and ``num_stages``; the first is the default.
        dtypes: types of factors, both of which have the same.
        constants: values of the constants that are the same in all configs.

    Raises:
        ValueError: the kernel or the slot has other parameters.
    """

    def __init__(
        self,
        name: str,
        kernel: Any,
        slot: Any,
        grid: Any,
        configs: Sequence[Mapping[str, int]],
        dtypes: Collection[str] = ("bf16", "f16"),
        **constants: int,
    ) -> None:
        self.name, self._kernel, self._slot, self._dtypes = name, kernel, slot, frozenset(dtypes)
        self._grid, self._constants = _listed(grid), dict(constants)
        given = [{**USUAL, **config} for config in configs]
        self._configs = tuple(
            Config.of(
                {key: value for key, value in each.items() if key not in USUAL}, each["num_warps"], each["num_stages"]
            )
            for each in given
        )
        count = 3 + len(NUMBERS)
        if tuple(kernel.arg_names[3:count]) != NUMBERS:
            raise ValueError(f"{kernel.__name__} takes {', '.join(kernel.arg_names)}; behind three tensors: {NUMBERS}")
        if len(slot.arg_names) != len(PARAMETERS):
            raise ValueError(f"{slot.__name__} takes {', '.join(slot.arg_names)}; it is called with {PARAMETERS}")
        self._tensors = tuple(kernel.arg_names[:3])
        _, text = named_module_text(kernel)
        written = repr((text, self._grid, given, sorted(self._dtypes), sorted(constants.items())))
        self.version = sha256(written.encode()).hexdigest()[:16]

    def applicable(self, part: Part) -> bool:
        """Returns whether a part has one product of two matrices of known sizes, and of types that the kernel takes."""
        if len(part.products) != 1:
            return False
        contract = part.graph.definer[part.products[0]]
        return (
            isinstance(contract, Contract)
            and contract.segments is None
            and (len(contract.dims), len(contract.reduction_dims)) == (2, 1)
            and contract.left.dtype.name in self._dtypes
            and contract.left.dtype in (contract.stored, contract.result.type.dtype)
            and all(isinstance(dim.size, int) for dim in (*contract.dims, *contract.reduction_dims))
        )

    def candidates(self, part: Part) -> Sequence[str]:  # whose configs the runtime chooses from
        """Returns the one name."""
        return (self.name,)

    def emit(self, graph: Graph, products: Collection[str], candidate: str) -> Emitted:  # there is one
        """Returns a graph with launches of the kernel."""
        kernels: dict[str, Mapping[str, Any]] = {}
        for name in products:
            graph = self._launching(graph, name, kernels)
        return Emitted(graph, kernels)

    def _launching(self, graph: Graph, name: str, kernels: dict[str, Mapping[str, Any]]) -> Graph:
        contract = graph.definer[name]
        assert isinstance(contract, Contract), "products are contractions"
        fused = _epilogue(graph, contract, self._slot)
        result = fused.loop.results[0] if fused is not None else _stored(contract)
        launch = self._launch(graph, contract, result, fused, kernels)
        changed: list[Definition] = []
        for position, definition in enumerate(graph.definitions):
            if fused is not None and position == fused.position:
                changed += launch
            elif definition is not contract:
                changed.append(definition)
            elif fused is None:
                point = tuple(dim.index for dim in contract.dims)
                wide = cast(load(result.name, point, result.type.dtype), F32)
                changed += (*launch, Loop((contract.result,), contract.dims, (wide,), contract.origins))
        return replace(graph, definitions=tuple(changed))

    def _launch(
        self,
        graph: Graph,
        contract: Contract,
        result: Value,
        fused: _Fused | None,
        kernels: dict[str, Mapping[str, Any]],
    ) -> list[Definition]:
        """Returns the launch that makes a result, with what it needs before it; adds its spec to ``kernels``."""
        (row, column), (point,) = contract.dims, contract.reduction_dims
        before: list[Definition] = []
        left = operand_view(contract.left, (row, point), f"{contract.result.name}_left", graph, before)
        right = operand_view(contract.right, (point, column), f"{contract.result.name}_right", graph, before)
        kind = result.type
        types = {name: value.type for name, value in graph.values.items()}
        memory, allocation = empty_for(result, types, graph.device)
        before.append(allocation)
        extents = (row.size, column.size, point.size)
        numbers = dict(zip(NUMBERS, (*extents, *left.strides, *right.strides, kind.strides[0]), strict=True))
        operands = () if fused is None else tuple(graph.values[each] for each in fused.function.operands)
        spec = self._spec((left, right), kind, numbers, operands, None if fused is None else fused.function)
        target = f"kernel.{spec.name}.k{spec.id[:16]}"
        kernels[target] = spec.to_mapping()
        passed = [numbers[param.name] for param in spec.params if param.name in numbers]
        arguments = (left, right, whole(memory), *passed, *map(whole, operands))
        names = (result.name, memory.name)
        origins = contract.origins if fused is None else tuple(dict.fromkeys((*contract.origins, *fused.loop.origins)))
        return [*before, Extern((result,), target, arguments, (), (names,), (memory.name,), origins=origins)]

    def _spec(
        self,
        factors: tuple[View, View],
        result: TensorType,
        numbers: Mapping[str, Any],
        operands: tuple[Value, ...],
        function: EpilogueFunction | None,
    ) -> KernelSpec:
        ones = {name: 1 for name, value in numbers.items() if value == 1}  # as Triton's own launcher makes them
        kinds = (*((factor.dtype.name, "read") for factor in factors), (result.dtype.name, "write"))
        tensors = tuple(
            Param(name, "tensor", dtype, access, ALIGNMENT)
            for name, (dtype, access) in zip(self._tensors, kinds, strict=True)
        )
        sizes = tuple(_size(name, value) for name, value in numbers.items() if name not in ones)
        constants = {**self._constants, **ones}
        grid = (self._grid, 1, 1)
        spec = launched_kernel(
            self._kernel, Launched((*tensors, *sizes), constants, self._configs, (grid,), origin=(self.name,))
        )
        if function is None:
            return spec
        mapping = spec.to_mapping()
        names = tuple(f"operand{number}" for number in range(len(operands)))
        added = [
            Param(name, "tensor", value.type.dtype.name, "read", ALIGNMENT).to_mapping()
            for name, value in zip(names, operands, strict=True)
        ]
        mapping["source"] = with_epilogue(spec.source, spec.name, self._slot.__name__, function.text, names)
        mapping["params"] = [*mapping["params"], *added]
        return KernelSpec.from_mapping({**mapping, "id": kernel_id(mapping)})


def with_epilogue(text: str, kernel: str, slot: str, function: str, operands: Sequence[str]) -> str:
    """Returns a module's text with another function in a slot, whose further operands its kernel takes and passes on.

    Args:
        text: of the module that a person wrote.
        kernel: the name of the kernel in it; the operands stand behind `NUMBERS` among its parameters.
        slot: the name of the function that is replaced.
        function: the text of the other one.
        operands: names of what it takes behind what the slot takes.

    Raises:
        ValueError: there is no such function.
    """
    tree = ast.parse(text)
    (new,) = ast.parse(function).body
    found = [n for n, each in enumerate(tree.body) if isinstance(each, ast.FunctionDef) and each.name == slot]
    if len(found) != 1:
        raise ValueError(f"{kernel} calls no function {slot}")
    assert isinstance(new, ast.FunctionDef), "a function's text"
    new.name = slot
    tree.body[found[0]] = new
    for definition in tree.body:
        if isinstance(definition, ast.FunctionDef) and definition.name == kernel:
            position = 3 + len(NUMBERS)
            definition.args.args[position:position] = [ast.arg(name) for name in operands]
        for node in ast.walk(definition):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == slot:
                node.keywords += [ast.keyword(name, ast.Name(name)) for name in operands]
    imported = ast.parse("from ferrite_runtime import fmath").body
    return ast.unparse(ast.fix_missing_locations(ast.Module([*imported, *tree.body], []))) + "\n"


def _epilogue(graph: Graph, contract: Contract, slot: Any) -> _Fused | None:
    """Returns what reads a product and fits a slot, if it is all that reads it."""
    name = contract.result.name
    readers = [position for position, each in enumerate(graph.definitions) if name in names_read(each)]
    if len(readers) != 1 or name in graph.output_names:
        return None
    loop = graph.definitions[readers[0]]
    between = graph.definitions[graph.definitions.index(contract) : readers[0]]
    if any(isinstance(each, Update) or (isinstance(each, Extern) and each.mutates) for each in between):
        return None  # a factor may no longer be what it was
    if not isinstance(loop, Loop) or len(loop.bodies) != 1 or len(loop.dims) != 2:
        return None
    (made,) = loop.results
    is_plain = made.type.strides[-1] == 1 and [dim.size for dim in loop.dims] == [dim.size for dim in contract.dims]
    types = {each.source: graph.values[each.source].type for each in loads_of(loop)}
    function = epilogue_function(slot.__name__, loop, name, types, tuple(slot.arg_names)) if is_plain else None
    return None if function is None else _Fused(readers[0], loop, function)


def _stored(contract: Contract) -> Value:
    kind = contract.result.type
    return Value(
        product_name(contract.result.name), replace(kind, dtype=contract.left.dtype, strides=row_major(kind.shape))
    )


def _size(name: str, value: int) -> Param:
    promise = divisor_of(value)
    return Param(name, "size", "i32", align=promise if promise > 1 else None, hint=value)


def _listed(expression: Any) -> Any:
    return [_listed(part) for part in expression] if isinstance(expression, (tuple, list)) else expression
