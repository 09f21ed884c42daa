"""Small programs over all higher-order ops, in every way that programs are run: eager's numbers, and no graph eager.

How many steps are not native is written down for each (`expected_steps`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import program_checks as checks
from against_eager import own_only
from expected_steps import NOT_EXPORTED, STEPS
from ferrite_torch.errors import FerriteError
from program import Program
from program_table import PROGRAMS
from sampling import as_slow, sampled

pytestmark = [
    own_only("it counts graphs and steps of our programs"),
    # Torch says so of choices by sizes, which an export fixes.
    pytest.mark.filterwarnings("ignore:Pred is a Python constant"),
]

SAMPLED = 6
"""Of the ways that mostly repeat what others show, every so many programs are tried where slow tests are left out."""


class CrossCompiling:
    """Stands for the driver of a GPU that is not there: torch takes users' kernels into graphs only where one is."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


@pytest.fixture(autouse=True)
def kernels_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        monkeypatch.setattr("torch.utils._triton.has_triton", lambda **_: True)
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton warns where it is left open
        monkeypatch.setattr(triton.runtime.driver, "_active", CrossCompiling())


def listed(wanted: Callable[[Program], bool]) -> list[Any]:
    """Returns the names of programs as parameters; all but a sample of them are slow."""
    return sampled((name for name, program in PROGRAMS.items() if wanted(program)), SAMPLED)


def inferred() -> list[Any]:
    """Returns the names of programs as parameters; of those with a gradient, whose values training checks, a sample."""
    names = [name for name, program in PROGRAMS.items() if not program.draws]
    return [as_slow(name) if PROGRAMS[name].has_gradient and place % 3 else name for place, name in enumerate(names)]


def expect(counts: checks.Counts, name: str, graphs: int) -> None:
    assert counts.eager == 0
    assert counts.graphs == graphs
    assert counts.steps == STEPS.get(name, (0,))[0 if graphs == 1 else -1]


def inference_steps(name: str) -> int:
    return STEPS.get(name, (0,))[0]


@pytest.mark.parametrize("name", inferred())
def test_inference(name: str) -> None:
    expect(checks.inference(PROGRAMS[name]), name, 1)


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.has_gradient])
def test_training(name: str) -> None:
    try:
        counts = checks.training(PROGRAMS[name])
    except AssertionError:
        raise
    except Exception:
        skip_where_torch_fails(PROGRAMS[name])
        raise
    expect(counts, name, 2)


@pytest.mark.parametrize("name", listed(lambda program: program.is_dynamic and not program.draws))
def test_any_number_of_rows(name: str) -> None:
    try:
        counts = checks.inference(PROGRAMS[name], dynamic=True)
    except AssertionError:
        raise
    except Exception:
        skip_where_torch_fails(PROGRAMS[name], dynamic=True)
        raise
    assert counts.eager == 0
    assert counts.steps <= STEPS.get(name, (0,))[0] * counts.graphs


@pytest.mark.parametrize("name", listed(lambda program: not program.draws))
def test_what_was_stored(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path))
    counts = checks.stored(PROGRAMS[name])
    expect(counts, name, 1)
    assert counts.recalled == 1


@pytest.mark.parametrize("name", listed(lambda program: not program.draws))
def test_out_of_a_bundle(name: str, tmp_path: Path) -> None:
    if inference_steps(name) or name in NOT_EXPORTED:
        with pytest.raises(FerriteError):
            checks.exported(PROGRAMS[name], tmp_path)
    else:
        assert checks.exported(PROGRAMS[name], tmp_path).eager == 0


def skip_where_torch_fails(program: Program, *, dynamic: bool = False) -> None:
    """Skips a test of what this torch refuses, whatever compiles it: the gradient of `scan` in 2.11, say."""
    torch._dynamo.reset()
    x = checks.drawn(checks.ROWS, needs_grad=not dynamic)
    try:
        found = torch.compile(program.function, backend="aot_eager", fullgraph=True, dynamic=dynamic)(x)
        if not dynamic:
            checks.gradient(found, x)
    except Exception as error:  # noqa: BLE001  # whatever torch raises
        pytest.skip(f"torch refuses this: {str(error).splitlines()[0]}")


def test_there_are_many_programs() -> None:
    assert len(PROGRAMS) >= 150
    assert STEPS.keys() <= PROGRAMS.keys()
