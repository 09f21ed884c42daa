"""Products by a kernel that a person wrote, as a provider offers it, in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

import ferrite_torch
from against_eager import assert_all_close, compiled, own_only, widened
from ferrite_scheduler import Cost, Schedule
from ferrite_scheduler.choices.providers import LIBRARY, OWN
from ferrite_torch.providers import (
    Emitted,
    ProviderFailed,
    TritonProducts,
    providers,
    register_provider,
    registry,
    unregister_provider,
)
from ferrite_torch.providers.registry import GROUP, provider_versions

pytestmark = own_only("is about its providers")
OPTIONS: dict[str, Any] = {"fallback": False, "verify": True, "products": "measured"}


@triton.jit
def epilogue(acc, rows, columns, row_mask, column_mask):
    return acc


@triton.jit
def product(
    left, right, result, m, n, k, left_row, left_point, right_point, right_column, result_row,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, POINTS: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(n, COLUMNS)
    rows = (tl.program_id(0) // across * ROWS + tl.arange(0, ROWS))[:, None]
    columns = (tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    row_mask = rows < m
    column_mask = columns < n
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, k, POINTS):
        points = start + tl.arange(0, POINTS)
        a = tl.load(left + rows * left_row + points[None, :] * left_point, row_mask & (points[None, :] < k), other=0.0)
        b = tl.load(
            right + points[:, None] * right_point + columns * right_column,
            column_mask & (points[:, None] < k),
            other=0.0,
        )
        acc = tl.dot(a, b, acc)
    value = epilogue(acc, rows, columns, row_mask, column_mask)
    tl.store(result + rows * result_row + columns, value, row_mask & column_mask)


MINE = TritonProducts(
    "my product",
    product,
    epilogue,
    grid=("mul", ("ceildiv", "m", "ROWS"), ("ceildiv", "n", "COLUMNS")),
    configs=[{"ROWS": 32, "COLUMNS": 32, "POINTS": 32}, {"ROWS": 16, "COLUMNS": 32, "POINTS": 16, "num_warps": 2}],
)


class Told:
    """Says that what a person's kernel computes costs least, and what the library computes most."""

    def cost(self, schedule: Schedule, kernels: Any = None) -> Cost:
        if kernels:
            return Cost(1e-6, "told")
        return Cost(3e-6 if any("aten" in str(step) for step in schedule.steps) else 2e-6, "told")


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("ferrite_torch.pipeline.oracle_for", lambda *_, **__: Told())
    register_provider(MINE)
    torch._dynamo.reset()
    yield
    registry._OF_PROCESS.clear()
    torch._dynamo.reset()


def plain(x: Tensor, w: Tensor, *_: Tensor) -> Tensor:
    return x @ w.t()


def biased(x: Tensor, w: Tensor, bias: Tensor, *_: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, bias))


def residual(x: Tensor, w: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    return (F.linear(x, w, bias) * torch.sigmoid(y)).float() + y[:, :1]


def read_twice(x: Tensor, w: Tensor, bias: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x @ w.t()
    return z.sum(1), z * y


def columns(x: Tensor, w: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x[:, ::2] @ w[:, 1::2].t())


def drawn(dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(40, 48), (56, 48), (56,), (40, 56)]
    return [(torch.randn(shape, generator=generator) / 2).to(dtype) for shape in shapes]


def programs() -> list[dict[str, Any]]:
    return ferrite_torch.compiled_programs()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("function", "launches"), [(plain, 1), (biased, 1), (residual, 1), (columns, 1), (read_twice, 2)]
)
def test_a_persons_kernel_computes_products_with_what_reads_them(
    function: Callable[..., Any], launches: int, dtype: torch.dtype
) -> None:
    given = drawn(dtype)
    mine = compiled(function, fullgraph=True, options=OPTIONS)(*given)
    eager, exact = function(*given), function(*map(widened, given))
    listed = [list(each) if isinstance(each, tuple) else [each] for each in (mine, eager, exact)]
    assert_all_close(*listed)
    steps = [step for step in programs()[-1]["steps"] if step["do"] in ("launch", "extern")]
    assert [step["do"] for step in steps] == ["launch"] * launches
    assert "user" in [kernel["form"] for kernel in programs()[-1]["kernels"]]


def test_the_choice_is_explained() -> None:
    explanation = ferrite_torch.explain(biased, *drawn(), options={"products": "measured"})
    (line,) = (line for line in str(explanation).splitlines() if "choice" in line)
    assert "my product (library 3.0 us told, own kernel 2.0 us told, my product 1.0 us told)" in line


def test_types_that_it_does_not_take_are_for_others() -> None:
    x, w, *_ = (each.float() for each in drawn())
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        compiled(plain, fullgraph=True, options=OPTIONS)(x, w)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert "user" not in [kernel["form"] for kernel in programs()[-1]["kernels"]]


def test_a_provider_that_is_taken_back_is_not_asked() -> None:
    assert [name for name, _ in provider_versions()] == [LIBRARY, OWN, MINE.name]
    unregister_provider(MINE.name)
    assert [name for name, _ in provider_versions()] == [LIBRARY, OWN]
    compiled(plain, fullgraph=True, options=OPTIONS)(*drawn())
    assert "user" not in [kernel["form"] for kernel in programs()[-1]["kernels"]]


class Broken:
    name, version = "broken", "1"

    def applicable(self, part: Any) -> bool:
        return True

    def candidates(self, part: Any) -> list[str]:
        return ["broken"]

    def emit(self, graph: Any, products: Any, candidate: str) -> Emitted:
        raise NotImplementedError("nothing here")


def test_a_provider_that_fails_is_named() -> None:
    register_provider(Broken())
    with pytest.raises(BackendCompilerFailed, match=r"the provider 'broken' failed .*: nothing here.* mend it"):
        compiled(plain, fullgraph=True, options=OPTIONS)(*drawn())


class Point:
    """An entry point of a distribution."""

    name, value, dist = "theirs", "theirs:PROVIDER", None

    def __init__(self, provider: Any) -> None:
        self.provider = provider

    def load(self) -> Any:
        if isinstance(self.provider, Exception):
            raise self.provider
        return self.provider


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    def install(provider: Any) -> None:
        registry._installed.cache_clear()
        monkeypatch.setattr(registry, "entry_points", lambda group: [Point(provider)] if group == GROUP else [])

    yield install
    registry._installed.cache_clear()


def test_installed_providers_are_asked(installed: Callable[[Any], None]) -> None:
    installed(Broken())
    assert [provider.name for provider in providers()] == [LIBRARY, OWN, "broken", MINE.name]


@pytest.mark.parametrize(
    ("provider", "words"),
    [(ImportError("no module named theirs"), "cannot be loaded .*no module named theirs"), (MINE, "two providers are")],
)
def test_providers_that_cannot_be_had_are_errors(installed: Callable[[Any], None], provider: Any, words: str) -> None:
    installed(provider)
    with pytest.raises(ProviderFailed, match=words):
        providers()


def test_kernels_with_other_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="behind three tensors"):
        TritonProducts("other", epilogue, epilogue, grid=1, configs=[{}])
