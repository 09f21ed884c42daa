"""Bundles that somebody made up: texts of kernels run nothing else, and touch their own tensors alone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from bundle_mutations import _HEAD, _kernel_texts  # noqa: E402
from example_model import example_inputs  # noqa: E402
from ferrite_runtime import (  # noqa: E402
    Bundle,
    FerriteRuntimeError,
    MemoryOutOfBounds,
    PackageInvalid,
    TrustNeeded,
    load,
)
from foreign_bundles import INTERPRET, SOURCES, Manifest, loaded  # noqa: E402


def with_text(body: str) -> Callable[[Manifest], None]:
    """Gives the kernel of the bundle ``sized`` another body."""

    def change(manifest: Manifest) -> None:
        (kernel,) = manifest["kernels"]
        head, _, rest = kernel["source"].partition("XBLOCK: tl.constexpr):\n")
        assert rest
        kernel["source"] = f"{head}XBLOCK: tl.constexpr):\n" + "".join(f"    {line}\n" for line in body.splitlines())

    return change


SIGNATURE = "a_ptr, out_ptr, n, factor, XBLOCK: tl.constexpr"


@pytest.mark.parametrize("number", range(len(list(_kernel_texts("scaled", SIGNATURE)))))
def test_text_that_is_no_kernels_is_refused_and_not_run(number: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = list(_kernel_texts("scaled", SIGNATURE))[number]
    with pytest.raises((PackageInvalid, MemoryOutOfBounds, FerriteRuntimeError)):
        SOURCES["sized"].call(loaded(lambda m: m["kernels"][0].update(source=text), "sized"))
    assert not list(tmp_path.iterdir())


LIBERTIES = {
    "builtin": "print(1)",
    "name of the interpreter's": "x = np.zeros(3)",
    "attribute of a function": "x = tl.load.__globals__",
    "attribute of a value": "x = n.handle",
    "module of a module": "x = fmath.elementary.triton",
    "function that prints": "tl.static_print(1)",
    "assembly": "x = tl.inline_asm_elementwise('mov', '=r', [n], tl.int32, True, 1)",
    "loop without end": "while n > 0:\n    pass",
    "power": "x = 2 ** 100000",
    "shift": "x = 1 << XBLOCK",
    "comprehension": "x = [y for y in (1, 2)]",
    "lambda": "x = lambda: 1",
    "text": "x = 'abc'",
    "formatted text": "x = f'{n}'",
    "function inside": "def f():\n    pass",
    "import inside": "import os",
    "assignment to an attribute": "n.x = 3",
    "assignment in an expression": "x = (y := 3)",
    "tuples that are unpacked, in others": "(x, y), z = (n, n), n",
    "a tuple that is unpacked into an element": "n[0], y = n, n",
    "arguments that are unpacked": "x = tl.full(*n)",
    "second meaning of a module": "tl = n",
    "an element that grows": "n[0] += 1",
    "slice": "x = n[1:2]",
    "delete": "del n",
    "global": "global tl",
    "try": "try:\n    pass\nexcept ValueError:\n    pass",
    "string over lines": '"""\ndef scaled(x):\n    pass\n"""',
}


@pytest.mark.parametrize("name", LIBERTIES)
def test_text_that_takes_liberties_asks_for_trust_with_its_line(name: str) -> None:
    with pytest.raises(TrustNeeded, match=r"kernel scaled is more than a kernel: line \d+") as caught:
        loaded(with_text(LIBERTIES[name]), "sized")
    assert "trust=True" in caught.value.__notes__[0]


PLAIN = """\
'''What it does.'''
rows: tl.constexpr = 4
x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
mask = (x < n) & (x >= 0)
total = tl.zeros([XBLOCK], tl.float32)
for step in tl.range(0, 2, 1, num_stages=1):
    total += tl.load(a_ptr + x, mask, other=0.0, eviction_policy='evict_first') * (step + 1)
if n > 3:
    total = tl.where(total > 0, total, -total) if n > 2 else total
else:
    total = -total
low = tl.minimum(total, float('inf'))
value, place = tl.max(low[None, :], 1, return_indices=True), 1
tl.device_assert(n > 0, 'index out of bounds', mask)
tl.store(out_ptr + x, fmath.exp(low.to(tl.float32)) * factor + (n << 2), mask)
return
"""


def test_text_of_kernels_needs_no_trust() -> None:
    text = PLAIN.replace("value, place = tl.max(low[None, :], 1, return_indices=True), 1\n", "")
    SOURCES["sized"].call(loaded(with_text(text), "sized"))


UNPACKED = """\
x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
low, high = pair(x, n)
low, high = low, high + 0
out_ptr += 0
n -= 0
tl.store(out_ptr + x, low * 1.0, x < n)
"""


def test_pairs_are_unpacked_and_names_count_up_without_trust() -> None:
    change = with_functions(("pair", "a, b", "return a, b"), body=UNPACKED)
    SOURCES["sized"].call(loaded(change, "sized"))


def test_with_trust_text_is_run_as_it_is(capsys) -> None:
    change = with_text("print('it was run')\n" + "tl.store(out_ptr + tl.arange(0, 4), 1.0)")
    with pytest.raises(TrustNeeded):
        loaded(change, "sized")
    SOURCES["sized"].call(loaded(change, "sized", trust=True))
    assert "it was run" in capsys.readouterr().out


REACH = {
    "store behind": "tl.store(out_ptr + n + tl.arange(0, 1024), 1.0)",
    "store before": "tl.store(out_ptr - 64, 1.0)",
    "load far away": "tl.store(out_ptr, tl.load(a_ptr + 1000000000))",
    "load at the end": "tl.store(out_ptr, tl.load(a_ptr + n))",
    "atomic": "tl.atomic_add(out_ptr + 4096, 1.0)",
    "exchange": "tl.atomic_cas(out_ptr.to(tl.pointer_type(tl.int32)) + 4096, 0, 1)",
    "address out of nothing": "tl.store((n * 0).to(tl.int64).to(tl.pointer_type(tl.float32)), 1.0)",
}


@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("name", REACH)
def test_interpreted_kernels_touch_their_own_tensors_and_no_others(name: str, *, is_trusted: bool) -> None:
    if "pointer_type" in REACH[name] and not is_trusted:
        with pytest.raises(TrustNeeded):
            loaded(with_text(REACH[name]), "sized")
        return
    model = loaded(with_text(REACH[name]), "sized", trust=is_trusted)
    with pytest.raises(MemoryOutOfBounds, match="kernel scaled"):
        SOURCES["sized"].call(model)


def test_kernels_of_people_touch_the_elements_of_their_arguments() -> None:
    kernel = load(Bundle.from_bytes(SOURCES["user"].data), options=INTERPRET)["add"]
    whole = torch.zeros(200)
    with pytest.raises(MemoryOutOfBounds):
        kernel(torch.ones(100), torch.ones(100), whole[:100], 150)
    assert not whole[100:].any()
    kernel(torch.ones(100), torch.ones(100), whole[:100], 100)
    assert whole.sum() == 200


def huge(field: str, value: Any) -> Callable[[Manifest], None]:
    return lambda manifest: manifest["kernels"][0].update({field: value})


@pytest.mark.parametrize(
    "change",
    [huge("grid", 1 << 40), huge("grid", ["mul", "n", 1 << 20]), huge("grid", 1 << 20),
     with_text("for i in range(1 << 30):\n    tl.program_id(0)"),
     with_text("x = tl.zeros([1048576], tl.float32)\n" * 90)],
)  # fmt: skip
def test_work_out_of_proportion_ends_soon(change: Callable[[Manifest], None]) -> None:
    with pytest.raises(TrustNeeded, match="far more work"):
        SOURCES["sized"].call(loaded(change, "sized"))


def with_functions(*functions: tuple[str, str, str], body: str) -> Callable[[Manifest], None]:
    """Gives the kernel of the bundle ``sized`` another body, and functions of its own: name, parameters, body."""
    texts = (
        f"@triton.jit\ndef {name}({parameters}):\n" + "".join(f"    {line}\n" for line in lines.splitlines())
        for name, parameters, lines in (*functions, ("scaled", SIGNATURE, body))
    )
    return lambda manifest: manifest["kernels"][0].update(source=_HEAD + "\n\n".join(texts))


_TWICE = "if d > 0:\n    f(d - 1)\n    f(d - 1)"


_CHAIN = [("f0", "d", "pass"), *((f"f{n}", "d", f"f{n - 1}(d)\nf{n - 1}(d)") for n in range(1, 40))]


_SQUARES = [("f0", "d", "pass"), *((f"f{n}", "d", f"f{n - 1}(d * d)") for n in range(1, 34))]


GROWTH = {
    "calls that call twice": with_functions(("f", "d", _TWICE), body="f(40)"),
    "calls in a chain": with_functions(*_CHAIN, body="f39(1)"),
    "squares in a chain": with_functions(*_SQUARES, body="f33(9223372036854775807)"),
    "squares without end": with_functions(("f", "d", "f(d * d)"), body="f(9223372036854775807)"),
    "constants": with_text("x = tl.constexpr(9223372036854775807) * tl.constexpr(9223372036854775807)"),
    "rows in rows": with_text(
        "t = (1,)\n" + "t = (t, t)\n" * 40 + "u = (1,)\n" + "u = (u, u)\n" * 40 + "if t == u:\n    pass"
    ),
    "a row many times": with_text("t = (1, 2) * 10000000000"),
    "a row and itself": with_text("t = [1]\n" + "t = t + t\n" * 40),
    "a row and itself, in place": with_functions(("f", "", "return 1, 2"), body="t = f()\n" + "t += t\n" * 40),
    "a number and itself, in place": with_functions(
        ("f", "d", "for i in range(40):\n    d *= d"), body="f(9223372036854775807)"
    ),
    "rows of rows, unpacked": with_functions(("f", "", "return 1, 2"), body="x, y = f(), f()"),
    "a shape many times": with_text("t = tl.arange(0, 64).shape * 10000000000"),
    "a shape a constant of times": with_text("t = tl.arange(0, 64).shape * tl.constexpr(10000000000)"),
    "a text many times": with_functions(("f", "s", "x = s * 10000000000"), body="f('aaaa')"),
    "a shift": with_functions(
        ("f", "d, e", "x = (d + 0) << 64"), body="f(n.to(tl.int64), 1)\nx = 9223372036854775807 << 64"
    ),
    "bins": with_text("x = tl.histogram(tl.arange(0, 16), 268435456)"),
}


@pytest.mark.parametrize("name", GROWTH)
def test_values_of_python_do_not_grow_in_the_interpreter(name: str) -> None:
    with pytest.raises(TrustNeeded):
        SOURCES["sized"].call(loaded(GROWTH[name], "sized"))


def test_texts_in_a_kernel_do_not_become_its_lines() -> None:
    lines = "'what it does\\ndef scaled(a_ptr): 1 / 0'\ntl.device_assert(n > 0, 'a\\ndef scaled(a_ptr): 1 / 0')"
    SOURCES["sized"].call(loaded(with_text(lines), "sized"))


def test_functions_with_the_names_of_checks_do_not_leave_them_out() -> None:
    shadow = ("_operate_mult", "a, b", "return a")
    change = with_functions(shadow, body="x = (1, 2) * 10000000000")
    SOURCES["sized"].call(loaded(change, "sized"))  # it gives the row: nothing was multiplied


def test_an_axis_that_has_nothing_to_do_with_a_buffer_is_refused() -> None:
    def change(manifest: Manifest) -> None:
        manifest["kernels"][0]["axes"][0]["size"] = 48000144

    args, kwargs = example_inputs()
    with pytest.raises(FerriteRuntimeError):
        loaded(change)(*args, **kwargs)


HUGE = "0x" + "f" * 9000
"""More digits than Python writes in decimals."""


@pytest.mark.parametrize(
    "place",
    [
        lambda text: f"{text}\nhuge = {HUGE}\n",
        lambda text: f"{text}\nhuge = -{HUGE}\n",
        lambda text: f"{text}\nhuge = tl.constexpr({HUGE})\n",
        lambda text: f"{text}    y = {HUGE}\n",
        lambda text: f"{text}    y = tl.arange(0, 64)[{HUGE}]\n",
        lambda text: f"{text}\n\n@triton.jit\ndef g(q, w={HUGE}):\n    pass\n",
        lambda text: f"{text}\n\n@triton.jit\ndef g(q: {HUGE}):\n    pass\n",
        lambda text: f"{text}\n\n@triton.jit({HUGE})\ndef g(q):\n    pass\n",
    ],
)
def test_numbers_that_nobody_can_write_are_refused_by_name(place: Callable[[str], str]) -> None:
    def change(manifest: Manifest) -> None:
        (kernel,) = manifest["kernels"]
        kernel["source"] = place(kernel["source"])

    with pytest.raises(PackageInvalid, match=r"line \d+"):
        loaded(change, "sized")


@pytest.mark.parametrize(
    "more",
    [
        "\na = 1" * 40_000,
        "\nx = f'" + "{1}" * 4_000 + "'",
        "\nx = f'" + "{1}" * 80_000 + "'",
        "\nx = '" + "a" * 200_000 + "'",
        "\n\n\n@triton.jit\ndef f(a):\n" + "    b = a + 1\n" * 15_000,
    ],
)
def test_long_texts_are_read_in_a_time_that_grows_with_them(more: str) -> None:
    """The longest texts take some seconds of a busy processor; before, one with 600,000 characters took a minute."""
    start = time.process_time()
    with contextlib.suppress(PackageInvalid):
        loaded(lambda manifest: manifest["kernels"][0].update(source=manifest["kernels"][0]["source"] + more), "sized")
    assert time.process_time() - start < 10
