"""Random programs against eager: 400 in the interpreter, every other ten of them slow; 2,000 where there is a GPU.

And tests of the fuzzer itself.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fuzz_check
from against_eager import own_only
from fuzz_check import Uncapturable, difference, failure, mismatch, run_trained, runnable
from fuzz_exactness import Exactness
from fuzz_generation import generate, makes_too_much
from fuzz_layout import sharing_difference
from fuzz_pool import FLOATS, INTEGERS, World
from fuzz_program import Input, Program, Statement
from fuzz_reference import Reference, given_by, prepared, trained_doubts, trained_reference
from fuzz_shrinking import shrink
from sampling import sampled

HERE = Path(__file__).resolve().parent
CHUNK = 10
pytestmark = [own_only("programs are compiled by ferrite alone"), pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.mark.parametrize("first", sampled(range(0, 400, CHUNK), 2))
def test_programs(first: int) -> None:
    found = []
    for seed in range(first, first + CHUNK):
        with suppress(Uncapturable):
            found.append(failure(seed, "cpu"))
    assert found, "torch captures none of these programs"
    assert not any(found), "\n\n".join(f"{reason}\n{script}" for reason, script in filter(None, found))


@pytest.mark.gpu
@pytest.mark.timeout(1800)
def test_programs_on_all_gpus() -> None:
    command = [sys.executable, str(HERE / "run.py"), "--device", "cuda", "--count", "2040"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    judged = int(done.stdout.splitlines()[-1].split()[0])
    assert judged >= 2000, "torch captures too few of these programs"


def program_of(inputs: tuple[Input, ...], lines: list[Statement], returned: tuple[str, ...], seed: int = 3) -> Program:
    return Program(seed, (inputs,), tuple(lines), returned)


def small_program() -> Program:
    lines = [
        Statement("t0", "{0} * 2", ("x0",)),
        Statement("t1", "{0}.sin()", ("t0",)),
        Statement("t2", "{0} + 1", ("x0",)),
        Statement(None, "{0}.add_({1})", ("t2", "t0"), writes="t2"),
        Statement("t3", "{0} - {1}", ("t2", "t1")),
    ]
    return program_of((Input(torch.float32, (3, 2), (2, 1), 5),), lines, ("t3", "t1"), 7)


def drawn(count: int) -> list[Program]:
    return [generate(seed, 512, is_dynamic=seed % 6 == 2) for seed in range(count)]


def test_a_seed_is_a_program() -> None:
    assert generate(11, 512) == generate(11, 512)
    assert generate(11, 512).source() != generate(12, 512).source()


def test_programs_of_many_seeds_use_much_of_the_language() -> None:
    programs = drawn(150)
    text = "\n".join(program.source() for program in programs)
    for word in (
        "softmax", ".sum(", "torch.cat", ".transpose", ".add_(", "[1:]", ".gather(", "F.linear", "bfloat16",
        "_scatter(", "index_put(", "scatter_reduce(", "out=", ".view(torch.", ".half()", "type_as", "cumprod",
        "torch.arange", "None", ".copy_(", "index_put_(", ".shape[",
    ):  # fmt: skip
        assert word in text, word
    inputs = [each for program in programs for call in program.calls for each in call]
    assert {each.dtype for each in inputs} >= {*FLOATS, *INTEGERS, torch.bool}
    assert {0, 1, 4} <= {len(each.shape) for each in inputs}
    assert any(0 in each.shape for each in inputs)
    assert any(0 in each.strides for each in inputs)
    assert any(program.is_dynamic for program in programs)
    assert any(name in program.returned for program in programs for name in program.input_names())


def test_a_failing_program_is_shrunk_to_the_lines_that_fail() -> None:
    smallest = shrink(small_program(), lambda program: ".sin()" in program.source())
    assert [statement.text() for statement in smallest.statements] == ["t0 = x0 * 2", "t1 = t0.sin()"]
    assert smallest.returned == ("t1",)


def test_scripts_stand_alone(tmp_path: Path) -> None:
    scripts = [tmp_path / "failing.py", tmp_path / "trained.py"]
    for script in scripts:
        script.write_text(small_program().script("an example", "cpu", is_trained=script.stem == "trained"))
    sources = [str(path) for path in sorted(HERE.parents[1].glob("packages/*/src"))]
    lines = [f"import sys; sys.path[:0] = {sources}", *(f"exec(open({str(path)!r}).read(), {{}})" for path in scripts)]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tensor(") == 6 + 8


def judged(
    mine: Tensor,
    eager: Tensor,
    right: Tensor,
    scale: float,
    doubts: Sequence[Tensor] | None = None,
    *,
    exact: bool = False,
) -> str | None:
    """Returns what is wrong with one result."""
    return difference([mine], [eager], Reference([eager], [right], [right], [exact]), scale, doubts)


def test_one_wrong_element_is_seen() -> None:
    right = torch.full((100,), 3.0, dtype=torch.float64)
    eager = right.float()
    wrong = eager.clone()
    wrong[17] += 1e-3
    assert judged(eager, eager, right, 1.0) is None
    assert "1 of 100 elements differ, (17,)" in str(judged(wrong, eager, right, 1.0))


def test_exact_results_may_not_be_off_by_a_bit() -> None:
    right = torch.full((100,), 3.0, dtype=torch.float64)
    off = torch.nextafter(right.float(), torch.tensor(4.0))
    assert judged(off, right.float(), right, 1.0) is None
    assert "100 of 100 elements differ" in str(judged(off, right.float(), right, 1.0, exact=True))


ROWS = Input(torch.float32, (30, 3), (3, 1), 5)
FINE = Input(torch.float32, (30, 3), (3, 1), 5, "fine")


def reference(program: Program) -> Reference:
    return Reference.of(program, 0, {})


def doubts(program: Program) -> list[Tensor]:
    return reference(program).doubts(program, 0, {})


def test_exact_results_are_in_no_doubt() -> None:
    lines = [Statement("t0", "({0} * 3 - 1).floor()", ("x0",)), Statement("t1", "{0}.sort(0).values", ("t0",))]
    program = program_of((ROWS,), lines, ("t0", "t1"))
    assert reference(program).is_exact == [True, True, True]
    assert not any(each.any() for each in doubts(program))


@pytest.mark.parametrize(
    ("template", "wide", "is_exact"),
    [
        ("{0} - {0}.bfloat16().float()", "{0} - rounded({0}, 'bfloat16', 'float32')", True),
        ("{0}.half()", "rounded({0}, 'float16')", True),
        ("{0}.half() * 0.3", "rounded({0}, 'float16') * 0.3", False),
        ("({0} * 0.3).half()", "rounded({0} * 0.3, 'float16')", False),
        ("{0}.double().sum(0)", None, False),
        ("{0} * 2 + 1", None, True),
        ("{0} / 3", None, False),
    ],
)
def test_conversions_of_exact_numbers_are_exact(template: str, wide: str | None, *, is_exact: bool) -> None:
    program = program_of((FINE,), [Statement("t0", template, ("x0",), wide)], ("t0",))
    found = reference(program)
    assert found.is_exact[0] == is_exact
    if is_exact:
        torch.testing.assert_close(found.exact[0], found.expected[0].double(), rtol=0, atol=0)
        assert not doubts(program)[0].any()


def test_what_a_half_is_stored_as_decides_what_its_readers_see() -> None:
    """A compiler may store a number next to eager's, and then its readers must see that one."""
    lines = [
        Statement("t0", "{0}.to(torch.bfloat16) * 0.3", ("x0",), "rounded({0}, 'bfloat16') * 0.3"),
        Statement("t1", "{0}.float()", ("t0",), "{0}.double()"),
    ]
    program = program_of((FINE,), lines, ("t0", "t1"))
    t0, t1 = program.function("cpu")(*program.arguments("cpu"))
    other = torch.where(t0 > 0, t0 * 1.0078125, t0)
    assert not torch.equal(t0, other)
    for stored, seen, is_right in ((t0, t1, True), (other, other.float(), True), (other, t1, False)):
        given = given_by(program, 0, [stored, seen])
        assert given.keys() == {0}, "the line that stores t0"
        found = Reference.of(program, 0, given)
        assert found.is_exact[:2] == [False, True]
        assert (difference([seen], [t1], Reference(*(each[1:2] for each in parts(found))), 1.0) is None) == is_right


def parts(found: Reference) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[bool]]:
    return found.expected, found.exact, found.plain, found.is_exact


def test_results_that_share_memory_are_told_from_copies() -> None:
    lines = [Statement("t0", "{0} * 2", ("x0",)), Statement("t1", "{0}[1:]", ("t0",))]
    program = program_of((ROWS,), lines, ("t0", "t1"))
    x = program.arguments("cpu")
    eager = [*program.function("cpu")(*x), *x]
    copies = [eager[0], eager[1].clone(), eager[2]]
    assert sharing_difference(program, 0, eager, eager, "cpu") is None
    assert "result 0 (t0) and result 1 (t1), 12 bytes apart" in str(
        sharing_difference(program, 0, copies, eager, "cpu")
    )


def test_memory_may_be_shared_where_fake_tensors_have_it() -> None:
    """The one element along the last axis of ``x & 3`` has another stride in eager mode: it orders what is shifted."""
    column = Input(torch.int32, (5, 1, 1), (1, 5, 5), 5)
    lines = [
        Statement("t0", "{0} >> ({0}[-2:, -1, -2:] & 3)", ("x0",)),
        Statement("t1", "{0}.mT[1:]", ("t0",)),
    ]
    program = program_of((column,), lines, ("t0", "t1"))
    x = program.arguments("cpu")
    eager = [*program.function("cpu")(*x), *x]
    as_fake = torch.empty_strided((5, 2, 1), (1, 5, 10), dtype=torch.int32)
    assert eager[0].stride() == (2, 1, 10)
    assert sharing_difference(program, 0, [as_fake, as_fake.mT[1:], *x], eager, "cpu") is None
    assert sharing_difference(program, 0, [as_fake, as_fake.mT[3:], *x], eager, "cpu") is not None
    assert sharing_difference(program, 0, [as_fake, as_fake.mT[1:].clone(), *x], eager, "cpu") is not None


def test_a_cancellation_is_in_doubt_where_eager_was_lucky() -> None:
    """Rows of equal numbers: eager finds no distance from their mean, another sum a rounding, divided by little."""
    lines = [Statement("t0", "F.layer_norm({0}.amax(1, True).expand((30, 3)).exp(), (3,))", ("x0",))]
    program = program_of((ROWS,), lines, ("t0",))
    right, open_ = reference(program).exact[0], doubts(program)[0]
    eager = torch.zeros(30, 3)
    off = eager + 4e-5 * open_.gt(4e-5)
    assert off.any()
    assert judged(off, eager, right, 4.0)
    assert judged(off, eager, right, 4.0, [open_]) is None
    assert judged(eager + 1e-2, eager, right, 4.0, [open_])


def test_a_product_that_is_subtracted_may_not_be_rounded() -> None:
    """With the one product rounded and the other contracted with the difference, half a unit is left of zero."""
    lines = [
        Statement("t0", "{0} * 0.3", ("x0",)),
        Statement("t1", "torch.where({0} < 100, {1}, 0) - {1}", ("x0", "t0")),
    ]
    program = program_of((ROWS,), lines, ("t1",))
    right, open_ = reference(program).exact[0], doubts(program)[0]
    eager = torch.zeros(30, 3)
    off = open_.float()
    assert 0 < off.max() < 4 * torch.finfo(torch.float32).eps
    assert judged(off, eager, right, 1e-3)
    assert judged(off, eager, right, 1e-3, [open_]) is None
    assert judged(eager + 1e-5, eager, right, 1e-3, [open_])


def test_what_passes_a_product_on_may_not_be_rounded() -> None:
    """A product of halves and its minimum with something: neither need be rounded before a difference."""
    lines = [
        Statement("t0", "({0}.half() * 0.3).clamp(-9, 9)", ("x0",)),
        Statement("t1", "{0}.maximum({0} - 1) - {0}", ("t0",)),
    ]
    program = program_of((ROWS,), lines, ("t1",))
    right, open_ = reference(program).exact[0], doubts(program)[0]
    assert not right.any()
    assert 0 < open_.max() < 4 * torch.finfo(torch.float16).eps
    eager = torch.zeros(30, 3, dtype=torch.float16)
    assert judged(eager + 0.01, eager, right, 1e-3, [open_])


def test_an_operand_may_be_rounded_to_the_type_of_a_result_or_not() -> None:
    """Eager rounds the number of float64 to a half before it takes halves from it; who does not is closer."""
    lines = [
        Statement("t0", "{0}.double().mean() * 0 + 1.0720214843750001 / 3 * 3", ("x0",)),
        Statement("t1", "({1} - ({0} * 0 + 1).half()).double()", ("x0", "t0")),
    ]
    program = program_of((ROWS,), lines, ("t1",))
    (eager,) = program.function("cpu")(*program.arguments("cpu"))
    right, open_ = reference(program).exact[0], doubts(program)[0]
    unrounded = torch.full_like(eager, 1.072021484375 - 1)
    assert not torch.equal(eager, unrounded)
    assert judged(unrounded, eager, right, 1e-3)
    assert judged(unrounded, eager, right, 1e-3, [open_]) is None
    assert judged(eager + 2e-3, eager, right, 1e-3, [open_])


def test_a_product_may_be_contracted_within_a_normalisation() -> None:
    """The mean of a single element is the element, rounded; what it is taken from may not be, in float64 either."""
    line = Statement("t0", "F.layer_norm(({0}.double() * 0.3).unsqueeze(-1), (1,))", ("x0",))
    program = program_of((ROWS,), [line], ("t0",))
    right, open_ = reference(program).exact[0], doubts(program)[0]
    eager = torch.zeros_like(right)
    off = 1e-14 * open_.gt(1e-14).double()
    assert off.any()
    assert judged(off, eager, right, 1.0)
    assert judged(off, eager, right, 1.0, [open_]) is None
    assert judged(eager + 1e-11, eager, right, 1.0, [open_])


def test_a_sum_in_a_wider_type_of_halves_is_in_doubt() -> None:
    """A compiler may leave the halves unrounded: then sums that are exact in eager mode are not."""
    lines = [
        Statement("t0", "{0}[:1, :1].to(torch.float16).sin()", ("x0",)),
        Statement("t1", "{0} + {1}", ("t0", "x0")),
        Statement("t2", "{0}.double() - {0}.double().amax()", ("t1",)),
    ]
    program = program_of((ROWS,), lines, ("t2",), 1)
    open_, eps = doubts(program)[0], torch.finfo(torch.float32).eps
    assert open_.min() > eps / 4, "also of elements that a few samples happen not to move"
    assert open_.median() < 16 * eps


def test_a_gradient_through_float16_is_in_doubt_by_its_roundings() -> None:
    program = program_of((ROWS,), [Statement("t0", "{0}.to(torch.float16).sigmoid()", ("x0",))], ("t0",), 1)
    inputs = prepared(program.arguments("cpu"))
    right = trained_reference(program, 0, run_trained, run_trained(program.function("cpu"), inputs)).exact
    open_ = trained_doubts(program, 0, run_trained, right)[1]
    assert open_.max() < 8 * torch.finfo(torch.float16).eps * right[1].abs().max()
    assert open_.max() > torch.finfo(torch.float16).eps / 8 * right[1].abs().max()


def overlapping_write() -> Program:
    lines = [Statement("t0", "{0}.select(0, 3)", ("x0",)), Statement(None, "{0}.zero_()", ("t0",), writes="t0")]
    return program_of((Input(torch.int64, (17,), (0,), 5),), lines, ("t0",), 2)


def test_what_takes_too_much_memory_is_not_computed() -> None:
    world = World((Input(torch.int64, (4097, 1, 1), (1, 1, 1), 5),))
    at = "({0} % 1)[:, :, 0]", "torch.arange(90000, device=device)[:, None, None] % 1"
    assert makes_too_much(world, Statement("t0", f"{{0}}[{', '.join(at)}].sum()", ("x0",)))
    assert not makes_too_much(world, Statement("t0", f"{{0}}[{at[0]}]", ("x0",)))
    assert not makes_too_much(world, Statement("t0", "{0}[{0} > 0]", ("x0",)))


def test_lines_without_a_kernel_of_torch_are_left_out() -> None:
    lines = [Statement("t0", "{0} * 2", ("x0",)), Statement("t1", "torch.linalg.inv({0}.half())", ("x0",))]
    program = runnable(program_of((ROWS,), lines, ("t0", "t1")), "cpu")
    assert [line.target for line in program.statements] == ["t0"]


def test_what_torch_cannot_capture_says_nothing_of_a_compiler() -> None:
    with pytest.raises(Uncapturable, match="single memory location"):
        mismatch(overlapping_write(), "cpu")


@pytest.mark.parametrize("program", [small_program(), overlapping_write()])
def test_another_failure_to_capture_is_a_finding(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("capturing the graph failed: KeyError: a name that nobody knows. What to do: report it")

    monkeypatch.setattr(fuzz_check, "compile_program", refuse)
    assert "a name that nobody knows" in str(mismatch(program, "cpu"))


@pytest.mark.parametrize(("program", "is_torchs"), [(small_program(), False), (overlapping_write(), True)])
def test_eager_kernels_tell_whose_fault_a_graph_is(
    program: Program, monkeypatch: pytest.MonkeyPatch, *, is_torchs: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("lowering failed: no such view. What to do: where that fails too, torch refuses the program")

    monkeypatch.setattr(fuzz_check, "compile_program", refuse)
    with pytest.raises(Uncapturable) if is_torchs else nullcontext():
        assert "no such view" in str(mismatch(program, "cpu"))


@pytest.mark.parametrize(
    ("number", "dtype", "is_inexact"),
    [(1.7, torch.float32, True), (1.5, torch.float32, False), (1.7, torch.float64, True), (1.5, torch.float64, False)],
)
def test_a_product_with_a_number_that_is_rounded_is_not_exact(
    number: float, dtype: torch.dtype, *, is_inexact: bool
) -> None:
    with Exactness() as exactness:
        assert exactness.is_inexact(torch.tensor([1.25], dtype=dtype) * number) == is_inexact


def test_a_number_that_is_rounded_itself_leaves_a_rest_of_what_is_contracted() -> None:
    """1.25 * 1.7 - 1.25 is a half value, unless the product with the float next to 1.7 is not rounded before."""
    lines = [
        Statement("t0", "torch.full_like({0}, 1.25) * 1.7 - 1.25", ("x0",)),
        Statement(
            "t1", "({0} - {0}.half().float()) * 256", ("t0",), "({0} - rounded({0}, 'float16', 'float32')) * 256"
        ),
    ]
    program = program_of((ROWS,), lines, ("t1",))
    found, open_ = reference(program), doubts(program)[0]
    assert not found.is_exact[0]
    off = torch.full((30, 3), 256 * 2.0**-24)
    assert judged(off, torch.zeros(30, 3), found.exact[0], 1e-3)
    assert judged(off, torch.zeros(30, 3), found.exact[0], 1e-3, [open_]) is None
