"""Kernels that people wrote: from a jitted function to a spec, a bundle, a launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import user_functions  # noqa: E402
from ferrite_runtime import (  # noqa: E402
    Bundle,
    InputError,
    Kernel,
    KernelSpec,
    NoValidVariant,
    OptionError,
    Options,
    SpecError,
    UserKernelError,
    bundle_kernels,
    load,
    user_kernel,
)
from ferrite_runtime.devices.descriptors import known_devices  # noqa: E402
from ferrite_runtime.formats.config import Config  # noqa: E402
from ferrite_runtime.formats.kernel_spec import Param  # noqa: E402
from ferrite_runtime.kernel_source.user_kernels import Launched, launched_kernel  # noqa: E402
from ferrite_runtime.kernel_source.user_text import DescribedTensor  # noqa: E402
from ferrite_runtime.policies.blocks import scratch_used  # noqa: E402
from ferrite_runtime.policies.candidates import configs  # noqa: E402
from ferrite_runtime.tuning.kernel_tuning import neighbours  # noqa: E402

SAXPY = {"x": "f32 read", "y": "f32 read", "out": "f32 write", "n": "i32", "a": "f32"}
INTERPRET = Options(interpret=True)


def saxpy(**changes) -> KernelSpec:
    given = {"grid": ("ceildiv", "n", "BLOCK"), "configs": [{"BLOCK": 256}, {"BLOCK": 1024, "num_warps": 8}]}
    return user_kernel(user_functions.saxpy, changes.pop("params", SAXPY), **{**given, **changes})


def test_configs_are_mappings_or_tritons() -> None:
    own = triton.Config({"BLOCK": 256}, num_warps=2, num_stages=1)
    assert saxpy(configs=[own]) == saxpy(configs=[{"BLOCK": 256, "num_warps": 2, "num_stages": 1}])
    with pytest.raises(UserKernelError, match=r"configs\[1\]: maxnreg of a triton.Config cannot be written down"):
        saxpy(configs=[own, triton.Config({"BLOCK": 256}, maxnreg=64)])
    with pytest.raises(UserKernelError, match=r"configs\[0\]: a int is neither a mapping nor a triton.Config"):
        saxpy(configs=[256])


@pytest.mark.parametrize("grid", [lambda meta: 1, "cdiv", ("ceildiv", "n", "BLOK")])
def test_a_grid_that_cannot_be_written_is_the_users(grid: Any) -> None:
    with pytest.raises(UserKernelError, match="grid") as caught:
        saxpy(grid=grid)
    assert "user_kernel" in caught.value.hint


def test_axes_of_one_program_are_left_out_of_a_spec() -> None:
    whole = ("ceildiv", "n", "BLOCK")
    assert saxpy(grid=[whole, 1, 1]) == saxpy(grid=[whole]) == saxpy(grid=whole)
    assert saxpy(grid=[whole, 1, 2]).grid_z == 2


@pytest.mark.parametrize("params", [3, list(SAXPY.items()), None])
def test_parameters_that_are_no_mapping_are_an_option_error(params: Any) -> None:
    with pytest.raises(OptionError, match=r"user_kernel: params is .*; it takes a mapping"):
        saxpy(params=params)


def test_what_describes_no_parameter_or_is_no_kernel_is_named() -> None:
    with pytest.raises(UserKernelError, match=r"params\.n: 3 does not begin with a dtype"):
        saxpy(params={**SAXPY, "n": 3})
    with pytest.raises(OptionError, match="user_kernel: configs is None; it takes a list"):
        saxpy(configs=None)
    for kernels in (3, [saxpy(), "add"]):
        with pytest.raises(OptionError, match=r"bundle_kernels: kernels is .*; it takes KernelSpec"):
            bundle_kernels(kernels)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (2.5, r"'n' of kernel saxpy is an integer \(i32\), got 2\.5"),
        (1 << 31, "'n' of kernel saxpy does not fit into 32 bits"),
    ],
)
def test_sizes_are_not_cut_off(number: Any, said: str) -> None:
    x = torch.ones(8)
    with pytest.raises(InputError, match=said):
        Kernel(saxpy(), INTERPRET)(x, x, x.clone(), number, 2.0)


def test_spec_holds_all_that_the_function_names() -> None:
    spec = saxpy()
    assert spec.form == "user"
    assert "ALPHA = triton.language.constexpr(2.0)" in spec.source
    assert spec.source.index("def doubled") < spec.source.index("def saxpy")
    assert KernelSpec.from_mapping(spec.to_mapping()) == spec
    assert [str(config) for config in spec.configs] == [
        "BLOCK=256, num_warps=4, num_stages=3",
        "BLOCK=1024, num_warps=8, num_stages=3",
    ]


def test_identity_does_not_depend_on_what_is_tried() -> None:
    assert saxpy().id == saxpy(configs=[{"BLOCK": 64}]).id
    assert saxpy().id != saxpy(params={**SAXPY, "out": "f32 readwrite"}).id


def test_configs_are_the_writers_and_nobody_goes_beyond() -> None:
    spec, device = saxpy(), known_devices()["h200"]
    assert configs(spec, device, "none") == spec.configs[:1]
    assert configs(spec, device, "default") == configs(spec, device, "max") == spec.configs
    assert neighbours(spec, device, spec.configs[0], {}) == ()


def test_bundle_of_kernels_compiles_and_runs(tmp_path: Path) -> None:
    outer = user_kernel(
        user_functions.outer,
        {"x": "f32 read", "y": "f32 read", "out": "f32 write", "m": "i32", "n": "i32"},
        grid=[("ceildiv", "n", "BLOCK"), "m"],
        configs=[{"BLOCK": 64}],
    )
    bundle = bundle_kernels([saxpy(), outer], targets=["sm_90"], ptx="sm_80", options=Options(tune="max", workers=1))
    bundle.save(tmp_path / "kernels.ferrite")
    assert sorted((e.form, str(e.target)) for e in bundle.binaries if e.kernel == outer.id) == [
        ("cubin", "sm_90"), ("cubin", "sm_90"), ("ptx", "sm_80"), ("ptx", "sm_80")
    ]  # fmt: skip
    loaded = load(tmp_path / "kernels.ferrite", options=INTERPRET)
    x, y = torch.randn(1000), torch.randn(1000)
    out = torch.empty(1000)
    loaded["saxpy"](x, y, out, 1000, 0.5)
    torch.testing.assert_close(out, x + y)
    table = torch.empty(7, 1000)
    loaded["outer"](x[:7].clone(), y, table, 7, 1000)
    torch.testing.assert_close(table, x[:7, None] * y)


def test_fixed_constants_may_be_anything() -> None:
    spec = user_kernel(
        user_functions.powered,
        {"x": "f32 readwrite", "n": "i32"},
        ("ceildiv", "n", "BLOCK"),
        [{"BLOCK": 64}],
        TIMES=3,
        NEGATE=True,
    )
    assert spec.mutated == ("x",)
    x = torch.randn(100)
    expected = -(x**3)
    load(Bundle("b", {spec.id: spec}), options=INTERPRET)["powered"](x, 100)
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"params": {"x": "f32 read"}}, r"configs\[0\]: gives no value for y, out, n, a"),
        ({"params": {**SAXPY, "x": "f31 read"}}, "params.x: 'f31 read' does not begin with a dtype"),
        ({"params": {**SAXPY, "x": "f32 reads"}}, "params.x"),
        ({"params": {"y": "f32 read", "x": "f32 read"}}, r"takes \(x, y"),
        ({"configs": [{"BLOCKS": 4}]}, r"configs\[0\]"),
        ({"configs": [{"BLOCK": 4, "num_warps": 3}]}, "num_warps"),
        ({"grid": ("ceildiv", "m", "BLOCK")}, "grid"),
        ({"grid": [1, 2, 3, 4]}, "one to three axes"),
    ],
)
def test_wrong_description_is_named(changes, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        saxpy(**changes)


def test_global_that_cannot_be_written_down_is_named() -> None:
    with pytest.raises(SpecError, match=r"listed \(.*user_functions.py:\d+\) uses NAMES, a list"):
        user_kernel(user_functions.listed, {"x": "i32 write"}, 1, [{"BLOCK": 1}])


COPY = {"x": "f32 read", "out": "f32 write", "n": "i32"}


def run_copy(function: Any, x: torch.Tensor) -> tuple[KernelSpec, torch.Tensor]:
    """Returns a kernel's spec, and what it writes: by itself and out of a bundle."""
    spec = user_kernel(function, COPY, ("ceildiv", "n", "BLOCK"), [{"BLOCK": 32}])
    out, again = torch.empty_like(x), torch.empty_like(x)
    Kernel(spec, INTERPRET)(x, out, x.numel())
    bundle = Bundle("b", {spec.id: spec})
    load(Bundle.from_bytes(bundle.to_bytes()), options=INTERPRET)[spec.name](x, again, x.numel())
    torch.testing.assert_close(out, again)
    return spec, out


def test_attributes_and_keywords_are_no_names_of_the_module() -> None:
    x = torch.randn(50)
    spec, out = run_copy(user_functions.beside_functions, x)
    assert "tl.load(x + i, mask=i < n)" in spec.source
    torch.testing.assert_close(out, x * 2)


def test_names_of_several_modules_are_kept_apart() -> None:
    x = torch.randn(50)
    spec, out = run_copy(user_functions.same_names, x)
    torch.testing.assert_close(out, (x + 10) * 6)
    constants = ("ALPHA = triton.language.constexpr(2.0)", "ALPHA_2 = triton.language.constexpr(10.0)")
    assert all(text in spec.source for text in constants)
    assert "LIMIT = triton.language.constexpr(1e999)" in spec.source
    assert "BLOCK: tl.constexpr = 64" in spec.source
    assert "return tl.load(pointer, mask) + ALPHA_2" in spec.source
    assert "``x`` is loaded first: é, tl.load." in spec.source
    for member in ("tl.program_id(0)", "tl.arange(0, BLOCK)", "tl.float32", "tl.exp2(", "tl.maximum("):
        assert member in spec.source


def test_a_kernel_around_another_makes_its_descriptors() -> None:
    tensors = {"x": DescribedTensor((64, 16), (16, 1), (8, 16))}
    launched = Launched(
        (Param("x", "tensor", "f32", "read", 16), Param("y", "tensor", "f32", "read", 16)),
        {"out": None, "n": 1, "a": 2.0, "BLOCK": 64},
        (Config.of({}, 4, 3),),
        ((2, 3, 1),),
        scratch=Param("scratch", "tensor", "i64", "scratch", 128, elements=96, each=16),
        described=tensors,
    )
    spec = launched_kernel(user_functions.saxpy, launched)
    assert spec.name == "saxpy_described"
    assert spec.source.endswith(
        "\n\n@triton.jit\ndef saxpy_described(scratch, x, y, out: tl.constexpr, n: tl.constexpr, a: tl.constexpr, "
        "BLOCK: tl.constexpr):\n    saxpy(x=tl.make_tensor_descriptor(x, [64, 16], [16, 1], [8, 16]), y=y, out=out, "
        "n=n, a=a, BLOCK=BLOCK)\n"
    )
    assert [param.name for param in spec.params] == ["scratch", "x", "y"]
    assert scratch_used(spec, {}) == 6, "along all axes"


def test_what_an_enclosing_function_binds_is_found() -> None:
    x = torch.randn(50)
    for factor in (3, 5):
        spec, out = run_copy(user_functions.make_closure(factor), x)
        torch.testing.assert_close(out, 2 * x * factor + factor + 1)
        assert "def doubled" in spec.source


def test_kernel_of_many_modules_compiles() -> None:
    spec = user_kernel(user_functions.same_names, COPY, ("ceildiv", "n", "BLOCK"), [{"BLOCK": 32}])
    assert bundle_kernels(spec, targets=["sm_90"], options=Options(workers=1)).binaries


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (user_functions.undefined, r"undefined \(.*user_functions.py:\d+\) uses NAN, a float"),
        (user_functions.load, "load is a function; give a function with @triton.jit"),
        (user_functions.autotuned, "autotuned comes with configs of its own"),
        ("saxpy", "saxpy is a str"),
    ],
)
def test_what_is_no_kernel_to_write_down_is_named(function: Any, message: str) -> None:
    with pytest.raises(UserKernelError, match=message):
        user_kernel(function, {"x": "f32 write"}, 1, [{"BLOCK": 1}])


def test_kernel_without_a_source_is_named() -> None:
    scope: dict[str, Any] = {"triton": triton, "tl": triton.language}
    exec("def lost(x, BLOCK: tl.constexpr):\n    tl.store(x, 1)\n", scope)
    jitted = triton.runtime.interpreter.InterpretedFunction(scope["lost"])
    with pytest.raises(UserKernelError, match=r"no source of lost .*; write the kernel into a file"):
        user_kernel(jitted, {"x": "f32 write"}, 1, [{"BLOCK": 1}])


def test_kernel_that_compiles_for_no_target_lists_its_reasons() -> None:
    spec = saxpy(configs=[{"BLOCK": 100}, {"BLOCK": 300}])
    with pytest.raises(NoValidVariant, match="no config that compiles for sm_90") as caught:
        bundle_kernels(spec, targets=["sm_90"], options=Options(tune="max", workers=1))
    assert caught.value.reasons


@pytest.mark.parametrize(("function", "name"), [("_underscored", "underscored"), ("host", "kernel_host")])
def test_a_name_that_specs_do_not_have_is_another_in_the_text(function: str, name: str) -> None:
    given = getattr(user_functions, function)
    spec = user_kernel(given, {"x": "f32 read", "out": "f32 write", "n": "i32"}, 4, configs=[{"BLOCK": 16}])
    assert spec.name == name
    assert spec.origin == (function,)
    x, out = torch.randn(60), torch.empty(60)
    Kernel(spec, INTERPRET)(x, out, 60)
    torch.testing.assert_close(out, x * 2)
