"""Calls of programs whose parts are captured: nothing is looked at name by name any more, and results are as before."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter

import pytest

from engines.test_graphs import graphed, only
from ferrite_runtime.engines.tensor_copies import Writes, copies
from graph_part_programs import JOIN, KERNELS, STEP, call_of, eight, expected_with_item, made, ref, with_item
from runtime_kernels import layout, program

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


def several(results: int, *, views: bool = False) -> dict:
    """Returns a program of so many kernels, all of whose results, or views of them, a caller gets."""
    names = [f"r{number}" for number in range(results)]
    steps = [step for number, name in enumerate(names) for step in made(STEP, name, "x" if number % 2 else "w")]
    if views:
        steps += [{"do": "view", "name": f"v{name}", "base": name, **layout([2, 4]), "offset": 0} for name in names]
    outputs = [{"value": f"v{name}" if views else name} for name in names]
    return program([eight("x"), eight("w")], KERNELS, steps, outputs, "cuda")


def python_calls(call, inputs: list) -> int:
    """Returns how many Python functions a call enters, but for those that stand for the device."""
    entered: Counter[str] = Counter()

    def note(frame, event, argument) -> None:
        if event == "call":
            entered[frame.f_code.co_filename] += 1

    sys.setprofile(note)
    try:
        call(inputs)
    finally:
        sys.setprofile(None)
    return sum(count for name, count in entered.items() if "ferrite_runtime/engines" in name)


@pytest.mark.parametrize("views", [True, False])
def test_python_does_the_same_for_few_results_and_many(views: bool) -> None:  # noqa: FBT001 - pytest's way
    found = []
    for results in (4, 32):
        call, _ = graphed(several(results, views=views))
        x, w = torch.randn(8), torch.randn(8)
        for _ in range(5):
            call([x, w])
        assert only(call).playback is not None
        # The recorder of these tests plays by running again, which is not to be counted.
        for part in only(call).parts:
            part._replay = (lambda: None) if part.is_played else None
        found.append(python_calls(call, [x, w]))
    assert found[0] == found[1]


def test_settled_calls_give_what_the_calls_before_gave() -> None:
    call, _ = graphed(with_item(), least=2)
    w = torch.randn(8)
    kept = []
    for number in range(8):
        x = torch.randn(8)
        kept.append((x, call([x, w])))
        assert (only(call).playback is not None) == (number > 1)
    for x, results in kept:
        torch.testing.assert_close(results, expected_with_item(x, w), rtol=0, atol=1e-6)
    assert (call.played, call.from_host) == (4 * 7, 7)


def test_an_input_that_moves_later_is_settled_anew() -> None:
    call, recorder = graphed(with_item(), least=2)
    x, w = torch.randn(8), torch.randn(8)
    for _ in range(4):
        call([x, w])
    first = only(call).playback
    assert first is not None
    for _ in range(3):
        w = torch.randn(8)
        torch.testing.assert_close(call([x, w]), expected_with_item(x, w), rtol=0, atol=1e-6)
    assert recorder.captures == 4
    assert only(call).playback not in (None, first)


def test_what_the_host_makes_and_a_caller_gets_is_looked_at_in_each_call() -> None:
    steps = [
        *made(STEP, "a", "x"),
        *made(STEP, "b", "a"),
        {"do": "view", "name": "first", "base": "b", **layout([1]), "offset": 0},
        {"do": "item", "name": "i", "from": "first", "dtype": "f32"},
        call_of("aten.mul.Tensor", ["u"], ref("b"), ref("i")),
        call_of("ferrite.alias", ["v"], ref("b")),
    ]
    call, _ = graphed(program([eight("x")], KERNELS, steps, [{"value": "u"}, {"value": "v"}], "cuda"), least=2)
    found = [(x, call([x])) for x in torch.randn(6, 8)]
    assert only(call).is_settled
    assert only(call).playback is None
    for x, (u, v) in found:
        assert torch.equal(v, (x * 0.5 + 1) * 0.5 + 1)
        assert torch.equal(u, v * v[0])


def test_what_users_are_given_and_a_caller_gets_is_copied_once(keeper: list, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        *made(STEP, "a", "x"),
        *made(STEP, "b", "a"),
        call_of("graph_parts.keep.default", ["k"], ref("b")),
        *made(JOIN, "c", "b", "a"),
        *made(JOIN, "d", "c", "b"),
    ]
    call, _ = graphed(program([eight("x")], KERNELS, steps, [{"value": "d"}, {"value": "b"}], "cuda"), least=2)
    found = [(x, call([x])) for x in torch.randn(6, 8)]
    assert only(call).playback is not None
    for (x, (d, b)), kept in zip(found, keeper, strict=True):
        a = x * 0.5 + 1
        assert torch.equal(b, a * 0.5 + 1)
        assert torch.equal(kept, b)
        assert kept.data_ptr() == b.data_ptr()
        torch.testing.assert_close(d, 2 * b + a, rtol=0, atol=1e-6)


def test_a_settled_call_holds_no_argument_and_no_result() -> None:
    call, _ = graphed(with_item(), least=2)
    w = torch.randn(8)
    for _ in range(5):
        call([torch.randn(8), w])
    x = torch.randn(8)
    gone = [weakref.ref(x)]
    args = [x, w]
    del x
    gone += map(weakref.ref, call(args))
    assert args == []
    gc.disable()
    try:
        assert [each() for each in gone] == [None] * 3
    finally:
        gc.enable()


def test_copies_of_one_type_without_gaps_are_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        torch.randn(3, 4),
        torch.randn(4, dtype=torch.float64),
        torch.randn(5, 2).t(),
        torch.randn(8, 4)[:, :2],
        torch.randn(6).to(torch.bfloat16),
        torch.randn(1, 4).expand(3, 4),
        torch.randn(2, 2, dtype=torch.complex64).conj(),
        torch.randn(()),
        torch.empty(0, 3),
        torch.arange(4),
    ]
    together: list[list[torch.dtype]] = []
    theirs = torch._foreach_copy_

    def noted(to: list, source: list) -> None:
        together.append([each.dtype for each in to])
        theirs(to, source)

    monkeypatch.setattr(torch, "_foreach_copy_", noted)
    made_copies = copies(given)
    for copy, each in zip(made_copies, given, strict=True):
        assert torch.equal(copy, each)
        assert copy.stride() == each.stride()
        assert copy.numel() == 0 or copy.data_ptr() != each.data_ptr()
    assert sorted(len(dtypes) for dtypes in together) == [1, 1, 1, 1, 4]
    assert all(len(set(dtypes)) == 1 for dtypes in together)


def test_one_kernel_copies_again_what_lies_alike() -> None:
    first = [torch.randn(4), torch.randn(2, 3).t()]
    write = Writes(first, first)
    for _ in range(2):
        source, to = [torch.randn(4), torch.randn(2, 3).t()], [torch.empty(4), torch.empty(2, 3).t()]
        write(to, source)
        assert all(map(torch.equal, to, source))
