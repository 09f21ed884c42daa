"""Digests of graphs: equal keys mean equal programs.

Of an AOT graph all that lowering reads goes into the key; of a captured graph its calls and the types of its inputs.
Names of nodes, stack traces and other metadata for people are left out, constants count by type and layout only (they
are passed at run time), and storages by which tensors share them. A graph with anything else has no key.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ferrite_torch.calls.higher_order import CONTROL_FLOW, USER_KERNELS, call_of_node
from ferrite_torch.calls.user_constants import NotWritten, fixed_launch
from ferrite_torch.rewrites.rounded_half_types import ROUNDED
from ferrite_torch.torch_private.fake_tensors import is_fake, number_in, storage_key
from ferrite_torch.torch_private.nodes import example_of, whole_op
from ferrite_torch.torch_private.operators import INLINED, HigherOrderOp, Overload, Packet, schema_of
from ferrite_torch.torch_private.symbolic_shapes import size_text
from ferrite_torch.torch_private.whole_ops import LINEAR_LOSS

READ_META = ("val", "original_aten", ROUNDED)
"""The metadata of nodes that lowering may read; all of it goes into the key."""

_SIMPLE = (str, int, float, bool, complex, type(None))
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_KNOWN_NAMESPACES = ("aten", "prims", "ferrite_seeded")


COMPILED = frozenset((*CONTROL_FLOW, *INLINED, LINEAR_LOSS))
"""Higher-order ops whose functions become part of the program."""


class NoKey(Exception):
    """A graph holds something whose meaning is not certain to be in a text of it."""


def graph_key(module: torch.fx.GraphModule, *facts: object) -> str | None:
    """Returns the identity of a graph together with ``facts``, values that print the same if they are equal.

    None for a graph that has none: with functions other than operators, or arguments of other kinds.
    """
    try:
        lines = _Describer(module).lines()
    except NoKey:
        return None
    text = "\n".join([repr(facts), *lines])
    return hashlib.sha256(text.encode()).hexdigest()


def captured_key(module: torch.fx.GraphModule, inputs: Sequence[Any], *facts: object) -> str:
    """Returns the identity of a graph as captured, before AOTAutograd, with fake ``inputs``.

    Raises:
        NoKey: it has none: with ops from other libraries, whose derivatives would become part of what is stored,
            with functions as arguments, or with tensors or modules of its own.
    """
    describer = _Describer(module)
    described = [describer.input(value) for value in inputs]
    text = "\n".join([repr(facts), *described, *describer.calls()])
    return hashlib.sha256(text.encode()).hexdigest()


def constant_paths(module: torch.fx.GraphModule) -> tuple[str, ...]:
    """Returns the attribute paths of the tensors that a graph reads from its module, in order of first use."""
    nodes = module.graph.find_nodes(op="get_attr")
    paths = dict.fromkeys(str(node.target) for node in nodes)
    return tuple(path for path in paths if isinstance(operator.attrgetter(path)(module), torch.Tensor))


class _Describer:
    """Writes a line per node; ``numbers`` are the nodes' places, ``storages`` numbers in order of appearance.

    Of a function that a graph holds nobody else says what it was traced with.
    """

    def __init__(self, module: torch.fx.GraphModule, *, is_function: bool = False) -> None:
        self.module, self.is_function = module, is_function
        self.numbers: dict[torch.fx.Node, int] = {}
        self.storages: dict[int, int] = {}
        self.functions: dict[torch.fx.GraphModule, str] = {}

    def lines(self) -> list[str]:
        """Returns the text of the graph."""
        lines = []
        for number, node in enumerate(self.module.graph.nodes):
            args = [self.argument(value) for value in node.args]
            named = self.named(node)
            value = self.value(node.meta.get("val"))
            rounded = " rounded" if node.meta.get(ROUNDED) else ""
            piece = f" of {whole}" if (whole := whole_op(node)) else ""
            lines.append(f"{node.op} {self.target(node)} {args} {named} {value}{rounded}{piece}")
            self.numbers[node] = number
        return lines

    def named(self, node: torch.fx.Node) -> list[tuple[str, Any]]:
        """Returns the keyword arguments of a node; of a launch of a user's kernel, what the numbers among them mean."""
        is_launch = str(node.target) in USER_KERNELS
        left = {name: value for name, value in node.kwargs.items() if not (is_launch and name in _NUMBERS)}
        found = [(name, self.argument(value)) for name, value in sorted(left.items())]
        return [*found, ("launch", _fixed(node))] if is_launch else found

    def calls(self) -> list[str]:
        """Returns the text of a captured graph: what the calls result in follows from the inputs."""
        lines = []
        for number, node in enumerate(self.module.graph.nodes):
            if node.meta.get("custom"):
                raise NoKey("a node with annotations")
            args = [self.argument(value) for value in node.args]
            named = [(name, self.argument(value)) for name, value in sorted(node.kwargs.items())]
            given = self.value(example_of(node)) if self.is_function and node.op == "placeholder" else ""
            lines.append(f"{node.op} {self.captured_target(node)} {args} {named} {given}")
            self.numbers[node] = number
        return lines

    def input(self, value: Any) -> str:
        if not isinstance(value, torch.Tensor):
            return self.value(value)
        if not is_fake(value) or value.is_conj() or value.is_neg() or value.is_quantized:
            raise NoKey(f"an input of type {type(value).__name__}")
        return f"{self.tensor(value)} {value.requires_grad} {value.is_leaf} {value.is_inference()}"

    def captured_target(self, node: torch.fx.Node) -> str:
        target = node.target
        if node.op in ("placeholder", "output"):
            return ""
        if node.op == "call_method":
            return str(target)
        if node.op == "get_attr":
            return self.captured_function(node)
        if isinstance(target, HigherOrderOp) and str(target) in COMPILED:
            return f"higher_order {target}"
        if node.op != "call_function" or isinstance(target, (HigherOrderOp, Packet)):
            raise NoKey(f"{node.op} of {target}")
        if isinstance(target, Overload):
            if target.namespace not in _KNOWN_NAMESPACES:
                raise NoKey(f"a call of {target}")
            return str(target)
        # AOTAutograd's cache has checked that it is one of torch's or Python's own.
        return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}"

    def captured_function(self, node: torch.fx.Node) -> str:
        """Returns the digest of a graph that a captured one holds, as an argument of ops whose functions are compiled.

        Raises:
            NoKey: it holds something else there, or gives it to others.
        """
        held = operator.attrgetter(str(node.target))(self.module)
        if not isinstance(held, torch.fx.GraphModule) or any(str(user.target) not in COMPILED for user in node.users):
            raise NoKey(f"a node that reads {node.target}")
        if held not in self.functions:
            text = "\n".join(_Describer(held, is_function=True).calls())
            self.functions[held] = hashlib.sha256(text.encode()).hexdigest()
        return f"graph {self.functions[held]}"

    def target(self, node: torch.fx.Node) -> str:
        target = node.target
        match node.op:
            case "placeholder" | "output":
                return ""
            case "get_attr":
                return self.constant(node)
        if isinstance(target, HigherOrderOp):
            # Functions of some are compiled too, and described where they are held. The step of another op
            # calls what the graph at hand holds in this place: only what it takes and returns is compiled.
            return f"higher_order {target}"
        if isinstance(target, Overload):
            # The schemas of torch's own ops come with its version, those of others may change under one name.
            return str(target) if target.namespace in _KNOWN_NAMESPACES else str(schema_of(target))
        if target is operator.getitem:
            return "getitem"
        raise NoKey(f"a call of {target}")

    def constant(self, node: torch.fx.Node) -> str:
        value = operator.attrgetter(str(node.target))(self.module)
        if isinstance(value, torch.Tensor):
            # A number that a function holds becomes part of the program; what the graph itself holds is handed over.
            is_number = self.is_function and value.numel() == 1 and not is_fake(value)
            return f"{self.value(value)} {number_in(value)}" if is_number else self.value(value)
        if isinstance(value, (int, float, str)):
            return repr(value)
        if isinstance(value, torch.fx.GraphModule):
            # An argument of a higher-order op, which may become part of the program.
            is_compiled = any(str(user.target) in COMPILED for user in node.users)
            return f"graph {self.function(value)}" if is_compiled else "graph"
        raise NoKey(f"an attribute of type {type(value).__name__}")

    def function(self, module: torch.fx.GraphModule) -> str:
        """Returns the digest of a graph that the graph holds; many nodes may hold the same one."""
        if module not in self.functions:
            text = "\n".join(_Describer(module, is_function=True).lines())
            self.functions[module] = hashlib.sha256(text.encode()).hexdigest()
        return self.functions[module]

    def argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return ("node", self.numbers[value])
        if type(value) in _SIMPLE:
            return value
        if isinstance(value, (list, tuple)):
            return [self.argument(item) for item in value]
        if isinstance(value, Mapping):
            return {name: self.argument(item) for name, item in value.items()}
        if isinstance(value, (Overload, HigherOrderOp)):
            return ("op", str(value))
        if isinstance(value, _NAMED):
            return ("named", str(value))
        if isinstance(value, slice):
            return ("slice", self.argument(value.start), self.argument(value.stop), self.argument(value.step))
        raise NoKey(f"an argument of type {type(value).__name__}")

    def value(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self.value(item) for item in value)}]"
        if isinstance(value, Mapping):
            return f"{list(value)} {self.value(list(value.values()))}"
        if type(value) in _SIMPLE:
            return repr(value)
        if isinstance(value, torch.SymInt):
            return f"symbolic {size_text(value)}"
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            return f"symbolic {_number(value)!r}"
        raise NoKey(f"a result of type {type(value).__name__}")

    def tensor(self, value: torch.Tensor) -> str:
        if value.layout != torch.strided:
            raise NoKey(f"a tensor of layout {value.layout}")
        shape, strides = ", ".join(map(size_text, value.shape)), ", ".join(map(size_text, value.stride()))
        storage = self.storages.setdefault(storage_key(value), len(self.storages))
        held, offset = size_text(value.untyped_storage().nbytes()), size_text(value.storage_offset())
        return f"{value.dtype} [{shape}] [{strides}] {value.device} in {storage} of {held} at {offset}"


_NUMBERS = ("kernel_idx", "constant_args_idx")
"""By which torch refers to kernels and constants: they are good for one process, and there for one compilation."""


def _fixed(node: torch.fx.Node) -> str:
    """Returns the text of a kernel that is part of a program, and of its constants; others are found at hand."""
    try:
        return repr(fixed_launch(call_of_node(node)).described())
    except NotWritten:
        return "at hand"


def _number(value: Any) -> Any:
    kinds: Mapping[type, type] = {torch.SymFloat: float, torch.SymBool: bool}
    return kinds[type(value)](value)
