"""Single kernels, called with tensors."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ferrite_runtime import InputError, Kernel, KernelCompileError, KernelRunError, OptionError, Options
from ferrite_runtime.engines.size_buckets import bucket_of, bucket_text
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.loading.single_kernel import choice_bucket
from ferrite_runtime.process.options import RANGES
from runtime_kernels import pointwise, reduction_axis, row_softmax, scaled, spec, tensor

torch = pytest.importorskip("torch")


def test_kernel_runs_on_cpu_tensors() -> None:
    a, b, out = torch.randn(1000), torch.randn(1000), torch.empty(1000)
    kernel = Kernel(pointwise("a * b", 2))
    kernel(a, b, out)
    assert torch.equal(out, a * b)


def test_sizes_may_differ_from_call_to_call() -> None:
    kernel = Kernel(scaled())
    for n in (1, 0, 1000, 5000):
        a, out = torch.randn(5000), torch.zeros(5000)
        kernel(a, out, n, 2.0)
        assert torch.equal(out[:n], a[:n] * 2)
        assert not out[n:].any(), "nothing is written beyond the size"


def test_each_bucket_of_sizes_has_a_choice() -> None:
    """A row of another length needs another tile; rows of a known length need one only."""
    mapping = row_softmax(512, 1025)
    params = [*mapping["params"], {"name": "n", "role": "size", "dtype": "i32"}]
    axes = [mapping["axes"][0], reduction_axis("n", hint=2)]
    rows = KernelSpec.from_mapping(spec("rows", "", params, axes, form="persistent", facts=mapping["facts"]))
    buckets = [choice_bucket(rows, (None, None, length)) for length in (0, 1, 513, 1024, 1025)]
    assert [dict(bucket)["r"] for bucket in buckets] == [1, 1, 1024, 1024, 2048]
    assert choice_bucket(KernelSpec.from_mapping(mapping), (None, None)) == ()


def test_a_template_is_built_once_for_all_sizes() -> None:
    """What divides a number that is in no address is no reason to compile again."""
    params = [tensor("x"), {"name": "n", "role": "size", "dtype": "i32"}]
    template = KernelSpec.from_mapping(spec("rows", "", params, [], form="template", grid="n"))
    assert {bucket_of(template, {"n": size}) for size in (0, 1, 7, 8, 16)} == {()}
    assert bucket_text(template, {"n": "n"}) == "()"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1,), "takes 4 arguments, got 1"),
        ((torch.zeros(2).double(), torch.zeros(2), 2, 1.0), "'a_ptr' .* has dtype torch.float32, got torch.float64"),
        ((torch.zeros(2), 5, 2, 1.0), "'out_ptr' .* is a tensor, got int"),
        ((torch.zeros(2), torch.zeros(2), "two", 1.0), "'n' .* is a number, got str"),
        ((torch.zeros(2), torch.zeros(2, device="meta"), 2, 1.0), "are on"),
    ],
)
def test_wrong_argument_is_named(arguments: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Kernel(scaled())(*arguments)


def test_source_that_does_not_load_is_reported_with_its_origin() -> None:
    kernel = Kernel(pointwise("a +", origin=["aten.add (m.py:1)"]))
    with pytest.raises(KernelCompileError, match=r"kernel pointwise \(from aten.add \(m.py:1\)\).*SyntaxError"):
        kernel(torch.zeros(1000), torch.zeros(1000))


def test_kernel_that_fails_in_the_interpreter_is_named() -> None:
    kernel = Kernel(pointwise("tl.nothing(a)"))
    with pytest.raises(KernelRunError, match=r"kernel pointwise failed in the interpreter.*nothing"):
        kernel(torch.zeros(1000), torch.zeros(1000))


def test_parameters_of_source_and_spec_have_to_agree() -> None:
    mapping = scaled()
    from ferrite_runtime.formats.canonical_json import kernel_id

    mapping["params"] = mapping["params"][:-1]
    mapping["id"] = kernel_id(mapping)
    with pytest.raises(KernelCompileError, match="no axis and no fixed block gives factor a value"):
        Kernel(mapping)(torch.zeros(4), torch.zeros(4), 4)


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match=r"Options\.tune is 'most'; it can be none, default, quick, full, max"):
        Options(tune="most")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("workers", -1, "cannot be negative: it takes a number of processes from 0 to 1024"),
        ("workers", 2.5, "int or None"),
        ("workers", True, "int or None"),
        ("tuning_seconds", float("nan"), "a number of seconds from 0 on"),
        ("tuning_seconds", -1, "a number of seconds from 0 on"),
        ("tuning_seconds", None, "int or float"),
        ("compile_seconds", 0, "a number of seconds from 0.001"),
        ("compile_seconds", float("inf"), "a number of seconds from 0.001"),
        ("launcher", "drivr", "did you mean 'driver'"),
        ("native", None, "str, one of 'auto'"),
        ("cuda_graph", 1, "takes bool"),
        ("pins", 3, "str or a path or None"),
        ("ranks", "rank1", "did you mean 'rank0'"),
    ],
)
def test_each_option_has_a_range(name: str, value: object, reason: str) -> None:
    with pytest.raises(OptionError, match=rf"Options\.{name} is .*{reason}"):
        Options(**{name: value})  # type: ignore[arg-type]


def test_every_option_is_in_the_table_and_its_default_in_range() -> None:
    assert list(RANGES) == [field.name for field in dataclasses.fields(Options)]
    assert Options(tuning_seconds=float("inf"), compile_seconds=0.001, pins=Path("pins.json")).workers is None
