"""Lists of tensors of any shapes: kernels over them that have one text, and how many launches they are."""

from __future__ import annotations

from random import Random

import pytest

from checks import check, generated_inputs
from ferrite_ir import parse_graph
from ferrite_ir.language.size_polynomials import symbol
from ferrite_scheduler import Policy, Schedule, Target, schedule
from ferrite_scheduler.model.lists import as_written, elements_of, single_members, with_elements
from ferrite_scheduler.model.schedule import Kernel


def shapes_of(seed: int, count: int, most: int = 60) -> list[tuple[int, ...]]:
    """Returns shapes of one to three dims."""
    rng = Random(seed)
    return [tuple(rng.randint(1, most) for _ in range(rng.randint(1, 3))) for _ in range(count)]


def step_over(shapes: list[tuple[int, ...]]) -> str:
    """Returns a graph that moves each of several averages toward a value, scaled by a number of all."""
    inputs, body, changed = ["f: f32[]"], [], []
    for k, shape in enumerate(shapes):
        kind = f"f32[{', '.join(map(str, shape))}]"
        dims = ", ".join(f"i{n} < {size}" for n, size in enumerate(shape))
        point = ", ".join(f"i{n}" for n in range(len(shape)))
        inputs += [f"a{k}: {kind}", f"w{k}: {kind}"]
        moved = f"add(a{k}[{point}], mul(sub(w{k}[{point}], a{k}[{point}]), f[]))"
        body.append(f"b{k}: {kind} = update set a{k} [{dims}] at [{point}] {moved}")
        changed.append(f"a{k}: b{k}")
    return f"graph @ema({', '.join(inputs)}) -> () mutates ({', '.join(changed)}) {{\n" + "\n".join(body) + "\n}"


def kernel_of(text: str) -> Kernel:
    found = schedule(parse_graph(text))
    (kernel,) = found.kernels
    (single,) = single_members(kernel)
    return single


def loop_over(kind: str, dims: str, body: str, inputs: str) -> Kernel:
    return kernel_of(f"graph @f({inputs}) -> (y) {{\n  y: {kind} = loop [{dims}] {body}\n}}")


@pytest.mark.parametrize("seed", range(4))
def test_a_step_over_tensors_of_any_shapes_is_one_launch_of_one_text(seed: int) -> None:
    graph = parse_graph(step_over(shapes_of(seed, 12, most=5)))
    found = check(graph, policy=Policy(), inputs=generated_inputs(graph, seed))
    (kernel,) = found.kernels
    # Tensors of one element have a text of their own.
    assert len(set(map(as_written, single_members(kernel)))) <= 2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [40, 250])
def test_neither_many_tensors_nor_large_ones_take_more_launches(seed: int, count: int) -> None:
    shapes = [*shapes_of(seed, count - 2), (30000, 700), (4096, 4096)]
    assert len(schedule(parse_graph(step_over(shapes))).kernels) == 1
    assert len(schedule(parse_graph(step_over(shapes)), policy=Policy(max_launch_params=60)).kernels) > 1


def test_a_launch_has_no_more_parameters_than_the_driver_takes() -> None:
    """Before CUDA 12.1 these are 4,096 bytes."""
    graph = parse_graph(step_over(shapes_of(0, 250)))
    for limit in (32_764, 4096, 1024):
        found = schedule(graph, Target(parameter_bytes=limit))
        assert max(len(kernel.params) for kernel in found.kernels) * 8 <= limit
        assert (len(found.kernels) > 1) == (limit < 8 * 1000)


def test_large_tensors_are_scaled_in_one_launch_though_the_graph_makes_the_factor() -> None:
    shapes = [(3000, 1000), (700,), (1000, 3001)]
    text = step_over(shapes).replace("f: f32[], ", "g: f32[], ").replace("{\n", "{\nf: f32[] = loop [] exp(g[])\n", 1)
    found = schedule(parse_graph(text))
    assert [len(kernel.members) for kernel in found.kernels] == [1, 3]


def sums_over(count: int, kind: str, rows: int, length: int) -> Schedule:
    inputs = ", ".join(f"x{k}: f32[{rows + k}, {length}]" for k in range(count))
    body = "\n".join(
        f"y{k}: f32[{rows + k}] = reduce {kind} [i < {rows + k} | j < {length}] x{k}[i, j]" for k in range(count)
    )
    results = ", ".join(f"y{k}" for k in range(count))
    return schedule(parse_graph(f"graph @f({inputs}) -> ({results}) {{\n{body}\n}}"))


def test_large_reductions_of_what_the_caller_gives_share_a_launch() -> None:
    assert len(sums_over(3, "sum", 6000, 1000).kernels) == 1


def test_whole_tensors_have_as_many_elements_as_the_kernel_has_points() -> None:
    assert elements_of(loop_over("f32[6, 4]", "i < 6, j < 4", "exp(x[i, j])", "x: f32[6, 4]")) == 24
    assert elements_of(loop_over("f32[6]", "i < 6", "mul(x[i], s[0])", "x: f32[6], s: f32[3]")) == 6
    strided = "x: f32[6, 4]{1, 6}"
    assert elements_of(loop_over("f32[6, 4]{1, 6}", "i < 6, j < 4", "exp(x[i, j])", strided)) == 24


@pytest.mark.parametrize(
    ("kind", "dims", "body", "inputs"),
    [
        ("f32[6, 4]", "i < 6, j < 4", "mul(x[i, j], b[j])", "x: f32[6, 4], b: f32[4]"),
        ("f32[6]", "i < 6", "exp(x[-i + 5])", "x: f32[6]"),
        ("f32[6]", "i < 6", "exp(x[i])", "x: f32[9]"),
        ("f32[6]", "i < 6", "mul(x[i], cast.f32(index.i64(i)))", "x: f32[6]"),
        ("f32[6]", "i < 6", "x[wrap(k[i], 6)]", "x: f32[6], k: i64[6]"),
        ("f32[4, 6]", "i < 4, j < 6", "exp(x[j, i])", "x: f32[6, 4]"),
        ("f32[]", "", "exp(x[])", "x: f32[]"),
    ],
)
def test_other_kernels_are_of_their_size_alone(kind: str, dims: str, body: str, inputs: str) -> None:
    single = loop_over(kind, dims, body, inputs)
    assert elements_of(single) is None


def test_kernels_of_other_sizes_become_equal() -> None:
    one = loop_over("f32[6, 4]", "i < 6, j < 4", "mul(x[i, j], s[0])", "x: f32[6, 4], s: f32[3]")
    other = loop_over("f32[5]", "i < 5", "mul(a[i], f[0])", "a: f32[5], f: f32[3]")
    assert as_written(one) == as_written(other)
    assert as_written(one, 8) != as_written(one, 4)
    away = loop_over("f32[5]", "i < 5", "mul(a[i], f[1])", "a: f32[5], f: f32[3]")
    assert as_written(away) != as_written(other)
    size = symbol("n")
    moved = with_elements(one, size * 8)
    assert [param.type.shape for param in moved.params] == [(size * 8,), (3,), (size * 8,)]
    assert moved.points == 8 * with_elements(one, size).points
