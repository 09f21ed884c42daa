"""The demo judges right and wrong, and says what it is doing; `nox -s demo` runs it whole."""

from __future__ import annotations

import io

import pytest
import torch

from against_eager import own_only

pytestmark = own_only("the demo shows ferrite")


def test_distance_is_relative_to_the_largest_number_of_a_tensor() -> None:
    from ferrite_torch.demo.__main__ import distance

    right = {"a": torch.tensor([2.0, 4.0]), "b": torch.tensor([100.0])}
    assert distance(right, right) == 0.0
    assert distance({**right, "a": torch.tensor([2.0, 4.4])}, right) == pytest.approx(0.1)


def test_distance_of_a_vanishing_gradient_is_relative_to_the_others() -> None:
    from ferrite_torch.demo.__main__ import distance

    right = {"gradient of a": torch.tensor([1.0]), "gradient of b": torch.tensor([0.0])}
    assert distance({**right, "gradient of b": torch.tensor([0.5])}, right) == 0.5


def test_nan_is_never_right() -> None:
    from ferrite_torch.demo.__main__ import distance

    assert distance({"a": torch.tensor([float("nan")])}, {"a": torch.tensor([1.0])}) == float("inf")


def test_progress_writes_a_line_to_a_log() -> None:
    from ferrite_torch.demo.progress import Progress

    log = io.StringIO()
    progress = Progress(log)
    progress.show("first")
    progress.show("second, at once")
    progress.clear()
    assert log.getvalue().endswith("first\n")
    assert "second" not in log.getvalue()


def test_progress_overwrites_itself_on_a_terminal() -> None:
    from ferrite_torch.demo.progress import Progress

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    progress = Progress(terminal)
    progress.show("a long line of text")
    progress.show("short")
    progress.clear()
    assert terminal.getvalue().count("\r") == 4
    assert "\n" not in terminal.getvalue()


def test_models_are_small_enough_for_the_interpreter() -> None:
    from ferrite_torch.demo.models import SMALL, demo_models

    for model in demo_models(*SMALL):
        batch, labels = model.feed()
        assert sum(parameter.numel() for parameter in model.build().parameters()) < 100_000
        assert batch.shape[0] == labels.shape[0]
