"""Random programs against eager: 400 in the interpreter, 2,000 where there is a GPU; and tests of the fuzzer itself."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import fuzz_check
from against_eager import own_only
from fuzz_check import Uncapturable, difference, doubt, exact_results, failure, mismatch
from fuzz_generation import generate
from fuzz_program import Input, Program, Statement
from fuzz_shrinking import shrink

HERE = Path(__file__).resolve().parent
CHUNK = 10
pytestmark = [own_only("programs are compiled by ferrite alone"), pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.mark.parametrize("first", range(0, 400, CHUNK))
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


def small_program() -> Program:
    lines = [
        Statement("t0", "{0} * 2", ("x0",)),
        Statement("t1", "{0}.sin()", ("t0",)),
        Statement("t2", "{0} + 1", ("x0",)),
        Statement(None, "{0}.add_({1})", ("t2", "t0")),
        Statement("t3", "{0} - {1}", ("t2", "t1")),
    ]
    return Program(7, (Input(torch.float32, (3, 2), (2, 1), 5),), tuple(lines), ("t3", "t1"))


def test_a_seed_is_a_program() -> None:
    assert generate(11, 512) == generate(11, 512)
    assert generate(11, 512).source() != generate(12, 512).source()


def test_programs_of_many_seeds_use_much_of_the_language() -> None:
    text = "\n".join(generate(seed, 512).source() for seed in range(150))
    for word in ("softmax", ".sum(", "torch.cat", ".transpose", ".add_(", "[1:]", ".gather(", "F.linear", "bfloat16"):
        assert word in text, word


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
    assert done.stdout.count("tensor(") == 4 + 6


def test_one_wrong_element_is_seen() -> None:
    right = torch.full((100,), 3.0, dtype=torch.float64)
    eager = right.float()
    wrong = eager.clone()
    wrong[17] += 1e-3
    assert difference([eager], [eager], [right], 1.0) is None
    assert "1 of 100 elements differ, (17,)" in str(difference([wrong], [eager], [right], 1.0))


ROWS = Input(torch.float32, (30, 3), (3, 1), 5)


def test_exact_results_are_in_no_doubt() -> None:
    lines = [Statement("t0", "({0} * 3 - 1).floor()", ("x0",)), Statement("t1", "{0}.sort(0).values", ("t0",))]
    program = Program(3, (ROWS,), tuple(lines), ("t0", "t1"))
    assert not any(each.any() for each in doubt(program, is_trained=False))


def test_a_cancellation_is_in_doubt_where_eager_was_lucky() -> None:
    """Rows of equal numbers: eager finds no distance from their mean, another sum a rounding, divided by little."""
    lines = [Statement("t0", "F.layer_norm({0}.amax(1, True).expand((30, 3)).exp(), (3,))", ("x0",))]
    program = Program(3, (ROWS,), tuple(lines), ("t0",))
    (right, *_), (open_, *_) = exact_results(program, "cpu", is_trained=False), doubt(program, is_trained=False)
    eager = torch.zeros(30, 3)
    off = eager + 4e-5 * open_.gt(4e-5)
    assert off.any()
    assert difference([off], [eager], [right], 4.0)
    assert difference([off], [eager], [right], 4.0, [open_]) is None
    assert difference([eager + 1e-2], [eager], [right], 4.0, [open_])


def test_a_product_that_is_subtracted_may_not_be_rounded() -> None:
    """With the one product rounded and the other contracted with the difference, half a unit is left of zero."""
    lines = [
        Statement("t0", "{0} * 0.3", ("x0",)),
        Statement("t1", "torch.where({0} < 100, {1}, 0) - {1}", ("x0", "t0")),
    ]
    program = Program(3, (ROWS,), tuple(lines), ("t1",))
    (right, *_), (open_, *_) = exact_results(program, "cpu", is_trained=False), doubt(program, is_trained=False)
    eager = torch.zeros(30, 3)
    off = open_.float()
    assert 0 < off.max() < 4 * torch.finfo(torch.float32).eps
    assert difference([off], [eager], [right], 1e-3)
    assert difference([off], [eager], [right], 1e-3, [open_]) is None
    assert difference([eager + 1e-5], [eager], [right], 1e-3, [open_])


def test_a_product_may_be_contracted_within_a_normalisation() -> None:
    """The mean of a single element is the element, rounded; what it is taken from may not be, in float64 either."""
    line = Statement("t0", "F.layer_norm(({0}.double() * 0.3).unsqueeze(-1), (1,))", ("x0",))
    program = Program(3, (ROWS,), (line,), ("t0",))
    (right, *_), (open_, *_) = exact_results(program, "cpu", is_trained=False), doubt(program, is_trained=False)
    eager = torch.zeros_like(right)
    off = 1e-14 * open_.gt(1e-14).double()
    assert off.any()
    assert difference([off], [eager], [right], 1.0)
    assert difference([off], [eager], [right], 1.0, [open_]) is None
    assert difference([eager + 1e-11], [eager], [right], 1.0, [open_])


def test_a_gradient_through_float16_is_in_doubt_by_its_roundings() -> None:
    program = Program(1, (ROWS,), (Statement("t0", "{0}.to(torch.float16).sigmoid()", ("x0",)),), ("t0",))
    right, open_ = exact_results(program, "cpu", is_trained=True)[1], doubt(program, is_trained=True)[1]
    assert open_.max() < 8 * torch.finfo(torch.float16).eps * right.abs().max()
    assert open_.max() > torch.finfo(torch.float16).eps / 8 * right.abs().max()


def overlapping_write() -> Program:
    lines = [Statement("t0", "{0}.select(0, 3)", ("x0",)), Statement(None, "{0}.zero_()", ("t0",))]
    return Program(2, (Input(torch.int64, (17,), (0,), 5),), tuple(lines), ("t0",))


def test_what_torch_cannot_capture_says_nothing_of_a_compiler() -> None:
    with pytest.raises(Uncapturable, match="single memory location"):
        mismatch(overlapping_write(), "cpu")


@pytest.mark.parametrize("program", [small_program(), overlapping_write()])
def test_another_failure_to_capture_is_a_finding(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("capturing the graph failed: KeyError: a name that nobody knows. What to do: report it")

    monkeypatch.setattr(fuzz_check, "compile_program", refuse)
    assert "a name that nobody knows" in str(mismatch(program, "cpu"))
