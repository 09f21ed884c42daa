from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from ferrite_torch.errors import OptionError
from ferrite_torch.options import MODES, RANGES, Options, parse_options


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
        ("policy", {"max_opps": 3}),
        ("policy", {"max_ops": None}),
        ("policy", {"max_kernel_ops": None}),
        ("policy", {"max_kernel_ops": 0}),
        ("policy", {"max_kernel_ops": 2.5}),
        ("policy", {"max_tiled_axes": 3}),
        ("policy", {"segment_batch": 24}),
        ("policy", {"look_back": 1}),
        ("policy", {"prefetch_bandwidth": float("nan")}),
        ("policy", {3: 4}),
        ("target", [("processors", 3)]),
        ("target", {"warp_sise": 32}),
        ("target", {"warp_size": 33}),
        ("target", {"processors": True}),
        ("target", {"bandwidth": float("inf")}),
        ("target", {"name": 3}),
        ("workers", -1),
        ("workers", 1 << 40),
        ("workers", 2.0),
        ("tuning_seconds", float("nan")),
        ("tuning_seconds", -5.0),
        ("tuning_seconds", "10"),
        ("tuning_seconds", True),
        ("extern", None),
        ("check_inputs", ["first"]),
        ("use_cache", None),
        ("interpret", "yes"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(option: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"option '{option}'(:| is)"):
        parse_options(None, {option: value})
    with pytest.raises(OptionError, match=option):
        Options(**{option: value})


def test_every_option_has_a_range_that_its_default_is_in() -> None:
    assert list(RANGES) == [item.name for item in fields(Options)]
    for item in fields(Options):
        assert not RANGES[item.name].problem(getattr(Options(), item.name))


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"polcy": {}}, "policy"),
        ({"tune": "ful"}, "full"),
        ({"extern": "eror"}, "error"),
        ({"policy": {"max_kernel_op": 3}}, "max_kernel_ops"),
        ({"target": {"warp_sise": 32}}, "warp_size"),
    ],
)
def test_what_was_meant_is_said(options: dict[str, Any], meant: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean '{meant}'"):
        parse_options(None, options)
    with pytest.raises(OptionError, match="did you mean 'max-autotune'"):
        parse_options("max-autotun", None)


@pytest.mark.parametrize("options", [3, [("tune", "none")], "tune"])
def test_options_are_a_mapping(options: Any) -> None:
    with pytest.raises(OptionError, match="a mapping of names"):
        parse_options(None, options)
    with pytest.raises(OptionError, match="unknown mode"):
        parse_options([], None)  # type: ignore[arg-type]


def test_what_is_in_range_is_taken() -> None:
    taken = {
        "workers": 0,
        "tuning_seconds": float("inf"),
        "policy": {"prefetch_bandwidth": 0},
        "target": {"l2_bytes": 0},
    }
    assert parse_options(None, taken) == Options(**taken)  # type: ignore[arg-type]


def test_the_backend_refuses_before_it_compiles() -> None:
    """Whatever ``fallback`` says: a wrong option is not silently eager."""
    called = torch.compile(lambda x: x + 1, backend="ferrite", options={"tuning_seconds": -1})
    with pytest.raises(Exception, match="OptionError: option 'tuning_seconds' is -1"):
        called(torch.ones(3))


@pytest.mark.parametrize("name", ["FERRITE_RANKS", "FERRITE_ASSERT_PINNED", "FERRITE_CACHE_FORM", "FERRITE_PINS"])
def test_the_backend_refuses_wrong_variables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "frist")
    with pytest.raises(Exception, match=f"OptionError: .*{name}.*frist"):
        torch.compile(lambda x: x + 1, backend="ferrite")(torch.ones(3))
    monkeypatch.delenv(name)
    assert torch.equal(torch.compile(lambda x: x + 1, backend="ferrite")(torch.ones(3)), torch.full((3,), 2.0))
