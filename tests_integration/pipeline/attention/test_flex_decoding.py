"""`flex_attention` of few queries and many keys: groups of heads share a program, and keys are split over programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

import ferrite_torch
from against_eager import assert_all_close, compiled, devices, forms, is_own, own_only, widened

HEADS, KEYS = 4, 1100
Attention = Callable[[Tensor, Tensor, Tensor], Any]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forgets what was compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def given(
    device: str,
    queries: int,
    key_heads: int = 2,
    keys: int = KEYS,
    batch: int = 2,
    dtype: torch.dtype = torch.float32,
    key_batch: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(queries)
    shapes = [(batch, HEADS, queries, 32), *[(key_batch or batch, key_heads, keys, 32)] * 2]
    query, key, value = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    return query, key, value


def check(attend: Attention, inputs: tuple[Tensor, ...], *, dynamic: bool = False) -> None:
    mine = compiled(attend, fullgraph=True, dynamic=dynamic)(*inputs)
    found, expected, wide = (
        list(one) if isinstance(one, tuple) else [one] for one in (mine, attend(*inputs), attend(*map(widened, inputs)))
    )
    assert_all_close(found, expected, wide)


def is_split() -> bool:
    """Returns whether a second kernel has combined what several programs have made of a row."""
    return set(forms()) == {"attention", "persistent"}


def before(offset: int) -> Any:
    """Returns the mask of queries that come so many places after the first key."""
    return lambda _batch, _head, q, k: k <= q + offset


def near(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (k <= q + 1000) & (k > q + 700)


def by_head(_batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (k <= q + 900) & ((head % 2 == 0) | (k > 500))


def nothing(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """The first queries see nothing, the others what would be in one part."""
    return (q > 1) & (k < 64)


def mask_of(function: Any, queries: int, device: str, **lists: Any) -> BlockMask:
    return create_block_mask(function, lists.get("batch"), lists.get("heads"), queries, KEYS, device)


def masked(function: Any, queries: int, device: str, **lists: Any) -> Attention:
    mask = mask_of(function, queries, device, **lists)
    return lambda q, k, v: flex_attention(q, k, v, block_mask=mask, enable_gqa=True)


def biased(_queries: int, device: str) -> Attention:
    slopes = torch.exp2(-torch.arange(1.0, HEADS + 1, device=device))

    def bias(score: Tensor, _batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score + slopes[head] * (k - q - 1000) * 0.01

    return lambda q, k, v: flex_attention(q, k, v, bias, enable_gqa=True)


def with_power(queries: int, device: str) -> Attention:
    mask = mask_of(nothing, queries, device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, aux = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_aux=AuxRequest(lse=True))
        return out, aux.lse

    return attend


VARIANTS: dict[str, Callable[[int, str], Attention]] = {
    "plain": lambda *_: lambda q, k, v: flex_attention(q, k, v, enable_gqa=True),
    "causal": lambda *sizes: masked(before(900), *sizes),
    "window": lambda *sizes: masked(near, *sizes),
    "mask of each head": lambda *sizes: masked(by_head, *sizes, heads=HEADS, batch=2),
    "masked rows": lambda *sizes: masked(nothing, *sizes),
    "bias of heads": biased,
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_values(variant: str, queries: int, device: str) -> None:
    check(VARIANTS[variant](queries, device), given(device, queries))
    assert not is_own() or is_split()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("key_heads", [1, 4])
def test_values_of_other_groups(key_heads: int, device: str) -> None:
    check(VARIANTS["causal"](16, device), given(device, 16, key_heads, dtype=torch.bfloat16))
    assert not is_own() or is_split()


@pytest.mark.parametrize("device", devices())
def test_the_power_of_rows_is_combined_too(device: str) -> None:
    check(with_power(3, device), given(device, 3))


@own_only("looks at its kernels")
def test_what_reads_the_result_is_in_the_second_kernel() -> None:
    attend = VARIANTS["causal"](1, "cpu")
    check(lambda q, k, v: attend(q, k, v).transpose(1, 2).reshape(2, 1, HEADS * 32).relu(), given("cpu", 1))
    assert is_split()


@own_only("looks at its kernels")
def test_a_group_of_heads_reads_keys_once() -> None:
    """Few keys stay together; rows of heads that share them are one tile."""
    check(lambda q, k, v: flex_attention(q, k, v, enable_gqa=True) + q, given("cpu", 3, keys=100))
    (kernel,) = ferrite_torch.compiled_programs()[-1]["kernels"]
    assert {axis["name"]: axis["size"] for axis in kernel["axes"]} == {"z": 4, "y": 6, "x": 32, "r": 100}


@pytest.mark.parametrize("device", devices())
def test_keys_that_become_more(device: str) -> None:
    """A cache grows with each query: one program serves all lengths, with as many parts for each."""
    bias = VARIANTS["bias of heads"](1, device)
    fast = compiled(bias, fullgraph=True, dynamic=True)
    for keys in (1100, 1101, 2000, 40):
        inputs = given(device, 1, keys=keys)
        assert_all_close([fast(*inputs)], [bias(*inputs)], [bias(*map(widened, inputs))])
        assert not is_own() or is_split()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("queries", [1, 3])
def test_pages(queries: int, device: str) -> None:
    """Keys lie in pages of one cache for all of a batch; lists of blocks are lists of pages."""
    pages = PagedAttention(n_pages=20, page_size=128, max_batch_size=3, device=device)
    for batch, length in ((0, 512), (1, 128), (2, 1024), (0, 700)):
        pages.reserve(torch.tensor(batch, device=device), torch.tensor(length, device=device))
    lengths = torch.tensor([640, 100, 1000], device=device)
    logical = create_block_mask(lambda b, h, q, k: k < lengths[b] + q, 3, None, queries, 1024, device)
    mask = pages.convert_logical_block_mask(logical, kv_len=lengths + queries)
    bias = pages.get_score_mod(lambda s, b, h, q, k: s + 0.01 * k)
    inputs = given(device, queries, batch=3, keys=20 * 128, key_batch=1)
    check(lambda q, k, v: flex_attention(q, k, v, bias, mask, enable_gqa=True), inputs)
    assert not is_own() or is_split()
