"""Errors of operators, when a compiled function runs or before: eager's, with the op and its line in a note."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ferrite_torch
from against_eager import compiled
from ferrite_torch.diagnostics.statistics import compiled_programs
from ferrite_torch.errors import Refused


@torch.library.custom_op("line_tests::refuse", mutates_args=())
def refuse(x: Tensor) -> Tensor:
    raise ValueError("not today")


@refuse.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("line_tests::refuse_gradient", mutates_args=())
def refuse_gradient(x: Tensor) -> Tensor:
    return x.clone()


@refuse_gradient.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


refuse_gradient.register_autograd(lambda ctx, gradient: refuse(gradient))


def alone(x: Tensor) -> Tensor:
    return refuse(x * 2) + 1  # here


def in_a_branch(x: Tensor) -> Tensor:
    def then(x: Tensor) -> Tensor:
        return refuse(x * 2) + 1  # here

    return torch.cond(x.sum() > 0, then, lambda x: x - 1, (x,)) * 2


def in_a_loop(x: Tensor) -> Tensor:
    def body(count: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return count - 1, refuse(x * 2) + 1  # here

    return torch.while_loop(lambda count, x: count > 0, body, (torch.tensor(2), x))[1] * 2  # type: ignore[attr-defined]


def of_lapack(x: Tensor) -> Tensor:
    return torch.linalg.cholesky(-x @ x.T - 1) + 1  # here


def note_of(error: BaseException) -> str:
    (note,) = error.__notes__
    return note


def marked_line(function: Callable[..., Tensor]) -> str:
    """Returns the path and the number of the line of a function of this file that says that it is here."""
    text = Path(__file__).read_text(encoding="utf-8")
    lines = list(enumerate(text.splitlines(), 1))[function.__code__.co_firstlineno - 1 :]
    return f"{__file__}:{next(number for number, line in lines if '# here' in line)}"


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("function", "op"),
    [
        (alone, "line_tests.refuse"),
        (in_a_branch, "line_tests.refuse"),
        (in_a_loop, "line_tests.refuse"),
        (of_lapack, "aten._linalg_check_errors"),
    ],
)
def test_an_error_is_eagers_and_names_its_line(function: Callable[[Tensor], Tensor], op: str, *, dynamic: bool) -> None:
    x = torch.ones(4, 4)
    with pytest.raises((ValueError, torch.linalg.LinAlgError)) as expected:
        function(x)
    call = compiled(function, dynamic=dynamic)
    for _ in range(2):
        with pytest.raises(type(expected.value)) as found:
            call(x)
        assert str(found.value) == str(expected.value)
        assert note_of(found.value) == f"while {op} ({marked_line(function)}) ran as a step of a compiled graph"
    steps = [step for body in bodies() for step in body["steps"] if step["do"] == "extern"]
    assert all(step["origin"] for step in steps)
    assert not any("captured" in step["target"] for step in steps)


def bodies() -> list[dict]:
    return [body for program in compiled_programs() for body in (program, *program.get("graphs", ()))]


def test_an_error_in_a_backward_names_the_line_of_the_forward() -> None:
    def function(x: Tensor) -> Tensor:
        return refuse_gradient(x * 2).sin()  # here

    loss = compiled(function)(torch.ones(4, requires_grad=True)).sum()
    with pytest.raises(ValueError, match="not today") as found:
        loss.backward()
    assert marked_line(function) in note_of(found.value)


@pytest.mark.parametrize(
    "name",
    [
        "we\x01ird.py",
        "new\nline.py",
        "\u202ertl.py",
        "two words.py",
        'quo"ted.py',
        'all", line 3, in.py',
        '\n File "x.py',
    ],
)
def test_a_file_may_be_called_anything(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("def function(refuse, x):\n    return refuse(x.exp() * 2) + 1\n", encoding="utf-8")
    module: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module)
    with pytest.raises(ValueError, match="not today") as found:
        compiled(module["function"])(refuse, torch.ones(4))
    assert note_of(found.value).isprintable()
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in name)
    assert f"({tmp_path}/{shown}:2)" in note_of(found.value)


def minus_a_mask(x: Tensor) -> Tensor:
    return x - (x > 0)  # here


def rounded_mask(x: Tensor) -> Tensor:
    return x + (x > 0).ceil()  # here


def softmax_of_integers(x: Tensor) -> Tensor:
    return x + torch.softmax(x.long(), -1)  # here


def added_doubles(x: Tensor) -> Tensor:
    return x.index_add(0, torch.zeros(len(x), dtype=torch.int64), x.double())  # here


REFUSED = {
    minus_a_mask: "aten.sub.Tensor",
    rounded_mask: "aten.ceil.default",
    softmax_of_integers: "aten._softmax.default",
    added_doubles: "aten.index_add.default",
}


def chosen(function: Any) -> Any:
    return lambda x: torch.cond(x.sum() > -1e9, function, lambda x: x.sin(), (x,))


def looped(function: Any) -> Any:
    def program(x: Tensor) -> Tensor:
        start = (torch.tensor(2), x)
        loop: Any = torch.while_loop  # type: ignore[attr-defined]
        return loop(lambda count, x: count > 0, lambda count, x: (count - 1, function(x)), start)[1]

    return program


def mapped(function: Any) -> Any:
    from functorch.experimental.control_flow import map as each

    return lambda x: each(function, x)


def scanned(function: Any) -> Any:
    from torch._higher_order_ops.scan import scan

    return lambda x: scan(lambda kept, row: (kept + function(row), row * 2), torch.zeros_like(x[0]), x)[1]


def combined(function: Any) -> Any:
    from torch._higher_order_ops.associative_scan import associative_scan

    return lambda x: associative_scan(lambda a, b: a + function(b), x, 0, combine_mode="generic")


def repeated(function: Any) -> Any:
    region = torch.compiler.nested_compile_region(lambda x: function(x) + 1)
    return lambda x: region(x) + region(x * 2)


def nested(function: Any) -> Any:
    return mapped(chosen(function))


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("function", REFUSED)
@pytest.mark.parametrize(
    "around", [lambda function: function, chosen, looped, mapped, scanned, combined, repeated, nested]
)
def test_what_eager_refuses_inside_of_functions_is_refused(around: Any, function: Any, *, needs_grad: bool) -> None:
    x = torch.rand(4, 4, 4, requires_grad=needs_grad and around is not looped)
    program = around(function)
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        program(x)
    torch._dynamo.reset()
    with pytest.raises(type(expected.value)) as found:
        torch.compile(program, backend="ferrite", fullgraph=True)(x)
    assert str(found.value).partition("\n")[0] == str(expected.value).partition("\n")[0]
    refused = f"{REFUSED[function]} ({marked_line(function)})"
    assert note_of(found.value) == f"{refused} is refused by eager mode, which runs the graph"


def test_what_eager_does_not_come_to_is_not_refused_and_the_graph_runs_eagerly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING", "ferrite_torch")
    program, x = chosen(minus_a_mask), torch.full((4, 4), -1e12)
    torch.testing.assert_close(torch.compile(program, backend="ferrite", fullgraph=True)(x), x.sin())
    (said,) = [each.getMessage() for each in caplog.records if each.name.startswith("ferrite_torch")]
    assert f"aten.sub.Tensor ({marked_line(minus_a_mask)}): Subtraction" in said


@pytest.mark.parametrize("around", [chosen, mapped, nested])
def test_exporting_refuses_what_is_inside_of_functions(around: Any) -> None:
    with pytest.raises(Refused, match=re.escape(f"aten.sub.Tensor ({marked_line(minus_a_mask)}): Subtraction")):
        ferrite_torch.export(around(minus_a_mask), (torch.rand(4, 4, 4),), targets=["cpu"])


def products_of_two_types(x: Tensor) -> Tensor:
    return (x @ x.bfloat16()).float()


@pytest.mark.parametrize("around", [chosen, mapped, scanned, repeated, nested])
def test_functions_are_taken_under_the_autocast_that_they_are_called_in(around: Any) -> None:
    program, x = around(products_of_two_types), torch.rand(4, 4, 4)

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return program(x)

    found = torch.compile(cast, backend="ferrite", fullgraph=True, options={"fallback": False})(x)
    torch.testing.assert_close(found, cast(x), rtol=2e-2, atol=2e-2)
    with pytest.raises(RuntimeError, match=r"same dtype|scalar type"):
        torch.compile(program, backend="ferrite", fullgraph=True)(x)


def cast_mask(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return minus_a_mask(x @ x).float()


@pytest.mark.parametrize("around", [lambda function: function, mapped, nested])
def test_nothing_of_autocast_is_left_behind_an_error(around: Any) -> None:
    """Copies of weights would be kept as long as torch counts a region, also while the weights are trained."""
    layer, x = torch.nn.Linear(4, 4), torch.rand(4, 4, 4)
    with pytest.raises(RuntimeError, match="Subtraction"):
        torch.compile(around(cast_mask), backend="ferrite", fullgraph=True)(x)
    assert not torch.is_autocast_enabled("cpu")
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            found = layer(x)
        torch.testing.assert_close(found.float(), layer(x), rtol=2e-2, atol=2e-2)
        with torch.no_grad():
            layer.weight.mul_(3)
