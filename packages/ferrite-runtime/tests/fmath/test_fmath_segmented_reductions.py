"""Rows listed by place and combined, in the interpreter: each place's in their own order, however many it has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import pytest

from ferrite_runtime import IndexOutOfBounds, Kernel, fmath
from runtime_kernels import spec, tensor

torch = pytest.importorskip("torch")

NONE = torch.iinfo(torch.int64).min
CAPACITY, CHUNK, TILE, PART, LINE, SECTOR = 8, 8, 32, 8, 32, 8
WIDTH, BLOCK = 6, 4
NEUTRAL = {
    "add": torch.zeros(WIDTH),
    "max": torch.full((WIDTH,), -torch.inf),
    "min": torch.full((WIDTH,), torch.inf),
}
FUNCTIONS = {"add": torch.add, "max": torch.maximum, "min": torch.minimum}
NAMES = {torch.int32: "i32", torch.int64: "i64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float64: "f64"}


def run(call: str, programs: int, count: int, **tensors: tuple[torch.Tensor, str]) -> None:
    """Runs a kernel of one line over tensors, each with its access; the line may take the number of rows as ``n0``."""
    params = [tensor(name, NAMES[x.dtype], access) for name, (x, access) in tensors.items()]
    params.append({"name": "n0", "role": "size", "dtype": "i32"})
    body = f"@triton.jit\ndef kernel({', '.join((*tensors, 'n0'))}):\n    fmath.{call}\n"
    extra: dict[str, Any] = {"form": "template", "grid": programs}
    Kernel(spec("kernel", body, params, [], **extra))(*(x for x, _ in tensors.values()), count)


@dataclass
class Listed:
    """What is known of rows once they are listed."""

    count: int
    destinations: int
    tensors: dict[str, torch.Tensor]
    capacity: int
    chunk: int
    is_known: bool = True

    @property
    def number(self) -> str:
        """The number of rows as kernels have it: they may get it only when they run."""
        return str(self.count) if self.is_known else "n0"

    @property
    def sizes(self) -> torch.Tensor:
        """How many rows each place has: their counters are in the order of columns, each in a sector of its own."""
        return self.tensors["counts"].view(-1, LINE, SECTOR)[:, :, 0].T.flatten()[: self.destinations]

    @property
    def runs(self) -> torch.Tensor:
        """Where runs begin among the rows of all shares, and their rows; those that are none have no rows."""
        words, keys = self.tensors["runs"], self.tensors["ordered"]
        begin = torch.arange(words.shape[1]) * TILE + (words & (TILE * TILE - 1)) // TILE
        is_run = keys[begin] // TILE == torch.arange(self.destinations)[:, None]
        return torch.stack([begin, torch.where(is_run, words % TILE + 1, 0)])

    @property
    def slots(self) -> int:
        return self.tensors["queue"].shape[1]


def listed(
    index: torch.Tensor,
    destinations: int,
    *,
    wraps: bool = False,
    capacity: int = CAPACITY,
    chunk: int = CHUNK,
    tensors: dict[str, torch.Tensor] | None = None,
    is_known: bool = True,
    sorts_all: bool = False,
) -> Listed:
    count, shares, parts = len(index), -(-len(index) // TILE), -(-len(index) // PART)
    slots = max(count // (capacity + 1) + count // chunk, 1)
    tensors = tensors or {
        "counts": torch.zeros(-(-destinations // LINE) * LINE * SECTOR, dtype=torch.int32),
        "lists": torch.full((destinations, capacity), -7, dtype=torch.int32),
        "runs": torch.randint(-(1 << 31), 1 << 31, (destinations, shares)).to(torch.int32),  # whatever was there
        "ordered": torch.full((shares * TILE,), -7, dtype=torch.int32),
        "is_sorted": torch.zeros(shares, dtype=torch.int32),
        "queue": torch.full((2, slots), -7, dtype=torch.int32),
        "tasks": torch.zeros(1 + 2 * slots * -(-WIDTH // BLOCK), dtype=torch.int32),
    }
    found = Listed(count, destinations, tensors, capacity, chunk, is_known)
    accesses = dict.fromkeys(tensors, "write") | {"counts": "atomic", "tasks": "atomic"}
    passed = {"destinations": (index, "read"), **{name: (x, accesses[name]) for name, x in tensors.items()}}
    names = ["None" if sorts_all and name == "is_sorted" else name for name in passed]
    numbers = f"{capacity}, {chunk}, {slots}, {TILE}, {PART}, 0, 0"
    known = f"{found.number}, {destinations}, {wraps}"
    rest = "None, None, None, 0"  # nothing is copied
    run(f"bin_rows({', '.join(names)}, None, {known}, {numbers}, {rest})", shares + parts, count, **passed)
    if not sorts_all:
        call = f"sort_rows(destinations, runs, ordered, is_sorted, tasks, {known}, {TILE})"
        run(call, shares, count, **{name: passed[name] for name in passed if name in call})
    return found


def combined(
    found: Listed,
    source: torch.Tensor,
    base: torch.Tensor,
    mode: str,
    *,
    group: int = 2,
    depth: int = 2,
    initial: float | None = None,
    spread: int | None = None,
    halves: bool = True,
) -> torch.Tensor:
    """Returns destinations with their rows combined into them."""
    out, blocks = torch.full_like(base, 77.0), -(-WIDTH // BLOCK)
    parts = torch.zeros(found.slots, WIDTH, dtype=torch.float64 if source.dtype is torch.float64 else torch.float32)
    shares = found.tensors["runs"].shape[1]
    spread = spread or max(2, 1 << (shares - 1).bit_length())
    known = ["counts", "lists", "runs", "ordered", "queue", "tasks"]
    sizes = (
        f"{found.number}, {found.destinations}, {WIDTH}, {source.stride(0)}, {found.capacity}, {found.chunk}, {TILE}"
    )
    shape = f"{spread}, {found.slots}, {group}, {depth}, {group * depth}, {BLOCK}, {halves}"
    before = "base" if initial is None else "None"
    tensors = {name: (found.tensors[name].clone(), "atomic" if name == "tasks" else "read") for name in known}
    run(
        f'reduce_segments({", ".join(known)}, parts, source, {before}, out, "{mode}", {initial}, {sizes}, {shape}, '
        "None, None)",
        -(-found.destinations // group) * blocks,
        found.count,
        **tensors,
        parts=(parts, "readwrite"),
        source=(source, "read"),
        base=(base, "read"),
        out=(out, "write"),
    )
    return out


def destinations_of(kind: str, count: int, destinations: int) -> torch.Tensor:
    frequent = torch.randint(4, (count,)) * (destinations // 4) + 3
    return {
        "any": torch.randint(destinations, (count,)),
        "few": frequent,
        "skewed": torch.where(torch.rand(count) < 0.5, frequent, torch.randint(destinations, (count,))),
        "one": torch.full((count,), destinations - 1),
    }[kind]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_rows_are_counted_and_listed(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    index = torch.randint(60, (300,)).to(dtype)
    index[64:128] = 7
    index[200:220] = 9
    found = listed(index, 60)
    assert torch.equal(found.sizes, torch.bincount(index, minlength=60).to(found.sizes.dtype))
    for place in range(60):
        rows = found.tensors["lists"][place, : min(int(found.sizes[place]), CAPACITY)].tolist()
        assert len(set(rows)) == len(rows)
        assert set(rows) <= set((index == place).nonzero().flatten().tolist())


@pytest.mark.parametrize("sorts_all", [False, True])
@pytest.mark.parametrize("chunk", [CHUNK, 4 * CHUNK])
@pytest.mark.parametrize("kind", ["any", "few", "skewed", "one"])
def test_runs_of_long_destinations_are_their_rows_and_all_their_chunks_are_asked_for(
    kind: str, chunk: int, *, sorts_all: bool
) -> None:
    torch.manual_seed(0)
    index = destinations_of(kind, 300, 40)
    found = listed(index, 40, chunk=chunk, sorts_all=sorts_all)
    words = found.tensors["ordered"]
    rows = torch.arange(words.numel()) // TILE * TILE + words % TILE
    for place in range(40):
        pieces = [rows[begin : begin + length] for begin, length in found.runs[:, place].T.tolist()]
        assert torch.cat([torch.empty(0), *pieces]).tolist() == (index == place).nonzero().flatten().tolist()
    asked = found.tensors["queue"][:, : int(found.tensors["tasks"][0])].T.tolist()
    assert sorted(asked) == [
        [place, number]
        for place, size in enumerate(found.sizes.tolist())
        if size > CAPACITY
        for number in range(-(-size // chunk))
    ]


def test_nothing_is_sorted_where_no_place_is_long() -> None:
    index = torch.arange(300) % 40
    assert (listed(index, 40, capacity=8).tensors["ordered"] == -7).all()
    assert (listed(index, 40, capacity=7).tensors["ordered"] != -7).all()


def test_shares_whose_rows_meet_often_are_sorted_while_rows_are_listed() -> None:
    rare = torch.arange(300) % 39 + 1
    rare[::16] = 0  # a long place, of which each warp has two rows
    assert not listed(rare, 40).tensors["is_sorted"].any()
    often = rare.clone()
    often[TILE : TILE + PART] = 7
    often[2 * TILE : 2 * TILE + PART - 2] = 7  # too few of those that are looked at
    often[3 * TILE + PART : 4 * TILE] = 7  # none of those
    assert listed(often, 40).tensors["is_sorted"].nonzero().flatten().tolist() == [1]
    none = rare.clone()
    none[TILE : TILE + PART] = NONE
    assert not listed(none, 40).tensors["is_sorted"].any()


@pytest.mark.parametrize("destinations", [512, 8192, 100_000])
def test_rows_that_are_spread_evenly_do_not_meet_often_and_skewed_ones_do(destinations: int) -> None:
    part, parts = 256, 4096
    limit = fmath.row_bins._often(part, destinations)
    generator = torch.Generator().manual_seed(destinations)

    def collisions(weights: torch.Tensor) -> torch.Tensor:
        """How often rows of each part meet others of their warp."""
        drawn = torch.multinomial(weights, part * parts, replacement=True, generator=generator)
        warps = drawn.view(parts, -1, 32)
        return (warps[..., None] == warps[..., None, :]).sum((1, 2, 3)) - part

    assert collisions(torch.ones(destinations)).max() < limit
    assert collisions(1.0 / torch.arange(1, destinations + 1)).min() >= limit


def test_shares_that_are_sorted_already_are_left_alone() -> None:
    rare = torch.arange(320) % 39 + 1
    rare[::16] = 0
    tensors = listed(rare, 40).tensors
    tensors["is_sorted"][::2] = 1
    for name, value in (("counts", 0), ("tasks", 0), ("ordered", -7)):
        tensors[name].fill_(value)
    is_written = (listed(rare, 40, tensors=tensors).tensors["ordered"] != -7).view(10, TILE)
    assert is_written.all(1).tolist() == is_written.any(1).tolist() == [False, True] * 5


def test_lists_that_are_made_again_stay_in_bounds() -> None:
    index = destinations_of("one", 300, 40)
    tensors = {name: x.clone() for name, x in listed(index, 40).tensors.items()}
    behind = {}
    for name in ("lists", "runs", "queue", "ordered"):
        room = torch.cat([tensors[name].flatten(), torch.full((1000,), -9, dtype=tensors[name].dtype)])
        tensors[name], behind[name] = room[:-1000].view(tensors[name].shape), room[-1000:]
    for _ in range(3):
        listed(index, 40, tensors=tensors)
    assert all((words == -9).all() for words in behind.values())


def test_destinations_count_from_the_end_and_the_lowest_number_is_none() -> None:
    found = listed(torch.tensor([-1, 4, NONE, 0, -5]), 5, wraps=True)
    assert found.sizes.tolist() == [2, 0, 0, 0, 2]
    assert found.tensors["lists"][0, :2].tolist() == [3, 4]
    assert found.tensors["lists"][4, :2].tolist() == [0, 1]


def test_rows_of_no_place_are_in_no_list() -> None:
    found = listed(torch.full((40,), NONE), 3)
    assert not found.tensors["counts"].any()
    assert (found.tensors["lists"] == -7).all()


@pytest.mark.parametrize("place", [5, -1])
def test_a_place_that_there_is_not_is_refused(place: int) -> None:
    with pytest.raises(IndexOutOfBounds):
        listed(torch.tensor([0, place]), 5)


@pytest.mark.parametrize("mode", ["add", "max", "min"])
@pytest.mark.parametrize("kind", ["any", "few", "skewed"])
def test_rows_of_a_place_are_combined_in_their_own_order(kind: str, mode: str) -> None:
    torch.manual_seed(0)
    index = destinations_of(kind, 120, 20)
    index[torch.rand(120) < 0.1] = NONE
    found = listed(index, 20, chunk=128)
    # Sums of these depend on their order.
    source = torch.randn(120, WIDTH) * 10.0 ** torch.randint(-4, 5, (120, 1))
    base = torch.randn(20, WIDTH)
    out = combined(found, source, base, mode, group=1, depth=1)
    for place in range(20):
        rows = reduce(FUNCTIONS[mode], source[index == place], NEUTRAL[mode])
        assert torch.equal(out[place], FUNCTIONS[mode](base[place], rows))


@pytest.mark.parametrize("kind", ["any", "few", "skewed", "one"])
@pytest.mark.parametrize("count", [1, 17, 64, 700])
def test_sums_are_exact_however_rows_are_spread(count: int, kind: str) -> None:
    """Of 700 rows one place has 88 chunks: they are combined by groups, and these once more."""
    torch.manual_seed(0)
    index = destinations_of(kind, count, 30)
    source, base = (torch.randint(-64, 64, (rows, WIDTH)).float() for rows in (count, 30))
    out = combined(listed(index, 30), source, base, "add")
    assert torch.equal(out, base.index_add(0, index, source))


@pytest.mark.parametrize("spread", [4, 16])
@pytest.mark.parametrize("kind", ["skewed", "one"])
@pytest.mark.parametrize("count", [0, 1, 2, 31, 32, 33, 331])
def test_how_many_rows_there_are_may_be_known_only_when_kernels_run(count: int, kind: str, spread: int) -> None:
    """Shares are looked at four at a time: several times."""
    torch.manual_seed(0)
    index = destinations_of(kind, count, 20)
    # Sums of these depend on their order.
    source = torch.randn(count, WIDTH) * 10.0 ** torch.randint(-4, 5, (count, 1))
    base = torch.randn(20, WIDTH)
    expected = combined(listed(index, 20, chunk=16), source, base, "add") if count else base
    found = listed(index, 20, chunk=16, is_known=False)
    assert torch.equal(combined(found, source, base, "add", spread=spread), expected)


@pytest.mark.parametrize("start", range(0, TILE, 5))
def test_words_of_runs_that_there_are_not_may_point_to_any_row(start: int) -> None:
    torch.manual_seed(0)
    index = destinations_of("skewed", 300, 40)
    found = listed(index, 40)
    none = found.runs[1] == 0
    assert none.any()
    source, base = torch.randint(-64, 64, (300, WIDTH)).float(), torch.zeros(40, WIDTH)
    expected = base.index_add(0, index, source)
    for high in (0, -(1 << 31), 0x55 << 24):
        found.tensors["runs"][none] = high + start * TILE + TILE - 1
        assert torch.equal(combined(found, source, base, "add"), expected)


def test_results_do_not_depend_on_who_came_first() -> None:
    torch.manual_seed(0)
    index = destinations_of("skewed", 600, 20)
    found = listed(index, 20, chunk=16)
    source = torch.randn(600, WIDTH) * 10.0 ** torch.randint(-4, 5, (600, 1))
    base = torch.randn(20, WIDTH)
    expected = combined(found, source, base, "add")
    for _ in range(3):
        sizes = found.sizes.clamp(max=CAPACITY)
        lists = torch.stack([shuffled(*pair) for pair in zip(found.tensors["lists"], sizes, strict=True)])
        queue = shuffled(found.tensors["queue"].T, found.tensors["tasks"][0]).T.contiguous()
        other = Listed(found.count, 20, found.tensors | {"lists": lists, "queue": queue}, CAPACITY, 16)
        assert torch.equal(combined(other, source, base, "add"), expected)


def shuffled(words: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """Returns words of which the first so many come in another order."""
    size = int(size)
    return torch.cat([words[:size][torch.randperm(size)], words[size:]])


def test_lists_of_several_places_are_combined_side_by_side() -> None:
    torch.manual_seed(0)
    index = torch.randint(30, (40,))
    source, base = torch.randint(-64, 64, (40, WIDTH)).float(), torch.zeros(30, WIDTH)
    found = listed(index, 30)
    expected = base.index_add(0, index, source) - 1.5
    for group, depth, halves in ((1, 4, True), (4, 1, False), (8, 2, True), (8, 2, False)):
        out = combined(found, source, base, "add", group=group, depth=depth, halves=halves, initial=-1.5)
        assert torch.equal(out, expected)


def test_half_types_are_summed_in_32_bits() -> None:
    source = torch.full((10, WIDTH), 1 + 2.0**-7).bfloat16()
    for capacity in (16, 8):
        found = listed(torch.zeros(10, dtype=torch.int64), 1, capacity=capacity, chunk=16)
        out = combined(found, source, torch.full((1, WIDTH), 256.0).bfloat16(), "add")
        assert (out == torch.tensor(256 + 10 * (1 + 2.0**-7)).bfloat16()).all()


def test_nan_is_the_largest_and_the_smallest() -> None:
    index, source = destinations_of("few", 100, 20), torch.zeros(100, WIDTH)
    source[50, 1] = torch.nan
    for mode in ("max", "min"):
        out = combined(listed(index, 20), source, torch.zeros(20, WIDTH), mode)
        assert out.isnan().nonzero().tolist() == [[int(index[50]), 1]]
