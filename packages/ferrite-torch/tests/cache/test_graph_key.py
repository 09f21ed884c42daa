"""Keys of graphs: what changes a program changes the key, what does not leaves it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import ferrite_torch
from ferrite_torch.cache import environment
from ferrite_torch.cache.environment import compile_facts
from ferrite_torch.cache.graph_key import READ_META, NoKey, captured_key, constant_paths, graph_key
from ferrite_torch.options import Options

aten = torch.ops.aten


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*inputs)


def plain(x: torch.Tensor) -> torch.Tensor:
    return aten.mul.Tensor(aten.add.Scalar(x, 1), 2)


X = torch.randn(4, 6)


def test_equal_graphs_have_equal_keys() -> None:
    assert graph_key(traced(plain, X)) == graph_key(traced(plain, torch.zeros(4, 6)))


def test_names_and_traces_do_not_count() -> None:
    module = traced(plain, X)
    key = graph_key(module)
    for node in module.graph.nodes:
        node.meta["stack_trace"] = f'File "{node.name}.py", line 3'
        if node.op == "call_function":
            node.name = f"other_{node.name}"
    assert graph_key(module) == key


@pytest.mark.parametrize(
    ("function", "value"),
    [
        pytest.param(lambda x: aten.mul.Tensor(aten.sub.Scalar(x, 1), 2), X, id="op"),
        pytest.param(lambda x: aten.mul.Tensor(aten.add.Scalar(x, 3), 2), X, id="number"),
        pytest.param(lambda x: aten.mul.Tensor(aten.add.Scalar(x, 1.0), 2), X, id="type of a number"),
        pytest.param(lambda x: aten.mul.Tensor(aten.add.Scalar(x, 1, 2), 2), X, id="further argument"),
        pytest.param(lambda x: (aten.mul.Tensor(aten.add.Scalar(x, 1), 2), x), X, id="results"),
        pytest.param(plain, X.double(), id="dtype"),
        pytest.param(plain, torch.randn(6, 4), id="shape"),
        pytest.param(plain, torch.randn(6, 4).t(), id="strides"),
        pytest.param(plain, torch.randn(5, 6)[1:], id="offset and storage"),
    ],
)
def test_what_lowering_reads_counts(function: Callable[..., Any], value: torch.Tensor) -> None:
    assert graph_key(traced(function, value)) != graph_key(traced(plain, X))


def test_operands_count_by_place_not_by_name() -> None:
    y = torch.randn(4, 6)
    assert graph_key(traced(lambda a, b: a - b, X, y)) != graph_key(traced(lambda a, b: b - a, X, y))


def test_what_shares_storage_counts() -> None:
    base = torch.randn(24)

    def first(a: torch.Tensor) -> Any:
        return a.view(4, 6), a.view(4, 6)

    module, other = traced(first, base), traced(first, base)
    node = [node for node in other.graph.nodes if node.op == "call_function"][-1]
    with FakeTensorMode():
        node.meta["val"] = torch.empty(4, 6)
    assert graph_key(module) != graph_key(other)


def test_constants_count_by_layout_not_by_content() -> None:
    def with_constant(value: torch.Tensor) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        graph.output((graph.get_attr("held"),))
        return torch.fx.GraphModule({"held": value}, graph)

    module = with_constant(X)
    assert constant_paths(module) == ("held",)
    assert graph_key(module) == graph_key(with_constant(torch.zeros(4, 6)))
    assert graph_key(module) != graph_key(with_constant(torch.zeros(6, 4)))


def test_graphs_with_other_things_have_no_key() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(print, (x,)))
    assert graph_key(torch.fx.GraphModule({}, graph)) is None


@pytest.mark.parametrize("name", ["source_digest", "triton_version", "device_facts"])
def test_surroundings_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = compile_facts("cpu", Options())
    monkeypatch.setattr(environment, name, lambda *_: {"changed": 1})
    assert compile_facts("cpu", Options()) != before


@pytest.mark.parametrize(
    "options",
    [
        Options(fallback=False),
        Options(policy={"horizontal": False}),
        Options(target={"processors": 3}),
        Options(align_matmuls=False),
        Options(tune="max"),
    ],
)
def test_options_count(options: Options) -> None:
    assert repr(compile_facts("cpu", options)) != repr(compile_facts("cpu", Options()))


def test_settings_of_torch_count() -> None:
    before = repr(compile_facts("cpu", Options()))
    torch.use_deterministic_algorithms(True)
    try:
        filling = repr(compile_facts("cpu", Options()))
        torch.utils.deterministic.fill_uninitialized_memory = False
        assert len({before, filling, repr(compile_facts("cpu", Options()))}) == 3
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float64)
    try:
        assert repr(compile_facts("cpu", Options())) != before
    finally:
        torch.set_default_dtype(torch.float32)


def test_any_change_of_a_source_text_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.py").write_text("x = 1\n")
    monkeypatch.setattr(environment, "_source_files", lambda package: [tmp_path / "one.py"])
    digest: Callable[[], str] = environment.source_digest.__wrapped__
    before = digest()
    (tmp_path / "one.py").write_text("x = 2\n")
    assert digest() != before


def test_the_folder_of_a_source_text_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two modules of one name in different folders are not each other."""
    digests = []
    for folder in ("text", "language"):
        path = tmp_path / "ferrite_ir" / folder / "one.py"
        path.parent.mkdir(parents=True)
        path.write_text("x = 1\n")
        monkeypatch.setattr(environment, "_source_files", lambda package, path=path: [path])
        digests.append(environment.source_digest.__wrapped__())
    assert len(set(digests)) == 2


def test_lowering_reads_no_other_metadata() -> None:
    """Whoever reads more of a node's metadata has to put it into the key."""
    for_people = {"origins.py"}
    # What changes a captured or a joint graph before the key is taken may read all of it.
    captured_only = {
        "graph_key.py", "attention_masks.py", "attention_patterns.py", "symbolic_floats.py",
        "saved_extrema.py", "saved_seeds.py", "mask_elements.py", "chunks.py",
    }  # fmt: skip
    root = Path(ferrite_torch.__file__).parent
    read = set()
    for path in root.rglob("*.py"):
        if path.name not in for_people | captured_only and path.parent.name != "torch_private":
            read |= {(path.name, name) for name in _metadata_read(ast.parse(path.read_text()))}
    assert {name for _, name in read} <= set(READ_META), read


def _metadata_read(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Attribute(attr="meta"), slice=ast.Constant(value=str(name))):
                found.add(name)
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="meta"), attr="get" | "setdefault" | "pop"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                found.add(name)
    return found


class TestCaptured:
    """Graphs before AOTAutograd: functions and methods on inputs."""

    @staticmethod
    def captured(function: Callable[..., Any], *inputs: Any) -> str:
        keys: list[str] = []

        def backend(module: torch.fx.GraphModule, given: Any) -> Any:
            mode = FakeTensorMode()
            fakes = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in given]
            keys.append(captured_key(module, fakes))
            return module.forward

        torch._dynamo.reset()
        torch.compile(function, backend=backend)(*inputs)
        return keys[0]

    def test_equal_graphs_have_equal_keys(self) -> None:
        assert self.captured(lambda x: torch.relu(x).sum(), X) == self.captured(
            lambda y: torch.relu(y).sum(), X.clone()
        )

    @pytest.mark.parametrize(
        ("function", "value"),
        [
            pytest.param(lambda x: torch.relu(x).mean(), X, id="method"),
            pytest.param(lambda x: torch.tanh(x).sum(), X, id="function"),
            pytest.param(lambda x: torch.relu(x).sum(0), X, id="argument"),
            pytest.param(lambda x: torch.relu(x).sum(), X.half(), id="dtype"),
            pytest.param(lambda x: torch.relu(x).sum(), X.clone().requires_grad_(), id="gradient"),
            pytest.param(lambda x: torch.relu(x).sum(), torch.randn(6, 4).t(), id="strides"),
        ],
    )
    def test_what_decides_counts(self, function: Callable[..., Any], value: torch.Tensor) -> None:
        assert self.captured(function, value) != self.captured(lambda x: torch.relu(x).sum(), X)

    def test_ops_of_other_libraries_have_no_key(self) -> None:
        @torch.library.custom_op("ferrite_key::double", mutates_args=())
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        double.register_fake(torch.empty_like)
        with pytest.raises(NoKey):
            captured_key(traced(torch.ops.ferrite_key.double.default, X), [])


def test_functions_that_are_compiled_count_and_those_of_steps_do_not() -> None:
    """Steps call the functions of the graph at hand; a scan has its combine in its kernel, a choice its branches."""
    from torch._higher_order_ops import strict_mode
    from torch._higher_order_ops.associative_scan import associative_scan_op

    def scan(combine: Callable[..., Any]) -> str | None:
        return graph_key(traced(lambda x: associative_scan_op(lambda a, b: [combine(a, b)], [x], ())[0], X))

    def choice(branch: Callable[..., Any]) -> str | None:
        return graph_key(traced(lambda x: torch.cond(x.sum() > 0, branch, torch.cos, (x,)), X))

    def strict(function: Callable[..., Any]) -> str | None:
        return graph_key(traced(lambda x: strict_mode(lambda x: (function(x),), (x,))[0], X))

    assert scan(aten.add.Tensor) is not None
    assert scan(aten.add.Tensor) == scan(aten.add.Tensor) != scan(aten.mul.Tensor)
    assert choice(torch.sin) == choice(torch.sin) != choice(torch.exp)
    assert strict(torch.sin) == strict(torch.exp) is not None


@triton.jit
def added(x, out, n, AMOUNT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + AMOUNT, at < n)


@triton.jit
def subtracted(x, out, n, AMOUNT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) - AMOUNT, at < n)


def launching(kernel: Any, constants: dict[str, Any], grid: int = 1, unused: int = 0) -> str | None:
    """Returns the key of a graph that launches a kernel; torch numbers kernels and constants as they come."""
    from torch._higher_order_ops import triton_kernel_wrap

    table = triton_kernel_wrap.kernel_side_table
    for _ in range(unused):
        table.add_constant_args({})
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    numbers = {"kernel_idx": table.add_kernel(kernel), "constant_args_idx": table.add_constant_args(constants)}
    arguments = {"grid": [(grid, 1, 1)], "tma_descriptor_metadata": {}, "kwargs": {"x": x, "out": x}}
    named = {**numbers, **arguments, "tensors_to_clone": ["out"]}
    launch = graph.call_function(triton_kernel_wrap.triton_kernel_wrapper_functional, (), named)
    graph.output((graph.call_function(operator.getitem, (launch, "out")),))
    with FakeTensorMode() as mode:
        x.meta["val"] = mode.from_tensor(X)
        launch.meta["val"] = {"out": torch.empty_like(x.meta["val"])}
    return graph_key(torch.fx.GraphModule({}, graph))


FIXED = {"n": 24, "AMOUNT": 3, "BLOCK": 32}


def test_a_users_kernel_counts_by_its_text_and_constants_and_not_by_torchs_numbers() -> None:
    key = launching(added, FIXED)
    assert key is not None
    assert key == launching(added, dict(FIXED), unused=3)
    assert key != launching(subtracted, FIXED)
    assert key != launching(added, {**FIXED, "AMOUNT": 4})
    assert key != launching(added, FIXED, grid=2)
    configs = [triton.Config({}, num_warps=8)]
    assert key != launching(triton.autotune(configs=configs, key=[])(added), FIXED)


def test_a_kernel_that_a_program_cannot_hold_is_the_one_at_hand() -> None:
    limited = [triton.autotune(configs=[triton.Config({}, maxnreg=n)], key=[])(added) for n in (32, 64)]
    assert launching(limited[0], FIXED) != launching(limited[1], FIXED)
    unwritten = [{**FIXED, "AMOUNT": object()} for _ in range(2)]
    assert launching(added, unwritten[0]) == launching(added, unwritten[1]) is not None
