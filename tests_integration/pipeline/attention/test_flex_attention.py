"""`flex_attention` and its gradients in kernels of ours: scores, block masks, heads, lengths, types."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

import ferrite_torch
from against_eager import assert_all_close, compiled, devices, forms, is_own, own_only, widened
from attention_cases import HEADS, VARIANTS, Attention, blocks, causal, masked

pytestmark = pytest.mark.usefixtures("flex_gradients_on_cpu")


def given(
    device: str,
    queries: int = 150,
    keys: int | None = None,
    head: int = 32,
    width: int | None = None,
    dtype: torch.dtype = torch.float32,
    key_heads: int = HEADS,
    batch: int = 2,
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(queries)
    keys = queries if keys is None else keys
    shapes = [(batch, HEADS, queries, head), (batch, key_heads, keys, head), (batch, key_heads, keys, width or head)]
    query, key, value = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    return query, key, value


def listed(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, tuple) else [found]


def check(attend: Attention, inputs: tuple[Tensor, Tensor, Tensor], *, dynamic: bool | None = False) -> None:
    mine = compiled(attend, fullgraph=True, dynamic=dynamic)(*inputs)
    assert_all_close(listed(mine), listed(attend(*inputs)), listed(attend(*map(widened, inputs))))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("variant", VARIANTS)
def test_values(variant: str, device: str) -> None:
    check(VARIANTS[variant](150, 150, device), given(device))
    assert not is_own() or forms() == (["attention"] if variant != "with its power" else ["attention", "pointwise"])


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("variant", ["plain", "window", "window in odd blocks", "relative", "documents"])
def test_values_of_other_lengths_of_keys(variant: str, device: str) -> None:
    check(VARIANTS[variant](70, 300, device), given(device, 70, 300))


@own_only("looks at its kernels")
def test_what_reads_the_result_is_in_the_kernel() -> None:
    attend = masked(causal, 150, 150, "cpu")
    check(lambda q, k, v: attend(q, k, v).relu() + q, given("cpu"))
    assert forms() == ["attention"]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("head", "width"), [(64, 64), (40, 24), (16, 96)])
def test_values_of_halves(head: int, width: int, dtype: torch.dtype, device: str) -> None:
    check(masked(causal, 150, 150, device), given(device, head=head, width=width, dtype=dtype))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("key_heads", [1, 2])
def test_heads_of_queries_share_keys(key_heads: int, device: str) -> None:
    mask = blocks(causal, 150, 150, device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s * (h + 1), mask, enable_gqa=True)

    check(attend, given(device, key_heads=key_heads))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("queries", [1, 3, 16])
def test_few_queries(queries: int, device: str) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(
            q, k, v, lambda s, b, h, i, j: torch.where(j < 290 + i, s, -float("inf")), enable_gqa=True
        )

    check(attend, given(device, queries, 300, key_heads=2, dtype=torch.bfloat16))


@pytest.mark.parametrize("device", devices())
def test_keys_of_one_batch(device: str) -> None:
    query, key, value = given(device)
    check(masked(causal, 150, 150, device, batch=2), (query, key[:1], value[:1]))


@pytest.mark.parametrize("device", devices())
def test_views_of_one_projection(device: str) -> None:
    mask = blocks(causal, 100, 100, device)

    def attend(x: Tensor, *_: Tensor) -> Tensor:
        q, k, v = (part.view(2, 100, HEADS, 16).transpose(1, 2) for part in x.chunk(3, -1))
        return flex_attention(q, k, v, block_mask=mask).transpose(1, 2).reshape(2, 100, HEADS * 16) * 2

    x = torch.randn(2, 100, 3 * HEADS * 16, generator=torch.Generator().manual_seed(0)).to(device)
    check(attend, (x, x, x))


@pytest.mark.parametrize("device", devices())
def test_symbolic_lengths(device: str) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: torch_flex.BlockMask) -> Tensor:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + (j - i) * 0.01, mask)

    mine = compiled(attend, fullgraph=True, dynamic=True)
    for queries, keys in ((150, 150), (300, 200), (20, 260)):
        inputs = (*given(device, queries, keys), blocks(causal, queries, keys, device))
        expected = attend(*map(widened, inputs[:3]), inputs[3])
        assert_all_close([mine(*inputs)], [attend(*inputs)], [expected])


def gradients(attend: Attention, inputs: Any, compiled_one: Any = None) -> list[Tensor]:
    """Returns the results and their gradients, made of the sines of the results."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    results = listed((compiled_one or attend)(*leaves))
    total = sum((torch.where(result.isfinite(), result, 0).double() * 3).sin().sum() for result in results)
    return [*(result.detach() for result in results), *torch.autograd.grad(total, leaves)]


def check_gradients(attend: Attention, inputs: Any) -> None:
    mine = gradients(attend, inputs, compiled(attend, fullgraph=True, dynamic=False))
    assert_all_close(mine, gradients(attend, inputs), gradients(attend, widened(tuple(inputs))))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    ("variant", "sizes"),
    [
        ("plain", (150, 150)),
        ("scaled", (70, 300)),
        ("alibi", (150, 150)),
        ("relative", (70, 130)),
        ("soft cap", (150, 150)),
        ("window in small blocks", (150, 150)),
        ("window in odd blocks", (70, 300)),
        ("mask of each head", (150, 150)),
        ("with its power", (150, 150)),
    ],
)
def test_gradients(variant: str, sizes: tuple[int, int], device: str) -> None:
    check_gradients(VARIANTS[variant](*sizes, device), given(device, *sizes))


@own_only("looks at its kernels")
def test_gradients_are_two_kernels_and_one_of_rows() -> None:
    """What is summed of rows shares its launch with other small kernels."""
    check_gradients(masked(causal, 150, 150, "cpu"), given("cpu"))
    assert sorted(forms()) == ["attention", "attention", "mixed_combo"]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("head", "width"), [(64, 64), (40, 24)])
def test_gradients_of_halves(head: int, width: int, device: str) -> None:
    check_gradients(masked(causal, 150, 150, device), given(device, head=head, width=width, dtype=torch.bfloat16))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_of_shared_keys(batch: int, device: str) -> None:
    mask = blocks(causal, 150, 150, device, batch=2)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    query, key, value = given(device, key_heads=2)
    check_gradients(attend, (query, key[:batch], value[:batch]))


def test_functions_that_differ_in_a_number_are_different_programs() -> None:
    query, key, value = given("cpu", 40)
    for factor in (0.5, 0.25):
        torch._dynamo.reset()
        check(lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s * factor), (query, key, value))  # noqa: B023


PLACES: dict[str, Any] = {
    "of queries and keys": lambda table: lambda s, b, h, i, j: s + table[i, j],
    "of differences": lambda table: lambda s, b, h, i, j: s + table[0, i - j],
    "of heads": lambda table: lambda s, b, h, i, j: s + table[0, h * 2 + 1],
    "of a number": lambda table: lambda s, b, h, i, j: s + table[0, 7],
    "of places": lambda table: lambda s, b, h, i, j: s + table[0, table[0, i].long() + j],
}


@pytest.mark.parametrize("places", PLACES)
def test_places_beyond_what_is_captured_are_errors(places: str) -> None:
    """Those that come from no memory, too: eager mode computes all scores, and raises."""
    inputs = given("cpu", 8, head=16)

    def attend(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return flex_attention(q, k, v, PLACES[places](table))

    fast = compiled(attend, fullgraph=True, dynamic=False)
    torch.testing.assert_close(fast(*inputs, torch.zeros(8, 8)), attend(*inputs, torch.zeros(8, 8)))
    if is_own():
        assert "fmath.require(" not in source_of_places() or places == "of places"
    for function in (fast, attend):
        with pytest.raises(IndexError):
            function(*inputs, torch.zeros(8, 7))


def source_of_places() -> str:
    """Returns the text of the kernel of the last program."""
    (kernel,) = ferrite_torch.compiled_programs()[-1]["kernels"]
    return str(kernel["source"])


@own_only("looks at its kernels")
def test_floats_that_change_are_read_by_the_kernel() -> None:
    """Dynamo captures such a float as a tensor, of which the function makes a number."""

    def attend(q: Tensor, k: Tensor, v: Tensor, factor: float) -> Tensor:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s * (factor * 2 + 1) + j / factor)

    inputs = given("cpu", 8, head=16)
    try:
        torch.compile(attend, backend="eager", fullgraph=True, dynamic=True)(*inputs, 0.5)
    except torch._dynamo.exc.TorchRuntimeError:
        pytest.skip("torch captures no such float")  # 2.15
    fast = compiled(attend, fullgraph=True, dynamic=True)
    for factor in (0.5, 1.25, -2.0):
        inputs = given("cpu", 8, head=16)
        torch.testing.assert_close(fast(*inputs, factor), attend(*inputs, factor))
        assert set(forms()) == {"attention"}


# --- what stays a step of its own -------------------------------------------------------------------------------------


@own_only("reads its statistics")
@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"dtype": torch.float64}, "there are kernels for bf16, f16 and f32, not for f64"),
        ({"head": 300}, "heads have 300 elements"),
    ],
    ids=["float64", "long heads"],
)
def test_others_are_steps_of_their_own(inputs: dict[str, Any], reason: str) -> None:
    query, key, value = given("cpu", 40, **inputs)
    check(VARIANTS["plain"](), (query, key, value))
    assert "attention" not in forms()
    assert reason in str(ferrite_torch.explain(VARIANTS["plain"](), query, key, value))


@own_only("eager's logarithms are float64, where torch tells compilers of float32")
def test_a_step_gives_what_torch_has_told() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, return_lse=True)

    inputs = [each.requires_grad_() for each in given("cpu", 12, dtype=torch.float64)]
    (mine, power), (out, wanted) = compiled(attend, fullgraph=True)(*inputs), attend(*inputs)
    torch.testing.assert_close(mine, out)
    assert power.dtype is torch.float32
    torch.testing.assert_close(power, wanted.float())
    found = torch.autograd.grad(mine.sum() + power.sum(), inputs)
    expected = torch.autograd.grad(out.sum() + wanted.sum(), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@own_only("looks at its kernels")
def test_gradients_of_a_step_where_nothing_captured_has_one() -> None:
    table = torch.linspace(-1, 1, HEADS)
    attend: Attention = lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h] * j)  # noqa: E731
    check_gradients(attend, given("cpu", 40, head=300))
    assert "attention" not in forms()
