from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch

from ferrite_ir.language.graph import Origin
from ferrite_torch import export
from ferrite_torch.diagnostics.error_translation import (
    DEFECTS,
    MACHINE,
    MISTAKES,
    TORCH,
    TRANSLATIONS,
    USER,
    Translation,
    find_raiser,
    translate,
    translation_of,
)
from ferrite_torch.diagnostics.statistics import compiled_graphs
from ferrite_torch.errors import CompileError, EnvironmentProblem, FerriteError, OptionError, RunError, Unsupported


def named(name: str, *bases: type[Exception]) -> Exception:
    made: Exception = type(name, bases or (Exception,), {})("the reason")
    return made


def test_the_table_is_total() -> None:
    assert TRANSLATIONS[-1].name == "Exception"
    assert translation_of(named("NeverHeardOf")).becomes is CompileError


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        ("KernelCompileError", CompileError),
        ("WorkerError", EnvironmentProblem),
        ("InputError", RunError),
        ("OptionError", OptionError),
        ("UnknownArgument", Unsupported),
        ("SchedulingError", CompileError),
    ],
)
def test_each_layer_has_its_class(error: str, wanted: type[FerriteError]) -> None:
    assert type(translate(named(error), "loading")) is wanted


@pytest.mark.parametrize("row", [*MISTAKES, *MACHINE], ids=lambda row: row.name)
def test_only_defects_are_to_be_reported(row: Translation) -> None:
    import ferrite_runtime

    hint = row.hint or getattr(ferrite_runtime, row.name).hint
    assert hint
    assert "report" not in hint
    assert row not in DEFECTS


def test_what_an_exception_says_itself_is_said() -> None:
    from ferrite_runtime.errors import IndexOutOfBounds

    assert f"What to do: {IndexOutOfBounds.hint}." in str(translate(IndexOutOfBounds("index out of bounds"), "running"))


def test_a_subclass_is_translated_like_its_base() -> None:
    special = type("Special", (type(named("DriverError")),), {})("no such device")
    assert type(translate(special, "loading")) is EnvironmentProblem


def test_a_message_names_ops_lines_phase_and_what_to_do() -> None:
    origins = (Origin("aten.gelu", "mlp.act", "model.py:12"), Origin("aten.gelu", "mlp.act", "model.py:12"))
    text = str(translate(ValueError("bad shape"), "scheduling", origins))
    assert text.startswith("aten.gelu (model.py:12): scheduling failed: ValueError: bad shape. What to do: ")


def test_our_own_errors_pass_unchanged() -> None:
    ours = Unsupported("two devices")
    assert translate(ours, "lowering") is ours


def test_the_cause_is_kept() -> None:
    cause = KeyError("x")
    assert translate(cause, "loading").__cause__ is cause


def test_the_runtime_classes_that_the_table_names_exist() -> None:
    import ferrite_runtime

    ours = {"UnknownArgument", "ScalarTypeError"}
    torchs = {
        "DataDependentOutputException": "torch._subclasses.fake_tensor",
        "DynamicOutputShapeException": "torch._subclasses.fake_tensor",
        "UnsupportedFakeTensorException": "torch._subclasses.fake_tensor",
        "UnsupportedOperatorException": "torch._subclasses.fake_tensor",
        "GuardOnDataDependentSymNode": "torch.fx.experimental.symbolic_shapes",
        "PendingUnbackedSymbolNotFound": "torch.fx.experimental.symbolic_shapes",
        "ConstraintViolationError": "torch.fx.experimental.symbolic_shapes",
        "CheckpointError": "torch.utils.checkpoint",
        "OutOfMemoryError": "torch",
        "ProviderFailed": "ferrite_torch.providers",
    }
    for row in TRANSLATIONS:
        if row.name in torchs:
            assert hasattr(import_module(torchs[row.name]), row.name), row.name
        elif row.name not in ours:
            assert hasattr(ferrite_runtime, row.name) or hasattr(builtins, row.name), row.name


def caught(function: Callable[[], object]) -> Exception:
    try:
        function()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("it was to raise")


def test_what_the_users_own_code_raises_names_its_line_and_is_not_to_be_reported() -> None:
    error = caught(lambda: {}["key"])
    text = str(translate(error, "capturing the graph"))
    assert find_raiser(error)[0] == USER
    assert f"raised at {__file__}:" in text
    assert "report" not in text
    assert isinstance(translate(error, "tracing"), Unsupported)


def test_what_torch_refuses_is_looked_at_with_torch_alone() -> None:
    error = caught(lambda: torch.fx.Graph().lint(3))  # type: ignore[call-arg]
    assert find_raiser(error)[0] == USER, "a wrong call is the caller's"
    error = caught(lambda: torch.nn.Linear(2, 3)(torch.ones(5)))
    assert find_raiser(error)[0] == TORCH
    text = str(translate(error, "capturing the graph"))
    assert "aot_eager" in text
    assert "please report" not in text


def test_what_torch_refuses_of_a_model_that_is_exported_names_the_models_line() -> None:
    """Modes of ours see the call on its way."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, 1, out=torch.empty(3))

    error = caught(lambda: export(model, (torch.ones(3, requires_grad=True),), targets=["cpu"], training=True))
    assert isinstance(error, Unsupported)
    assert f"raised at {__file__}:{model.__code__.co_firstlineno + 1}" in str(error)
    assert "report" not in str(error)


def test_what_our_own_code_raises_is_to_be_reported() -> None:
    from ferrite_ir.language.sizes import parse_size

    error = caught(lambda: parse_size("no size at all ("))
    assert find_raiser(error)[0] == ""
    assert "please report it" in str(translate(error, "lowering"))


@pytest.mark.parametrize("name", ["IndexOutOfBounds", "CheckFailed", "NotPinned", "FileUnreadable", "OptionError"])
def test_mistakes_of_users_are_never_to_be_reported(name: str) -> None:
    import ferrite_runtime

    kind = getattr(ferrite_runtime, name)
    arguments = ("pins.json", "there is no such file") if name == "FileUnreadable" else ("the reason",)
    assert "report" not in str(translate(kind(*arguments), "loading"))


def test_rows_for_anybody_stand_behind_those_for_somebody() -> None:
    """A row that an earlier one hides would never be found."""
    names = [(row.name, row.raiser) for row in TRANSLATIONS]
    assert len(set(names)) == len(names)
    assert [row.raiser for row in TRANSLATIONS if row.name == "Exception"] == [USER, TORCH, ""]


@pytest.mark.parametrize("is_recalled", [False, True], ids=["compiled", "recalled"])
def test_a_kernel_that_fails_names_its_line_as_it_can_be_opened(*, is_recalled: bool) -> None:
    """Texts of kernels and the store's keys know no folders; what is told to people does."""

    def pick(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index] + 1

    place = f"{__file__}:{pick.__code__.co_firstlineno + 1}"
    x = torch.ones(3)
    for _ in range(1 + is_recalled):
        torch._dynamo.reset()
        compiled = torch.compile(pick, backend="ferrite")
        assert compiled(x, torch.tensor([0])).tolist() == [2.0]
        with pytest.raises(IndexError, match=rf"\({place}\).*: index out of bounds"):
            compiled(x, torch.tensor([7]))
    (record,) = list(compiled_graphs())[-1:]
    for kernel in record.program["kernels"]:
        assert str(Path(__file__).parent) not in json.dumps(kernel), "texts and origins are the same in every folder"
