"""Random programs against eager: 400 in the interpreter, 2,000 where there is a GPU; and tests of the fuzzer itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from against_eager import own_only
from fuzz_check import difference, failure
from fuzz_generation import generate
from fuzz_program import Input, Program, Statement
from fuzz_shrinking import shrink

HERE = Path(__file__).resolve().parent
CHUNK = 10
pytestmark = [own_only("programs are compiled by ferrite alone"), pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.mark.parametrize("first", range(0, 400, CHUNK))
def test_programs(first: int) -> None:
    found = [failure(seed, "cpu") for seed in range(first, first + CHUNK)]
    assert not any(found), "\n\n".join(f"{reason}\n{script}" for reason, script in filter(None, found))


@pytest.mark.gpu
@pytest.mark.timeout(1800)
def test_programs_on_all_gpus() -> None:
    command = [sys.executable, str(HERE / "run.py"), "--device", "cuda", "--count", "2000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


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


def test_a_script_stands_alone(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text(small_program().script("an example", "cpu"))
    sources = [str(path) for path in sorted(HERE.parents[1].glob("packages/*/src"))]
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sources}; exec(open({str(script)!r}).read())"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tensor(") == 4


def test_one_wrong_element_is_seen() -> None:
    right = torch.full((100,), 3.0, dtype=torch.float64)
    eager = right.float()
    wrong = eager.clone()
    wrong[17] += 1e-3
    assert difference([eager], [eager], [right], 1.0) is None
    assert "1 of 100 elements differ, (17,)" in str(difference([wrong], [eager], [right], 1.0))
