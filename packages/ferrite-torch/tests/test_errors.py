from __future__ import annotations

import pytest

from ferrite_ir.graph import Origin
from ferrite_torch.errors import (
    TRANSLATIONS,
    CompileError,
    EnvironmentProblem,
    FerriteError,
    OptionError,
    RunError,
    Unsupported,
    translate,
    translation_of,
)


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

    ours = {"UnknownArgument", "ScalarTypeError", "OutOfMemoryError"}
    builtin = {"ImportError", "MemoryError", "OSError", "Exception"}
    for row in TRANSLATIONS:
        if row.name not in ours | builtin:
            assert hasattr(ferrite_runtime, row.name), row.name
