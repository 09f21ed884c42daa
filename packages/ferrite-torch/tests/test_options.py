from __future__ import annotations

from typing import Any

import pytest

from ferrite_torch.errors import OptionError
from ferrite_torch.options import MODES, Options, parse_options


def test_nothing_asked_is_the_default() -> None:
    assert parse_options(None, None) == Options()


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_made_of_known_options(mode: str) -> None:
    assert isinstance(parse_options(mode, None), Options)


def test_options_win_over_the_mode() -> None:
    assert parse_options("max-autotune", None).tune == "max"
    assert parse_options("max-autotune", {"tune": "none"}).tune == "none"


def test_an_unknown_mode_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match=r"unknown mode 'fastest'.*max-autotune"):
        parse_options("fastest", None)


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'epilogue_fusion'.*fallback, interpret, tune"):
        parse_options(None, {"epilogue_fusion": True, "fallback": False})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("fallback", 1),
        ("workers", True),
        ("workers", "two"),
        ("tune", "maximal"),
        ("check_inputs", "sometimes"),
        ("align_matmuls", "yes"),
        ("policy", 3),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(option: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"option '{option}'"):
        parse_options(None, {option: value})
